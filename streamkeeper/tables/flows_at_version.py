"""Where each flow that writes a table stood at a version of it, and what putting that version back undoes. By
the log alone, no JVM.

A flow stood after its newest transaction up to the version. Where its query id was fenced up to there, its
next generation had taken over, and stood where it began until it committed something of its own: perhaps
further back, as after a restore. But a recovery that changes all of the table fences first, and changes the
table afterwards: in between the flow still stood after its last batch, since the table held that.

RESTORE reverts files and metadata, and not the ``txn`` actions of later versions
(docs/decisions/0018). So the log is read from that version back, and the flow continues under a new query id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.log import FENCE, Transactions
from streamkeeper.errors import CheckpointError, RecoveryError, RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import AFTER_LAST, Generation, Start
from streamkeeper.tables.past_versions import changed_by, is_of_others, writers_of


@dataclass(frozen=True)
class FlowAt:
    """What one flow had done by a version of its table.

    After ``batch`` of ``generation`` it goes on; both are None where it had written nothing yet. ``offsets``
    are that batch's, by source name, as Spark writes them, with its watermark, where they were asked for.
    ``done`` says that a once flow had read all there was.
    """

    flow: str
    generation: int | None
    batch: int | None
    query_id: str | None
    offsets: dict[str, Any] = field(default_factory=dict)
    done: bool = False
    watermark_ms: int = 0


class WritersAt:
    """What writers had committed last by a version of a table: call it with a ``txnAppId``.

    The log is read from that version back, no further than what is asked needs.

    :raises RequestError: the commit of the version is not in the log any more.
    """

    def __init__(self, path: str, version: int) -> None:
        versions = delta_log.versions(path)
        if version not in versions:
            log_range = (
                f"its log holds commits {versions[-1]} to {versions[0]}" if versions else "there is no table"
            )
            raise RequestError(
                f"What the table at {path} held at version {version} is unknown: {log_range}. Choose one of"
                " those versions."
            )
        self._commits = delta_log.commits(path, upto=version)
        self._reached = version + 1
        self._batches: dict[str, int] = {}
        self._fenced: dict[str, int] = {}

    def __call__(self, app_id: str) -> Transactions:
        while app_id not in self._batches and (commit := next(self._commits, None)) is not None:
            if commit.version != self._reached - 1:  # one is lacking: what lies before tells nothing sure
                break
            self._reached = commit.version
            for writer, last in commit.transactions.items():
                if last == FENCE:
                    self._fenced.setdefault(writer, commit.version)
                else:
                    self._batches.setdefault(writer, last)
        complete = self._reached == 0 or app_id in self._batches
        return Transactions(self._batches.get(app_id), self._fenced.get(app_id), complete)


class _Untold(CheckpointError):
    """The log does not reach back far enough to tell where a flow stood."""


@dataclass(frozen=True)
class PastVersion:
    """A version of a table that can be put back, and what that undoes.

    ``flows`` say where all stood that write the table, by their full names; None where the log does not reach
    back far enough to tell. ``undone`` counts the batches of each after the version, and is 1 where it
    committed none and a recovery moved it with the table since. ``other_commits`` are commits after it that
    changed rows and are neither a flow's nor a recovery's, in words. ``changed_later`` are the recoveries
    that changed all of the table after it.
    """

    table: str
    path: str
    version: int
    newest: int
    flows: Mapping[str, FlowAt | None]
    undone: Mapping[str, int]
    other_commits: tuple[str, ...]
    changed_later: frozenset[str]
    wrote: WritersAt

    def flow_at(self, home: FlowHome) -> FlowAt:
        """Return what a flow had done by the version, with offsets (:func:`flow_at`)."""
        return flow_at(home, self.wrote, self.changed_later)


def look_back(table: str, path: str, version: int, homes: Iterable[FlowHome]) -> PastVersion:
    """Look where the flows that write a table stood at a version, and what came after it.

    A flow whose next generation had taken over and has not begun to this day counts as after its last batch.

    :param homes: of all flows that write the table, declared or not.
    :raises CheckpointError: the log is damaged.
    :raises RequestError: the commit of the version is not in the log any more.
    """
    homes = sorted(homes, key=lambda home: home.full_name)
    flow_of = {writer: home.full_name for home in homes for writer in writers_of(home)}
    undone = Counter({home.full_name: 0 for home in homes})
    strangers: list[str] = []
    changed: set[str] = set()
    newest = version
    for commit in takewhile(lambda commit: commit.version > version, delta_log.commits(path)):
        newest = max(newest, commit.version)
        recovery = changed_by(commit)
        changed |= {recovery} if recovery is not None else set()
        ours = {app: batch for app, batch in commit.transactions.items() if app in flow_of}
        undone.update(flow_of[app] for app, batch in ours.items() if batch < FENCE)
        if is_of_others(commit, flow_of):
            strangers.append(f"version {commit.version} ({commit.operation or 'unknown'})")
    wrote = WritersAt(path, version)
    flows: dict[str, FlowAt | None] = {}
    for home in homes:
        undone[home.full_name] = undone[home.full_name] or int(_was_moved(home, changed))
        try:
            flows[home.full_name] = _stood(home, wrote, changed, strict=False)
        except _Untold:
            flows[home.full_name] = None
    return PastVersion(
        table, path, version, newest, flows, undone, tuple(strangers), frozenset(changed), wrote
    )


def query_ids(home: FlowHome) -> dict[int, str]:
    """Return the query id of each generation of a flow that a driver began, by its number, lowest first."""
    return {
        item.number: item.query_id
        for item in generations.decided(home)
        if generations.read_start(home, item.number) is not None
    }


def flow_at(
    home: FlowHome, wrote: Callable[[str], Transactions], changed_later: Collection[str] = ()
) -> FlowAt:
    """Return what a flow had done by a version, with the offsets of its last batch.

    :param wrote: gives what a query id had committed by that version.
    :param changed_later: the recoveries that changed all of the table after it; none where it is the newest.
    :raises CheckpointError: it cannot be known, or the offsets of that batch are not in the checkpoint any
        more.
    :raises RecoveryError: the generation that takes over has not begun yet, and where it begins is not known
        before.
    """
    return _with_offsets(home, _stood(home, wrote, changed_later, strict=True))


def _stood(
    home: FlowHome, wrote: Callable[[str], Transactions], changed_later: Collection[str], strict: bool
) -> FlowAt:
    """Return where a flow stood, without offsets.

    The newest generation that had committed or was followed by then rules.

    :param strict: whether a generation must have begun that had taken over elsewhere than after the last
        batch; else the flow counts as after that batch.
    """
    newer: int | None = None
    unsure: int | None = None
    for number, query_id in reversed(query_ids(home).items()):
        last = wrote(query_id)
        following = _taken_over(home, number, changed_later) if last.fenced else None
        if following is not None and generations.read_start(home, following.number) is not None:
            return _where_begun(home, following.number)
        if strict and following is not None and following.start.mode != AFTER_LAST:
            raise RecoveryError(
                f"Generation {following.number} of {home.full_name} is decided ({following.start.mode}) and"
                " no driver has started it yet, so the flow's position is unknown. Let the flow run, then"
                " back up the table again."
            )
        if last.version is not None:
            done = generations.done_at(home, number) == last.version
            return FlowAt(home.full_name, number, last.version, query_id, done=done)
        # A generation commits only after those before it were fenced. So where one of those was not fenced
        # yet, or its fence is in the log, the log tells all that this one had committed.
        unsure = number if unsure is None and not last.complete else unsure
        newer = number
    if unsure is not None:
        raise _Untold(
            f"The log of the table that {home.full_name} writes does not go back far enough to know what"
            f" its generation {unsure} had written by that version. Choose a newer version, or a backup."
        )
    return FlowAt(home.full_name, None, None, None) if newer is None else _where_begun(home, newer)


def _taken_over(home: FlowHome, number: int, changed_later: Collection[str]) -> Generation | None:
    """Return the generation that had taken over from a fenced one by a version; None where the fenced one
    still ruled.

    That is the first that began afterwards, or the last that was decided. One whose recovery changed all of
    the table has not taken over before that: the fenced one ruled on until then.
    """
    successor: Generation | None = None
    for later in (item for item in generations.decided(home) if item.number > number):
        if later.recovery in changed_later:
            break
        successor = later
        if generations.read_start(home, later.number) is not None:
            break
    return successor


def _where_begun(home: FlowHome, number: int) -> FlowAt:
    """Return what a flow had done whose generation had begun, and written nothing."""
    start, decided = _started(home, number), generations.read(home, number)
    if start.seed_batch is None or decided is None:
        return FlowAt(home.full_name, None, None, None)
    return FlowAt(home.full_name, number, start.seed_batch, decided.query_id)


def _started(home: FlowHome, number: int) -> Start:
    start = generations.read_start(home, number)
    assert start is not None, f"generation {number} was begun"
    return start


def _with_offsets(home: FlowHome, stood: FlowAt) -> FlowAt:
    """Add up to where the batch read."""
    if stood.generation is None or stood.batch is None:
        return stood
    entry = Checkpoint(home.storage, _started(home, stood.generation).checkpoint).offsets(stood.batch)
    return replace(stood, offsets=entry.sources, watermark_ms=entry.watermark_ms)


def _was_moved(home: FlowHome, changed: Collection[str]) -> bool:
    """Return whether a recovery that changed all of a table let a flow go on elsewhere than where it was."""
    decided = generations.decided(home)
    return any(item.recovery in changed and item.start.mode != AFTER_LAST for item in decided)
