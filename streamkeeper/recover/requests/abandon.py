"""The request of ``abandon_recovery``: the id of a recovery that is to be given up, and why."""

from __future__ import annotations

from dataclasses import dataclass

from streamkeeper.recover.requests.form import Request, asked


@dataclass(frozen=True)
class AbandonRequest(Request):
    """A recovery to give up: its holds and locks go, and what it has changed stays."""

    refused = "Nothing was abandoned"
    run = ()

    recovery: str = asked("string", "Recovery", "Id of the recovery, as its page and its alerts name it.", "")
    by: str = ""
    reason: str = asked("string", "Reason", "Reason, kept in its ledger.", "")
