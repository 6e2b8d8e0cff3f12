"""Rehearsals carried out in this process, and what they must leave as it is."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.manifest.manifest import read_manifest, write_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans import rehearsal
from streamkeeper.recover.plans.kind import Work, kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.plans.rehearsal import Evidence
from streamkeeper.settings import Settings
from tests.worlds.flow_world import Flowbed


def original(root: Path) -> dict[str, tuple[str, int]]:
    """Return the hash and the time of every file that flows keep: all but ledgers and manifests."""
    return {
        str(file.relative_to(root)): (
            hashlib.sha256(file.read_bytes()).hexdigest(),
            file.stat().st_mtime_ns,
        )
        for part in ("state", "warehouse", "data")
        for file in (root / part).rglob("*")
        if file.is_file() and not {"ledger", "manifests", "__rehearsals"} & set(file.parts)
    }


def planned(settings: Settings, of: str, as_id: str = "r1", **values: Any) -> Plan:
    """Plan a recovery, and write the plan to the ledger."""
    write_manifest(settings)
    chosen = kind(of)
    request = chosen.parse(values, read_manifest(settings), "a test")
    return engine.propose(settings, engine.plan(settings, chosen, request, as_id))


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
