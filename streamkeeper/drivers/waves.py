"""Releasing flows in waves: the next wave only when each flow of the one before runs again, so that an
upgrade which a flow does not survive meets few flows, and a host starts few drivers at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome, of_each
from streamkeeper.flows.holds import Hold
from streamkeeper.manifest.manifest import Flow

PATIENCE = 600.0
"""Default seconds for the flows of a wave to run again."""
LOOK = 2.0
"""Seconds between two looks at the flows of a wave."""


class NotRunning(StreamkeeperError):
    """A flow that was released does not run again."""


Release = Callable[[FlowHome], tuple[list[str], list[Hold]]]
"""Removes holds from a flow, and returns the owners that had one, and the holds that stay."""


@dataclass(frozen=True)
class Released:
    """A released flow: ``owners`` of removed holds, ``holds`` that stay, and its newest heartbeat before."""

    home: FlowHome
    owners: list[str]
    holds: list[Hold]
    beat: tuple[int, int]

    @property
    def is_free(self) -> bool:
        """Whether it was held, and nothing holds it any more: then it runs again."""
        return bool(self.owners) and not self.holds


def in_waves(flows: Iterable[Flow], drivers: int | None) -> list[list[str]]:
    """Return the full names of flows in waves of so many drivers; all in one if it is None.

    Flows that share a driver are in one wave: it would end again for each that is released after it began.
    """
    by_driver: dict[str, list[str]] = {}
    for flow in flows:
        by_driver.setdefault(flow.dag_id, []).append(flow.full_name)
    units = list(by_driver.values())
    size = drivers or len(units) or 1
    return [list(chain.from_iterable(units[first : first + size])) for first in range(0, len(units), size)]


def release_in_waves(
    home: FlowHome,
    waves: Sequence[Sequence[str]],
    release_one: Release,
    patience: float = PATIENCE,
    *,
    say: Callable[[str], None] = lambda words: None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Released]:
    """Release flows wave by wave, and return all in their order. After the last wave nothing is waited for.

    :param home: that of any flow of the same state folder.
    :param patience: seconds for the flows of a wave to run again.
    :param say: called after each wave.
    :raises NotRunning: a flow was parked, or does not run in time; it is named, and the flows of later
        waves are held as before.
    """
    released: list[Released] = []
    for number, names in enumerate(waves, start=1):
        wave = of_each(home.storage, names, lambda one: _release(one, release_one))
        released += wave
        if number == len(waves):
            return released
        say(f"Wave {number} of {len(waves)} is released: {', '.join(names)}.")
        later = [name for names in waves[number:] for name in names]
        _await([one for one in wave if one.is_free], later, patience, monotonic, sleep)
    return released


def _release(home: FlowHome, release_one: Release) -> Released:
    beat = _newest_beat(home)
    return Released(home, *release_one(home), beat)


def _newest_beat(home: FlowHome) -> tuple[int, int]:
    beat = leases.present_heartbeat(home)
    return (0, 0) if beat is None else (beat.epoch, beat.count)


def _await(
    wave: Sequence[Released],
    later: Sequence[str],
    patience: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Wait until each flow of a wave runs, or is held by somebody else.

    :raises NotRunning: one does not.
    """
    deadline, waiting = monotonic() + patience, list(wave)
    while True:
        parks = [(one, park) for one in waiting if (park := holds.parked(one.home)) is not None]
        waiting = [one for one in waiting if not _runs(one)]
        reasons = [f"- {one.home.full_name} was parked: {park.reason}" for one, park in parks]
        if not reasons and not waiting:
            return
        if not reasons and monotonic() >= deadline:
            reasons = [f"- {one.home.full_name} does not run {patience:g} s after" for one in waiting]
        if reasons:
            raise NotRunning(
                "\n".join(["A flow that was released does not run again:", *reasons])
                + f"\nStill held are {', '.join(later)}. See the flow's log, that its DAG is not paused, and"
                " that the pool has slots. The same command releases the rest, wave by wave."
            )
        sleep(LOOK)


def _runs(released: Released) -> bool:
    """Return whether a driver of a released flow has looked for new data since; or need not, as the flow runs
    once and is done, or is held again.
    """
    home = released.home
    beat = leases.present_heartbeat(home)
    has_beaten = beat is not None and (beat.epoch, beat.count) > released.beat
    if beat is not None and has_beaten and beat.phase == "running" and beat.triggers > 0:
        return True
    return bool(home.owners()) or generations.finished(home) is not None
