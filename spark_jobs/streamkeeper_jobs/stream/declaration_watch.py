"""Watch for changes of a flow's declaration since its driver imported it.

The driver never imports the file again: another process does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from streamkeeper.errors import RequestError, StreamkeeperError
from streamkeeper.manifest import pipeline_files
from streamkeeper.manifest.manifest import FOLDER, Manifest, read_manifest
from streamkeeper.settings import Settings

AGAIN_SECONDS = 30.0
"""Seconds until the declaration is read again after a failed attempt, if no file changes sooner."""

_ONE_AT_A_TIME = threading.Lock()
"""Flows of one driver see a change at the same moment: the first rebuilds the manifest for all of them."""


@dataclass(frozen=True)
class Changed:
    """A changed declaration, in words; ``fingerprint`` is the new one, None if the flow is gone."""

    words: str
    fingerprint: str | None = None


class Declaration:
    """The declaration of a flow as its driver runs it.

    Create it *before* the pipeline file is imported; then no change is missed. An error in the pipelines
    folder never ends a running flow: it is reported once, and the folder is read again later.
    """

    def __init__(
        self, settings: Settings, flow: str, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._flow, self._monotonic = settings, flow, monotonic
        self._reported: str | None = None
        self._again: float | None = None
        self._signature: pipeline_files.Signature | None = None
        self.files_changed()
        self.fingerprint = ""

    def files_changed(self) -> bool:
        """Return whether any pipeline file changed since the last call, or another attempt is due.

        Only names, sizes and times of files are compared.
        """
        try:
            now = pipeline_files.signature(self._settings.pipelines)
        except Exception as error:  # noqa: BLE001 - whatever the folder is like, what runs goes on
            self._tell(str(error))
            return False
        changed, self._signature = now != self._signature, now
        if changed or (self._again is not None and self._monotonic() >= self._again):
            self._again = None
            return True
        return False

    def manifest(self) -> Manifest | None:
        """Return the manifest of the present files; None if they, or this flow's file, cannot be read."""
        try:
            with _ONE_AT_A_TIME:
                manifest = read_manifest(self._settings)
        except Exception as error:  # noqa: BLE001 - as above
            self._later(
                str(error) if isinstance(error, StreamkeeperError) else f"{type(error).__name__}: {error}"
            )
            return None
        if FOLDER in manifest.errors:
            self._later(manifest.errors[FOLDER])
            return None
        wrong = manifest.errors.get(self._flow.partition(".")[0])
        self._tell(wrong)
        return None if wrong else manifest

    def what_changed(self) -> Changed | None:
        """Return the change of the flow's declaration; None if it is the same or unreadable."""
        manifest = self.manifest()
        if manifest is None:
            return None
        try:
            flow = manifest.find(self._flow)
        except RequestError as error:
            # A file that is being replaced may be missing for a moment: a flow is gone only if the files have
            # not changed again.
            return None if self._moved_on() else Changed(f"the flow is no longer declared. {error}")
        if flow.fingerprint == self.fingerprint:
            return None
        return Changed(
            f"the declaration changed (fingerprint {self.fingerprint} → {flow.fingerprint}); the next"
            " start uses it",
            flow.fingerprint,
        )

    def _moved_on(self) -> bool:
        """Return whether the files changed since they were last read; the next look sees that."""
        try:
            return pipeline_files.signature(self._settings.pipelines) != self._signature
        except StreamkeeperError:
            return True

    def _later(self, problem: str) -> None:
        self._again = self._monotonic() + AGAIN_SECONDS
        self._tell(problem)

    def _tell(self, wrong: str | None) -> None:
        """Print what is wrong, once until something else is; None means that nothing is."""
        if wrong not in (None, self._reported):
            print(
                f"The pipeline files changed and cannot be used as they are; {self._flow} continues"
                f" unchanged. {wrong}",
                flush=True,
            )
        self._reported = wrong
