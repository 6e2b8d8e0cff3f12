"""Rehearsals carried out in this process, and what they must leave as it is."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from streamkeeper.recover import engine
from streamkeeper.recover.plans import rehearsal
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.plans.rehearsal import Evidence
from tests.worlds.flow_world import Flowbed
from tests.worlds.tables.backup_world import Recoverer


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


def planned(bed: Flowbed, of: str, as_id: str = "r1", /, **values: Any) -> Plan:
    """Plan a recovery, and write the plan to the ledger."""
    return engine.propose(bed.settings, Recoverer.of(bed).draft(of, as_id, **values))


def rehearse(bed: Flowbed, plan: Plan) -> Evidence:
    """Carry out the step that rehearses, and return what it came to."""
    return rehearsal.read(Recoverer.of(bed).step(plan.recovery_id, rehearsal.REHEARSE))


def for_real(bed: Flowbed, plan: Plan) -> None:
    """Approve what was rehearsed, with its impacts, and carry the rest of it out."""
    accepted = {item.impact for item in plan.refusals if item.impact}
    engine.approve(bed.settings, plan.pipeline, plan.recovery_id, "a test", accepted=accepted)
    Recoverer.of(bed).carry_out(plan)
