"""Which process is killed in which round, how, and at which moment: all of it follows from the seed and the
round's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random


class Victim(Enum):
    """What a round strikes."""

    JVM = "driver's JVM"
    PYTHON = "driver's Python"
    DRIVER = "whole driver"
    TASK = "task process"
    WORKER = "LocalExecutor worker"
    SCHEDULER = "scheduler process"
    SCHEDULER_GROUP = "scheduler with its tasks"
    BOTH = "scheduler and driver"


class Blow(Enum):
    """How it is struck. PAUSE is SIGSTOP, and SIGCONT some seconds later."""

    KILL = "SIGKILL"
    TERM = "SIGTERM"
    PAUSE = "SIGSTOP, SIGCONT"


class Moment(Enum):
    """What is awaited before the jitter and the blow."""

    COMMITTED = "batch committed"
    IN_FLIGHT = "batch in flight"
    SINK_FIRST = "in the table, not in the checkpoint"
    ARRIVED = "file arrived"


@dataclass(frozen=True)
class Round:
    """One round. ``jitter`` is the seconds between the moment and the blow, ``pause`` the seconds between
    SIGSTOP and SIGCONT.
    """

    number: int
    victim: Victim
    blow: Blow
    moment: Moment
    jitter: float
    pause: float = 0.0

    def __str__(self) -> str:
        return f"{self.victim.value}, {self.blow.value}, {self.moment.value} + {self.jitter:.2f} s"


BLOWS: dict[Victim, tuple[Blow, ...]] = {
    Victim.JVM: (Blow.KILL, Blow.TERM),
    Victim.PYTHON: (Blow.KILL, Blow.TERM, Blow.PAUSE),
    Victim.DRIVER: (Blow.KILL, Blow.TERM, Blow.PAUSE),
    Victim.TASK: (Blow.KILL, Blow.TERM),
    Victim.WORKER: (Blow.KILL, Blow.TERM),
    Victim.SCHEDULER: (Blow.KILL, Blow.TERM),
    Victim.SCHEDULER_GROUP: (Blow.KILL,),
    Victim.BOTH: (Blow.KILL,),
}
LONGEST_JITTER, PAUSES = 1.5, (5.0, 25.0)
"""Seconds. A pause may be longer than Airflow's heartbeat timeout and the lease's term of a chaos run, and
shorter than either.
"""


def choose(seed: int, number: int, victims: tuple[Victim, ...] = tuple(Victim)) -> Round:
    """Choose a round; the same seed, number and victims give the same round.

    Any ``len(victims)`` rounds in a row, from a multiple of it on, strike each victim once, in an order of
    their own.
    """
    turn, place = divmod(number, len(victims))
    order = list(victims)
    Random(f"{seed}/order/{turn}").shuffle(order)
    victim = order[place]
    chance = Random(f"{seed}/round/{number}")
    blow = chance.choice(BLOWS[victim])
    moment = chance.choice(tuple(Moment))
    jitter = 0.0 if moment is Moment.SINK_FIRST else round(chance.uniform(0, LONGEST_JITTER), 3)
    pause = round(chance.uniform(*PAUSES), 1) if blow is Blow.PAUSE else 0.0
    return Round(number, victim, blow, moment, jitter, pause)
