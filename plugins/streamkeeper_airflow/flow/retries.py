"""When a failed driver is started again: at once after a healthy stretch, later and later while it never gets
to work.
"""

from __future__ import annotations

import random
from datetime import timedelta

from airflow.sdk import Context, RetryDecision, RetryPolicy, conf
from airflow.sdk.exceptions import AirflowException

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.settings import Settings

FIRST_DELAY = timedelta(seconds=10)
LONGEST_DELAY = timedelta(minutes=4)
"""The cap. With Airflow's default heartbeat timeout (300 s) it stays below the default ``supervisor_timeout``
(600 s).
"""
LOST_DELAY = timedelta(seconds=30)
"""Airflow's own delay, for what no driver said: the task itself failed, or its worker was killed and no
policy could be asked.
"""
UNBEGUN_DELAY = timedelta(seconds=30)
"""After a driver that never took the lease: Spark could not be started."""
UNLIMITED = 1_000_000
"""Retries; Airflow's column is 32 bits wide and knows no "for ever"."""
JITTER = 0.2
"""Share of a delay that chance may take off, so that flows that failed together do not start together."""
SPARE = timedelta(seconds=30)
"""What Airflow may need beyond its timeouts to see a lost task (it looks every 10 s) and to start the next
try.
"""
HEARTBEAT_TIMEOUT = "task_instance_heartbeat_timeout"


class DriverFailed(AirflowException):
    """A driver ended in a way that another try may get over.

    :param code: its exit code.
    :param streak: how many drivers, up to and with it, ended before they had looked for data once; None if it
        never took the lease.
    :param looping: drivers failed again and again without a committed batch
        (:mod:`streamkeeper.drivers.crash_loops`).
    """

    def __init__(self, message: str, code: int, streak: int | None, looping: bool = False) -> None:
        super().__init__(message)
        self.code, self.streak, self.looping = code, streak, looping


class WrongSettings(AirflowException):
    """Settings that no driver can be started with.

    It is retried at the cap, not failed for good: a failed run of a ``@continuous`` DAG is followed by the
    next one at once, so the flow would fail in a hot loop until a person came, and then again for every flow.
    A try that waits starts by itself once Airflow was started again with better settings, since each try
    reads them anew.
    """


def failing_streak(home: FlowHome, most: int = 10) -> int:
    """Count the newest drivers, one after another, that never finished a look for new data; ``most`` at most.

    It is told from their heartbeats: a try's number never starts over in Airflow, so it cannot tell a healthy
    month from a bad start.
    """
    count = 0
    for epoch in reversed(home.epochs()[-most:]):
        beat = leases.read_heartbeat(home, epoch)
        if beat is not None and beat.triggers > 0:
            break
        count += 1
    return count


def delay(code: int, streak: int | None, looping: bool = False) -> timedelta:
    """Give the wait for the next try, before chance takes its share.

    It is 0 after a driver that had been at work, and where one asked for that, once; 10 s after one that
    never worked, doubled with each further one, to 4 min; 4 min in a crash loop and where the settings are
    wrong, which no restart of a driver corrects.
    """
    if looping or code == Outcome.USAGE:
        return LONGEST_DELAY
    if streak is None:
        return UNBEGUN_DELAY
    if streak == 0 or (code == Outcome.RESTART and streak == 1):
        return timedelta(0)
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (streak - 1))


def check_patience(settings: Settings) -> None:
    """Make sure that no driver stops for want of a supervisor while the next try of its task is still
    waiting.

    Airflow's number is that of this process's configuration; a scheduler on another machine has to have the
    same.

    :raises WrongSettings: the times do not fit together.
    """
    lost = timedelta(seconds=conf.getint("scheduler", HEARTBEAT_TIMEOUT))
    needed = (lost + max(LONGEST_DELAY, LOST_DELAY) + SPARE).total_seconds()
    if settings.supervisor_timeout >= needed:
        return
    most = settings.supervisor_timeout - needed + lost.total_seconds()
    lower = f", or lower [scheduler] {HEARTBEAT_TIMEOUT} to {most:.0f} s" if most > 0 else ""
    raise WrongSettings(
        f"STREAMKEEPER_SUPERVISOR_TIMEOUT is {settings.supervisor_timeout:g} s, but a driver may go unwatched"
        f" for {needed:.0f} s: Airflow's [scheduler] {HEARTBEAT_TIMEOUT} ({lost.total_seconds():.0f} s), then"
        f" up to {LONGEST_DELAY.total_seconds():.0f} s until the next try, and {SPARE.total_seconds():.0f} s"
        " to start it. It would stop before its next try attaches to it, so no driver is started. Set"
        f" STREAMKEEPER_SUPERVISOR_TIMEOUT to {needed:.0f} or more{lower}, and start Airflow again."
    )


class AfterHealth(RetryPolicy):
    """Retries for ever, with the delay of :func:`delay` less some jitter; what no driver said waits Airflow's
    own delay.
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide from the exception alone, in the worker."""
        match exception:
            case DriverFailed():
                wait = delay(exception.code, exception.streak, exception.looping)
            case WrongSettings():
                wait = LONGEST_DELAY
            case _:
                return RetryDecision.default()
        wait *= 1 - JITTER * random.random()
        return RetryDecision.retry(wait, f"next try in {wait.total_seconds():.0f} s")
