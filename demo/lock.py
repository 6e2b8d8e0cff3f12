"""One demo a folder: a lock that is held as long as its process lives, and says whose it is.

What excludes is the operating system's lock on the file, which ends with its process however that ends; what
is written in the file is for the message, and for the next demo to find what a killed one left running.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from demo.processes import started
from streamkeeper.support.times import now

MARK = "STREAMKEEPER_DEMO"
"""The environment variable by which every process that a demo starts can be told from all others."""


class UnusableHome(Exception):
    """The demo's folder cannot be written; nothing was started."""


class SecondDemo(Exception):
    """Another demo runs in this folder; nothing was started."""


@dataclass(frozen=True)
class Owner:
    """Whose a lock is: a process, told from later ones of its id by its start time in clock ticks, and the
    mark of what it starts.
    """

    pid: int
    started: int | None
    mark: str
    at: str


class DemoLock:
    """The lock of a demo's folder, held between ``with`` and its end.

    :param home: the demo's folder; made if it is not there.
    :raises SecondDemo: another living demo has it.
    :raises UnusableHome: the folder cannot be made, or the file in it not written.
    """

    def __init__(self, home: Path) -> None:
        self.path = home / "demo.lock"
        self.owner = Owner(os.getpid(), started(os.getpid()), uuid.uuid4().hex, now())
        self.predecessor: Owner | None = None
        """Who had the lock and never gave it back: a demo that was killed."""
        self._file: IO[str] | None = None

    def __enter__(self) -> DemoLock:
        file = _open(self.path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = _read(file)
            file.close()
            raise SecondDemo(_second(self.path.parent, other)) from None
        self._file, self.predecessor = file, _read(file)
        self._write(json.dumps(asdict(self.owner)))
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None, "__enter__ opened it"
        self._write("")
        self._file.close()

    def _write(self, text: str) -> None:
        assert self._file is not None, "__enter__ opened it"
        self._file.truncate(0)
        self._file.write(text)
        self._file.flush()


def _open(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+", encoding="utf-8")
    except OSError as error:
        raise UnusableHome(
            f"The demo's folder {path.parent} cannot be written: {error}. It must be a folder that is"
            " writable for you: correct its owner or mode, or give another with --home."
        ) from error


def _read(file: IO[str]) -> Owner | None:
    file.seek(0)
    text = file.read()
    try:
        return Owner(**json.loads(text)) if text else None
    except (ValueError, TypeError):
        return None


def _second(home: Path, other: Owner | None) -> str:
    if other is None:
        return (
            f"Another demo starts in {home} at this moment; only one can run there. Wait for it, or stop it"
            " with Ctrl-C where it runs."
        )
    return (
        f"Another demo runs in {home}: process {other.pid}, since {other.at}. Only one can run there. Use"
        f" that one, or stop it with Ctrl-C where it runs, or from here: kill {other.pid}"
    )
