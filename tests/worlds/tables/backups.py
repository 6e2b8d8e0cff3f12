"""Entries in the list of backups."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from streamkeeper.tables.backups import Backup, Checksum, TableBackup
from streamkeeper.tables.flows_at_version import FlowAt

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


def entry(name: str, days_old: float = 0, **changes: Any) -> Backup:
    table = TableBackup("/w/events", f"/b/{name}/target", 3, "id", 1, 4, Checksum(2, "7", 5), "{}")
    at = (NOW - timedelta(days=days_old)).isoformat(timespec="seconds")
    return replace(
        Backup(name, "events", "events", at, "ada", table, (FlowAt("events.clean_events", 1, 2, "q"),)),
        **changes,
    )
