"""A changed declaration, tried beside the driver that runs, by the driver that takes over if it fits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from airflow.sdk.exceptions import AirflowException

from streamkeeper.errors import RequestError, StreamkeeperError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.manifest import pipeline_files
from streamkeeper.manifest.manifest import Flow, read_manifest
from streamkeeper.settings import Settings
from streamkeeper.trial import change
from streamkeeper.trial.change import Change, ChangeState
from streamkeeper.trial.verdict import Compatibility, Verdict
from streamkeeper_airflow.flow.drivers import InCluster, Submitted

BETWEEN = 2.0
"""Seconds between two looks at the pipeline files."""
AGAIN = 15.0
"""Seconds between two looks at a change that is kept out, and until another attempt."""
ATTEMPTS = 3
"""Drivers that are started to try one change, if they end without a verdict."""

_log = logging.getLogger(__name__)


class Successor:
    """Sees a changed declaration of a flow, and has it tried.

    It looks when it is called, in the loop of the task that follows the driver.

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
    ) -> None:
        self._settings, self._home, self._start, self._tell = settings, home, start, tell
        self._monotonic = monotonic
        self._signature: pipeline_files.Signature | None = None
        self._open = False
        self._next = -float("inf")
        self._driver: Submitted | InCluster | None = None
        self._reported: Change | None = None
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
            flow = self._changed()
            if flow is not None and flow.fingerprint != self._tries and self._is_ready():
                return  # it takes over, or has: once it is followed, the newer change is tried
        except StreamkeeperError as error:  # the driver that runs goes on
            _log.warning("Whether %s changed is looked at again: %s", self._home.full_name, error)
            self._next = self._monotonic() + AGAIN
            return
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
        self._open = True
        return taken

    def end(self) -> None:
        """End the trial that runs, if there is one."""
        if self._driver is not None:
            self._driver.end()
        self._driver = None

    def _is_ready(self) -> bool:
        current_change = change.read(self._home, self._tries) if self._driver is not None else None
        return current_change is not None and current_change.state is ChangeState.READY

    def _changed(self) -> Flow | None:
        """Return the flow as declared if that must be tried."""
        signature = pipeline_files.signature(self._settings.pipelines)
        if signature != self._signature:
            self._signature, self._open = signature, True
        if not self._open:
            return None
        beat = leases.present_heartbeat(self._home)
        if beat is None or beat.phase != "running":
            return None  # what it runs is not written down yet
        ran, flow = change.last_runnable(self._home), self._declared()
        if ran is None or flow is None or ran.fingerprint == flow.fingerprint:
            self._open = False
            return None
        if not change.is_tried(ran.flow(self._home.flow)):
            return None
        return None if self._is_kept_out(flow) else flow

    def _is_kept_out(self, flow: Flow) -> bool:
        """Return whether a declaration is not tried (any more); tell of one that is refused or waits."""
        current_change = change.read(self._home, flow.fingerprint)
        if flow.pipeline.shared_driver:
            if current_change is None or current_change.keeps_out:
                reason = "Its flows share a driver now, whose task starts it: it is used without a trial."
                verdict = Verdict(flow.full_name, Compatibility.COMPATIBLE, (reason,))
                change.write(self._home, Change(flow.fingerprint, ChangeState.READY, verdict), "supervisor")
            return True
        if current_change is None or not current_change.keeps_out:
            return False
        if current_change != self._reported:
            self._reported = current_change
            self._tell(current_change)
        self._next = self._monotonic() + AGAIN
        return True

    def _declared(self) -> Flow | None:
        """Return the flow as declared; None if its file cannot be read, or declares it no more."""
        manifest = read_manifest(self._settings)
        if self._home.pipeline in manifest.errors:
            return None
        try:
            return manifest.find(self._home.full_name)
        except RequestError:
            return None

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
