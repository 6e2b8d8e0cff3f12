"""A changed declaration, tried beside the driver that runs, by the driver that takes over if it fits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from airflow.sdk.exceptions import AirflowException

from streamkeeper.errors import StreamkeeperError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.files import FlowHome
from streamkeeper.settings import Settings
from streamkeeper.supervise.changes import AGAIN, BETWEEN, Changes, PipelineFiles, mark
from streamkeeper.trial import change
from streamkeeper.trial.change import Change, ChangeState
from streamkeeper.trial.verdict import Compatibility, Verdict
from streamkeeper_airflow.flow.drivers import InCluster, Submitted

ATTEMPTS = 3
"""Drivers that are started to try one change, if they end without a verdict."""

_log = logging.getLogger(__name__)


class Successor:
    """Sees a changed declaration of a flow, and has it tried.

    It looks when it is called, in the loop of the task that follows the driver. ``is_busy`` says that a trial
    runs, or that one is due; ``reported`` is the change that was told of last
    (:func:`streamkeeper.supervise.changes.mark`).

    :param start: submits a driver that tries the declaration, and takes over if it fits.
    :param tell: is told of a change that is kept out.
    """

    def __init__(
        self,
        settings: Settings,
        home: FlowHome,
        start: Callable[[], Submitted | InCluster],
        tell: Callable[[Change], None],
        monotonic: Callable[[], float] = time.monotonic,
        *,
        reported: str = "",
    ) -> None:
        self._home, self._start, self._tell, self._monotonic = home, start, tell, monotonic
        self._changes = Changes(home, PipelineFiles(settings, monotonic))
        self._next = -float("inf")
        self._driver: Submitted | InCluster | None = None
        self.reported, self.is_busy = reported, False
        self._tries = ""
        self._attempts = 0

    def look(self) -> None:
        """Start a trial if one is due, or see how the one that runs has ended."""
        if self._driver is not None:
            ending = self._driver.wait()
            if ending is not None:
                self._driver = None
                self._conclude(ending.code)
        if self._monotonic() < self._next:
            return
        self._next = self._monotonic() + BETWEEN
        try:
            flow = self._changes.look()
            self.is_busy = self._driver is not None or flow is not None
            if flow is not None and flow.fingerprint != self._tries and self._is_ready():
                return  # it takes over, or has: once it is followed, the newer change is tried
        except StreamkeeperError as error:  # the driver that runs goes on
            _log.warning("Whether %s changed is looked at again: %s", self._home.full_name, error)
            self._next = self._monotonic() + AGAIN
            return
        if self._changes.kept_out is not None:
            self._tell_kept_out(self._changes.kept_out)
        if flow is not None and flow.fingerprint != self._tries:
            self.end()
            self._tries, self._attempts = flow.fingerprint, 0
        if flow is not None and self._driver is None:
            try:
                self._driver = self._start()
            except (AirflowException, StreamkeeperError) as error:  # the driver that runs goes on
                _log.warning("The change of %s is tried again later: %s", self._home.full_name, error)
                self._next = self._monotonic() + AGAIN
            else:
                self._attempts += 1

    def take(self) -> Submitted | InCluster | None:
        """Return the driver that takes over, if there is one; it is no longer this one's."""
        taken, self._driver = self._driver, None
        self._changes.reopen()
        return taken

    def end(self) -> None:
        """End the trial that runs, if there is one."""
        if self._driver is not None:
            self._driver.end()
        self._driver = None

    def _is_ready(self) -> bool:
        current_change = change.read(self._home, self._tries) if self._driver is not None else None
        return current_change is not None and current_change.state is ChangeState.READY

    def _tell_kept_out(self, current_change: Change) -> None:
        if mark(current_change) != self.reported:
            self.reported = mark(current_change)
            self._tell(current_change)
        self._next = self._monotonic() + AGAIN

    def _conclude(self, code: int) -> None:
        if code == Outcome.CHANGE_REFUSED:
            return  # the next look tells what was found
        _log.warning("The driver that tried the change of %s ended with %s.", self._home.full_name, code)
        self._next = self._monotonic() + AGAIN
        if self._attempts >= ATTEMPTS:
            reasons = (
                f"It could not be tried: {self._attempts} drivers ended without a verdict, see their logs.",
            )
            verdict = Verdict(self._home.full_name, Compatibility.UNKNOWN, reasons)
            change.write(self._home, Change(self._tries, ChangeState.REFUSED, verdict), "supervisor")
