"""Mark of a full refresh in the log of each table that it has emptied."""

from __future__ import annotations

from streamkeeper.delta import log as delta_log
from streamkeeper.tables import past_versions


def app_id(recovery_id: str) -> str:
    """Return the ``txnAppId`` under which a recovery empties its tables: the same commit is never made
    twice.
    """
    return f"{recovery_id}{past_versions.EMPTIED}"


def is_emptied(path: str, recovery_id: str) -> bool:
    """Return whether a recovery has emptied the table at a path, by the table's own log."""
    return delta_log.last_transaction(path, app_id(recovery_id)).version is not None
