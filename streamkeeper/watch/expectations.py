"""Shares of rows that fail a flow's expectations: when an alert is due, and when it is taken back."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence

from streamkeeper.declare.model import Expectation
from streamkeeper.flows.files import FlowHome
from streamkeeper.support.times import now
from streamkeeper.watch import alerts
from streamkeeper.watch.alerts import Alert, AlertKind

Counts = Mapping[str, Sequence[int]]
"""Rows of a batch that passed and that failed, by the name of the expectation."""


class Shares:
    """Follows the batches of one generation of a flow, and records alerts, which the monitor then sends.

    A share is taken over the last batches with rows, once there are as many as the expectation's window. Its
    alert is open until a share is allowed again, across restarts of the driver.
    """

    def __init__(self, home: FlowHome, expectations: Sequence[Expectation], generation: int) -> None:
        self._home, self._generation = home, generation
        self._watched = [item for item in expectations if item.alert_above is not None]
        self._last: dict[str, deque[tuple[int, int]]] = {
            item.name: deque(maxlen=item.alert_window) for item in self._watched
        }

    def end_undeclared(self) -> None:
        """Take back the alerts of expectations that are not declared any more, or allow any share.

        :raises StorageError: the state folder cannot be read or written.
        """
        for name, alert in _open(self._home).items():
            if name not in self._last:
                text = f"The expectation {name!r} has no alert_above any more."
                self._take_back(alert, text, alert.batch)

    def add(self, batch: int, counts: Counts) -> None:
        """Add the counts of a batch, and record or take back alerts.

        :raises StorageError: the state folder cannot be read or written.
        """
        for item in self._watched:
            passed, failed = counts.get(item.name, (0, 0))
            if passed + failed:
                self._last[item.name].append((passed + failed, failed))
                self._judge(item, batch)

    def _judge(self, item: Expectation, batch: int) -> None:
        last = self._last[item.name]
        if len(last) < item.alert_window:
            return
        rows, failed = (sum(counts) for counts in zip(*last, strict=True))
        assert item.alert_above is not None, "it is watched"
        above, open_alert = failed > item.alert_above * rows, _open(self._home).get(item.name)
        if above == (open_alert is not None):
            return
        sentence = (
            f"{failed} of {rows} rows ({failed / rows:.2%}) fail the expectation {item.name!r}"
            f" ({item.condition}) in {_batches(item.alert_window, batch)}; allowed are"
            f" {item.alert_above:.2%}."
        )
        if open_alert is not None:
            self._take_back(open_alert, sentence, batch)
            return
        occasion = json.dumps([item.name, self._generation, batch])
        alerts.record(self._home, self._alert(AlertKind.EXPECTATION, sentence, occasion, batch))

    def _take_back(self, alert: Alert, sentence: str, batch: int | None) -> None:
        text = f"{sentence} The alert of {alert.at} is resolved."
        alerts.record(self._home, self._alert(AlertKind.EXPECTATION_MET, text, alert.occasion, batch))
        alerts.close_trouble(self._home, alert)

    def _alert(self, kind: AlertKind, text: str, occasion: str, batch: int | None) -> Alert:
        return Alert(
            kind,
            self._home.full_name,
            text,
            occasion,
            now(),
            generation=self._generation,
            batch=batch,
        )


def _open(home: FlowHome) -> dict[str, Alert]:
    """Read the alerts that are not taken back, by the name of the expectation."""
    open_alerts = [alert for alert in alerts.open_troubles(home) if alert.kind is AlertKind.EXPECTATION]
    return {str(json.loads(alert.occasion)[0]): alert for alert in open_alerts}


def _batches(window: int, last: int) -> str:
    return f"batch {last}" if window == 1 else f"{window} batches up to batch {last}"
