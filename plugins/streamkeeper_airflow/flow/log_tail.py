"""Copies a driver's log file into the task's log, up to a limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

CHUNK = 256 * 1024
"""Bytes of one read."""


class LogTail:
    """Passes the new lines of a growing file to ``write``, ``limit`` lines at most; the file stays unchanged.

    :param backlog: bytes before the file's present end that are shown too; None shows all of it.
    """

    def __init__(
        self,
        file: Path,
        write: Callable[[str], None],
        *,
        limit: int = 5000,
        width: int = 2000,
        backlog: int | None = None,
    ) -> None:
        self.file, self._write, self._left, self._width = file, write, limit, width
        size = file.stat().st_size if file.exists() else 0
        self._position = 0 if backlog is None else max(0, size - backlog)
        self._rest = b""

    def pump(self) -> None:
        """Pass on what is new since the last call; nothing if the file does not exist yet."""
        while self._left > 0 and self.file.exists():
            with self.file.open("rb") as log:
                log.seek(self._position)
                chunk = log.read(CHUNK)
            if not chunk:
                return
            self._position += len(chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._show(line.decode(errors="replace"))

    def _show(self, line: str) -> None:
        if self._left <= 0:
            return
        self._write(line if len(line) <= self._width else f"{line[: self._width]}… ({len(line)} characters)")
        self._left -= 1
        if self._left == 0:
            self._write(f"No more lines are shown here; the driver keeps writing to {self.file}.")
