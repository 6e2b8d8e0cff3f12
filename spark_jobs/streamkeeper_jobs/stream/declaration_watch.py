"""Whether a flow's declaration changed since its driver imported it. The driver never imports it twice:
another process does.
"""

from __future__ import annotations

import threading

from streamkeeper.errors import RequestError
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings

_ONE_AT_A_TIME = threading.Lock()
"""Flows of one driver see a change at the same moment; the first makes the manifest anew, and the others find
it.
"""

Signature = tuple[tuple[str, int, int], ...]


class Declaration:
    """The declaration of a flow as its driver runs it. Make one *before* the pipeline file is imported; then
    no change is missed.
    """

    def __init__(self, settings: Settings, flow: str) -> None:
        self._settings, self._flow = settings, flow
        self._seen = _signature(settings)
        self.fingerprint = ""

    def files_changed(self) -> bool:
        """Say, by names, sizes and times alone, whether any pipeline file changed since this was asked
        last.
        """
        now = _signature(self._settings)
        changed, self._seen = now != self._seen, now
        return changed

    def what_changed(self) -> str | None:
        """Say in words how the flow's declaration changed, or None if it is the same.

        A pipeline file that raises is no changed flow: what runs goes on until the file can be read again.
        """
        with _ONE_AT_A_TIME:
            manifest = read_manifest(self._settings)
        pipeline = self._flow.split(".")[0]
        if pipeline in manifest.errors:
            print(
                f"The pipeline file was changed and cannot be read; {self._flow} goes on as it is."
                f" {manifest.errors[pipeline]}",
                flush=True,
            )
            return None
        try:
            found = manifest.find(self._flow)
        except RequestError as error:
            return f"the flow is not declared any more. {error}"
        if found.fingerprint == self.fingerprint:
            return None
        return (
            f"the declaration changed (fingerprint {self.fingerprint} → {found.fingerprint}); the next start"
            " runs it"
        )


def _signature(settings: Settings) -> Signature:
    found = []
    for file in sorted(settings.pipelines.rglob("*.py")):
        stat = file.stat()
        found.append((str(file), stat.st_mtime_ns, stat.st_size))
    return tuple(found)
