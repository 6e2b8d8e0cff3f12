"""Which process is killed in which round, how, and at which moment: all of it follows from the seed and the
round's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

from streamkeeper.settings import DEFERRED


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
    CELERY = "Celery worker with its tasks"
    API = "API server"
    PROCESSOR = "DAG processor"
    TRIGGERER = "triggerer"
    DATABASE = "PostgreSQL"
    REDIS = "Redis"
    BROKER = "Kafka broker"
    S3 = "S3 server"
    SPARK_MASTER = "Spark master"
    SPARK_WORKER = "Spark worker"
    EXECUTOR = "Spark executor"
    FILE = "pipeline file"
    DISK = "disk of state and tables"


class Blow(Enum):
    """How it is struck. PAUSE is SIGSTOP, and SIGCONT some seconds later; CUT lets nothing through to a
    server for some seconds, and closes its connections then; REFUSE and SLOW answer each request to S3 with
    503, or late, and LOSSY late or not at all. HALF leaves the first half of a pipeline file, which is no
    Python; FULL leaves no room.
    """

    KILL = "SIGKILL"
    TERM = "SIGTERM"
    PAUSE = "SIGSTOP, SIGCONT"
    CUT = "cut off"
    REFUSE = "503"
    SLOW = "slow answers"
    LOSSY = "slow or lost answers"
    HALF = "half written"
    FULL = "full"


class Moment(Enum):
    """What is awaited before the jitter and the blow."""

    COMMITTED = "batch committed"
    IN_FLIGHT = "batch in flight"
    SINK_FIRST = "in the table, not in the checkpoint"
    ARRIVED = "file arrived"


@dataclass(frozen=True)
class Round:
    """One round. ``jitter`` is the seconds between the moment and the blow, ``pause`` the seconds that a
    blow lasts. ``flow`` is the index of the flow whose moment is awaited, and whose driver or task is struck;
    of several workers or executors it chooses one, too.
    """

    number: int
    victim: Victim
    blow: Blow
    moment: Moment
    jitter: float
    pause: float = 0.0
    flow: int = 0


_END, _ALL = (Blow.KILL, Blow.TERM), (Blow.KILL, Blow.TERM, Blow.PAUSE)
_HOLD, _NET = (Blow.KILL, Blow.PAUSE), (Blow.KILL, Blow.PAUSE, Blow.CUT)
BLOWS: dict[Victim, tuple[Blow, ...]] = {
    Victim.JVM: _END,
    Victim.PYTHON: _ALL,
    Victim.DRIVER: _ALL,
    Victim.TASK: _END,
    Victim.WORKER: _END,
    Victim.SCHEDULER: _END,
    Victim.SCHEDULER_GROUP: (Blow.KILL,),
    Victim.BOTH: (Blow.KILL,),
    Victim.CELERY: _HOLD,
    Victim.API: _HOLD,
    Victim.PROCESSOR: (Blow.KILL,),
    Victim.TRIGGERER: (Blow.KILL,),
    Victim.DATABASE: _NET,
    Victim.REDIS: _NET,
    Victim.BROKER: _NET,
    Victim.S3: (*_NET, Blow.REFUSE, Blow.SLOW, Blow.LOSSY),
    Victim.SPARK_MASTER: _HOLD,
    Victim.SPARK_WORKER: _HOLD,
    Victim.EXECUTOR: _HOLD,
    Victim.FILE: (Blow.HALF,),
    Victim.DISK: (Blow.FULL,),
}
DISTURBING = (Blow.CUT, Blow.REFUSE, Blow.SLOW, Blow.LOSSY, Blow.HALF, Blow.FULL)
LASTING = (Blow.PAUSE, *DISTURBING)
"""Blows that are over by themselves; those that disturb strike no process."""
LOCAL = (
    Victim.JVM, Victim.PYTHON, Victim.DRIVER, Victim.TASK, Victim.WORKER, Victim.SCHEDULER,
    Victim.SCHEDULER_GROUP, Victim.BOTH, Victim.FILE,
)  # fmt: skip
SMALL_DISK = (Victim.DISK,)
CLUSTER = tuple(
    victim
    for victim in Victim
    if victim not in (Victim.WORKER, Victim.SCHEDULER_GROUP, Victim.BOTH, Victim.FILE, *SMALL_DISK)
)
"""Victims on this machine alone, with LocalExecutor; of a disk that must be mounted; and on a cluster with
Celery.
"""
_WATCHING_TASKS = (Victim.TASK, Victim.WORKER, Victim.SCHEDULER_GROUP)
LONGEST_JITTER, PAUSES = 1.5, (5.0, 25.0)
"""Seconds. A pause may be longer than Airflow's heartbeat timeout and the lease's term of a chaos run, and
shorter than either.
"""


def possible(victims: tuple[Victim, ...], supervision: str) -> tuple[Victim, ...]:
    """Return the victims that there are of a place's: where supervision is deferred, no task watches, and the
    triggerer does.
    """
    if supervision != DEFERRED:
        return victims
    others = (victim for victim in victims if victim not in (*_WATCHING_TASKS, Victim.TRIGGERER))
    return (*others, Victim.TRIGGERER)


def choose(seed: int, number: int, victims: tuple[Victim, ...] = LOCAL, flows: int = 1) -> Round:
    """Choose a round; the same seed, number, victims and count of flows give the same round.

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
    pause = round(chance.uniform(*PAUSES), 1) if blow in LASTING else 0.0
    return Round(number, victim, blow, moment, jitter, pause, chance.randrange(flows))
