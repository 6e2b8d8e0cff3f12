"""The output of a driver, in a file or on its cluster's pages: its last lines, and new ones as they come."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from streamkeeper.clusters import cluster_drivers
from streamkeeper.flows.leases import ClusterDriver, Lease
from streamkeeper.redaction import redact_text

CHUNK = 256 * 1024
"""Bytes of one read."""
WIDTH = 2000
"""Characters of a line that are shown."""
PAGE_SECONDS = 5.0
"""Seconds between two looks at a page of the cluster."""


class Output(Protocol):
    """Growing output of a driver."""

    location: str

    def is_readable(self) -> bool:
        """Return whether it can be read from here."""
        ...

    def near_end(self, size: int) -> int:
        """Return the position that has ``size`` bytes behind it, or 0, the first, if there are less."""
        ...

    def read(self, start: int) -> tuple[bytes, int]:
        """Return bytes from a position on, about :data:`CHUNK` at most, and the position behind them; none
        if there are none yet.
        """
        ...


class LogFile:
    """Output in a file of this host, which need not be there yet."""

    def __init__(self, file: Path) -> None:
        self._file, self.location = file, str(file)

    def is_readable(self) -> bool:
        return self._file.exists()

    def near_end(self, size: int) -> int:
        return max(0, self._file.stat().st_size - size) if self._file.exists() else 0

    def read(self, start: int) -> tuple[bytes, int]:
        if not self._file.exists():
            return b"", start
        with self._file.open("rb") as log:
            log.seek(start)
            return log.read(CHUNK), log.tell()


class ClusterLog:
    """Output of a driver that a cluster runs. A page that does not answer shows nothing for now."""

    def __init__(self, driver: ClusterDriver) -> None:
        self._driver, self.location = driver, f"{driver.page} ({driver.id})"
        self._asked = float("-inf")

    def is_readable(self) -> bool:
        try:
            return cluster_drivers.near_end(self._driver, 0) >= 0
        except (OSError, ValueError):
            return False

    def near_end(self, size: int) -> int:
        try:
            return cluster_drivers.near_end(self._driver, size)
        except (OSError, ValueError):
            return 0

    def read(self, start: int) -> tuple[bytes, int]:
        if time.monotonic() - self._asked < PAGE_SECONDS:
            return b"", start
        self._asked = time.monotonic()
        try:
            return cluster_drivers.output(self._driver, start, CHUNK)
        except (OSError, ValueError):
            return b"", start


def output_of(lease: Lease) -> Output | None:
    """Return the output of the driver that has a lease; None if nobody recorded where it is."""
    if lease.cluster is not None:
        return ClusterLog(lease.cluster)
    return None if lease.log is None else LogFile(Path(lease.log))


def last_lines(output: Output, number: int) -> list[str]:
    """Return the last lines of an output, of its last 256 KiB at most, without secrets."""
    start = output.near_end(CHUNK)
    lines = output.read(start)[0].decode(errors="replace").splitlines()
    return [redact_text(line) for line in lines[1 if start else 0 :][-number:]]


class LogTail:
    """Passes the new lines of a growing output to ``write``, without secrets, ``limit`` lines at most.

    :param backlog: bytes before its present end that are shown too; None shows all of it.
    :param start: a former tail's ``position``, where this one goes on; then ``backlog`` does not matter.
    """

    def __init__(
        self,
        output: Output,
        write: Callable[[str], None],
        *,
        limit: int = 5000,
        backlog: int | None = None,
        start: int | None = None,
    ) -> None:
        self._output, self._write, self._left = output, write, limit
        before = 0 if backlog is None or start is not None else output.near_end(backlog)
        self._position = before if start is None else start
        self._rest = b""

    @property
    def location(self) -> str:
        """Where the output is."""
        return self._output.location

    @property
    def position(self) -> int:
        """Position behind the last line that was passed on. Half a line is passed on once it is whole."""
        # Outputs whose positions are no bytes give whole lines.
        return self._position - len(self._rest)

    def pump(self) -> None:
        """Pass on what is new since the last call."""
        while self._left > 0:
            chunk, self._position = self._output.read(self._position)
            if not chunk:
                return
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._show(line.decode(errors="replace"))

    def _show(self, line: str) -> None:
        if self._left <= 0:
            return
        line = redact_text(line)
        self._write(line if len(line) <= WIDTH else f"{line[:WIDTH]}… ({len(line)} characters)")
        self._left -= 1
        if self._left == 0:
            self._write(f"No more lines are shown here; the driver keeps writing to {self._output.location}.")
