"""Exit codes: how a driver ended, for its supervisor."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from enum import IntEnum


class Outcome(IntEnum):
    """Exit codes of ``spark_jobs/run_flow.py``. Any other code is a failure that is retried."""

    STOPPED = 0
    """Stopped in good order: by a hold, by a changed declaration, or with all available input read
    (``--available-now``).
    """
    DONE = 256
    """A once flow has read all its input, now or before. Its process exits with 0: no process can end with
    this number, while a JVM ends with 3 where it ran out of memory (``-XX:+ExitOnOutOfMemoryError``).
    """
    USAGE = 2
    """Unusable command line or settings."""
    HELD = 10
    """Not started: there is a hold."""
    LEASE_HELD = 11
    """Not started: another driver has the lease."""
    LEASE_LOST = 12
    """Stopped: another driver took the lease over."""
    PARKED = 20
    """Failed, and no restart can help; the park hold describes the failure."""
    RESTART = 21
    """Failed, and the next start is expected to succeed."""
    RETRY_DECLARED = 22
    """Failed, and would be parked, but the flow declares ``on_failure="retry"``; the lease's ``failed`` file
    describes the failure.
    """
    CHANGE_REFUSED = 23
    """Not started: the changed declaration was tried, and does not fit or waits for a person. The next
    driver runs what ran before.
    """
    FAILED = 1
    """Failed, and is retried."""

    @property
    def exit_code(self) -> int:
        """Exit code of a driver's process. ``DONE`` is 0, as it is no failure; the generation's ``done`` file
        tells it apart.
        """
        return 0 if self is Outcome.DONE else int(self)

    @property
    def words(self) -> str:
        """The name as it is said, such as ``lease held``."""
        return self.name.lower().replace("_", " ")


PRECEDENCE = (
    Outcome.PARKED,
    Outcome.RETRY_DECLARED,
    Outcome.LEASE_LOST,
    Outcome.FAILED,
    Outcome.RESTART,
    Outcome.STOPPED,
    Outcome.DONE,
)
"""Order in which the end of one flow becomes the end of a shared driver.

First the ends that a person must hear of, since no later start reports them again. Then ``LEASE_LOST``, after
which the supervisor attaches to another driver, and the ends that need a wait before the next start. A good
end counts only if all flows ended so.
"""


def of_all(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the end of a driver from the ends of its flows: the first by :data:`PRECEDENCE`."""
    return min(outcomes, key=PRECEDENCE.index)


MORE_MEMORY = (
    'declare more, such as driver=dp.driver(driver_memory="4g") (docs/how-to/resources-and-dependencies.md)'
)
"""What helps where Java's memory was too small."""
OUT_OF_MEMORY = (3, 52)
"""Exit codes of Java's ``-XX:+ExitOnOutOfMemoryError``, and of Spark's own handler."""
_KILLED = 9


def described(code: int) -> str:
    """Return the end of a process of Spark in words, with the way out where memory was too small.

    A kernel without memory kills: seen from the parent that is -9, through a shell or spark-submit 137.
    """
    description = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    if code in OUT_OF_MEMORY:
        return f"{description} (Java ran out of memory: {MORE_MEMORY})"
    if code in (-_KILLED, 128 + _KILLED):
        return (
            f"{description} (killed from outside; if by the kernel or the container for memory, give it more"
            " than driver_memory, or declare less)"
        )
    return description
