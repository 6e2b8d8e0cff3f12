"""Which version of a table belongs to which batch, and where each flow that writes it stood at that version.
By the log alone, no JVM.

Every batch commits (query id, batch) with its rows, so the version right after a batch is where the log names
it. Where several flows write a table, the others stood at their newest transaction up to that version. Where
a flow's query id was sealed up to there, its next generation had taken over, and stood where it began until
it committed something of its own.

A recovery may change all of a table by a commit of its own, which names it: a rewind restores a version, a
full refresh empties the table, a backup or what was built beside is put in its place. What lies before such a
commit is no part of the table any more, unless it was put back. The flows are sealed before that commit:
until then they stood after their last batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from streamkeeper.delta import log as delta_log
from streamkeeper.delta.log import SEAL, LogCommit
from streamkeeper.errors import RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import AFTER_LAST, BATCH, BESIDE, EARLIEST, Generation, StartAt
from streamkeeper.flows.past_positions import Place
from streamkeeper.storage import open_storage

TOMBSTONES_OF = "/tombstones"
"""The end of the ``txnAppId`` under which a generation commits to the tombstones
(streamkeeper_jobs.cdc.steps).
"""

_MARK = "streamkeeper restored this for "
EMPTIED, PUT_IN_PLACE, PUT_BACK = "/empty_tables", "/put_in_place", "/put-back"
"""How a ``txnAppId`` ends, after the recovery's id, under which a recovery changes all of a table."""
_LISTED = 5


@dataclass(frozen=True)
class Stood:
    """Where one flow stood at a version of its table. ``start`` is where a generation begins that follows
    from there.

    ``undone`` counts its commits after the version, and is 1 where it made none and a recovery changed all of
    the table for it since. ``known`` is False where the log does not reach back far enough to tell.
    """

    flow: str
    start: StartAt
    undone: int
    known: bool = True


@dataclass(frozen=True)
class PastVersion:
    """A version of a table that can be put back, and what that undoes.

    ``flows`` are all that write the table. ``strangers`` are commits after it that changed rows and are
    neither a flow's nor a recovery's, in words.
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


def changed_by(commit: LogCommit) -> str | None:
    """Give the recovery that changed all of a table by a commit, or None: it put a version back, emptied it,
    or put another in its place.

    The first commit of a table names what was done to the one that it was copied from, and changes none.
    """
    if commit.version == 0:
        return None
    if commit.user_metadata is not None and commit.user_metadata.startswith(_MARK):
        return commit.user_metadata.removeprefix(_MARK)
    ends = ((app, end) for app in commit.transactions for end in (EMPTIED, PUT_IN_PLACE, PUT_BACK))
    return next((app.removesuffix(end) for app, end in ends if app.endswith(end)), None)


def changed_after(path: str, version: int) -> frozenset[str]:
    """Give the recoveries that changed all of a table after a version.

    :raises CheckpointError: the log is damaged.
    """
    newer = takewhile(lambda commit: commit.version > version, delta_log.commits(path))
    return frozenset(recovery for commit in newer if (recovery := changed_by(commit)) is not None)


def taken_over(home: FlowHome, number: int, changed_later: Collection[str]) -> Generation | None:
    """Give the generation that had taken over from a sealed one by a version; None where the sealed one still
    ruled.

    That is the first that began afterwards, or the last that was decided. One whose recovery changed all of
    the table has not taken over before that: the sealed one ruled on until then.

    :param changed_later: the recoveries that changed all of the table after the version.
    """
    found: Generation | None = None
    for later in (item for item in home.generations() if item > number):
        decided = generations.read(home, later)
        if decided is None:
            continue
        if decided.recovery in changed_later:
            break
        found = decided
        if generations.read_start(home, later) is not None:
            break
    return found


def writers_of(home: FlowHome) -> Mapping[str, int]:
    """Give the query ids of all generations of a flow, with their numbers."""
    return {generations.query_id_of(home, number): number for number in home.generations()}


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
    least: tuple[int, int] | None = None
    oldest = newest = None
    for commit in delta_log.commits(path):
        oldest = commit.version
        newest = commit.version if newest is None else newest
        batch = commit.transactions.get(writer)
        if batch == wanted:
            return commit.version
        if batch is not None and batch < SEAL:
            first, least = commit.version, (batch, commit.version)
        elif batch is not None:  # sealed: what came afterwards is of later generations
            newest = commit.version - 1
    if seed == wanted and newest is not None and (first is not None or oldest == 0):
        return newest if first is None else first - 1
    raise RequestError(
        f"The log of {path} names no version for {place}: {_why_no_version(place, oldest, least)}"
    )


def _why_no_version(place: Place, oldest: int | None, least: tuple[int, int] | None) -> str:
    """Say why no version of a table belongs to a batch, and what can be done.

    :param oldest: the oldest version that the log has.
    :param least: the lowest batch of the generation that the log names, with its version.
    """
    other = "Keep the target as it is (target: kept)"
    if place.generation.start.mode == BESIDE and least is not None and least[0] > place.batch:
        return (
            f"generation {place.generation.number} was built beside the table and put in place at version"
            f" {least[1]}, in one commit that holds its batches up to {least[0]}, so the table never was as"
            f" after batch {place.batch}. Name batch {least[0]} or a newer one. {other}, or let full_refresh"
            " read everything anew."
        )
    if oldest is None:
        return f"there is no table. {other}, or put a backup back with restore_table."
    if oldest > 0:
        why = f"it starts at version {oldest} now, since Delta removes old commits"
    else:
        why = "it is whole, and no commit of it is that batch's"
    return f"{why}. {other}, name a newer batch, or put a backup back with restore_table."


def look_back(table: str, path: str, version: int, homes: Iterable[FlowHome]) -> PastVersion:
    """Look where the flows that write a table stood at a version, and what came after it.

    :param homes: of all flows that write the table, declared or not.
    :raises CheckpointError: the log is damaged.
    """
    writers = {writer: (home, number) for home in homes for writer, number in writers_of(home).items()}
    undone: dict[str, int] = {home.flow: 0 for home, _ in writers.values()}
    stood: dict[str, Stood] = {}
    strangers: list[str] = []
    changed: set[str] = set()
    oldest, newest = version + 1, version
    for commit in delta_log.commits(path):
        oldest, newest = commit.version, max(newest, commit.version)
        ours = [(writers[app], number) for app, number in commit.transactions.items() if app in writers]
        if commit.version > version:
            recovery = changed_by(commit)
            if recovery is not None:
                changed.add(recovery)
            for (home, _), batch in ours:
                undone[home.flow] += batch < SEAL
            if not ours and recovery is None and commit.changes_data and commit.operation != "OPTIMIZE":
                strangers.append(f"version {commit.version} ({commit.operation or 'unknown'})")
            continue
        for (home, number), batch in ours:
            start = _start(home, number, batch, changed) if home.flow not in stood else None
            if start is not None:
                stood[home.flow] = Stood(home.full_name, start, 0)
    for home in {home.flow: home for home, _ in writers.values()}.values():
        undone[home.flow] = undone[home.flow] or int(_was_moved(home, changed))
        if home.flow not in stood:
            stood[home.flow] = Stood(home.full_name, StartAt(EARLIEST), 0, known=oldest == 0)
    flows = tuple(replace(found, undone=undone[name]) for name, found in sorted(stood.items()))
    return PastVersion(table, path, version, newest, flows, tuple(strangers))


def tombstones_version(past: PastVersion, tombstones: str, homes: Iterable[FlowHome]) -> int | None:
    """Find the version of an AUTO CDC table's tombstones that belongs to a version of the table; None where
    there are no tombstones yet.

    Tombstones are written before their batch's rows, in turns. So it is the one after the newest commit of a
    batch that the table had. What lies before that commit and is of a batch that the table had not is of one
    that was left half done: its changes come again, and do no harm. Batches of others that were done
    meanwhile do not come again.

    :raises RequestError: the log of the tombstones does not reach back that far.
    """
    homes = tuple(homes)
    allowed = {home.flow: _allowed(home, past) for home in homes}
    done = _changed_by_then(past, {home: allowed[home.flow][0] for home in homes})
    writers = {
        f"{writer}{TOMBSTONES_OF}": (home.flow, number)
        for home in homes
        for writer, number in writers_of(home).items()
    }
    found: int | None = None
    oldest = None
    for commit in delta_log.commits(tombstones):
        oldest = commit.version
        found = commit.version if found is None else found
        recovery = changed_by(commit)
        if recovery in done:
            break
        if recovery is not None:
            found = commit.version - 1
            continue
        batches = [
            (writers[app], batch)
            for app, batch in commit.transactions.items()
            if app in writers and batch < SEAL
        ]
        if any((number, batch) <= allowed[flow] for (flow, number), batch in batches):
            break
        if batches:
            found = commit.version - 1
    if found is not None and oldest is not None and found < oldest:
        raise RequestError(
            f"The log of {tombstones} starts at version {oldest} now; what belongs to version {past.version}"
            f" of {past.table} lies before. Keep the target as it is, or put a backup back with"
            " restore_table."
        )
    return found


def lacking_files(path: str, version: int) -> list[str]:
    """Give some of the files that a version of a table needs and that VACUUM has removed; none if all are
    there.

    Looked at are those alone that the newest version does not hold any more: the others are there, or the
    table is broken anyway.
    """
    storage = open_storage(path)
    needed: dict[str, str | None] = {}
    for commit in delta_log.commits(path):
        if commit.version <= version:
            break
        for name, _ in commit.added:
            needed.pop(name, None)
        needed.update(dict(commit.removed))
    wanted = [
        name
        for file, vector in needed.items()
        for name in (file, vector)
        if name is not None and "://" not in name
    ]
    return [name for name in wanted if storage.modified(name) is None][:_LISTED]


def files_brought_back(path: str, version: int) -> list[str]:
    """Give the files that the commit of a version named again or anew, deletion vectors among them: all below
    the table's folder.

    :raises CheckpointError: the log is damaged.
    """
    commit = next((found for found in delta_log.commits(path) if found.version <= version), None)
    if commit is None or commit.version != version:
        return []
    names = dict.fromkeys(
        name for file, vector in commit.added for name in (file, vector) if name is not None
    )
    return [name for name in names if "://" not in name and not name.startswith("/")]


def _changed_by_then(past: PastVersion, stood: Mapping[FlowHome, int]) -> set[str]:
    """Give the recoveries that had changed a table and its tombstones by a version of the table.

    One that found the table as it wanted it made no commit there; that it was done is told by the generations
    that it decided.

    :param stood: the generation of each flow at that version.
    """
    changed = [
        (recovery, commit.version)
        for commit in delta_log.commits(past.path)
        if (recovery := changed_by(commit)) is not None
    ]
    later = {recovery for recovery, version in changed if version > past.version}
    decided = (
        generations.read(home, item)
        for home, number in stood.items()
        for item in home.generations()
        if item <= number
    )
    begun = {item.recovery for item in decided if item is not None and item.recovery is not None}
    return (begun - later) | {recovery for recovery, version in changed if version <= past.version}


def _was_moved(home: FlowHome, changed: Collection[str]) -> bool:
    """Say whether a recovery that changed all of a table let a flow go on elsewhere than where it was."""
    decided = (generations.read(home, number) for number in home.generations())
    return any(
        item is not None and item.recovery in changed and item.start.mode != AFTER_LAST for item in decided
    )


def _start(home: FlowHome, number: int, batch: int, changed_later: Collection[str]) -> StartAt | None:
    """Give where a flow stood whose newest transaction is this one: a seal means that its next generation had
    taken over.

    None where none had: the flow stood at its transaction before.
    """
    if batch < SEAL:
        return StartAt(BATCH, generation=number, batch=batch)
    later = taken_over(home, number, changed_later)
    if later is None:
        return None
    start = generations.read_start(home, later.number)
    if start is None:
        return StartAt(BATCH, generation=number, batch=None)
    return (
        StartAt(EARLIEST)
        if start.seed_batch is None
        else StartAt(BATCH, generation=later.number, batch=start.seed_batch)
    )


def _allowed(home: FlowHome, past: PastVersion) -> tuple[int, int]:
    """Give the generation and the batch of a flow up to which its rows were in the table at a version."""
    start = next(item.start for item in past.flows if item.flow == home.full_name)
    if start.mode == EARLIEST or start.generation is None:
        return (0, -1)
    return start.generation, SEAL if start.batch is None else start.batch
