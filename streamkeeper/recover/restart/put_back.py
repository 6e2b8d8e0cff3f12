"""What must still be so right before tables are put back: nobody wrote to them since the look under the hold.

Putting a table back undoes whatever it holds by then. What was written after the look is in no price that
anybody accepted: rows of strangers, or of a flow that only waits and never reads them again. Late batches of
flows that go back are; they are read again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from streamkeeper.delta import log as delta_log
from streamkeeper.delta.copy_files import FIRST_COMMIT, Progress, copy_files, files_of
from streamkeeper.delta.log import SEAL, LogCommit
from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.storage import open_storage
from streamkeeper.tables import past_versions

_UPKEEP = frozenset(("OPTIMIZE", "REORG", "VACUUM START", "VACUUM END"))
"""Operations that change neither a row nor what a table is."""
_LISTED = 5


def app_id(recovery_id: str) -> str:
    """Give the ``txnAppId`` under which a recovery puts a backup back: the same commit is never made
    twice.
    """
    return f"{recovery_id}{past_versions.PUT_BACK}"


def bring(work: Work, table: dict[str, Any]) -> dict[str, Any]:
    """Copy those files of a backup's table into the table's folder that are not there; say how many were
    ``found``.

    :raises RequestError: the backup was removed.
    :raises RecoveryError: a file of it is not there any more.
    """
    source, target = open_storage(table["from"]), open_storage(table["path"])
    commit = source.read(FIRST_COMMIT)
    if commit is None:
        raise RequestError(
            f"{source.path(FIRST_COMMIT)} is gone: the backup was removed. Give this recovery up, and restore"
            " another."
        )
    began, lines = time.monotonic(), commit.decode().splitlines()
    progress = Progress(
        lambda **numbers: work.progress(what=table["what"], **numbers), work.check_stop, table["files"]
    )
    done = copy_files(source, target, files_of(lines), progress)
    return {"what": table["what"], **asdict(done), "seconds": round(time.monotonic() - began, 2)}


def check_unchanged(work: Work, plan: Plan, then: str) -> None:
    """See that every table that a plan puts back is as it was looked at.

    :param plan: made under the hold.
    :param then: what to do if one is not, for the message.
    :raises RecoveryError: somebody wrote to a table since.
    """
    for path, newest in _looked_at(plan):
        written_late(work, plan, path, newest, then)


def before_decided(plan: Plan) -> str:
    """Say what to do about a table that somebody wrote to, while nothing was changed."""
    return (
        f"Nothing was changed. Give this recovery up (streamkeeper abandon {plan.recovery_id}) and plan anew,"
        " from what is there now."
    )


def once_decided(plan: Plan) -> str:
    """Say what to do about a table that is not put back though the flows' next generations are decided, which
    rely on it.
    """
    flows = " ".join(flow.flow for flow in plan.flows)
    return (
        "It was not put back. The flows' next generations are decided, and must not begin before it is: hold"
        f" the flows (streamkeeper hold {flows}), give this recovery up (streamkeeper abandon"
        f" {plan.recovery_id}), plan it anew, from what is there now, and release the flows once it holds"
        " them."
    )


def written_late(work: Work, plan: Plan, path: str, newest: int | None, then: str) -> tuple[int, ...]:
    """Look at what was written to a table after its version ``newest``, None if there was no table; give the
    versions of late batches of flows that go back. A table that the recovery has put back already is not
    looked at.

    :param then: what to do if somebody else wrote, for the message.
    :raises RecoveryError: somebody else wrote, or the table is another now.
    """
    found = delta_log.latest_version(path)
    if found is not None and newest is not None and found < newest:
        raise RecoveryError(
            f"{path} is at version {found}; it was at {newest} when the plan was made under the hold:"
            f" somebody replaced it. {then}"
        )
    returning = dict(_writers(work, plan, returning=True))
    late, others = [], []
    for commit in delta_log.commits(path):
        if newest is not None and commit.version <= newest:
            break
        if (
            commit.user_metadata == past_versions.mark(plan.recovery_id)
            or app_id(plan.recovery_id) in commit.transactions
        ):
            return ()
        if _is_upkeep(commit):
            continue
        if any(app in returning for app in commit.transactions):
            late.append(commit.version)
        else:
            others.append(commit)
    if others:
        names = {**dict(_writers(work, plan, returning=False)), **returning}
        told = ", ".join(_describe(commit, names) for commit in reversed(others[-_LISTED:]))
        more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
        raise RecoveryError(
            f"{path} was written to after the plan was made under the hold: {told}{more}. Putting it back"
            f" would undo that, and nobody accepted it. {then}"
        )
    return tuple(late)


def _looked_at(plan: Plan) -> Iterator[tuple[str, int | None]]:
    """Give the tables that a rewind or a restore puts back, each with its version at the look, None if there
    was none.

    A plan of an earlier release does not say the version where a backup is put back.
    """
    backs = (*plan.details.get("put_back", ()), *plan.details.get("tables", ()))
    yield from ((back["path"], back["newest"]) for back in backs if "newest" in back)


def _writers(work: Work, plan: Plan, returning: bool) -> Iterator[tuple[str, str]]:
    """Give what the flows that go back, or those that only wait, commit under, each with the flow's name."""
    for flow in plan.flows:
        if (flow.next_generation is not None) == returning:
            for writer in past_versions.writers_of(work.home(flow)):
                yield writer, flow.flow


def _is_upkeep(commit: LogCommit) -> bool:
    if commit.changes_data:
        return False
    seals = [version == SEAL for version in commit.transactions.values()]
    # What is remembered without a batch is of one whose MERGE has not followed yet, or was forgotten.
    remembers = commit.remembered is not None and not seals
    return commit.operation in _UPKEEP or remembers or bool(seals and all(seals))


def _describe(commit: LogCommit, names: dict[str, Any]) -> str:
    batches = [f"batch {batch} of {names[app]}" for app, batch in commit.transactions.items() if app in names]
    return f"version {commit.version} ({', '.join([commit.operation or 'unknown', *batches])})"
