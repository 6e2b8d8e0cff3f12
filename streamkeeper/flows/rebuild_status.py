"""How far a state is that a driver rebuilds from history, by its heartbeat."""

from __future__ import annotations

from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Heartbeat

REBUILDING = "rebuilding"
"""The phase of a driver that rebuilds a state from history; its heartbeat's details then have ``rebuild``:
step, of, rows, epoch.
"""


def how_far(home: FlowHome, first: int = 0) -> str | None:
    """Say how far the flow's present driver is with rebuilding a state; None where it rebuilds none.

    :param first: the lowest generation that counts.
    """
    lease = leases.current(home)
    return told_by(leases.read_heartbeat(home, lease.epoch) if lease is not None else None, first)


def told_by(beat: Heartbeat | None, first: int = 0) -> str | None:
    """As :func:`how_far`, by a heartbeat that was read already."""
    if beat is None or beat.phase != REBUILDING or beat.generation < first or "rebuild" not in beat.details:
        return None
    told = beat.details["rebuild"]
    return (
        f"state of generation {beat.generation} rebuilt by {told['step']} of {told['of']} steps,"
        f" {told['rows']} rows"
    )
