"""Removing the logs of drivers that are gone: ``<base_log_folder>/drivers/<flow>/``, to which nothing else
sees.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context, conf

from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Life, process_started
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage


class RemoveDriverLogs(BaseOperator):
    """Removes driver logs that nobody wrote for ``STREAMKEEPER_LOG_RETENTION``, on the host that it runs on.

    Where workers have log folders of their own, run it on each: a queue a host, or a volume that all share.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Give how many logs were removed, their bytes, and how many are left."""
        settings = Settings.from_environment()
        folder = Path(conf.get("logging", "base_log_folder")) / "drivers"
        gone, size, left = [], 0, 0
        in_use = set(living_logs(settings))
        for log in sorted(folder.glob("*/*.log")):
            found = log.stat()
            if time.time() - found.st_mtime < settings.log_retention or log in in_use or _is_written(log):
                left += 1
                continue
            self.log.info(
                "Removing %s, last written %s.", log, time.strftime("%Y-%m-%d", time.gmtime(found.st_mtime))
            )
            log.unlink()
            _note_of(log).unlink(missing_ok=True)
            gone.append(str(log))
            size += found.st_size
        self.log.info("%d driver logs with %d bytes removed, %d left in %s.", len(gone), size, left, folder)
        return {"removed": len(gone), "bytes": size, "left": left}


def living_logs(settings: Settings) -> Iterator[Path]:
    """Give the logs of drivers that hold their flow's lease and are not known to be gone, on whatever host.

    :raises StreamkeeperError: a lease or the manifest cannot be read; then nothing may be removed.
    """
    storage = open_storage(settings.state)
    for flow in read_manifest(settings).flows():
        home = FlowHome(storage, flow.pipeline.name, flow.name)
        lease = leases.current(home)
        if lease is not None and lease.log and leases.life(home, lease) in (Life.ALIVE, Life.UNKNOWN):
            yield Path(lease.log)


def _note_of(log: Path) -> Path:
    """The file in which :class:`streamkeeper_airflow.flow.drivers.Submitted` names who writes the log."""
    return log.with_name(f"{log.name}.pid")


def _is_written(log: Path) -> bool:
    """Say whether the process that the log's note names is alive on this host: a driver may live before it
    has a lease.
    """
    note = _note_of(log)
    if not note.exists():
        return False
    try:
        found = json.loads(note.read_text())
        return process_started(int(found["pid"])) == int(found["started"])
    except (ValueError, KeyError, TypeError):
        return True  # whose it is cannot be told, so it stays
