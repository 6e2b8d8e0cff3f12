"""The ledger of a recovery: its plan, then each step's start, end and evidence, one immutable file an event.

{state}/{pipeline}/ledger/<recovery>/0001-planned.json
                                     0002-hold.started.json
                                     0003-hold.done.json …
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from streamkeeper.flows.files import kept_pipelines, ledgers_folder
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.redaction import redact
from streamkeeper.storage import Storage, read_record, to_json
from streamkeeper.support.times import Moment, now

PLANNED = "planned"
"""Event with the plan."""
ENDED, GIVEN_UP = "ended", "given_up"
"""Events that end a recovery: after its last step, and before that."""
OVER = (ENDED, GIVEN_UP)
NAME_STALE = "name_stale"
"""Event of a step that could not write the name of a table anew."""

_PIPELINE_KINDS = {
    PLANNED: Kind.RECOVERY_PLANNED,
    "approved": Kind.RECOVERY_APPROVED,
    "approved_again": Kind.RECOVERY_APPROVED,
    "started": Kind.STEP_BEGAN,
    "done": Kind.STEP_DONE,
    "failed": Kind.STEP_FAILED,
    NAME_STALE: Kind.NAME_STALE,
    ENDED: Kind.RECOVERY_FINISHED,
    GIVEN_UP: Kind.RECOVERY_GIVEN_UP,
}
"""Events, or ends of their names after a step's, that are events of the pipeline too."""

_FILE = re.compile(r"([0-9]{4,})-([a-z_.]+)\.json")


@dataclass(frozen=True)
class Event:
    """One event of a recovery."""

    number: int
    event: str
    at: Moment
    evidence: dict[str, Any]


@dataclass(frozen=True)
class _Content:
    """Content of an event's file."""

    event: str
    at: Moment
    evidence: dict[str, Any]


@dataclass(frozen=True)
class Ledger:
    """All events of one recovery."""

    storage: Storage
    folder: str

    def record(self, event: str, evidence: dict[str, Any]) -> Event:
        """Append an event, with secrets removed from its evidence.

        Different events written at the same moment may share a number; the same event never does.
        """
        number = max((entry.number for entry in self._names()), default=0) + 1
        while True:
            written = Event(number, event, now(), redact(evidence))
            # Noted first: what is killed in between is carried out again, and finds it noted.
            self._note(written)
            if self.storage.create(
                self._file(number, event),
                to_json({"event": event, "at": written.at, "evidence": written.evidence}),
            ):
                return written
            number += 1

    def find(self, event: str) -> Event | None:
        """Return the newest event of a name, or None."""
        named = [entry for entry in self._names() if entry.event == event]
        return self._read(named[-1]) if named else None

    def end(self) -> Event | None:
        """Return the event that ended the recovery, or None."""
        return next((ending for event in OVER if (ending := self.find(event)) is not None), None)

    def names(self) -> list[str]:
        """Return the names of all events in the order of writing; none is read."""
        return [entry.event for entry in self._names()]

    def events(self) -> list[Event]:
        """Return all events in the order of writing."""
        return [self._read(entry) for entry in self._names()]

    def _note(self, written: Event) -> None:
        """Write an event of the pipeline's, unless it is of no interest outside the ledger."""
        step, _, action = written.event.rpartition(".")
        kind = _PIPELINE_KINDS.get(action)
        if kind is None or step == "driver":
            return
        pipeline, _, recovery = self.folder.partition("/ledger/")
        with events.harmless(kind, recovery):
            planned = written if action == PLANNED else self.find(PLANNED)
            plan = planned.evidence if planned is not None else {}
            request = plan.get("request") or {}
            by = written.evidence.get("by") or request.get("by") or ""
            reason = written.evidence.get("error") or written.evidence.get("why")
            explanation = str(reason or (request.get("reason") if action == PLANNED else "") or "")
            name = recovery if action == PLANNED else plan.get("recovery") or recovery
            text = ": ".join(part for part in (name, step, explanation.partition("\n")[0]) if part)
            flows = tuple(flow["flow"] for flow in plan.get("flows") or ())
            pipeline_event = events.Event("", time.time(), kind, flows, text, by, recovery=recovery)
            often = kind in (Kind.STEP_BEGAN, Kind.STEP_FAILED)
            occasion = [written.event, written.number if often else ""]
            events.write(self.storage, pipeline, pipeline_event, occasion)

    def _names(self) -> list[Event]:
        matches = (_FILE.fullmatch(name) for name in self.storage.names(self.folder))
        return sorted(
            (Event(int(match[1]), match[2], "", {}) for match in matches if match),
            key=lambda entry: entry.number,
        )

    def _read(self, entry: Event) -> Event:
        way = f"Restore it from a copy; without one, remove {self.storage.path(self.folder)} and its holds."
        name = self._file(entry.number, entry.event)
        content = read_record(self.storage, name, _Content, "an event of a recovery", way)
        return entry if content is None else Event(entry.number, entry.event, content.at, content.evidence)

    def _file(self, number: int, event: str) -> str:
        return f"{self.folder}/{number:04d}-{event}.json"


def open(storage: Storage, pipeline: str, recovery: str) -> Ledger:
    """Return the ledger of a recovery; it may still be empty."""
    return Ledger(storage, f"{ledgers_folder(storage, pipeline)}/{recovery}")


def pipeline_of(storage: Storage, recovery: str) -> str | None:
    """Return the pipeline of a recovery, declared or not; None if there is no such recovery."""
    names = (name for name in kept_pipelines(storage) if recovery in recoveries(storage, name))
    # Beside the recoveries' folders there are others.
    return next((name for name in names if open(storage, name, recovery).names()), None)


def open_recoveries(storage: Storage) -> dict[str, set[str]]:
    """Return the ids of the recoveries that have neither ended nor been given up, each with the pipelines of
    its ledger and of its flows and tables.
    """
    named_recoveries = (
        (name, recovery) for name in kept_pipelines(storage) for recovery in recoveries(storage, name)
    )
    books = ((name, recovery, open(storage, name, recovery)) for name, recovery in named_recoveries)
    return {
        recovery: {name, *_owners(book)}
        for name, recovery, book in books
        if book.names() and book.end() is None
    }


def _owners(book: Ledger) -> set[str]:
    planned = book.find(PLANNED)
    return set() if planned is None else set((planned.evidence.get("owners") or {}).values())


def recoveries(storage: Storage, pipeline: str) -> list[str]:
    """Return the ids of all recoveries of a pipeline, sorted."""
    return storage.names(ledgers_folder(storage, pipeline))
