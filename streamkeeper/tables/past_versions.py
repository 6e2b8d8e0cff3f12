"""What a table's log says of its versions: which belongs to a batch, which commits changed the whole table,
and which files a version needs. By the log alone, no JVM.

Every batch commits (query id, batch) with its rows, so the version right after a batch is where the log names
it. Where the flows that write the table stood at a version says
:mod:`streamkeeper.tables.flows_at_version`.

A recovery may change all of a table by a commit of its own, which names it: a rewind restores a version, a
full refresh empties the table, a backup or the side table is put in its place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from streamkeeper.delta import log as delta_log
from streamkeeper.delta.log import FENCE, LogCommit
from streamkeeper.errors import RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import SIDE_TABLE
from streamkeeper.observe.past_positions import Place
from streamkeeper.storage import open_storage

_MARK = "streamkeeper restored this for "
EMPTIED, PUT_IN_PLACE, PUT_BACK = "/empty_tables", "/put_in_place", "/put-back"
"""How a ``txnAppId`` ends, after the recovery's id, under which a recovery changes all of a table."""
_LISTED = 5
_WITHOUT_BATCH = 50
"""Commits in a row that are no batch's: further back it is not looked for what a table remembers."""


def app_id(recovery: str, end: str) -> str:
    """Return the ``txnAppId`` under which a recovery changes all of a table: the same commit is never made
    twice.

    :param end: :data:`EMPTIED`, :data:`PUT_IN_PLACE` or :data:`PUT_BACK`.
    """
    return f"{recovery}{end}"


def is_emptied(path: str, recovery: str) -> bool:
    """Return whether a recovery has emptied the table at a path, by the table's own log."""
    return delta_log.last_transaction(path, app_id(recovery, EMPTIED)).version is not None


def mark(recovery: str) -> str:
    """Return what a recovery writes into the commit with which it puts a version back."""
    return f"{_MARK}{recovery}"


def changed_by(commit: LogCommit) -> str | None:
    """Return the recovery that changed all of a table by a commit, or None: it put a version back, emptied
    it, or put another in its place.

    The first commit of a table names what was done to the one that it was copied from, and changes none.
    """
    if commit.version == 0:
        return None
    if commit.user_metadata is not None and commit.user_metadata.startswith(_MARK):
        return commit.user_metadata.removeprefix(_MARK)
    ends = ((app, end) for app in commit.transactions for end in (EMPTIED, PUT_IN_PLACE, PUT_BACK))
    return next((app.removesuffix(end) for app, end in ends if app.endswith(end)), None)


def is_of_others(commit: LogCommit, ours: Collection[str]) -> bool:
    """Return whether a commit changed rows that neither a writer of ``ours`` nor a recovery of the whole
    table wrote: the one answer wherever a plan counts what others did to a table.
    """
    return (
        commit.changes_data
        and commit.operation != "OPTIMIZE"
        and changed_by(commit) is None
        and not any(writer in ours for writer in commit.transactions)
    )


def writers_of(home: FlowHome) -> Mapping[str, int]:
    """Return the query ids of all generations of a flow, with their numbers."""
    return {generations.query_id_of(home, number): number for number in home.generations()}


def adopted_by(home: FlowHome) -> Iterator[str]:
    """Yield the ids of the queries whose checkpoints a flow has adopted."""
    started_at = (generation.start for generation in generations.decided(home))
    return (start.query_id for start in started_at if start.query_id is not None)


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
    writer, target_batch = place.generation.query_id, place.batch
    seed = place.start.seed_batch
    first: int | None = None
    least: tuple[int, int] | None = None
    oldest = newest = None
    for commit in delta_log.commits(path):
        oldest = commit.version
        newest = commit.version if newest is None else newest
        batch = commit.transactions.get(writer)
        if batch == target_batch:
            return commit.version
        if batch is not None and batch < FENCE:
            first, least = commit.version, (batch, commit.version)
        elif batch is not None:  # fenced: what came afterwards is of later generations
            newest = commit.version - 1
    if seed == target_batch and newest is not None and (first is not None or oldest == 0):
        return newest if first is None else first - 1
    raise RequestError(
        f"The log of {path} names no version for {place}: {_why_no_version(place, oldest, least)}"
    )


def _why_no_version(place: Place, oldest: int | None, least: tuple[int, int] | None) -> str:
    """Say why no version of a table belongs to a batch, and what can be done.

    :param oldest: the oldest version that the log has.
    :param least: the lowest batch of the generation that the log names, with its version.
    """
    other = "Keep the target (target: kept)"
    if place.generation.start.mode == SIDE_TABLE and least is not None and least[0] > place.batch:
        return (
            f"generation {place.generation.number} was built in a side table and replaced it at version"
            f" {least[1]}, in one commit with its batches up to {least[0]}, so the table has no version for"
            f" batch {place.batch}. Name batch {least[0]} or a newer one. {other}, or use full_refresh to"
            " read everything again."
        )
    if oldest is None:
        return f"there is no table. {other}, or restore a backup with restore_table."
    if oldest > 0:
        reason = f"it starts at version {oldest} now, since Delta removes old commits"
    else:
        reason = "it is complete, and has no commit of that batch"
    return f"{reason}. {other}, name a newer batch, or restore a backup with restore_table."


def lacking_files(path: str, version: int) -> list[str]:
    """Return some of the files that a version of a table needs and that VACUUM has removed; none if all are
    there.

    Looked at are those alone that the newest version does not hold any more: the others are there, or the
    table is broken anyway.
    """
    storage = open_storage(path)
    needed: dict[str, str | None] = {}
    for commit in delta_log.commits(path):
        if commit.version > version:
            for name, _ in commit.added:
                needed.pop(name, None)
            needed.update(dict(commit.removed))
        elif commit.remembered is not None:
            needed.update((name, None) for name, _ in commit.remembered.files)
            break
        elif commit.version < version - _WITHOUT_BATCH:
            break
    needed_names = [
        name
        for file, vector in needed.items()
        for name in (file, vector)
        if name is not None and "://" not in name
    ]
    return [name for name in needed_names if storage.modified(name) is None][:_LISTED]


def files_brought_back(path: str, version: int) -> list[str]:
    """Return the files that the commit of a version named again or anew, deletion vectors among them: all
    below the table's folder.

    :raises CheckpointError: the log is damaged.
    """
    commit = next((candidate for candidate in delta_log.commits(path) if candidate.version <= version), None)
    if commit is None or commit.version != version:
        return []
    names = dict.fromkeys(
        name for file, vector in commit.added for name in (file, vector) if name is not None
    )
    return [name for name in names if "://" not in name and not name.startswith("/")]
