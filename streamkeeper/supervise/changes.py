"""A changed declaration of a flow whose driver runs, as whoever watches the driver sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from streamkeeper.errors import RequestError
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.manifest import pipeline_files
from streamkeeper.manifest.manifest import Flow, Manifest, read_manifest
from streamkeeper.manifest.pipeline_files import Signature
from streamkeeper.settings import Settings
from streamkeeper.trial import change
from streamkeeper.trial.change import Change, ChangeState
from streamkeeper.trial.verdict import Compatibility, Verdict

BETWEEN = 2.0
"""Seconds between two looks at the pipeline files."""
AGAIN = 15.0
"""Seconds between two looks at a change that is kept out, until another attempt, and until a manifest is read
again though no file has changed.
"""


class PipelineFiles:
    """The pipeline files, for all who look at them: listed once in :data:`BETWEEN` seconds, however many ask,
    and their manifest read once for each content, and every :data:`AGAIN` seconds: a file that could not be
    read may be readable under the same signature, and a rename changes the manifest, too.
    """

    def __init__(self, settings: Settings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._monotonic, self._lock = settings, monotonic, threading.Lock()
        self._signature: Signature | None = None
        self._listed = self._read_again = -float("inf")
        self._manifest: tuple[Signature, Manifest] | None = None

    def signature(self) -> Signature:
        """Return what differs after any of the files has changed.

        :raises SettingsError: the folder does not exist, or cannot be listed.
        """
        with self._lock:
            if self._signature is None or self._monotonic() - self._listed >= BETWEEN:
                self._signature = pipeline_files.signature(self._settings.pipelines)
                self._listed = self._monotonic()
            return self._signature

    def manifest(self) -> Manifest:
        """Return what the files declare.

        :raises StreamkeeperError: they cannot be read, and there is no earlier manifest.
        """
        signature = self.signature()
        with self._lock:
            now = self._monotonic()
            if self._manifest is None or self._manifest[0] != signature or now >= self._read_again:
                self._manifest, self._read_again = (signature, read_manifest(self._settings)), now + AGAIN
            return self._manifest[1]


class Changes:
    """Sees whether a declaration differs from the one that the driver runs, and must be tried.

    ``kept_out`` is the change that the last look saw and that is not tried (any more): it is refused, or
    waits for a person.
    """

    def __init__(self, home: FlowHome, files: PipelineFiles) -> None:
        self._home, self._files = home, files
        self._signature: Signature | None = None
        self._open = False
        self.kept_out: Change | None = None

    def look(self) -> Flow | None:
        """Return the flow as declared if that must be tried. Where no file has changed, nothing is read.

        :raises StreamkeeperError: files or the state folder cannot be read.
        """
        self.kept_out = None
        signature = self._files.signature()
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

    def reopen(self) -> None:
        """Look at the declaration again though no file has changed: another driver runs now."""
        self._open = True

    def _is_kept_out(self, flow: Flow) -> bool:
        current_change = change.read(self._home, flow.fingerprint)
        if flow.pipeline.shared_driver:
            if current_change is None or current_change.keeps_out:
                reason = "Its flows share a driver now, whose task starts it: it is used without a trial."
                verdict = Verdict(flow.full_name, Compatibility.COMPATIBLE, (reason,))
                change.write(self._home, Change(flow.fingerprint, ChangeState.READY, verdict), "supervisor")
            return True
        if current_change is None or not current_change.keeps_out:
            return False
        self.kept_out = current_change
        return True

    def _declared(self) -> Flow | None:
        """Return the flow as declared; None if its file cannot be read, or declares it no more."""
        manifest = self._files.manifest()
        if self._home.pipeline in manifest.errors:
            return None
        try:
            return manifest.find(self._home.full_name)
        except RequestError:
            return None


def mark(current_change: Change | None) -> str:
    """Return a short text that tells one change that is kept out from another; empty for none."""
    return f"{current_change.fingerprint} {current_change.state}" if current_change else ""
