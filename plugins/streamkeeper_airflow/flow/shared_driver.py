"""Flows that share a driver, for their one supervising task: who they are, who ended it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.files import FlowHome
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.storage import read_json


def sharing_flows(manifest: Manifest, flow: str) -> list[str]:
    """Return the full names of the flows, if any, that now share a driver with ``pipeline.flow``."""
    pipeline = flow.partition(".")[0]
    return [
        declared.full_name
        for declared in manifest.flows()
        if declared.pipeline.name == pipeline and declared.pipeline.shared_driver
    ]


def flows_at_fault(homes: Sequence[FlowHome], code: int, epochs: Mapping[str, int]) -> list[FlowHome]:
    """Return the flows that ended a shared driver; if none reports a cause, all that it ran or was to run.

    :param epochs: the driver's lease epoch of each flow that it ran, by full name.
    """
    if len(homes) == 1:
        return list(homes)
    ran = [home for home in homes if home.full_name in epochs]
    named = Outcome(code).name.lower() if code in set(Outcome) else ""
    reasons = {home.full_name: _end_reason(home, epochs[home.full_name]) for home in ran}
    return (
        [home for home in ran if reasons[home.full_name] == named]
        or [
            home for home in ran if reasons[home.full_name] not in (Outcome.STOPPED.name.lower(), "not begun")
        ]
        or ran
        or list(homes)
    )


def _end_reason(home: FlowHome, epoch: int) -> str | None:
    end_note = read_json(home.storage, home.left(epoch))
    return str(end_note["why"]) if end_note else None
