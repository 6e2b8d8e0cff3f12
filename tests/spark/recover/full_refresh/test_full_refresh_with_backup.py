"""A full refresh with backup, filled from the backup or from the sources, every step of it, on the customers
pipeline.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamkeeper.exit_codes import Outcome
from streamkeeper.recover import engine
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.storage import open_storage
from streamkeeper.tables import backups, recovery_lock
from tests.worlds.tables.backup_world import Recoverer
from tests.worlds.tables.customers_world import INCREMENTAL, SNAPSHOT, CustomersBed, delete, truncate, upsert

RECOVERY = "full-refresh-test-0badcafe"


@pytest.fixture
def bed(tmp_path: Path, spark: SparkSession) -> CustomersBed:
    """Two flows have filled the table, one is done; the files of the first changes are gone since."""
    bed = CustomersBed.make(tmp_path, spark)
    bed.take_snapshot(1, 2, 3)
    first = bed.change(upsert(1, 10), delete(2, 10), upsert(4, 10))
    assert bed.run(INCREMENTAL) is Outcome.STOPPED
    assert bed.run(SNAPSHOT) is Outcome.DONE
    bed.change(upsert(5, 20), delete(4, 20))
    assert bed.run(INCREMENTAL) is Outcome.STOPPED
    first.unlink()
    return bed


def carry_out(bed: CustomersBed, **values: Any) -> Plan:
    """Carry out every step, twice each: the second finds what the first did. The flows run before their
    progress is looked for.
    """
    at_work = Recoverer.of(bed.of())
    plan = at_work.plan("full_refresh_with_backup", RECOVERY, table="customers", **values)
    assert not plan.refusals
    for step in plan.steps:
        if step == "verify_progress":
            for flow in plan.flows:
                if flow.next_generation is not None:
                    assert bed.run(flow.name) in (Outcome.STOPPED, Outcome.DONE)
        for _ in range(2 if engine.without_spark(bed.settings, "customers", RECOVERY, step) is None else 1):
            at_work.step(RECOVERY, step)
    assert not engine.is_open(bed.settings, "customers", RECOVERY)
    assert recovery_lock.holder(open_storage(bed.settings.state), "customers", "customers") is None
    assert bed.home().owners() == bed.home(SNAPSHOT).owners() == []
    return plan


def test_history_that_the_sources_have_no_more_comes_back_from_the_backup(bed: CustomersBed) -> None:
    bed.change(upsert(6, 30))
    plan = carry_out(bed, fill_from="backup")
    assert [flow.next_generation for flow in plan.flows] == [2, None], "the snapshot stays done"
    bed.is_exact()
    bed.change(upsert(4, 15), upsert(2, 5), upsert(3, 1))
    assert bed.run(INCREMENTAL) is Outcome.STOPPED
    bed.is_exact()
    (entry,) = backups.listed(open_storage(bed.settings.state), "customers", "customers")
    assert (entry.id, entry.copy.checksum.rows) == (RECOVERY, 3)


@pytest.mark.long
def test_from_the_sources_it_asks_for_what_they_lack_and_the_backup_has_it(bed: CustomersBed) -> None:
    impacts = Recoverer.of(bed.of()).impacts("full_refresh_with_backup", table="customers")
    assert set(impacts) == {"data-loss"}
    carry_out(bed, accept=["data-loss"])
    assert bed.run(SNAPSHOT) is Outcome.DONE
    bed.is_exact([upsert(5, 20), delete(4, 20), *bed.snapshot])
    (entry,) = backups.listed(open_storage(bed.settings.state), "customers", "customers")
    assert entry.copy.checksum.rows == 3
    bed.change(truncate(40), upsert(9, 41))
    assert bed.run(INCREMENTAL) is Outcome.STOPPED
    bed.is_exact()
