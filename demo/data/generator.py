"""Writes a new file of changes every few seconds, and the first snapshot before the first.

python -m demo.data.generator FOLDER [--seed N] [--every SECONDS]
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import Protocol, Self

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


class Feed:
    """Writes something every few seconds, in a thread, until it is stopped; use as a context.

    ``written`` counts what came.

    :param every: seconds between two times.
    :raises Exception: on :meth:`stop` and :meth:`check`, whatever ended the thread by itself.
    """

    def __init__(self, every: float) -> None:
        self.every, self.written = every, 0
        self._failed: Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def write(self) -> None:
        """Write once."""
        raise NotImplementedError

    def start(self) -> Self:
        """Write once now, then go on in the thread."""
        self.write()
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop; nothing comes after this returns."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise what ended the thread, if something did: a full disk must not look like a quiet stream."""
        if self._failed is not None:
            raise self._failed

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopping.wait(self.every):
            try:
                self.write()
            except Exception as error:  # noqa: BLE001 - handed to the thread that asks
                self._failed = error
                return


class Generator(Feed):
    """Lets a producer write a file every few seconds, after those that are there."""

    def __init__(self, producer: Producer, every: float = 2.0) -> None:
        super().__init__(every)
        self.producer = producer

    def start(self) -> Self:
        self._number = self.producer.last_number()
        return super().start()

    def write(self) -> None:
        self._number += 1
        self.producer.write(self._number)
        self.written += 1


def run(feed: Feed) -> None:
    """Let a feed write until SIGINT or SIGTERM."""
    stopped = told_to_stop()
    with feed:
        while not stopped.wait(0.5):
            feed.check()


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
    generator = Generator(Customers(chosen.folder, chosen.seed), chosen.every)
    run(generator)
    print(f"{generator.written} files written into {chosen.folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
