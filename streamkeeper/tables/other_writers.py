"""Other writers of a table: rows and changes that its flows could not produce again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamkeeper.delta import log as delta_log
from streamkeeper.delta.log import FENCE, LogCommit
from streamkeeper.flows import ledger
from streamkeeper.flows.backfill_flow import HISTORY, is_backfill, name_of
from streamkeeper.flows.files import FlowHome, kept_flows
from streamkeeper.flows.ledger import Event
from streamkeeper.flows.side_flow import is_side_flow
from streamkeeper.manifest import names
from streamkeeper.manifest.manifest import Flow
from streamkeeper.manifest.names import Names
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage
from streamkeeper.tables.past_versions import (
    EMPTIED,
    PUT_BACK,
    PUT_IN_PLACE,
    adopted_by,
    changed_by,
    is_of_others,
    writers_of,
)

COMMITS = 10_000
"""Most commits to read, newest first; a recovery reads each twice, once while the flows are stopped."""
BACKFILL = "backfill"
_AT_ONCE = 16
_LISTED = 5
_DELETES = ("DELETE", "TRUNCATE")
_COPIED = "BACKUP"
"""Operation of the commit that turns a copy's files into a table."""


@dataclass(frozen=True)
class OtherWriters:
    """Other writers of the rows in a table.

    ``descriptions`` are of those who added or changed rows: backfills, flows that are not declared, and
    single commits. ``deleted`` are commits that only deleted rows. ``unknown`` is the part that could not be
    checked; None if everything in the table was.
    """

    descriptions: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    unknown: str | None = None


def look(settings: Settings, pipeline: str, writers: Sequence[Flow], path: str) -> OtherWriters:
    """List writers other than the table's flows, back to the last commit that emptied or replaced the table.

    A replacement counts only if the table's flows had built it. A backfill of data that the source still has
    is not listed: the flow reads that again.

    :param writers: the declared flows of the table.
    :raises CheckpointError: the log is damaged.
    """
    storage = open_storage(settings.state)
    homes = [FlowHome(storage, pipeline, flow.name) for flow in writers]
    own = {writer for home in homes for writer in (*writers_of(home), *adopted_by(home))}
    named = _named(storage, pipeline, [flow.name for flow in writers])
    commit_counts: Counter[str] = Counter()
    commits: dict[bool, list[str]] = {False: [], True: []}
    unknown: str | None = None
    for commit in _effective_commits(path):
        unknown = _unknown_before(commit)
        if unknown is not None or _is_all_of_flows(commit, commit_counts):
            break
        if not is_of_others(commit, own):
            continue
        names = {named[writer] for writer in commit.transactions if writer in named}
        commit_counts.update(names)
        if not names:
            commits[commit.operation in _DELETES].append(
                f"version {commit.version} ({commit.operation or 'unknown'})"
            )
    else:
        unknown = _unread(path)
    descriptions = (
        *_in_words(storage, pipeline, {flow.full_name for flow in writers}, commit_counts),
        *_first(commits[False]),
    )
    return OtherWriters(descriptions, tuple(_first(commits[True])), unknown)


def strangers(settings: Settings, flow: Flow) -> OtherWriters:
    """Describe who wrote the rows of a table that no flow of its pipeline ever wrote; nothing if one did, or
    if there are no rows but those of backfills and recoveries.

    :raises CheckpointError: the log is damaged.
    """
    storage, pipeline = open_storage(settings.state), flow.pipeline
    path = settings.table_path(flow.declaration.target)
    ours, backfills = _writers_of_pipeline(storage, pipeline.name)
    # Where the state folder is gone, the checkpoint is found to disagree with the table.
    ours |= {FlowHome(storage, pipeline.name, item.name).query_id(1) for item in pipeline.flows}
    removed: set[tuple[str, str | None]] = set()
    queries: Counter[str] = Counter()
    others: list[str] = []
    for commit in _effective_commits(path):
        wrote = {writer for writer, batch in commit.transactions.items() if batch < FENCE}
        if wrote & ours or changed_by(commit) or _unknown_before(commit):
            return OtherWriters()
        if commit.rows != 0 and not removed.issuperset(commit.added) and not wrote & backfills:
            queries.update(wrote)
            others += [] if wrote else [f"version {commit.version} ({commit.operation or 'unknown'})"]
        removed.update(commit.removed)
    of_queries = (
        f"{many:,} commit{'' if many == 1 else 's'} of the query {query}" for query, many in queries.items()
    )
    return OtherWriters((*of_queries, *_first(others)), unknown=_unread(path))


def _writers_of_pipeline(storage: Storage, pipeline: str) -> tuple[set[str], set[str]]:
    """Return the query ids of a pipeline's flows, with those that they adopted, and of its backfills."""
    writers: dict[bool, set[str]] = {False: set(), True: set()}
    for home in kept_flows(storage, pipeline):
        writers[is_backfill(home.flow)].update((*writers_of(home), *adopted_by(home)))
    return writers[False], writers[True]


def _effective_commits(path: str) -> Iterator[LogCommit]:
    """Yield the commits, newest first, without those that a RESTORE undid."""
    upto: int | None = None
    for number, commit in enumerate(delta_log.commits(path, _AT_ONCE)):
        if number == COMMITS:
            return
        if upto is None or commit.version <= upto:
            upto = commit.restored if commit.restored is not None else upto
            yield commit


def _is_all_of_flows(commit: LogCommit, later_writers: Collection[str]) -> bool:
    """Return whether a commit removed all rows of other writers, and none came back from a backup made
    before.

    :param later_writers: writers of later commits.
    """
    recovery = changed_by(commit)
    if recovery is None or not any(
        writer.endswith((EMPTIED, PUT_IN_PLACE)) for writer in commit.transactions
    ):
        return False
    return not any(name.endswith(name_of("", recovery)) for name in later_writers)


def _unknown_before(commit: LogCommit) -> str | None:
    """Return why the log does not tell the writers of what a commit restored; None if it does."""
    if (commit.version == 0 and commit.operation == _COPIED) or any(
        writer.endswith(PUT_BACK) for writer in commit.transactions
    ):
        return f"its version {commit.version} is a restored backup, and the log does not say who wrote that"
    return None


def _unread(path: str) -> str | None:
    """Return where the log was not read; None if it was read to its first commit."""
    versions = delta_log.versions(path)
    if len(versions) > COMMITS:
        return f"read are only the newest {COMMITS:,} commits of its log"
    return f"its log starts at version {versions[-1]} now" if versions and versions[-1] > 0 else None


def _named(storage: Storage, pipeline: str, declared: list[str]) -> dict[str, str]:
    """Return the writers by query id: backfills, and flows of the pipeline declared for other tables."""
    backfills = (home for home in kept_flows(storage, pipeline) if is_backfill(home.flow))
    return {
        writer: home.flow
        for home in (*undeclared(storage, pipeline, declared), *backfills)
        for writer in writers_of(home)
    }


def _first(commits: list[str]) -> Iterator[str]:
    yield from commits[:_LISTED]
    if len(commits) > _LISTED:
        yield f"{len(commits) - _LISTED:,} commits more"


def _in_words(
    storage: Storage, pipeline: str, flows: set[str], commit_counts: Mapping[str, int]
) -> Iterator[str]:
    name_history = names.read(storage)
    for name, count in sorted(commit_counts.items()):
        many = f"{count:,} commit{'' if count == 1 else 's'}"
        if not is_backfill(name):
            yield f"{many} of {pipeline}.{name}, which is not declared to write it"
            continue
        planned = list(_planned(storage, pipeline, name))
        filled = [item for item in planned if not _comes_again(item.evidence, flows, name_history)]
        if filled or not planned:
            recoveries = ", ".join(
                f"{item.evidence['recovery_id']} (read: {item.evidence['request']['read']})"
                for item in filled
            )
            yield f"{many} of the backfill {recoveries or name}"


def _planned(storage: Storage, pipeline: str, name: str) -> Iterator[Event]:
    """Yield the plans of the recoveries whose backfill a flow is."""
    for recovery in ledger.recoveries(storage, pipeline):
        planned = (
            ledger.open(storage, pipeline, recovery).find("planned")
            if name.endswith(name_of("", recovery))
            else None
        )
        if planned is not None:
            yield planned


def _comes_again(planned: dict[str, Any], flows: Collection[str], name_history: Names) -> bool:
    """Return whether a backfill loses nothing: its rows are read again, or came before an emptying."""
    if planned["recovery"] != BACKFILL:
        return True
    return planned["request"]["read"] == HISTORY and name_history.present(planned["request"]["flow"]) in flows


def undeclared(storage: Storage, pipeline: str, declared: Collection[str]) -> Iterator[FlowHome]:
    """Yield a pipeline's stored flows that are not among ``declared``, without flows made by recoveries.

    :param declared: names of flows within the pipeline.
    """
    homes = (home for home in kept_flows(storage, pipeline) if home.flow not in declared)
    return (home for home in homes if not is_backfill(home.flow) and not is_side_flow(home.flow))
