"""The Spark step of ``adopt``: a dry run of the declaration on a copy of the checkpoint.

The adoption itself is done by the flow's next driver.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.errors import RecoveryError
from streamkeeper.flows import adopted_checkpoint
from streamkeeper.manifest.environment import opened_flow
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.restart import adoption_rehearsal
from streamkeeper_jobs.driver.driver import declared_in, find
from streamkeeper_jobs.recover.dry_run import Rehearsal, rehearse


def act(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Do the dry run, and check that the old job has written nothing since the plan was made.

    :raises RecoveryError: the declaration does not fit the checkpoint, or the old job still writes; nothing
        was changed.
    """
    planned = work.plan.flows[0]
    checkpoint = adopted_checkpoint.open_adopted(planned.start)
    adoption_rehearsal.check_still(checkpoint, planned)
    home, file = find(work.settings, planned.flow)
    flow = declared_in(load_pipeline(file, work.settings.data), home.flow)
    if flow.fingerprint != planned.fingerprint:
        raise RecoveryError(
            f"The declaration of {planned.flow} changed since the plan was made ({planned.fingerprint} →"
            f" {flow.fingerprint}). Nothing was changed. Give this recovery up (streamkeeper abandon"
            f" {work.plan.recovery_id}) and plan again."
        )
    adoption_rehearsal.remove_rehearsals(home, planned, work.plan.recovery_id)
    attempt = sum(event.event == f"{work.step}.started" for event in work.book.events())
    folder = f"{adoption_rehearsal.rehearsals(home, planned, work.plan.recovery_id)}{attempt:03d}"
    rehearsal = Rehearsal(
        home, opened_flow(flow, work.settings), checkpoint, int(planned.position["batch"]), folder, work
    )
    found = rehearse(spark, work.settings, rehearsal)
    adoption_rehearsal.check_still(checkpoint, planned)
    return {"checkpoint": planned.start.checkpoint, **found}
