"""The step of ``adopt`` that needs Spark: the declaration is tried on a copy of the checkpoint. The flow's next driver adopts it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from streamkeeper import adopted, common_steps
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.errors import RecoveryError
from streamkeeper.home import FlowHome
from streamkeeper.loading import load_pipeline
from streamkeeper.opening import opened_flow
from streamkeeper.plans import FlowPlan
from streamkeeper.recovery_kinds import Work
from streamkeeper_jobs.driver import declared_in, find
from streamkeeper_jobs.rehearsing import Rehearsal, rehearse


def act(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Rehearse, and make sure that the old job wrote nothing since the plan was made under the hold.

    :raises PlanRefused: the price was not accepted.
    :raises RecoveryError: the declaration does not fit the checkpoint, or the old job still writes; nothing was changed.
    """
    common_steps.check_go(work)
    planned = common_steps.plan_under_hold(work).flows[0]
    checkpoint = adopted.open_adopted(planned.start)
    _check_still(checkpoint, planned)
    home, file = find(work.settings, planned.flow)
    flow = declared_in(load_pipeline(file, work.settings.data), home.flow)
    if flow.fingerprint != planned.fingerprint:
        raise RecoveryError(
            f"The declaration of {planned.flow} changed since the plan was made ({planned.fingerprint} → {flow.fingerprint}). Nothing was "
            f"changed. Give this recovery up (streamkeeper abandon {work.plan.recovery_id}) and plan anew."
        )
    rehearsal = Rehearsal(
        home, opened_flow(flow, work.settings), checkpoint, int(planned.position["batch"]), _stage(work, home, planned), work
    )
    found = rehearse(spark, work.settings, rehearsal)
    _check_still(checkpoint, planned)
    return {"checkpoint": planned.start.checkpoint, **found}


def _stage(work: Work, home: FlowHome, planned: FlowPlan) -> str:
    """Give a folder that no other attempt at this step has, and remove those of earlier ones: a JVM that is left of one fails then.

    They are named as attempts to begin the generation are, of an epoch that no driver has, so what a kill leaves goes with those.
    """
    assert planned.next_generation is not None, "an adoption is a flow's next generation"
    stage = home.checkpoint(planned.next_generation, 0)
    folder, _, prefix = stage.rpartition("/")
    for name in home.storage.names(folder):
        if name.startswith(prefix):
            home.storage.remove(f"{folder}/{name}")
    attempt = sum(event.event == f"{work.step}.started" for event in work.book.events())
    return f"{stage}{attempt:03d}"


def _check_still(checkpoint: Checkpoint, planned: FlowPlan) -> None:
    """Make sure that a checkpoint is as it was planned upon.

    :raises RecoveryError: it is not.
    """
    before = (planned.position["last_commit"], planned.position["planned"])
    now = (checkpoint.last_commit(), max(checkpoint.offset_batches(), default=None))
    if now != before:
        raise RecoveryError(
            f"The checkpoint at {planned.start.checkpoint} moved on from batch {before[0]} (planned: {before[1]}) to {now[0]} (planned: "
            f"{now[1]}) while it was looked at: the old job still runs. Nothing was changed. Stop it, and plan the adoption anew."
        )
