"""The rehearsal of an adoption: where it runs, and whether the checkpoint is still as it was planned upon."""

from __future__ import annotations

import hashlib

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.errors import RecoveryError
from streamkeeper.flows.files import FlowHome
from streamkeeper.recover.plans.plan import FlowPlan


def check_still(checkpoint: Checkpoint, planned: FlowPlan) -> None:
    """Check that a checkpoint is as it was planned upon.

    :raises RecoveryError: it is not.
    """
    before = (planned.position["last_commit"], planned.position["planned"])
    now = (checkpoint.last_commit(), max(checkpoint.offset_batches(), default=None))
    if now != before:
        raise RecoveryError(
            f"The checkpoint at {planned.start.checkpoint} went from batch {before[0]} (planned:"
            f" {before[1]}) to {now[0]} (planned: {now[1]}) since the plan was made: the old job still"
            " runs. Nothing was changed. Stop it, and plan the adoption again."
        )


def rehearsals(home: FlowHome, planned: FlowPlan, recovery: str) -> str:
    """Return what the names of the folders begin with that a recovery rehearses in, each attempt at it in one
    of its own.

    They are named as attempts to begin the generation are, of an epoch that no driver has, so what a kill
    leaves goes with those.
    """
    assert planned.next_generation is not None, "an adoption is a flow's next generation"
    ours = int(hashlib.sha256(recovery.encode()).hexdigest()[:12], 16)
    return f"{home.checkpoint(planned.next_generation, 0)}{ours:015d}"


def remove_rehearsals(home: FlowHome, planned: FlowPlan, recovery: str) -> None:
    """Remove what a recovery rehearsed in: a JVM that is left of an attempt fails then."""
    folder, _, prefix = rehearsals(home, planned, recovery).rpartition("/")
    for name in home.storage.names(folder):
        if name.startswith(prefix):
            home.storage.remove(f"{folder}/{name}")
