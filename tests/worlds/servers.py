"""Servers of the tests: processes in sessions of their own, which are killed and started again in the same
place.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from demo.processes import session_members
from streamkeeper.settings import PROJECT
from tools.waiting import NotYet, wait_until


class ServerEnded(Exception):
    """A server ended while it started; the message has the end of its log."""


@dataclass
class Server:
    """A program that runs until it is told to end; use as a context, or by :meth:`start` and :meth:`kill`.

    :param ready: says whether it serves, at once or by :class:`tools.waiting.NotYet`.
    :param log: takes what it says, of all starts.
    :param asks: the signal that asks it to end.
    :param options: further ones of ``subprocess.Popen``.
    """

    name: str
    command: Sequence[str | Path]
    log: Path
    ready: Callable[[], bool | None]
    environment: Mapping[str, str] = field(default_factory=dict)
    asks: signal.Signals = signal.SIGTERM
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 120.0
    process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """The id of its process, of its group and of its session."""
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    def launch(self) -> None:
        """Start it, and do not wait until it serves."""
        assert not self.runs, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(part) for part in self.command],
                env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, **self.options,
            )  # fmt: skip

    def start(self) -> Server:
        """Start it, and wait until it serves."""
        self.launch()
        try:
            wait_until(self._serves, self.seconds, f"{self.name} serves", 0.1)
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """End all processes of its session by SIGKILL."""
        if self.process is not None:
            for pid in session_members(self.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()

    def stop(self, grace: float = 30.0) -> None:
        """Ask it to end, and kill what is left after some seconds."""
        if self.process is not None and self.runs:
            self.process.send_signal(self.asks)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
        self.kill()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serves(self) -> bool | None:
        if not self.runs:
            assert self.process is not None
            code, said = self.process.returncode, self.log.read_text(errors="replace")[-3000:]
            raise ServerEnded(f"{self.name} ended with exit code {code}:\n{said}")
        try:
            return self.ready() or None
        except OSError as error:
            raise NotYet(str(error)) from error


def listens(port: int) -> Callable[[], bool]:
    """Return what says whether a port of this host is listened on."""

    def look() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    return look


def go_program(module: str, version: str, name: str) -> Path:
    """Return a program of a module of Go; build it from its source if it is not there."""
    folder = PROJECT / ".cache" / f"{name}-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            assert shutil.which("go"), f"Go builds {name} for these tests: install Go 1.26"
            with tempfile.TemporaryDirectory(dir=folder) as made:
                subprocess.run(
                    ["go", "install", "-trimpath", f"{module}@v{version}"],
                    env={**os.environ, "GOBIN": made, "CGO_ENABLED": "0", "GOTOOLCHAIN": "auto"},
                    check=True,
                )
                next(Path(made).iterdir()).rename(program)
    return program
