"""Parts of Airflow, and a tenth of the drivers, killed by -9 one after the other; and how long it takes until
each flow has its driver again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from random import Random

from demo.processes import session_members
from tests.benchmarks.thousand.company import kill
from tests.benchmarks.thousand.stages import patience, row
from tests.benchmarks.thousand.world import DATABASE, Thousand
from tests.chaos.components import SCHEDULER, TRIGGERER

AWAY = 5.0
"""Seconds that a part is away, as whatever keeps services running takes."""
ALONE = "nothing else"


def chaos(world: Thousand, chance: Random) -> None:
    """Strike each part once, in the seed's order, and with it a tenth of the drivers; and these alone."""
    order = [TRIGGERER, SCHEDULER, DATABASE, ALONE]
    chance.shuffle(order)
    for part in order:
        before, components = _pids(world), dict(world.service.components)
        victims = chance.sample(world.names, max(1, len(world.names) // 10))
        living = world.company.living()
        for entry in (entry for victim in victims for entry in living.get(victim, [])):
            kill(entry)
        _strike(world, part)
        seconds = world.await_watched(patience(world), blow=time.time())
        others = len(before - _pids(world)) - len(victims)
        again = [name for name, one in world.service.components.items() if components[name] is not one]
        words = (
            f"{seconds:,.0f} s; {others} other drivers ended; started again: {', '.join(again) or 'nothing'}"
        )
        row(f"{len(victims)} drivers and {part} killed, until all are watched", words)


def _pids(world: Thousand) -> set[int]:
    return {entry.pid for entries in world.company.living().values() for entry in entries}


def _strike(world: Thousand, part: str) -> None:
    if part == DATABASE:
        world.database.server.kill()
        time.sleep(AWAY)
        world.database.server.start()
    elif part != ALONE:
        for pid in session_members(world.service.components[part].pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        world.service.components[part].wait()
        time.sleep(AWAY)
