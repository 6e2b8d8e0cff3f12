"""Fences earlier generations in the sink and reads the last position of the one before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import FILE_SINKS, quarantine_of
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.log import Transactions
from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import ADOPTED, AFTER_LAST, BATCH, EARLIEST, OFFSETS, Generation, Start
from streamkeeper.observe import adopted_checkpoint, past_positions
from streamkeeper.observe.position import CommittedPosition, of_checkpoint
from streamkeeper.support.amounts import DUPLICATES
from streamkeeper.trial import last_run
from streamkeeper_jobs.sinks.expectations import fence_quarantine
from streamkeeper_jobs.sinks.file_sink import FileSink
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.spark.delta_table import fence, last_written


@dataclass(frozen=True)
class Fenced:
    """Result of fencing.

    ``last`` is the last real transaction of each generation that was fenced now; ``all`` are all that are
    fenced.
    """

    last: dict[int, int | None]
    all: tuple[int, ...]


def fence_earlier(job: Job, generation: Generation) -> Fenced:
    """Fence every earlier generation that no start record lists as fenced.

    Fencing again has no effect, so another driver can simply repeat what one that died had begun.

    :raises CheckpointError: the last write of a generation can no longer be determined.
    """
    earlier = [number for number in job.home.generations() if number < generation.number]
    last: dict[int, int | None] = {}
    for number in not_fenced(job.home, generation.number, generation.previous):
        # Before the fence: afterwards a late driver may commit batches that the sink skips.
        write_end(job.home, number)
        app_id = generations.query_id_of(job.home, number)
        if job.table.sink in FILE_SINKS:
            FileSink(job, generation).settle(number, app_id)
        transaction = delta_log.last_transaction(job.table_path, app_id)
        last[number] = (
            transaction.version if transaction.fenced and transaction.complete else _fence(job, app_id)
        )
        _fence_quarantine(job, number, app_id, last[number])
    return Fenced(last, tuple(earlier))


def _fence_quarantine(job: Job, number: int, app_id: str, last: int | None) -> None:
    """Fence a generation in the quarantine table that its last driver wrote, and in the present one."""
    ran = last_run.read(job.home, number)
    then = None if ran is None else quarantine_of(ran.flow(job.flow.name).declaration)
    tables = {then, quarantine_of(job.flow.declaration)} - {None}
    if not tables:
        return
    begun = generations.read_start(job.home, number)
    committed = None if begun is None else Checkpoint(job.home.storage, begun.checkpoint).last_commit()
    upto = max((batch for batch in (last, committed) if batch is not None), default=None)
    for table in tables:
        fence_quarantine(job, str(table), number, app_id, upto)


def not_fenced(home: FlowHome, before: int, previous: int | None) -> list[int]:
    """Return the generations before `before` that no start record lists as fenced, and always `previous`."""
    earlier = [number for number in home.generations() if number < before]
    fenced = _fenced_before(home, earlier)
    return [number for number in earlier if number not in fenced or number == previous]


def write_end(home: FlowHome, number: int) -> None:
    """Record the last commit of a generation before it is fenced.

    The sink skips what a late driver commits afterwards, so a later commit proves nothing about the table.
    """
    begun = generations.read_start(home, number)
    if begun is not None:
        generations.end(home, number, Checkpoint(home.storage, begun.checkpoint).last_commit())


def stood(job: Job, generation: Generation, fenced: Fenced) -> CommittedPosition | None:
    """Return the position of the generation that this one follows; None if that never began.

    A generation that was decided but never begun has the position of its predecessor, if it was to start
    after that one's last batch. A generation that starts after a certain batch gets the position as of that
    batch.

    :raises RecoveryError: the predecessor was decided with another start and never began, so it has no
        recorded position; or the batch to start after is gone.
    """
    begun = _begun_behind(job.home, generation, fenced)
    if generation.start.mode == ADOPTED:
        return _adopted(job, generation)
    if generation.start.mode == BATCH:
        return _at_place(job, generation)
    if generation.start.mode == OFFSETS and generation.start.generation is not None:
        return _position_of(job.home, generation.start.generation)
    begun = begun or _begun(job.home, generation)
    if begun is None:
        return None
    before, start = begun
    last = fenced.last.get(before.number)
    if before.number not in fenced.last:
        last = _fence(job, before.query_id)
    return of_checkpoint(job.home, before, start, last, fenced=True)


def _adopted(job: Job, generation: Generation) -> CommittedPosition:
    """Fence the adopted query and return its position.

    Its last commit is recorded before the fence: the table lacks whatever a query that still runs commits
    later.

    :raises RecoveryError: a batch of it was in progress, nothing says whether the table has it, and
        duplicates were not accepted.
    """
    query_id = generation.start.query_id
    checkpoint = adopted_checkpoint.open_allowed(job.settings, generation.start)
    assert query_id is not None, "a decision to adopt says what"
    last = generations.end_adopted(job.home, generation.number, checkpoint.last_commit())
    under_way = max(checkpoint.offset_batches(), default=-1)
    declared = job.flow.declaration
    # Tables that are kept by key, or replaced, take duplicates; the plan asked where they do harm.
    may_repeat = DUPLICATES in generation.accepted or declared.spec is not None or declared.replaces
    if (
        under_way > (-1 if last is None else last)
        and not may_repeat
        and last_written(job.spark, job.table_path, query_id) is None
    ):
        raise RecoveryError(
            f"{checkpoint.path()} has planned batch {under_way} and committed {last}, and the table at"
            f" {job.table_path} does not name its query, so it is unknown whether it has that batch. Plan"
            f" the adoption again and accept `{DUPLICATES}`, or let the old job end its batch."
        )
    wrote = _fence(job, query_id)
    position = adopted_checkpoint.standing_of(
        checkpoint, query_id, last, Transactions(wrote, None, complete=True)
    )
    return replace(position, fenced=True)


def evidence(position: CommittedPosition | None, fenced: Fenced) -> dict[str, Any]:
    """Return the position as evidence for the generation's start record and the ledger."""
    fields = (
        position.evidence()
        if position is not None
        else {"last_commit": None, "last_transaction": None, "batch": None, "ruled_by": None}
    )
    return {**fields, "fenced": list(fenced.all)}


def _fence(job: Job, query_id: str) -> int | None:
    """Fence a query id in its flow's table; return the last batch it really wrote."""
    return fence(job.spark, job.table_path, query_id, job.watch.obey)


def _begun_behind(home: FlowHome, generation: Generation, fenced: Fenced) -> tuple[Generation, Start] | None:
    """Return a generation between this one and its predecessor that began late and wrote, or None.

    When this generation was decided, that one had not begun and was passed over; a driver that was believed
    dead began it since. What it wrote must not be written again.

    :raises RecoveryError: there is one, and this generation starts elsewhere than after the last batch, so
        its impact has changed.
    """
    wrote = [
        number
        for number, last in fenced.last.items()
        if number > (generation.previous or 0) and last is not None
    ]
    if not wrote:
        return None
    number = max(wrote)
    decided, start = generations.read(home, number), generations.read_start(home, number)
    if generation.start.mode != AFTER_LAST or decided is None or start is None:
        raise RecoveryError(
            f"Generation {number} of {home.full_name} was skipped when generation {generation.number} was"
            " decided, but a driver that seemed to be gone has started it since and written batch"
            f" {fenced.last[number]}. Reset the flow again: a new plan counts that batch."
        )
    return decided, start


def _begun(home: FlowHome, generation: Generation) -> tuple[Generation, Start] | None:
    number = generation.previous
    while number is not None:
        decided = generations.read(home, number)
        if decided is None:
            raise RecoveryError(
                f"Generation {generation.number} of {home.full_name} follows generation {number}, whose"
                f" decision no longer exists. Restore {home.storage.path(home.generation(number))} from a"
                " copy, or reset the flow from earliest or latest."
            )
        start = generations.read_start(home, number)
        if start is not None:
            return decided, start
        if decided.start.mode == EARLIEST:
            return None
        if decided.start.mode != AFTER_LAST:
            raise RecoveryError(
                f"Generation {generation.number} of {home.full_name} follows generation {number}, which was"
                f" decided to start from {decided.start.mode} and never did, so it has no position. Reset"
                " the flow again with that start."
            )
        number = decided.previous
    return None


def _at_place(job: Job, generation: Generation) -> CommittedPosition:
    number, batch = generation.start.generation, generation.start.batch
    assert number is not None and batch is not None, "a decision after a batch names it"
    try:
        return past_positions.at_batch(job.home, job.table_path, number, batch).standing
    except RequestError as error:
        raise RecoveryError(f"Generation {generation.number} cannot start as decided. {error}") from error


def _position_of(home: FlowHome, number: int) -> CommittedPosition:
    """Return the position of the generation to which explicit offsets belong.

    The offsets refer to the lists of files in its checkpoint.

    :raises RecoveryError: it is gone.
    """
    decided, start = generations.read(home, number), generations.read_start(home, number)
    if decided is None or start is None:
        raise RecoveryError(
            f"Generation {number} of {home.full_name} no longer exists, and the start needs its offsets."
            " Restore it from a copy."
        )
    return of_checkpoint(home, decided, start, fenced=True)


def _fenced_before(home: FlowHome, earlier: list[int]) -> frozenset[int]:
    for number in reversed(earlier):
        start = generations.read_start(home, number)
        if start is not None:
            return frozenset(start.evidence.get("fenced", ()))
    return frozenset()
