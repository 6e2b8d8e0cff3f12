"""Customers and their changes, as a careless feed would send them: some changes late, some twice, now and
then a truncate.

A snapshot of the first customers lies in ``{folder}/snapshot``, written once. Changes come as numbered files
in ``{folder}/cdc``. All of it follows from a seed and the file's number, so a generator that is started again
goes on as its predecessor would have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

FIRST = 100
"""Customers of the snapshot."""
INSERTS, UPDATES = 0.55, 0.9
"""Of the changes this share inserts a customer, the rest up to that share updates one, and what is left
deletes one.
"""
LATE, REPEATED = 0.15, 0.10
LATEST = 5
"""How many files later a change comes at most."""
LOOK_BACK = 50
"""How many files back a repeated change may lie."""
TRUNCATED = 40
"""Every so many files the table is truncated."""

CITIES = ("Aachen", "Bergen", "Cádiz", "Delft", "Évora")
_NUMBERED = re.compile(r"changes-([0-9]{8})\.json")

Change = dict[str, object]


@dataclass(frozen=True)
class Customers:
    """Makes the files of changes.

    :param folder: where ``cdc`` and ``snapshot`` are made.
    :param size: new changes a file; late ones of earlier files and repeated ones come on top.
    """

    folder: Path
    seed: int = 7
    size: int = 25

    def write(self, number: int) -> Path:
        """Write the file of a number, whole or not at all, and the snapshot if it is not there yet."""
        snapshot = self.folder / "snapshot" / "customers.json"
        if not snapshot.exists():
            self._write(snapshot, [self._customer(customer, 0) for customer in range(1, FIRST + 1)])
        return self._write(self.folder / "cdc" / f"changes-{number:08d}.json", self.arriving(number))

    def last_number(self) -> int:
        """Return the highest number of a file that is there; 0 if there is none."""
        matches = (_NUMBERED.fullmatch(path.name) for path in (self.folder / "cdc").glob("changes-*.json"))
        return max((int(match[1]) for match in matches if match), default=0)

    def arriving(self, number: int) -> list[Change]:
        """Return what comes in a file: its own changes in time, the late ones of files before, and some a
        second time.
        """
        random = Random(f"{self.seed}/{number}/order")
        mixed = [
            change
            for made in range(max(1, number - LATEST), number + 1)
            for change in self._due(made, number)
        ]
        for _ in range(self.size):
            if random.random() < REPEATED:
                earlier = random.randint(max(1, number - LOOK_BACK), number)
                changes = [change for due in range(earlier, number + 1) for change in self._due(earlier, due)]
                mixed += random.sample(changes, k=min(1, len(changes)))
        random.shuffle(mixed)
        return mixed

    def _due(self, made: int, number: int) -> Iterator[Change]:
        """Yield the changes that were made for one file and come in another: the same, or a later one."""
        random = Random(f"{self.seed}/{made}/delay")
        for change in self.made(made):
            delay = random.randint(1, LATEST) if random.random() < LATE else 0
            if made + delay == number:
                yield change

    def made(self, number: int) -> list[Change]:
        """Return the changes that are made at a file's time, in their sequence; no two changes share one."""
        random = Random(f"{self.seed}/{number}")
        first = number * (self.size + 1)
        customer_count = FIRST + (number - 1) * self.size
        truncates: Sequence[Change] = (
            [{"operation": "TRUNCATE", "sequenceNum": first}] if number % TRUNCATED == 0 else []
        )
        return [
            *truncates,
            *(
                self._change(random, customer_count + index, customer_count, first + index)
                for index in range(1, self.size + 1)
            ),
        ]

    def _change(self, random: Random, new: int, customer_count: int, sequence: int) -> Change:
        kind = random.random()
        if kind < INSERTS:
            return {**self._customer(new, sequence), "operation": "INSERT", "sequenceNum": sequence}
        customer = random.randint(1, customer_count)
        if kind < UPDATES:
            return {**self._customer(customer, sequence), "operation": "UPDATE", "sequenceNum": sequence}
        return {"customer_id": customer, "operation": "DELETE", "sequenceNum": sequence}

    def _customer(self, customer: int, sequence: int) -> Change:
        return {
            "customer_id": customer,
            "name": f"Customer {customer}",
            "email": f"c{customer}.{sequence}@example.org",
            "city": Random(f"{self.seed}/{customer}/{sequence}").choice(CITIES),
        }

    def _write(self, target: Path, rows: Sequence[Change]) -> Path:
        """Write a file under a name that starts with a dot, which Spark does not read, and rename it."""
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.writing")
        aside.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
        )
        return aside.rename(target)
