"""Writes new files of events every few seconds, as a careless producer would: some events late, some twice.

    python -m demo.generator FOLDER [--seed N] [--every SECONDS]

Each file appears whole: it is written under a name that starts with a dot, which Spark does not read, and then renamed.
Repeated events are read back from the files on the disk, so that nothing is kept in memory, and a generator that is
started again repeats what its predecessor wrote.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from types import FrameType, TracebackType

KINDS = ("view", "cart", "order", "refund")
REPEATED_HERE, REPEATED_LATER, LATE = 0.05, 0.10, 0.08
LOOK_BACK = 200
"""How many files back a repeated event may lie."""

_NUMBERED = re.compile(r"events-([0-9]{8})\.json")
_NAMESPACE = uuid.UUID("0d5e6b6e-6a3e-5f0a-8d55-0f5b7f6f9a01")

Event = dict[str, object]


@dataclass(frozen=True)
class Producer:
    """Makes the events of a file from a seed and the file's number; only the times come from the clock.

    :param folder: the folder that the files appear in.
    :param size: new events a file; repeated ones come on top.
    """

    folder: Path
    seed: int = 7
    size: int = 25

    def write(self, number: int, moment: datetime | None = None) -> Path:
        """Write the file of a number, whole or not at all, and give its path.

        :param moment: the present by default.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(event) for event in self.events(number, moment or datetime.now(timezone.utc)))
        target = self._path(number)
        aside = target.with_name(f".{target.name}.writing")
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return aside.rename(target)

    def events(self, number: int, moment: datetime) -> list[Event]:
        """Give the events of a file: new ones, late ones among them, and repeated ones of this file and of earlier files."""
        random = Random(f"{self.seed}/{number}")
        new = [self._event(random, number, index, moment) for index in range(self.size)]
        here = [random.choice(new) for _ in new if random.random() < REPEATED_HERE]
        earlier = [event for _ in new if random.random() < REPEATED_LATER for event in self._earlier(random, number)]
        mixed = new + here + earlier
        random.shuffle(mixed)
        return mixed

    def last_number(self) -> int:
        """Give the highest number of a file that is there; 0 if there is none."""
        found = (_NUMBERED.fullmatch(path.name) for path in self.folder.glob("events-*.json"))
        return max((int(match[1]) for match in found if match), default=0)

    def _event(self, random: Random, number: int, index: int, moment: datetime) -> Event:
        age = timedelta(minutes=random.uniform(3, 45)) if random.random() < LATE else timedelta(seconds=random.uniform(0, 2))
        return {
            "event_id": str(uuid.uuid5(_NAMESPACE, f"{self.seed}/{number}/{index}")),
            "user_id": random.randint(1, 500),
            "kind": random.choice(KINDS),
            "amount": round(random.uniform(1, 200), 2),
            "event_time": (moment - age).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }

    def _earlier(self, random: Random, number: int) -> Iterator[Event]:
        """Give one event of an earlier file, if that file is still there."""
        if number < 2:
            return
        chosen = self._path(random.randint(max(1, number - LOOK_BACK), number - 1))
        if chosen.exists():
            event: Event = json.loads(random.choice(chosen.read_text(encoding="utf-8").splitlines()))
            yield event

    def _path(self, number: int) -> Path:
        return self.folder / f"events-{number:08d}.json"


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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
    parser = argparse.ArgumentParser(prog="python -m demo.generator", description="Write a file of events every few seconds.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=Producer.seed)
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS")
    chosen = parser.parse_args(arguments)
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with Generator(Producer(chosen.folder, chosen.seed), chosen.every) as generator:
        while not stopped.wait(0.5):
            generator.check()
    print(f"{generator.written} files written into {chosen.folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
