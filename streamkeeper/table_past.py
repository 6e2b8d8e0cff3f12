"""Which version of a table belongs to which batch, and where each flow that writes it stood at that version. By the log alone, no JVM.

Every batch commits (query id, batch) with its rows, so the version right after a batch is where the log names it. Where several flows
write a table, the others stood at their newest transaction up to that version. Where a flow's query id was sealed up to there, its next
generation had taken over, and stood where it began until it committed something of its own.

A rewind that restores a table puts its mark into the commit; what lies before such a commit and after the version that it put back is no
part of the table any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from streamkeeper import delta_log, generations
from streamkeeper.delta_log import SEAL, LogCommit
from streamkeeper.errors import RequestError
from streamkeeper.generations import BATCH, EARLIEST, StartAt
from streamkeeper.home import FlowHome, query_id
from streamkeeper.places import Place
from streamkeeper.storage import open_storage

TOMBSTONES_OF = "/tombstones"
"""The end of the ``txnAppId`` under which a generation commits to the tombstones (streamkeeper_jobs.cdc.steps)."""

_MARK = "streamkeeper restored this for "
_LISTED = 5


@dataclass(frozen=True)
class Stood:
    """Where one flow stood at a version of its table. ``start`` is where a generation begins that follows from there.

    ``undone`` counts its commits after the version, ``known`` is False where the log does not reach back far enough to tell.
    """

    flow: str
    start: StartAt
    undone: int
    known: bool = True


@dataclass(frozen=True)
class PastVersion:
    """A version of a table that can be put back, and what that undoes.

    ``flows`` are all that write the table. ``strangers`` are commits after it that changed rows and are no flow's, in words.
    """

    table: str
    path: str
    version: int
    newest: int
    flows: tuple[Stood, ...]
    strangers: tuple[str, ...] = ()


def mark(recovery: str) -> str:
    """Give what a recovery writes into the commit with which it puts a version back."""
    return f"{_MARK}{recovery}"


def restored_by(path: str, recovery: str, since: int) -> int | None:
    """Find the version at which a recovery put a table back; None if it did not, after version ``since``."""
    for commit in delta_log.commits(path):
        if commit.version <= since:
            return None
        if commit.user_metadata == mark(recovery):
            return commit.version
    return None


def version_after(place: Place, path: str) -> int:
    """Find the version of the table right after a batch.

    :raises RequestError: the table's log does not name the batch any more.
    :raises CheckpointError: the log is damaged.
    """
    writer, wanted = place.generation.query_id, place.batch
    seed = place.start.seed_batch
    first: int | None = None
    oldest = newest = None
    for commit in delta_log.commits(path):
        oldest = commit.version
        newest = commit.version if newest is None else newest
        batch = commit.transactions.get(writer)
        if batch == wanted:
            return commit.version
        if batch is not None and batch < SEAL:
            first = commit.version
    if seed == wanted and newest is not None and (first is not None or oldest == 0):
        return newest if first is None else first - 1
    raise RequestError(
        f"The log of {path} names no version for {place}: "
        + ("there is no table. " if oldest is None else f"it starts at version {oldest} now, since Delta removes old commits. ")
        + "Keep the target as it is, name a newer batch, or put a backup back with restore_table."
    )


def look_back(table: str, path: str, version: int, homes: Iterable[FlowHome]) -> PastVersion:
    """Look where the flows that write a table stood at a version, and what came after it.

    :param homes: of all flows that write the table, declared or not.
    :raises CheckpointError: the log is damaged.
    """
    writers = {writer: (home, number) for home in homes for writer, number in _writers(home).items()}
    undone: dict[str, int] = {home.flow: 0 for home, _ in writers.values()}
    stood: dict[str, Stood] = {}
    strangers: list[str] = []
    oldest, newest = version + 1, version
    for commit in delta_log.commits(path):
        oldest, newest = commit.version, max(newest, commit.version)
        ours = [(writers[app], number) for app, number in commit.transactions.items() if app in writers]
        if commit.version > version:
            for (home, _), batch in ours:
                undone[home.flow] += batch < SEAL
            if not ours and commit.changes_data and commit.operation != "OPTIMIZE" and not _is_ours(commit):
                strangers.append(f"version {commit.version} ({commit.operation or 'unknown'})")
            continue
        for (home, number), batch in ours:
            if home.flow not in stood:
                stood[home.flow] = Stood(home.full_name, _start(home, number, batch), 0)
    for home in {home.flow: home for home, _ in writers.values()}.values():
        if home.flow not in stood:
            stood[home.flow] = Stood(home.full_name, StartAt(EARLIEST), 0, known=oldest == 0)
    flows = tuple(replace(found, undone=undone[name]) for name, found in sorted(stood.items()))
    return PastVersion(table, path, version, newest, flows, tuple(strangers))


def tombstones_version(past: PastVersion, tombstones: str, homes: Iterable[FlowHome]) -> int | None:
    """Find the version of an AUTO CDC table's tombstones that belongs to a version of the table; None where there are no tombstones yet.

    Tombstones are written before their batch's rows, in turns. So they are a prefix of their log: up to the first commit of a batch that
    the table had not yet.

    :raises RequestError: the log of the tombstones does not reach back that far.
    """
    marks = {
        commit.user_metadata
        for commit in delta_log.commits(past.path)
        if commit.version <= past.version and commit.user_metadata is not None and _is_ours(commit)
    }
    allowed = {home.flow: _allowed(home, past) for home in homes}
    writers = {f"{writer}{TOMBSTONES_OF}": (home.flow, number) for home in homes for writer, number in _writers(home).items()}
    found: int | None = None
    oldest = None
    for commit in delta_log.commits(tombstones):
        oldest = commit.version
        found = commit.version if found is None else found
        if _is_ours(commit):
            if commit.user_metadata in marks:
                break
            found = commit.version - 1
        for app, batch in commit.transactions.items():
            if app in writers and batch < SEAL and (writers[app][1], batch) > allowed[writers[app][0]]:
                found = commit.version - 1
    if found is not None and oldest is not None and found < oldest:
        raise RequestError(
            f"The log of {tombstones} starts at version {oldest} now; what belongs to version {past.version} of {past.table} lies before. "
            "Keep the target as it is, or put a backup back with restore_table."
        )
    return found


def lacking_files(path: str, version: int) -> list[str]:
    """Give some of the files that a version of a table needs and that VACUUM has removed; none if all are there.

    Looked at are those alone that the newest version does not hold any more: the others are there, or the table is broken anyway.
    """
    storage = open_storage(path)
    needed: dict[str, str | None] = {}
    for commit in delta_log.commits(path):
        if commit.version <= version:
            break
        for name, _ in commit.added:
            needed.pop(name, None)
        needed.update(dict(commit.removed))
    wanted = [name for file, vector in needed.items() for name in (file, vector) if name is not None and "://" not in name]
    return [name for name in wanted if storage.modified(name) is None][:_LISTED]


def _is_ours(commit: LogCommit) -> bool:
    return commit.user_metadata is not None and commit.user_metadata.startswith(_MARK)


def _writers(home: FlowHome) -> Mapping[str, int]:
    """Give the query ids of all generations of a flow, with their numbers."""
    found = {}
    for number in home.generations():
        generation = generations.read(home, number)
        found[query_id(home.full_name, number) if generation is None else generation.query_id] = number
    return found


def _start(home: FlowHome, number: int, batch: int) -> StartAt:
    """Give where a flow stood whose newest transaction is this one: a seal means that its next generation had taken over."""
    if batch < SEAL:
        return StartAt(BATCH, generation=number, batch=batch)
    for later in (item for item in home.generations() if item > number):
        start = generations.read_start(home, later)
        if start is not None:
            return StartAt(EARLIEST) if start.seed_batch is None else StartAt(BATCH, generation=later, batch=start.seed_batch)
    return StartAt(BATCH, generation=number, batch=None)


def _allowed(home: FlowHome, past: PastVersion) -> tuple[int, int]:
    """Give the generation and the batch of a flow up to which its rows were in the table at a version."""
    start = next(item.start for item in past.flows if item.flow == home.full_name)
    if start.mode == EARLIEST or start.generation is None:
        return (0, -1)
    return start.generation, SEAL if start.batch is None else start.batch
