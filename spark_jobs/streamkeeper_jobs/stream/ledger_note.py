"""Entries of a driver in the ledger of the recovery that made its generation."""

from __future__ import annotations

from typing import Any

from streamkeeper.flows import ledger
from streamkeeper.flows.files import FlowHome


def note_in_ledger(home: FlowHome, recovery: str | None, event: str, evidence: dict[str, Any]) -> None:
    """Append an event to a recovery's ledger; do nothing for a generation that no recovery made."""
    if recovery is not None:
        ledger.open(home.storage, home.pipeline, recovery).record(event, evidence)
