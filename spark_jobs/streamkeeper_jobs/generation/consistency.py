"""Checks, before a query starts, that a generation's checkpoint agrees with its table and its sources.

Delta's sink writes (query id, batch) with every batch, also with an empty one, and silently skips a batch
that it already has. So a checkpoint that was restored from an older copy, or created again under an old query
id, would reuse batch numbers: its query would read rows, write none of them, and report success. And behind a
table that was replaced, a checkpoint would continue without the table's earlier rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamkeeper.checkpoint import Checkpoint, OffsetEntry
from streamkeeper.checkpoint.state_versions import replaced_state
from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import misfit_of
from streamkeeper.delta.log import FENCE
from streamkeeper.delta.summary import FORGETFUL, forgets_batches
from streamkeeper.errors import CheckpointError, DeclarationError, RecoveryError, SinkDisagrees
from streamkeeper.flows.generations import EARLIEST, Generation, Start
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.sources.impacts import forgotten
from streamkeeper.sources.starts import starts_of
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.spark.delta_table import last_written
from streamkeeper_jobs.stream.watch import Order, Stopped

_WAYS = (
    "or choose a start: reset_checkpoint from earliest (empty the table before, or rows may be"
    " duplicated), a timestamp or latest."
)


def check_consistency(job: Job, generation: Generation, start: Start) -> None:
    """Check that the table has all batches that the checkpoint committed, and none that it did not plan.

    :raises SinkDisagrees: it does not; nothing was changed.
    :raises DeclarationError: the table has a property by which it will not know them any more.
    :raises Stopped: the generation is fenced because another driver took over.
    """
    forgetful = forgets_batches(job.table_path)
    if forgetful is not None:
        raise DeclarationError(
            f"{job.table.location}: the table {job.table.name} has {forgetful}, by which Delta forgets which"
            " batches it has: one that was written and is repeated after that would be written twice. Nothing"
            f" was changed. Unset it: ALTER TABLE … UNSET TBLPROPERTIES ('{FORGETFUL}')."
        )
    checkpoint = Checkpoint(job.home.storage, start.checkpoint)
    planned, committed = max(checkpoint.offset_batches(), default=-1), checkpoint.last_commit()
    before = -1 if start.seed_batch is None else start.seed_batch
    wrote = last_written(job.spark, job.table_path, generation.query_id)
    subject = f"generation {generation.number} of {job.flow.full_name}"
    if wrote is not None and wrote >= FENCE:
        _check_newest(job, generation)
        raise SinkDisagrees(
            f"The table at {job.table_path} has {subject} fenced by a later generation, which"
            f" {job.home.storage.path()} does not have. Every batch would be skipped silently. Restore the"
            f" newer state folder, {_WAYS}"
        )
    # A commit without its offsets is damage, not an older copy: Spark finds and reports it as such.
    if wrote is not None and wrote > max(planned, before, -1 if committed is None else committed):
        raise SinkDisagrees(
            f"The table at {job.table_path} has batch {wrote} of {subject}, but {checkpoint.path()} has"
            f" planned none after {planned if planned >= 0 else 'its start'}: it is an older copy, or the"
            " state folder was removed. Its next batches would be skipped silently. Restore the newer"
            f" state folder, {_WAYS}"
        )
    if committed is not None and committed > max(before, -1 if wrote is None else wrote):
        raise SinkDisagrees(
            f"{checkpoint.path()} has committed batch {committed}, but the table at {job.table_path} has"
            f" {'none' if wrote is None else f'only batch {wrote}'} of {subject}: the table was removed,"
            f" replaced or restored from an older copy. Restore the newer table, {_WAYS}"
        )


def check_state(checkpoint: Checkpoint) -> None:
    """Check that no file of the state was replaced by an older one: Spark would believe it.

    :raises CheckpointError: one was; nothing was changed.
    """
    committed = checkpoint.last_commit()
    damage = None if committed is None else replaced_state(checkpoint, committed + 1)
    if damage is not None:
        raise CheckpointError(
            f"{damage}. Spark would believe it, and repeat or lose rows. Nothing was changed. Restore the"
            " whole checkpoint from a copy, or use reset_checkpoint with a rebuilt state."
        )


def check_returned(flow: Flow, position: CommittedPosition) -> None:
    """Check that no source that was added to a generation was read by an earlier one: Spark would read it
    from its beginning.

    :param position: of the generation that goes on, with the sources that its last driver read.
    :raises RecoveryError: one was; nothing was changed.
    """
    known = {*position.sources, *position.checkpoint.sources()}
    for source in flow.pipeline.sources_of(flow.declaration) if position.sources else ():
        if source.name in known:
            continue
        returned = position.returned(source)
        number = returned[0].generation.number if returned else forgotten(source, position, is_new=True)
        if number is not None:
            raise RecoveryError(
                f"The source {source.name} was read by generation {number} of"
                f" {flow.full_name}, and not since: a restart would read it from its beginning, and write"
                " those rows twice. Nothing was changed. Use reset_checkpoint, after-last: it goes on where"
                " that generation ended, or says that this is not known any more. If it is another source,"
                " give it another name."
            )


def check_sources(flow: Flow, checkpoint: Checkpoint, generation: Generation) -> None:
    """Check that each source of the checkpoint still has its kind, and that none was renamed.

    Spark would drop a source under its old name, and read it from the beginning under the new one. A source
    that was only added, or only removed, is taken as such; one of each at once looks like a rename. Where
    only a planted position can start a source as declared, it cannot be added to a checkpoint.

    :raises RecoveryError: a source has another kind now, one was removed while another was added, or one that
        was added would not start as declared.
    """
    sources = flow.pipeline.sources_of(flow.declaration)
    planned = checkpoint.offset_batches()
    newest = checkpoint.offsets(planned[-1]) if planned else None
    if newest is None:
        # Had it begun with such a source, it would have planned a batch, unless from earliest by a reset.
        if generation.start.mode != EARLIEST or generation.previous is None:
            _check_starts(flow, sources)
        return
    _check_kinds(flow, sources, newest)
    read_sources, declared = {*newest.sources, *checkpoint.sources()}, {source.name for source in sources}
    gone, new = sorted(read_sources - declared), sorted(declared - read_sources)
    if gone and new:
        raise RecoveryError(
            f"The checkpoint of {flow.full_name} has the sources {', '.join(sorted(read_sources))}; the flow"
            f" declares no {', '.join(gone)} any more, and {', '.join(new)} instead. A restart would read"
            f" {', '.join(new)} from the beginning, and duplicate its rows if it is the same source under"
            " another name. Give the source its old name again. If it is another source, use"
            " reset_checkpoint, whose plan counts the duplicates."
        )
    _check_starts(flow, [source for source in sources if source.name in new])


def _check_starts(flow: Flow, new: Sequence[Source]) -> None:
    """Check that Spark itself can start sources that a checkpoint does not know as they are declared to.

    :raises RecoveryError: one would be read from its beginning.
    """
    for source in new:
        if source.start != "earliest" and not starts_of(source).reader_options(source):
            raise RecoveryError(
                f"The source {source.name} is new in {flow.full_name}, and declared to start at"
                f" {source.start}, which takes a new checkpoint: a restart would read it from its beginning."
                " Use reset_checkpoint, which continues all others after what they have read. Or declare"
                ' start="earliest".'
            )


def _check_kinds(flow: Flow, sources: tuple[Source, ...], newest: OffsetEntry) -> None:
    """Check that no source became another kind of source under its old name.

    The old position means nothing to the new source.

    :raises RecoveryError: one did; nothing was changed.
    """
    for source in (item for item in sources if item.name in newest.sources):
        misfit = misfit_of(source.format, newest.sources[source.name])
        if misfit is not None:
            raise RecoveryError(
                f"The source {source.name} of {flow.full_name} was another kind of source up to batch"
                f" {newest.batch}: {misfit} The flow cannot continue from there. Nothing was changed. Give"
                " the source its old format again. If it is another source, use reset_checkpoint from"
                " earliest, latest, a timestamp or explicit offsets; its plan counts the impact."
            )


def _check_newest(job: Job, generation: Generation) -> None:
    """Raise `Stopped` if the fence is expected.

    :raises Stopped: a newer generation was decided, or another driver has the lease.
    """
    if job.home.generations()[-1] > generation.number or job.home.epochs()[-1] > job.lease.epoch:
        raise Stopped(Order(f"generation {generation.number} was fenced by another driver", at_once=True))
