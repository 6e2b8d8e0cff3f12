"""The step of ``adopt`` that needs Spark: the declaration is tried on a copy of the checkpoint. The flow's next driver adopts it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from streamkeeper import adopted
from streamkeeper.errors import RecoveryError
from streamkeeper.loading import load_pipeline
from streamkeeper.opening import opened_flow
from streamkeeper.recovery_kinds import Work
from streamkeeper_jobs.driver import declared_in, find
from streamkeeper_jobs.rehearsing import Rehearsal, rehearse


def act(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Rehearse, and make sure that the old job wrote nothing since the plan was made.

    :raises RecoveryError: the declaration does not fit the checkpoint, or the old job still writes; nothing was changed.
    """
    planned = work.plan.flows[0]
    checkpoint = adopted.open_adopted(planned.start)
    adopted.check_still(checkpoint, planned)
    home, file = find(work.settings, planned.flow)
    flow = declared_in(load_pipeline(file, work.settings.data), home.flow)
    if flow.fingerprint != planned.fingerprint:
        raise RecoveryError(
            f"The declaration of {planned.flow} changed since the plan was made ({planned.fingerprint} → {flow.fingerprint}). Nothing was "
            f"changed. Give this recovery up (streamkeeper abandon {work.plan.recovery_id}) and plan anew."
        )
    adopted.remove_rehearsals(home, planned, work.plan.recovery_id)
    attempt = sum(event.event == f"{work.step}.started" for event in work.book.events())
    folder = f"{adopted.rehearsals(home, planned, work.plan.recovery_id)}{attempt:03d}"
    rehearsal = Rehearsal(home, opened_flow(flow, work.settings), checkpoint, int(planned.position["batch"]), folder, work)
    found = rehearse(spark, work.settings, rehearsal)
    adopted.check_still(checkpoint, planned)
    return {"checkpoint": planned.start.checkpoint, **found}
