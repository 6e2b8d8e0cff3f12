"""The batches in which a flow read its history, for a replay of a state that depends on where they ended.

A watermark moves at the end of a batch: so it decides which rows of the next one are late, and which keys are
forgotten. Replayed in other batches, ``dropDuplicatesWithinWatermark`` forgets a key sooner than it did.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from streamkeeper.errors import RecoveryError
from streamkeeper.flows.generations import AFTER_LAST, BATCH, Generation
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.sources.replay_steps import BATCHES, Bound, differences
from streamkeeper.support.amounts import UNKNOWN_IMPACT
from streamkeeper_jobs.generation.replay import Step
from streamkeeper_jobs.generation.start_position import Origin
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.sources.formats import Looks, format_in_job
from streamkeeper_jobs.spark.log import say


@dataclass(frozen=True)
class BatchesOfOld:
    """The last batches of old, to be replayed one by one. ``whole`` says that there were none before them."""

    steps: tuple[Step, ...] = ()
    whole: bool = False


def batches_of_old(
    job: Job, generation: Generation, origin: Origin, looks: Looks, old_position: CommittedPosition | None
) -> BatchesOfOld:
    """Return the batches of old that the old checkpoint still has, and that can be read again.

    Each has the watermark that it had, if the same declaration made it; else the steps before it give one.

    :raises CheckpointError: the offsets of one of them cannot be read.
    """
    if old_position is None or generation.start.mode not in (AFTER_LAST, BATCH):
        return BatchesOfOld()
    batches = old_position.kept_batches()[-Bound.of(job.spark.conf.get).batches :]
    same = old_position.generation.fingerprint == job.flow.fingerprint
    steps = tuple(
        Step(
            {name: offset for name, offset in entry.sources.items() if name in origin.sources},
            entry.watermark_ms if same else None,
            timestamp_ms=entry.timestamp_ms,
        )
        for entry in map(old_position.checkpoint.offsets, batches)
    )
    for source in job.sources if steps else ():
        position = origin.sources.get(source.name)
        if position is None:
            continue
        offsets = [step.positions.get(source.name) for step in steps]
        look = partial(looks.look, source)
        if not format_in_job(source).comes_again(job.spark, source, position, offsets, look):
            return BatchesOfOld()
    return BatchesOfOld(tuple(step for step in steps if step.positions), bool(batches) and not batches[0])


def check_accepted(
    job: Job,
    generation: Generation,
    batches: BatchesOfOld,
    old_position: CommittedPosition | None,
    new: tuple[str, ...],
) -> None:
    """Check that a state which goes by the ends of batches is replayed in all of them, or in others as
    accepted.

    :param new: the operators of the query; what the old one had not has forgotten nothing yet.
    :raises RecoveryError: some are not known any more, and that was not accepted.
    """
    differs = "" if old_position is None else differences(old_position.operators, new)
    if batches.whole or old_position is None or old_position.batch is None or not differs:
        return
    words = (
        f"only the last {len(batches.steps)} of the batches that it came in are known"
        if batches.steps
        else "the batches that it came in are not known, or cannot be read again one by one"
    )
    harmless = job.flow.declaration.spec is not None or job.flow.declaration.replaces
    if not harmless and UNKNOWN_IMPACT not in generation.accepted:
        raise RecoveryError(
            f"The state of {job.flow.full_name} goes by the ends of batches, and its history would be"
            f" replayed in other batches: {words} ({BATCHES}). It {differs}."
            " Nothing was changed. Reset the flow from its last generation with a copied state"
            f" (reset_checkpoint from a generation, or rewind), or again with `{UNKNOWN_IMPACT}` accepted."
        )
    say(f"The state is rebuilt in other batches than it was made in, as accepted: {words}.")
