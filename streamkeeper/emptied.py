"""The mark by which a full refresh finds the tables that it has emptied."""

from __future__ import annotations

from streamkeeper import delta_log, table_past


def app_id(recovery_id: str) -> str:
    """Give the ``txnAppId`` under which a recovery empties its tables: the same commit is never made twice."""
    return f"{recovery_id}{table_past.EMPTIED}"


def is_emptied(path: str, recovery_id: str) -> bool:
    """Say whether a recovery has emptied the table at a path, by the table's own log."""
    return delta_log.last_transaction(path, app_id(recovery_id)).version is not None
