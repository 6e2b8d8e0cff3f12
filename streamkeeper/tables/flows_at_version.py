"""Which batches a version of a table holds: versions and batches meet in the ``txn`` actions of its log. No
JVM is started.

Restoring a version does not take the ``txn`` actions of later versions back (FACTS-spark, "Delta sink"), so
what a flow had done by a version is read from the log as far as that version, and the flow goes on under a
new query id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.delta import history as delta_history
from streamkeeper.delta.log import SEAL, Transactions
from streamkeeper.errors import CheckpointError, RecoveryError, RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import AFTER_LAST, Start
from streamkeeper.storage import open_storage, read_json
from streamkeeper.tables.past_versions import changed_after, taken_over

_LOG = "_delta_log"


@dataclass(frozen=True)
class FlowAt:
    """What one flow had done by a version of its table.

    After ``batch`` of ``generation`` it goes on; ``batch`` is None where it had written nothing yet.
    ``offsets`` are that batch's, by source name, as Spark writes them, with its watermark. ``done`` says that
    a once flow had read all there was.
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
        history = delta_history.read_history(path)
        if history is None or not history.oldest <= version <= history.newest:
            held = (
                "there is no table"
                if history is None
                else f"its log holds commits {history.oldest} to {history.newest}"
            )
            raise RequestError(
                f"What the table at {path} held at version {version} cannot be told: {held}. Choose a version"
                " that is held."
            )
        self._path, self._version, self._next, self._oldest = path, version, version, history.oldest
        self._found: dict[str, int] = {}
        self._sealed: dict[str, int] = {}

    def __call__(self, app_id: str) -> Transactions:
        while app_id not in self._found and self._next >= self._oldest:
            for writer, last in _transactions(self._path, self._next):
                if last == SEAL:
                    self._sealed.setdefault(writer, self._next)
                else:
                    self._found.setdefault(writer, last)
            self._next -= 1
        complete = self._oldest == 0 or app_id in self._found
        return Transactions(self._found.get(app_id), self._sealed.get(app_id), complete)

    @cached_property
    def changed_later(self) -> frozenset[str]:
        """The recoveries that changed all of the table after the version."""
        return changed_after(self._path, self._version)


def query_ids(home: FlowHome) -> dict[int, str]:
    """Give the query id of each generation of a flow that a driver began, by its number, lowest first."""
    begun = (number for number in home.generations() if generations.read_start(home, number) is not None)
    decided = ((number, generations.read(home, number)) for number in begun)
    return {number: generation.query_id for number, generation in decided if generation is not None}


def flow_at(
    home: FlowHome, wrote: Callable[[str], Transactions], changed_later: Collection[str] = ()
) -> FlowAt:
    """Say what a flow had done by a version.

    The newest generation that had committed by then rules. Where it was sealed by then the next one had taken
    over, and stood where it began: perhaps further back, as after a restore. But a recovery seals first, and
    changes the table afterwards: in between the flow still stood after its last batch, since the table held
    that.

    :param wrote: gives what a query id had committed by that version.
    :param changed_later: the recoveries that changed all of the table after it; none where it is the newest.
    :raises CheckpointError: it cannot be known, or the offsets of that batch are not in the checkpoint any
        more.
    :raises RecoveryError: the generation that takes over has not begun yet, and where it begins is not known
        before.
    """
    newer: int | None = None
    unsure: int | None = None
    for number, query_id in reversed(query_ids(home).items()):
        last = wrote(query_id)
        if last.sealed and (followed := _followed(home, number, changed_later)) is not None:
            return followed
        if last.version is not None:
            start = _started(home, number)
            found = _after(home, start, last.version, query_id)
            return replace(found, done=_was_done(home, number, last))
        # A generation commits only after those before it were sealed. So where one of those was not sealed
        # yet, or its seal is in the log, the log tells all that this one had committed.
        unsure = number if unsure is None and not last.complete else unsure
        newer = number
    if unsure is not None:
        raise CheckpointError(
            f"The log of the table that {home.full_name} writes does not reach back far enough to tell what"
            f" its generation {unsure} had written by that version. Choose a newer version, or a backup."
        )
    return FlowAt(home.full_name, None, None, None) if newer is None else _where_begun(home, newer)


def _followed(home: FlowHome, number: int, changed_later: Collection[str]) -> FlowAt | None:
    """Say where a flow stood one of whose generations was sealed; None where that was still after the last
    batch of that one.

    :raises RecoveryError: where the next begins is found when it begins.
    """
    following = taken_over(home, number, changed_later)
    if following is None:
        return None
    if generations.read_start(home, following.number) is not None:
        return _where_begun(home, following.number)
    if following.start.mode == AFTER_LAST:
        return None
    raise RecoveryError(
        f"Generation {following.number} of {home.full_name} is decided ({following.start.mode}) and no driver"
        " began it yet, so it is not known where the flow stands. Let the flow run, then back the table up"
        " again."
    )


def _where_begun(home: FlowHome, number: int) -> FlowAt:
    """Say what a flow had done whose generation had begun, and written nothing."""
    start, decided = _started(home, number), generations.read(home, number)
    if start.seed_batch is None or decided is None:
        return FlowAt(home.full_name, None, None, None)
    return _after(home, start, start.seed_batch, decided.query_id)


def _transactions(path: str, number: int) -> Iterator[tuple[str, int]]:
    content = open_storage(path).read(f"{_LOG}/{number:020d}.json") or b""
    for line in content.splitlines():
        if b'"txn"' not in line:
            continue
        action = json.loads(line).get("txn")
        if action:
            yield action["appId"], int(action["version"])


def _started(home: FlowHome, number: int) -> Start:
    start = generations.read_start(home, number)
    assert start is not None, f"generation {number} was begun"
    return start


def _after(home: FlowHome, start: Start, batch: int, query_id: str) -> FlowAt:
    """Read where a batch ended. An old log without the names of sources has them in the order of the start's
    positions.
    """
    entry = Checkpoint(home.storage, start.checkpoint).offsets(batch)
    names, offsets = list(start.positions), dict(entry.sources)
    if entry.version == 1 and len(names) == len(entry.sources):
        offsets = dict(zip(names, entry.sources.values(), strict=True))
    return FlowAt(home.full_name, start.number, batch, query_id, offsets, watermark_ms=entry.watermark_ms)


def _was_done(home: FlowHome, number: int, last: Transactions) -> bool:
    """Whether a once flow had read all there was in a generation, by its batch that the version holds
    last.
    """
    value = read_json(home.storage, home.done(number))
    return value is not None and value["last_commit"] == last.version
