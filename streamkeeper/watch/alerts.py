"""Alerts about flows, and the files that make each one sent only once.

{flow}/alerts/<kind>-<hash of the occasion>.json  mark of an occasion that was reported, or is about to be:
                                                  immutable
{flow}/alerts/pending/<the same name>             the alert while a notifier must still be told, and the
                                                  attempts so far; removed when all were
{flow}/alerts/open/<the same name>                a trouble that is not over, with the flow's position when
                                                  it was found

Drivers and tasks record alerts, and the monitor alone sends them. It notes an attempt before it makes it:
while a notifier is left the next one follows after a pause, longer than any attempt takes. Whether one whose
process died still sent is unknown; a duplicate alert is the smaller harm. Ages are differences of the
storage's own times (:func:`streamkeeper.flows.files.storage_now`), so no two clocks are compared.
"""

from __future__ import annotations

import hashlib
import html
import json
from dataclasses import asdict, dataclass, replace
from enum import Enum
from types import SimpleNamespace
from typing import Any, TypeVar

from streamkeeper.declare.model import Notifier
from streamkeeper.flows.files import FlowHome
from streamkeeper.history import events
from streamkeeper.history.events import Kind
from streamkeeper.storage import read_record, to_json

T = TypeVar("T", "Alert", "Pending")

PAUSE = 600.0
"""Seconds from the begin of an attempt to the next; longer than any attempt takes."""
MOST_ATTEMPTS = 144
"""Attempts after which an alert is given up; about a day."""


class AlertKind(Enum):
    """Subjects of alerts: the value, which is part of file names, and what an alert says of its flow."""

    _value_: str
    description: str

    def __new__(cls, value: str, description: str) -> AlertKind:
        made = object.__new__(cls)
        made._value_, made.description = value, description
        return made

    PARKED = "parked", "is parked"
    """A failure that a restart cannot fix, with the recovery that fits and a link to its form. Once for a
    park.
    """
    CRASH_LOOP = "crash-loop", "is in a crash loop"
    """Drivers fail again and again without a committed batch. Once for a loop."""
    NO_PROGRESS = "no-progress", "makes no progress"
    """Input waits, and nothing was committed for ``no_progress_after``. Once for the position at which the
    flow stands.
    """
    RECOVERED = "recovered", "is running again"
    """The first commit after ``parked``, ``crash-loop`` or ``no-progress``. Once for each of them."""
    RECOVERY_FINISHED = "recovery-finished", "was recovered"
    """The last step of a recovery is done. Once for a recovery."""
    RECOVERY_FAILED = "recovery-failed", "could not be recovered"
    """A step failed for good, the recovery was given up, or one that nobody attends did not start. Once for
    a recovery, and after its decision for a step.
    """
    RETRIED_AS_DECLARED = (
        "retried-as-declared",
        "is retried, as declared, after a failure that a restart cannot fix",
    )
    """A failure that would park the flow, if it did not declare ``on_failure="retry"``. Once for a loop."""
    SETTINGS = "settings", "has settings that cannot work"
    """No driver can work with the settings, or what a driver needs is missing. Once for those settings."""
    CHANGE_REFUSED = "change-refused", "runs on without a change that does not fit"
    """A changed declaration that does not fit: the flow runs on without it. Once for the change."""
    CHANGE_WAITS = "change-waits", "runs on without a change that fits and waits for a person"
    """A changed declaration that fits, and waits for ``streamkeeper accept``. Once for the change."""
    EXPECTATION = "expectation", "has more rows that fail an expectation than it allows"
    """More rows fail an expectation than its ``alert_above`` allows. Once for the time until a share is
    allowed again.
    """
    EXPECTATION_MET = "expectation-met", "meets an expectation again"
    """A share is allowed again, or the expectation has no ``alert_above`` any more. Once for each alert on
    an expectation.
    """
    BEHIND = "behind", "is behind"
    """The oldest input that waits is older than ``behind_above``, for ``behind_for`` since the last hold or
    park; only where ``behind_above`` is declared. Once for the time until it is half of that.
    """
    STATE_GROWS = "state-grows", "has a state that grows until it does not fit"
    """At the pace of the last six hours (one at least), a state in memory outgrows Spark's memory within a
    day; not of RocksDB. Once for the time until half of that memory suffices for a day.
    """
    SLOW = "slow", "is slower than its trigger"
    """For a quarter of an hour batches took longer than their trigger, and input waits. Once for the time
    until a batch takes half of its trigger, or it is known that nothing waits.
    """
    LATE_ROWS = "late-rows", "drops rows as late"
    """Of an hour's rows more than ``late_above`` were dropped as later than the watermark. Once for the time
    until it is half of that.
    """
    STATE_FAILS = "state-fails", "has a state folder that fails"
    """The monitor can neither read nor write the state folder in three tries; of a pipeline, not of a flow.
    Once for the time until it works again.
    """
    RELIEVED = "relieved", "is well again"
    """``behind``, ``state-grows``, ``slow``, ``late-rows`` or ``state-fails`` is over. Once for each of
    them.
    """


TROUBLES = (AlertKind.PARKED, AlertKind.CRASH_LOOP, AlertKind.NO_PROGRESS)
"""Kinds that are over with the flow's next commit."""
JUDGED = (AlertKind.BEHIND, AlertKind.STATE_GROWS, AlertKind.SLOW, AlertKind.LATE_ROWS)
"""Kinds that are over when the monitor finds so (:mod:`streamkeeper.health.troubles`)."""
LASTING = (*TROUBLES, *JUDGED, AlertKind.EXPECTATION)
"""Kinds that stay open until they are over."""
_ENDS = (AlertKind.RECOVERED, AlertKind.RELIEVED)
"""Kinds that take a trouble back; their occasion is its kind and its occasion."""
_GOOD = (*_ENDS, AlertKind.EXPECTATION_MET, AlertKind.RECOVERY_FINISHED)


@dataclass(frozen=True)
class Alert:
    """One alert. ``flow`` is ``pipeline.flow``, or a pipeline if all of its flows are concerned; ``occasion``
    identifies the event, which happens only once.

    ``generation`` and ``batch`` are the flow's position: its last commit, None if it had none.
    """

    kind: AlertKind
    flow: str
    text: str
    occasion: str
    at: str
    link: str | None = None
    generation: int | None = None
    batch: int | None = None

    @property
    def subject(self) -> str:
        """Subject in one line."""
        return f"{self.flow} {self.kind.description}"

    @property
    def incident(self) -> str:
        """Key of what happened: the same for a trouble and for its end, as a pager needs it."""
        ends = self.kind in _ENDS
        kind = AlertKind.EXPECTATION if self.kind is AlertKind.EXPECTATION_MET else self.kind
        key = self.occasion if ends else f"{kind.value} {self.occasion}"
        return f"streamkeeper/{self.flow}/{hashlib.sha256(key.encode()).hexdigest()[:16]}"

    @property
    def action(self) -> str:
        """What a pager does with it: ``resolve`` for good news, which open no incident, else ``trigger``."""
        return "resolve" if self.kind in _GOOD else "trigger"

    @property
    def name(self) -> str:
        """File name of the occasion."""
        return f"{self.kind.value}-{hashlib.sha256(self.occasion.encode()).hexdigest()[:16]}.json"

    def for_templates(self) -> SimpleNamespace:
        """Return ``alert`` as a notifier's arguments may use it: ``{{ alert.subject }}``, all of them texts.

        ``html`` is text and link, escaped.
        """
        body = f"<pre>{html.escape(self.text)}</pre>"
        if self.link:
            body += f'<p><a href="{html.escape(self.link)}">{html.escape(self.link)}</a></p>'
        return SimpleNamespace(
            subject=self.subject,
            text=self.text,
            html=body,
            kind=self.kind.value,
            flow=self.flow,
            link=self.link or "",
            at=self.at,
            incident=self.incident,
            action=self.action,
        )


@dataclass(frozen=True)
class Pending:
    """An alert that a notifier must still be told: how many attempts began, when the last one did in seconds
    of the storage's time, and the keys of the notifiers that got it.
    """

    alert: Alert
    attempts: int = 0
    tried_at: float = 0.0
    delivered: tuple[str, ...] = ()

    def was_delivered_to(self, notifier: Notifier) -> bool:
        """Return whether a notifier got the alert."""
        return _key(notifier) in self.delivered


def record(home: FlowHome, alert: Alert) -> bool:
    """Record an alert before any notifier is told; return False if its occasion was recorded before."""
    if home.storage.read(home.alert(alert.name)) is not None:
        return False
    content = to_json(_plain(alert))
    # Pending first: if this process ends in between, the alert is not lost.
    home.storage.create(home.alert(f"pending/{alert.name}"), _content(Pending(alert)))
    if alert.kind in LASTING:
        home.storage.create(home.alert(f"open/{alert.name}"), content)
    first = alert.text.partition("\n")[0]
    events.note(
        home,
        Kind.RECOVERED if alert.kind is AlertKind.RECOVERED else Kind.ALERT,
        first if alert.kind is AlertKind.RECOVERED else f"{alert.kind.description}: {first}",
        alert.name,
        generation=alert.generation,
    )
    return home.storage.create(home.alert(alert.name), content)


def pending(home: FlowHome) -> list[Pending]:
    """Read the alerts that a notifier must still be told."""
    return _read_all(home, "pending", Pending)


def open_troubles(home: FlowHome) -> list[Alert]:
    """Read the alerts of troubles that are not over."""
    return _read_all(home, "open", Alert)


def close_trouble(home: FlowHome, alert: Alert) -> None:
    """Record that a trouble is over."""
    home.storage.remove(home.alert(f"open/{alert.name}"))


def settle(home: FlowHome, alert: Alert) -> None:
    """Record that every notifier was told, or that the rest is given up."""
    home.storage.remove(home.alert(f"pending/{alert.name}"))


def begin_attempt(home: FlowHome, waiting: Pending, at: float) -> Pending | None:
    """Note that an attempt to send an alert begins; None if the pause after the last one is not over.

    :param at: the storage's time, in seconds since 1970.
    """
    # A clock that was set back since would make the pause as long as it went back.
    if waiting.attempts and 0 <= at - waiting.tried_at < PAUSE:
        return None
    return _keep(home, replace(waiting, attempts=waiting.attempts + 1, tried_at=at))


def note_delivered(home: FlowHome, waiting: Pending, notifier: Notifier) -> Pending:
    """Note that a notifier got an alert."""
    return _keep(home, replace(waiting, delivered=(*waiting.delivered, _key(notifier))))


def _keep(home: FlowHome, waiting: Pending) -> Pending:
    home.storage.overwrite(home.alert(f"pending/{waiting.alert.name}"), _content(waiting))
    return waiting


def _content(waiting: Pending) -> bytes:
    return to_json({**asdict(waiting), "alert": _plain(waiting.alert)})


def _plain(alert: Alert) -> dict[str, Any]:
    return {**asdict(alert), "kind": alert.kind.value}


def _key(notifier: Notifier) -> str:
    """Return the key of a notifier; with other arguments it is another notifier."""
    plain = json.dumps([notifier.classpath, dict(notifier.arguments)], sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:12]


def _read_all(home: FlowHome, folder: str, kind: type[T]) -> list[T]:
    names = (home.alert(f"{folder}/{name}") for name in home.storage.names(home.alert(folder)))
    way = "Remove it; the alert is then not sent again."
    records = (read_record(home.storage, name, kind, "an alert", way) for name in names)
    return [record for record in records if record is not None]
