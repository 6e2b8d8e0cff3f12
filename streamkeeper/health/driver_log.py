"""The output of a driver, in a file or on its cluster's pages: its last lines, and new ones as they come."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from streamkeeper.clusters import cluster_drivers
from streamkeeper.flows.leases import ClusterDriver, Lease
from streamkeeper.redaction import Lines

DRIVERS = "drivers"
"""Folder of Airflow's logs that holds those of drivers, each in a folder of its application."""
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
        """Return bytes from a position on, about :data:`CHUNK` at most, and the position behind them."""
        ...


class LogFile:
    """Output in a file of this host, ``…/drivers/<application>/<name>.log``, which need not be there yet.

    A lease names it, which the code of a pipeline can write: another file, a link, a pipe or a device is not
    opened, and counts as not there.
    """

    def __init__(self, file: Path) -> None:
        self._file, self.location = file, str(file)

    def is_readable(self) -> bool:
        with self._opened() as log:
            return log is not None

    def near_end(self, size: int) -> int:
        with self._opened() as log:
            return 0 if log is None else max(0, os.fstat(log).st_size - size)

    def read(self, start: int) -> tuple[bytes, int]:
        with self._opened() as log:
            content = b"" if log is None else os.pread(log, CHUNK, start)
        return content, start + len(content)

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """Yield a descriptor of the file; None if it cannot be opened, or is no driver's log."""
        *above, folder, application, name = ("", "", *self._file.parts)
        if folder != DRIVERS or not name.endswith(".log") or ".." in self._file.parts:
            yield None
            return
        with ExitStack() as handles:

            def entered(path: str, flags: int, parent: int | None = None) -> int:
                handle = os.open(path, flags | os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
                handles.callback(os.close, handle)
                return handle

            log = None
            try:
                parent = entered(str(Path(*above, folder)), os.O_DIRECTORY)
                parent = entered(application, os.O_DIRECTORY, parent)
                log = entered(name, os.O_NONBLOCK, parent)
            except OSError:
                yield None
                return
            yield log if stat.S_ISREG(os.fstat(log).st_mode) else None


class ClusterLog:
    """Output of a driver that a cluster runs. A page that does not answer shows nothing for now."""

    def __init__(self, driver: ClusterDriver) -> None:
        self._driver, self.location = driver, f"{driver.page} ({driver.id})"
        self._asked = float("-inf")

    def is_readable(self) -> bool:
        try:
            return cluster_drivers.near_end(self._driver, 0) >= 0
        except OSError:
            return False

    def near_end(self, size: int) -> int:
        try:
            return cluster_drivers.near_end(self._driver, size)
        except OSError:
            return 0

    def read(self, start: int) -> tuple[bytes, int]:
        if time.monotonic() - self._asked < PAGE_SECONDS:
            return b"", start
        self._asked = time.monotonic()
        try:
            return cluster_drivers.output(self._driver, start, CHUNK)
        except OSError:
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
    shown = Lines(cut=bool(start))
    return [shown(line) for line in lines[1 if start else 0 :]][-number:]


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
        self._rest, self._shown = b"", Lines(cut=bool(self._position))

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
        line = self._shown(line)
        self._write(line if len(line) <= WIDTH else f"{line[:WIDTH]}… ({len(line)} characters)")
        self._left -= 1
        if self._left == 0:
            self._write(f"No more lines are shown here; the driver keeps writing to {self._output.location}.")
