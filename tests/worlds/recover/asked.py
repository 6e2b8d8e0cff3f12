"""What tests ask of each kind of recovery."""

from __future__ import annotations

from typing import Any

FLOW, TABLE = "events.clean_events", "events.events"

ASKED: dict[str, dict[str, Any]] = {
    "reset_checkpoint": {"flow": FLOW},
    "rewind": {"flow": FLOW, "batch": "1", "accept": ["duplicates"]},
    "backup_table": {"table": TABLE},
    "restore_table": {"table": TABLE, "version": 2, "accept": ["data-loss", "duplicates"]},
    "full_refresh": {"table": TABLE, "accept": ["data-loss"]},
    "full_refresh_with_backup": {"table": TABLE, "accept": ["data-loss"]},
    "rebuild_without_downtime": {"table": TABLE, "accept": ["data-loss"]},
    "backfill": {"flow": FLOW, "accept": ["duplicates"]},
    "clean_up": {"pipeline": "events"},
    "tidy_tables": {"pipeline": "events"},
}
"""What is asked of each kind: all of them of the same table."""


SET_APART = {
    "adopt": "tests/core/kinds/test_adopt.py",
    "rehearse": "tests/spark/rehearse/test_rehearsals.py",
}
"""Kinds that cannot be asked of a flow that has begun, or that change nothing, and where they are tried
instead.
"""
