"""Flows of a shared driver's pipeline that it does not run.

Once one of them may run, the driver ends, and the next one runs all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamkeeper.errors import FlowHeld
from streamkeeper.flows.files import FlowHome
from streamkeeper_jobs.driver.driver import check_holds
from streamkeeper_jobs.stream.declaration_watch import Declaration


class WaitingFlows:
    """Watches the flows that are held, and flows that are newly declared in the pipeline.

    :param files: the pipeline's files as they were before they were imported.
    :param held_homes: the flows that were held when the driver began.
    :param fingerprints: the fingerprints of all flows of the pipeline then, by full name.
    """

    def __init__(
        self, files: Declaration, held_homes: Sequence[FlowHome], fingerprints: Mapping[str, str]
    ) -> None:
        self._files, self._held_homes = files, tuple(held_homes)
        self._names, self._present = frozenset(fingerprints), dict(fingerprints)
        self._pipeline = next(iter(fingerprints)).partition(".")[0]

    def look(self) -> str | None:
        """Return why the next start would run more flows; None if it would not.

        Reads one folder for each held flow. If a pipeline file changed, it waits until another process has
        imported it.

        :raises StorageError: holds cannot be read.
        """
        new = self._newly_declared() if self._files.files_changed() else []
        if new:
            return f"{', '.join(new)} is declared now; the next start runs it too"
        freed = [home.full_name for home in self._held_homes if self._is_free(home)]
        return f"{', '.join(freed)} is no longer held; the next start runs it too" if freed else None

    def _newly_declared(self) -> list[str]:
        manifest = self._files.manifest()
        if manifest is None:
            return []
        self._present = {
            flow.full_name: flow.present for flow in manifest.flows() if flow.pipeline.name == self._pipeline
        }
        return sorted(set(self._present) - self._names)

    def _is_free(self, home: FlowHome) -> bool:
        if home.full_name not in self._present:
            return False
        try:
            check_holds(home, self._present[home.full_name])
        except FlowHeld:
            return False
        return True
