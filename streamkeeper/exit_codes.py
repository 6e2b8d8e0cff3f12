"""How a driver ends, as its supervisor sees it: exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Outcome(IntEnum):
    """Exit codes of ``spark_jobs/run_flow.py``. Any other code is a failure that is retried."""

    STOPPED = 0
    """Stopped in good order: a hold appeared, the declaration changed, or all that was there is done
    (``--available-now``).
    """
    DONE = 3
    """A once flow has read all there was, now or before: nothing is left to run. Its process exits with 0."""
    USAGE = 2
    """The command line or the settings cannot be used."""
    HELD = 10
    """Did not start: a hold is there."""
    LEASE_HELD = 11
    """Did not start: another driver has the lease."""
    LEASE_LOST = 12
    """Stopped: another driver took the lease over."""
    PARKED = 20
    """Failed in a way that a restart cannot mend; the park hold says how."""
    RESTART = 21
    """Failed in a way that the next start is expected to get over."""
    RETRY_DECLARED = 22
    """Failed in a way that would park the flow, but it declares ``on_failure="retry"``: its lease's
    ``failed`` file says how.
    """
    FAILED = 1
    """Failed in a way that is retried."""

    @property
    def exit_code(self) -> int:
        """The exit code of a driver's process: that a flow is done is no failure, and its generation's
        ``done`` file says the rest.
        """
        return 0 if self is Outcome.DONE else int(self)


PRECEDENCE = (
    Outcome.PARKED,
    Outcome.RETRY_DECLARED,
    Outcome.LEASE_LOST,
    Outcome.FAILED,
    Outcome.RESTART,
    Outcome.STOPPED,
    Outcome.DONE,
)
"""Which flow's end is that of the driver that they share: first what a person must be told, since no later
start says it again; then that another driver is to be attached to; then what asks for a wait before the next
start; an end in good order only if all ended so.
"""


def of_all(outcomes: Iterable[Outcome]) -> Outcome:
    """Give how a driver ended whose flows ended so: the first of :data:`PRECEDENCE`."""
    return min(outcomes, key=PRECEDENCE.index)
