"""Flows that share a driver, for their one supervising task: who they are, a living driver, who ended it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from streamkeeper.exit_codes import Outcome, of_all
from streamkeeper.flows.files import FlowHome
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.storage import read_json
from streamkeeper_airflow.flow import drivers
from streamkeeper_airflow.flow.drivers import Attached, Ending


def sharing_flows(manifest: Manifest, flow: str) -> list[str]:
    """Return the full names of the flows, if any, that now share a driver with ``pipeline.flow``."""
    pipeline = flow.partition(".")[0]
    return [
        declared.full_name
        for declared in manifest.flows()
        if declared.pipeline.name == pipeline and declared.pipeline.shared_driver
    ]


class AttachedToSharedDriver:
    """A driver of several flows that was already alive. It is gone once it has left, or lost, all of them.

    One of its flows tells whether it lives. The heartbeats of the others are read now and then, so that all
    are known to be silent soon after that one is.
    """

    def __init__(self, parts: Sequence[Attached], term: float) -> None:
        self._living, self._endings = list(parts), list[Ending]()
        self._between, self._next = term / 2, time.monotonic() + term / 2
        self.epochs = dict(part.flow for part in parts)
        self.log: Path | None = next((part.log for part in parts if part.log), None)
        self.cluster = next((part.cluster for part in parts if part.cluster), None)

    def wait(self) -> Ending | None:
        deadline = time.monotonic() + drivers.LOOK
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._between
            self._look_at(self._living[1:])
        while self._living and time.monotonic() < deadline:
            ending = self._living[0].wait()
            if ending is not None:
                self._endings.append(ending)
                del self._living[0]
                self._look_at(self._living)
        if self._living:
            return None
        code = of_all(Outcome(ending.code) for ending in self._endings)
        return next(ending for ending in self._endings if ending.code == code)

    def _look_at(self, parts: Sequence[Attached]) -> None:
        for part in list(parts):
            ending = part.look()
            if ending is not None:
                self._endings.append(ending)
                self._living.remove(part)


def flows_at_fault(homes: Sequence[FlowHome], code: int, before: dict[str, int]) -> list[FlowHome]:
    """Return the flows that ended a shared driver; if none reports a cause, all that it ran or was to run.

    :param before: the newest lease epoch of each flow before the driver began, by full name.
    """
    if len(homes) == 1:
        return list(homes)
    ran = [home for home in homes if max(home.epochs(), default=0) > before.get(home.full_name, 0)]
    named = Outcome(code).name.lower() if code in set(Outcome) else ""
    reasons = {home.full_name: _end_reason(home) for home in ran}
    return (
        [home for home in ran if reasons[home.full_name] == named]
        or [
            home for home in ran if reasons[home.full_name] not in (Outcome.STOPPED.name.lower(), "not begun")
        ]
        or ran
        or list(homes)
    )


def _end_reason(home: FlowHome) -> str | None:
    end_note = read_json(home.storage, home.left(home.epochs()[-1]))
    return str(end_note["why"]) if end_note else None
