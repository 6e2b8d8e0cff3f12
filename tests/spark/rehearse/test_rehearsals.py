"""Rehearsals: a recovery is carried out on a copy, its evidence is what the real one then does, and nothing of
the original is changed.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamkeeper.errors import RecoveryError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import ledger
from streamkeeper.manifest.manifest import read_manifest, write_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans import rehearsal
from streamkeeper.recover.plans.kind import Work, kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.plans.rehearsal import Evidence
from streamkeeper.recover.steps.rehearse import folder
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from tests.worlds.flow_world import NAME, Flowbed, pipeline
from tests.worlds.suites import long_after

DISTINCT, PLAIN = pipeline(), pipeline(view="")


def planned(settings: Settings, of: str, recovery: str = "r1", **values: Any) -> Plan:
    """Plan a recovery, and write the plan to the ledger."""
    write_manifest(settings)
    chosen = kind(of)
    request = chosen.parse(values, read_manifest(settings), "a test")
    return engine.propose(settings, engine.plan(settings, chosen, request, recovery))


def carry_out(spark: SparkSession, settings: Settings, plan: Plan, *steps: str) -> dict[str, Any]:
    """Carry out steps of a recovery, and return the evidence of the last."""
    from streamkeeper_jobs.recover.steps import perform

    def in_spark(act: str, work: Work) -> dict[str, Any]:
        return perform(spark, act, work)

    evidence: dict[str, Any] = {}
    for step in steps:
        evidence = engine.carry_out(settings, plan.pipeline, plan.recovery_id, step, in_spark)
    return evidence


def rehearse(bed: Flowbed, plan: Plan) -> Evidence:
    """Carry out the step that rehearses, and return what it came to."""
    return rehearsal.read(carry_out(bed.spark, bed.settings, plan, rehearsal.REHEARSE))


def original(bed: Flowbed) -> dict[str, tuple[str, int]]:
    """Return the bytes, as a hash, and the time of every file that flows keep: all but ledgers and manifests."""
    return {
        str(file.relative_to(bed.root)): (
            hashlib.sha256(file.read_bytes()).hexdigest(),
            file.stat().st_mtime_ns,
        )
        for part in ("state", "warehouse", "data")
        for file in (bed.root / part).rglob("*")
        if file.is_file() and not {"ledger", "manifests", "__rehearsals"} & set(file.parts)
    }


def is_gone(bed: Flowbed, plan: Plan) -> bool:
    return not Path(folder(bed.settings, plan.recovery_id)).exists()


RECOVERIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("reset_checkpoint", {"flow": NAME, "start": "after-last"}),
    ("rewind", {"flow": NAME, "batch": "0", "target": "restored"}),
    ("full_refresh", {"table": "events.events"}),
    ("reset_checkpoint", {"flow": NAME, "start": "earliest", "state": "empty", "accept": ["repeats"]}),
    ("full_refresh_with_backup", {"table": "events.events"}),
    ("full_refresh_beside", {"table": "events.events"}),
    ("restore_table", {"table": "events.events", "version": 1}),
    ("backfill", {"flow": NAME, "read": "history", "accept": ["repeats"]}),
)


@pytest.mark.parametrize(
    ("of", "values"), long_after(2, RECOVERIES), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_rehearsal_comes_to_what_the_recovery_then_does_and_changes_nothing(
    of: str, values: dict[str, Any], make_bed: Callable[..., Flowbed]
) -> None:
    bed = make_bed(pipeline(view="", files=1) if of == "backfill" else pipeline(files=1))
    for numbers in ((1, 2, 3), (3, 4), (5, 6)):
        bed.arrive(*numbers)
    assert bed.run() is Outcome.STOPPED
    plan = planned(bed.settings, of, rehearse=True, **values)
    before = original(bed)
    evidence = rehearse(bed, plan)
    assert original(bed) == before, "nothing is changed"
    assert is_gone(bed, plan)
    assert [one.step for one in evidence.steps] == [step for step in plan.steps if step != rehearsal.REHEARSE]
    engine.approve(
        bed.settings,
        plan.pipeline,
        plan.recovery_id,
        "a test",
        accepted={item.price for item in plan.refusals if item.price},
    )
    rest = [step for step in plan.steps if step not in (rehearsal.REHEARSE, "verify_progress")]
    carry_out(bed.spark, bed.settings, plan, *rest)
    if "verify_progress" in plan.steps:
        assert bed.run() is Outcome.STOPPED
    [table] = evidence.tables
    from streamkeeper_jobs.rehearse.differences import compare

    real = compare(bed.spark, "events", str(bed.table), None, ())
    assert (table.rows_after, table.checksum_after) == (real.rows_after, real.checksum_after), evidence.as_text()
