"""Checks, before anything is changed, that what a generation must still read or read again is available.

Spark would find some losses itself, in the middle of a batch. It cannot detect a topic that was created again
and has grown past the old position: it would continue there and skip the earlier records.
"""

from __future__ import annotations

from functools import partial

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.crc_files import twin_of
from streamkeeper.errors import RecoveryError
from streamkeeper.flows.generations import AFTER_LAST, Generation, Start, StartAt
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.sources.base.format import Before
from streamkeeper.sources.starts import starts_of
from streamkeeper.support.amounts import MISSING_HISTORY
from streamkeeper_jobs.generation.start_position import Origin, require
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.sources.formats import Looks, format_in_job
from streamkeeper_jobs.spark.delta_table import last_written
from streamkeeper_jobs.spark.log import say

ANY_LOSS = ()
"""Nothing is accepted by a start that no recovery decided."""


def check_histories(job: Job, position: CommittedPosition) -> None:
    """Check that sources whose unread data can expire still have what follows the last committed batch, and
    that none of their parts was read by an earlier generation alone.

    :param position: of the generation that goes on.
    :raises RecoveryError: they have not, or one was.
    :raises SourceError: a source cannot be read now.
    """
    start, checkpoint = position.start, position.checkpoint
    last, planned = checkpoint.last_commit(), checkpoint.offset_batches()
    looks = Looks(job, f"{start.checkpoint}-listing", start.schemas)
    # A batch under way must be read to its end; what follows that one is judged at a later start.
    for batch in (number for number in planned if number == last or number == planned[-1]):
        offsets = checkpoint.offsets(batch).sources
        for source in job.sources:
            offset = offsets.get(source.name)
            if offset is None or not starts_of(source).expires:
                continue
            earlier = partial(position.read_earlier, source)
            before = Before(checkpoint, start.evidence, source.name, offset, strict=False, earlier=earlier)
            resolved = looks.resolve(source, StartAt(AFTER_LAST), before)
            if batch == last and resolved.returned:
                raise RecoveryError(
                    f"The source {source.name} reads {', '.join(resolved.returned)} again, which an earlier"
                    f" generation of {job.flow.full_name} read, and the last one did not: a restart would"
                    " read them from their first record, and write those rows twice. Nothing was changed."
                    " Use reset_checkpoint, after-last: it goes on where that generation ended."
                )
            if batch == last or resolved.may_pass:
                for note in require(source, resolved, ANY_LOSS):
                    say(f"{job.flow.full_name}: {note}.")


def check_planned_files(job: Job, start: Start, query_id: str) -> None:
    """Check that what is listed for the next batch is there, unless the sink has that batch and no state is
    made of it.

    :raises RecoveryError: some is gone. Spark would read the rest, and report success.
    :raises CheckpointError: a list of the checkpoint is damaged.
    """
    checkpoint = Checkpoint(job.home.storage, start.checkpoint)
    last, planned = checkpoint.last_commit(), checkpoint.offset_batches()
    in_flight = bool(planned) and planned[-1] != last
    if in_flight and not start.operators and last_written(job.spark, job.table_path, query_id) == planned[-1]:
        return
    begins = checkpoint.offsets(last).sources if last in planned else {}
    for source in job.sources:
        # Where a batch is committed, a source that it did not know is judged by its first batch.
        if source.name in checkpoint.sources() and (last is None or begins.get(source.name) is not None):
            gone = starts_of(source).gone_unread(source, checkpoint, begins.get(source.name))
            require(source, gone, ANY_LOSS)


def forget_backward(job: Job, start: Start, query_id: str) -> None:
    """Remove a planned batch that ends before it starts, as Spark plans one where an end went back.

    It reads nothing, and fails at each start, whatever the source holds by then. One that the sink has stays.

    :raises CheckpointError: its offsets cannot be read.
    """
    checkpoint = Checkpoint(job.home.storage, start.checkpoint)
    last, planned = checkpoint.last_commit(), checkpoint.offset_batches()
    if not planned or planned[-1] == last or last_written(job.spark, job.table_path, query_id) == planned[-1]:
        return
    last_offsets = checkpoint.offsets(last).sources if last in planned else {}
    ends = checkpoint.offsets(planned[-1]).sources
    back = []
    for source in job.sources:
        before = Before(checkpoint, start.evidence, source.name, last_offsets.get(source.name), strict=False)
        begins = before.initial() if before.offset is None else before.offset
        if source.name in ends and begins and starts_of(source).goes_back(begins, ends[source.name]):
            back.append(source.name)
    if back:
        words = f"ends before it starts in {', '.join(back)}, so it is planned again"
        say(f"Batch {planned[-1]} of {job.flow.full_name} {words}.")
        name = checkpoint.name(f"offsets/{planned[-1]}")
        for file in (twin_of(name), name):
            job.home.storage.remove(file)


def check_history(job: Job, generation: Generation, origin: Origin, looks: Looks) -> None:
    """Check that everything a rebuilt state is made of is still there.

    :raises RecoveryError: something is gone, and its loss was not accepted.
    """
    for source in job.sources:
        position = origin.sources.get(source.name)
        if position is None:
            continue
        words = format_in_job(source).missing(job.spark, source, position, partial(looks.look, source))
        if words is None:
            continue
        if MISSING_HISTORY not in generation.accepted:
            raise RecoveryError(
                f"The state of {job.flow.full_name} cannot be rebuilt from its whole history: {words}."
                " Restore them and start again, or reset the flow again with state `empty`, or with"
                f" `{MISSING_HISTORY}` accepted."
            )
        say(f"The state is rebuilt without part of its history, as accepted: {words}.")
