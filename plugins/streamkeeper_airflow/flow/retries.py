"""Delays of retries: none after a healthy driver, longer and longer for drivers that never get to work."""

from __future__ import annotations

import random
from datetime import timedelta

from airflow.sdk import Context, RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowException

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome

FIRST_DELAY = timedelta(seconds=10)
LONGEST_DELAY = timedelta(minutes=4)
"""The longest delay.

With Airflow's default heartbeat timeout (300 s) it stays below the default ``supervisor_timeout`` (600 s).
"""
LOST_DELAY = timedelta(seconds=30)
"""Airflow's own delay, if no driver's end is known: the task itself failed, or its worker was killed."""
UNBEGUN_DELAY = timedelta(seconds=30)
"""Delay after a driver that never took the lease: Spark could not be started."""
UNLIMITED = 1_000_000
"""Number of retries; Airflow's column has 32 bits and no value for "unlimited"."""
JITTER = 0.2
"""Random share taken off a delay, so that flows that failed together do not start together."""


class DriverFailed(AirflowException):
    """A driver ended in a way that another try may overcome.

    :param code: its exit code.
    :param streak: number of drivers, up to and including this one, that ended before they had looked for data
        once; None if it never took the lease.
    :param looping: drivers failed again and again without a committed batch
        (:mod:`streamkeeper.watch.crash_loops`).
    """

    def __init__(self, message: str, code: int, streak: int | None, looping: bool = False) -> None:
        super().__init__(message)
        self.code, self.streak, self.looping = code, streak, looping


class WrongSettings(AirflowException):
    """Settings with which no driver can be started.

    The task is retried at the longest delay and does not fail for good: a failed run of a ``@continuous`` DAG
    is followed by the next one at once, so every flow would fail in a hot loop until a person came. Each try
    reads the settings anew, so a waiting try starts the driver once Airflow was restarted with correct
    settings.
    """


def failing_streak(home: FlowHome) -> int:
    """Count the newest drivers in a row that never finished a look for new data, ten at most.

    It is read from their heartbeats. Airflow never resets a try's number, which therefore cannot distinguish
    a healthy month from a bad start.
    """
    count = 0
    for epoch in reversed(home.epochs()[-10:]):
        beat = leases.read_heartbeat(home, epoch)
        if beat is not None and beat.triggers > 0:
            break
        count += 1
    return count


def delay(code: int, streak: int | None, looping: bool = False) -> timedelta:
    """Return the delay before the next try, without jitter.

    It is 0 after a driver that had worked, and once after a driver that asked for a restart. After drivers
    that never worked it is 10 s, doubled with each further one up to 4 min. In a crash loop, or with wrong
    settings, which no restart corrects, it is 4 min.
    """
    if looping or code == Outcome.USAGE:
        return LONGEST_DELAY
    if streak is None:
        return UNBEGUN_DELAY
    if streak == 0 or (code == Outcome.RESTART and streak == 1):
        return timedelta(0)
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (streak - 1))


class AfterHealth(RetryPolicy):
    """Retries for ever, with :func:`delay` less some jitter, or after other errors with Airflow's delay."""

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
