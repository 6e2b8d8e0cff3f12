"""Removes logs of ended drivers in ``<base_log_folder>/drivers/<flow>/``, which nothing else cleans up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context, conf

from streamkeeper.errors import StorageError
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome, clock_ahead
from streamkeeper.flows.leases import Life, process_started
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage


class RemoveDriverLogs(BaseOperator):
    """Removes driver logs without a write for ``STREAMKEEPER_LOG_RETENTION``, on the host where it runs.

    If workers have separate log folders, run it on each, with a queue for each host, or share a volume.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how many logs were removed, their bytes, and how many are left."""
        settings = Settings.from_environment()
        folder = Path(conf.get("logging", "base_log_folder")) / "drivers"
        gone, size, remaining = [], 0, 0
        if wrong := self._why_none(settings):
            self.log.warning("No driver log is removed: %s.", wrong)
            return {"removed": 0, "bytes": 0, "left": len(list(folder.glob("*/*.log")))}
        in_use = set(living_logs(settings))
        for log in sorted(folder.glob("*/*.log")):
            status = log.stat()
            if time.time() - status.st_mtime < settings.log_retention or log in in_use or _is_written(log):
                remaining += 1
                continue
            self.log.info(
                "Removing %s, last written %s.", log, time.strftime("%Y-%m-%d", time.gmtime(status.st_mtime))
            )
            log.unlink()
            _note_of(log).unlink(missing_ok=True)
            gone.append(str(log))
            size += status.st_size
        self.log.info(
            "%d driver logs with %d bytes removed, %d left in %s.", len(gone), size, remaining, folder
        )
        return {"removed": len(gone), "bytes": size, "left": remaining}

    def _why_none(self, settings: Settings) -> str | None:
        try:
            return clock_ahead(open_storage(settings.state))
        except StorageError as error:  # a full disk, perhaps, which needs the room that old logs take
            self.log.warning("This host's clock is compared with none: %s", error)
            return None


def living_logs(settings: Settings) -> Iterator[Path]:
    """Return the logs of drivers that hold their flow's lease and are not known to be gone, on any host.

    :raises StreamkeeperError: a lease or the manifest cannot be read; then nothing may be removed.
    """
    storage = open_storage(settings.state)
    for flow in read_manifest(settings).flows():
        home = FlowHome(storage, flow.pipeline.name, flow.name)
        lease = leases.current(home)
        if lease is not None and lease.log and leases.life(home, lease) in (Life.ALIVE, Life.UNKNOWN):
            yield Path(lease.log)


def _note_of(log: Path) -> Path:
    """Return the file where :class:`streamkeeper_airflow.flow.drivers.Submitted` names the log's writer."""
    return log.with_name(f"{log.name}.pid")


def _is_written(log: Path) -> bool:
    """Return whether the process in the log's note is alive here: a driver may live before its lease."""
    note = _note_of(log)
    if not note.exists():
        return False
    try:
        writer = json.loads(note.read_text())
        return process_started(int(writer["pid"])) == int(writer["started"])
    except (ValueError, KeyError, TypeError):
        return True  # the writer is unknown, so the log stays
