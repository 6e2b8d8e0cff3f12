"""Restores of real tables: what was backed up is put back whole, flows go on from where it stood, and a kill
anywhere changes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.recover import restore_table

from streamkeeper.delta import log as delta_log
from streamkeeper.errors import RecoveryError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import OFFSETS
from streamkeeper.recover import engine
from streamkeeper.tables import backups, recovery_lock
from tests.killing import Killed
from tests.worlds.flow_world import Flowbed, pipeline
from tests.worlds.suites import long_after
from tests.worlds.tables.backup_world import Recoverer
from tests.worlds.tables.customers_world import INCREMENTAL, SNAPSHOT, CustomersBed, delete, truncate, upsert

TABLE = "events.events"
OTHER = """

dp.create_source("more_raw", format="json", path="{data}/more", \
schema="event_id STRING, user_id INT, n INT, event_time TIMESTAMP")

@dp.append_flow(name="more_events", target="events", sources=["more_raw"], trigger="200 milliseconds")
def more_events(raw):
    return raw
"""


@pytest.fixture
def customers(tmp_path: Path, spark: SparkSession) -> CustomersBed:
    return CustomersBed.make(tmp_path / "a bed", spark)


def drop(table: Path) -> None:
    shutil.rmtree(table)


def leave(table: Path) -> None:
    """Nothing happens to the table besides what its flow wrote."""


def number_of(home: FlowHome) -> int:
    newest = generations.latest(home)
    assert newest is not None
    return newest.number


@pytest.mark.parametrize("then", long_after(1, [drop, leave]), ids=["dropped", "still there"])
def test_an_append_flow_goes_on_from_the_batch_that_belongs_to_the_backup(
    bed: Flowbed, at_work: Recoverer, then: Callable[[Path], None]
) -> None:
    for numbers in ((0, 1, 2), (3, 4), (5, 5, 1)):
        bed.arrive(*numbers)
    assert bed.run() is Outcome.STOPPED
    at_work.backup("b1", TABLE)
    bed.arrive(6, 7)
    bed.arrive(7, 0)
    assert bed.run() is Outcome.STOPPED
    then(bed.table)
    evidence = at_work.run("restore_table", "r1", table=TABLE, backup="newest")
    assert evidence["verify_rows"]["checksum"]["rows"] == 6
    assert number_of(bed.home) == 2
    bed.arrive(8)
    assert bed.run() is Outcome.STOPPED
    bed.holds(list({event["event_id"]: event for event in bed.events}.values()))


@pytest.mark.long
def test_an_old_backup_is_gone_on_from_by_the_offsets_that_it_kept_in_the_generation_that_it_was_made_in(
    bed: Flowbed, at_work: Recoverer
) -> None:
    bed.arrive(0, 1)
    bed.arrive(2, 2, 3)
    assert bed.run() is Outcome.STOPPED
    at_work.backup("b1", TABLE)
    bed.arrive(4, 0)
    assert bed.run() is Outcome.STOPPED
    bed.reset()
    bed.arrive(5)
    assert bed.run() is Outcome.STOPPED
    first = Path(bed.settings.state) / bed.start(1).checkpoint
    for name in (
        "offsets/0",
        "commits/0",
        "offsets/.0.crc",
        "commits/.0.crc",
    ):  # as Spark does with all but the last batches
        (first / name).unlink()
    at_work.run("restore_table", "r1", table=TABLE, backup="b1")
    decided = generations.latest(bed.home)
    assert decided is not None
    assert (decided.number, decided.start.mode, decided.start.generation) == (3, OFFSETS, 1)
    assert bed.run() is Outcome.STOPPED
    bed.holds(list({event["event_id"]: event for event in bed.events}.values()))


@pytest.mark.long
def test_a_flow_that_is_not_declared_while_its_table_is_backed_up_goes_on_from_the_batch_that_the_backup_has(
    bed: Flowbed, at_work: Recoverer
) -> None:
    """Its rows are in the backup: from its beginning each would come twice."""
    bed.declare(pipeline(view="") + OTHER)
    bed.arrive(0, 1)
    bed.arrive(2, 3, folder="more")
    assert (bed.run(), bed.run("events.more_events")) == (Outcome.STOPPED, Outcome.STOPPED)
    bed.declare(pipeline(view=""))
    entry = at_work.backup("b1", TABLE)
    assert {flow["flow"]: flow["batch"] for flow in entry["flows"]} == {
        "events.clean_events": 0,
        "events.more_events": 0,
    }
    bed.declare(pipeline(view="") + OTHER)
    bed.arrive(4, folder="more")
    assert bed.run("events.more_events") is Outcome.STOPPED
    at_work.run("restore_table", "r1", table=TABLE, backup="b1")
    assert (bed.run(), bed.run("events.more_events")) == (Outcome.STOPPED, Outcome.STOPPED)
    bed.holds(bed.events)


def test_a_version_is_put_back_and_its_flow_reads_again_what_came_after_it(
    bed: Flowbed, at_work: Recoverer
) -> None:
    for numbers in ((0, 1), (2, 3), (4, 4, 0), (5, 6)):  # two files a batch
        bed.arrive(*numbers)
        assert bed.run() is Outcome.STOPPED
    before = delta_log.latest_version(str(bed.table))
    assert before is not None
    evidence = at_work.run("restore_table", "r1", table=TABLE, version=before - 2)
    assert evidence["verify_rows"]["checksum"]["rows"] == 4
    assert bed.run() is Outcome.STOPPED
    assert number_of(bed.home) == 2
    bed.holds(list({event["event_id"]: event for event in bed.events}.values()))


@pytest.mark.long
def test_a_table_is_put_back_with_what_it_remembers_whatever_step_is_killed(
    customers: CustomersBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, at_work = customers, Recoverer.of(customers.of())
    bed.take_snapshot(1, 2, 3)
    bed.change(upsert(4, 1), upsert(1, 2))
    bed.change(delete(2, 3), upsert(5, 3))
    assert (bed.run(SNAPSHOT), bed.run()) == (Outcome.DONE, Outcome.STOPPED)
    entry = at_work.run("backup_table", "b1", killed=True, table="customers.customers")["enter"]["backups"][0]
    remembered = sorted(map(str, bed.remembered().collect()))
    assert {flow["flow"]: flow["done"] for flow in entry["flows"]} == {
        f"customers.{INCREMENTAL}": False,
        f"customers.{SNAPSHOT}": True,
    }
    held = bed.rows()
    bed.change(truncate(4), upsert(6, 5))
    bed.change(upsert(4, 6), delete(1, 7), delete(6, 1))
    assert bed.run() is Outcome.STOPPED
    shutil.rmtree(bed.table)
    at_work.plan("restore_table", "r1", table="customers.customers", backup=entry["id"])
    _put_back_killed_at_each_step(at_work, monkeypatch)
    assert sorted(map(str, bed.rows())) == sorted(map(str, held))
    assert sorted(map(str, bed.remembered().collect())) == remembered
    assert (number_of(bed.home()), number_of(bed.home(SNAPSHOT))) == (
        2,
        1,
    ), "the snapshot was done, and stays done"
    assert recovery_lock.holder(bed.home().storage, "customers", "customers") is None
    assert bed.home().owners() == []
    bed.change(upsert(7, 8), upsert(2, 2))
    assert bed.run() is Outcome.STOPPED
    bed.is_exact()


def _put_back_killed_at_each_step(at_work: Recoverer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carry out the restore ``r1``: every step is killed at its end, and ``put_back`` before its commit
    too.
    """

    def killed(*_: Any) -> dict[str, Any]:
        raise Killed

    for step in ("hold", "plan_again", "check_copy", "copy_back", "decide"):
        at_work.step_killed_at_its_end("r1", step)
    with monkeypatch.context() as patched:
        patched.setattr(restore_table, "_put_back", killed)
        with pytest.raises(Killed):
            at_work.step("r1", "put_back")
    assert not engine.give_up(at_work.settings, at_work.pipeline, "r1", "too late"), (
        "a table may have been restored already"
    )
    with pytest.raises(RecoveryError, match="needed by r1"):
        backups.remove(at_work.settings, "customers", "customers", "b1")
    for step in ("put_back", "verify_rows", "release"):
        at_work.step_killed_at_its_end("r1", step)
