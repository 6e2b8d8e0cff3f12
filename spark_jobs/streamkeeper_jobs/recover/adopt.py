"""The Spark step of ``adopt``: a dry run of each declaration on a copy of its checkpoint.

The adoption itself is done by each flow's next driver.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.errors import RecoveryError
from streamkeeper.manifest.environment import opened_flow
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe import adopted_checkpoint
from streamkeeper.recover.kinds.adopt import batches_of, check_still, remove_trials
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import FlowPlan
from streamkeeper_jobs.catalog.named_sources import looked_up
from streamkeeper_jobs.driver.driver import declared_in, find
from streamkeeper_jobs.spark.stateful_operators import stateful_operators
from streamkeeper_jobs.trial.trial import DoesNotFit, Trial, dry_run


def act(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Do the dry runs, and check that the old jobs have written nothing since the plan was made.

    :raises RecoveryError: a declaration does not fit its checkpoint, or an old job still writes; nothing was
        changed. Of several flows, each of these is named.
    """
    remove_trials(work)
    operators, wrong = list[str](), list[RecoveryError]()
    for planned in work.plan.flows:
        work.check_stop()
        try:
            operators += _try(spark, work, planned)
        except RecoveryError as error:
            wrong.append(error)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise RecoveryError("\n".join(f"- {error}" for error in wrong))
    return {"batches": batches_of(work.plan), "operators": list(dict.fromkeys(operators))}


def _try(spark: SparkSession, work: Work, planned: FlowPlan) -> list[str]:
    """Return the stateful operators of one flow, whose declaration fits its checkpoint."""
    checkpoint = adopted_checkpoint.open_allowed(work.settings, planned.start)
    check_still(checkpoint, planned)
    home, file = find(work.settings, planned.flow)
    flow = declared_in(load_pipeline(file, work.settings.data), home.flow)
    if flow.fingerprint != planned.fingerprint:
        raise RecoveryError(
            f"The declaration of {planned.flow} changed since the plan was made ({planned.fingerprint} →"
            f" {flow.fingerprint}). Nothing was changed. Give this recovery up (streamkeeper abandon"
            f" {work.plan.recovery_id}) and plan again."
        )
    folder = f"{home.trials}/{work.plan.recovery_id}/{work.attempt:03d}"
    opened, batch = looked_up(spark, opened_flow(flow, work.settings)), int(planned.position["batch"])
    trial = Trial(home.storage, opened, checkpoint, batch, folder, {}, work.check_stop, adopted=True)
    try:
        frame = dry_run(spark, work.settings, trial)
    except DoesNotFit as refused:
        raise _refusal(flow, checkpoint, refused) from refused
    check_still(checkpoint, planned)
    return list(stateful_operators(frame))


def _refusal(flow: Flow, checkpoint: Checkpoint, refused: DoesNotFit) -> RecoveryError:
    """Return the error of a dry run: the declaration does not fit, or a failure that may pass."""
    if not refused.is_certain:
        return RecoveryError(
            f"The rehearsal on a copy of {checkpoint.path()} failed, perhaps temporarily: {refused.message()}"
            " Run it again."
        )
    return RecoveryError(
        f"The declaration of {flow.full_name} does not fit the checkpoint at {checkpoint.path()}:"
        f" {refused.failure.meaning}. Spark says {refused.message()} Nothing was changed. Declare the query"
        " of the old job, and plan the adoption again."
    )
