"""Whether a flow's declaration changed since its driver imported it. The driver never imports it twice:
another process does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from streamkeeper.errors import RequestError, StreamkeeperError
from streamkeeper.manifest import pipeline_files
from streamkeeper.manifest.manifest import FOLDER, Manifest, read_manifest
from streamkeeper.settings import Settings

AGAIN_SECONDS = 30.0
"""How long after a look at the declaration that failed the next is, if no file changes sooner."""

_ONE_AT_A_TIME = threading.Lock()
"""Flows of one driver see a change at the same moment; the first makes the manifest anew, and the others find
it.
"""


class Declaration:
    """The declaration of a flow as its driver runs it. Make one *before* the pipeline file is imported; then
    no change is missed.

    Nothing that is wrong with the pipelines folder ends what runs: a look that fails is told once, and tried
    again.
    """

    def __init__(
        self, settings: Settings, flow: str, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._flow, self._monotonic = settings, flow, monotonic
        self._told: str | None = None
        self._again: float | None = None
        self._seen: pipeline_files.Signature | None = None
        self.files_changed()
        self.fingerprint = ""

    def files_changed(self) -> bool:
        """Say, by names, sizes and times alone, whether any pipeline file changed since this was asked last,
        or a look is due again.
        """
        try:
            now = pipeline_files.signature(self._settings.pipelines)
        except Exception as error:  # noqa: BLE001 - whatever the folder is like, what runs goes on
            self._tell(str(error))
            return False
        changed, self._seen = now != self._seen, now
        if changed or (self._again is not None and self._monotonic() >= self._again):
            self._again = None
            return True
        return False

    def manifest(self) -> Manifest | None:
        """Return the manifest of the files as they are now; None where they cannot be looked at, or this
        flow's cannot be read.
        """
        try:
            with _ONE_AT_A_TIME:
                found = read_manifest(self._settings)
        except Exception as error:  # noqa: BLE001 - as above
            self._later(
                str(error) if isinstance(error, StreamkeeperError) else f"{type(error).__name__}: {error}"
            )
            return None
        if FOLDER in found.errors:
            self._later(found.errors[FOLDER])
            return None
        wrong = found.errors.get(self._flow.partition(".")[0])
        self._tell(wrong)
        return None if wrong else found

    def what_changed(self) -> str | None:
        """Say in words how the flow's declaration changed, or None if it is the same, or cannot be looked
        at.
        """
        manifest = self.manifest()
        if manifest is None:
            return None
        try:
            found = manifest.find(self._flow)
        except RequestError as error:
            # Who replaces a file may remove it first: a flow is gone only if its file did not come back
            # meanwhile.
            return None if self._moved_on() else f"the flow is not declared any more. {error}"
        if found.fingerprint == self.fingerprint:
            return None
        return (
            f"the declaration changed (fingerprint {self.fingerprint} → {found.fingerprint}); the next start"
            " runs it"
        )

    def _moved_on(self) -> bool:
        """Say whether the files changed since the last look at them; the next look sees that."""
        try:
            return pipeline_files.signature(self._settings.pipelines) != self._seen
        except StreamkeeperError:
            return True

    def _later(self, why: str) -> None:
        self._again = self._monotonic() + AGAIN_SECONDS
        self._tell(why)

    def _tell(self, wrong: str | None) -> None:
        """Say what is wrong, once until it is another thing; None says that nothing is."""
        if wrong not in (None, self._told):
            print(
                f"The pipeline files changed and cannot be used as they are; {self._flow} goes on as it is."
                f" {wrong}",
                flush=True,
            )
        self._told = wrong
