"""Writes a new file of changes every few seconds, and the first snapshot before the first.

python -m demo.data.generator FOLDER [--seed N] [--every SECONDS]
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from types import TracebackType
from typing import Protocol

from demo.data.customers import Customers
from tools.waiting import told_to_stop


class Producer(Protocol):
    """What writes numbered files, each whole or not at all."""

    def write(self, number: int) -> Path:
        """Write the file of a number, and give its path."""
        ...

    def last_number(self) -> int:
        """Return the highest number of a file that is there; 0 if there is none."""
        ...


class Generator:
    """Lets a producer write a file every few seconds, in a thread, until it is stopped.

    :param every: seconds between two files.
    :raises Exception: on :meth:`stop` and :meth:`check`, whatever ended the thread by itself.
    """

    def __init__(self, producer: Producer, every: float = 2.0) -> None:
        self.producer, self.every = producer, every
        self.written = 0
        self._failed: Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="generator", daemon=True)

    def start(self) -> Generator:
        """Write the first file at once, then go on in the thread."""
        self._number = self.producer.last_number() + 1
        self._write()
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop; no file appears after this returns."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise what ended the thread, if something did: a full disk must not look like a quiet stream."""
        if self._failed is not None:
            raise self._failed

    def __enter__(self) -> Generator:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopping.wait(self.every):
            try:
                self._write()
            except Exception as error:  # noqa: BLE001 - handed to the thread that asks
                self._failed = error
                return

    def _write(self) -> None:
        self.producer.write(self._number)
        self._number += 1
        self.written += 1


def main(arguments: list[str] | None = None) -> int:
    """Write files until SIGINT or SIGTERM; return 0."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.data.generator",
        description="Write a file of changes of customers every few seconds.",
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=Customers.seed)
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS")
    chosen = parser.parse_args(arguments)
    stopped = told_to_stop()
    with Generator(Customers(chosen.folder, chosen.seed), chosen.every) as generator:
        while not stopped.wait(0.5):
            generator.check()
    print(f"{generator.written} files written into {chosen.folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
