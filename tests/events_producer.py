"""Files of events for tests, as a careless producer would write them: some events late, some twice.

Repeated events are read back from the files on the disk, so that nothing is kept in memory, and a generator
that is started again repeats what its predecessor wrote.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random

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
        """Give the events of a file: new ones, late ones among them, and repeated ones of this file and of
        earlier files.
        """
        random = Random(f"{self.seed}/{number}")
        new = [self._event(random, number, index, moment) for index in range(self.size)]
        here = [random.choice(new) for _ in new if random.random() < REPEATED_HERE]
        earlier = [
            event for _ in new if random.random() < REPEATED_LATER for event in self._earlier(random, number)
        ]
        mixed = new + here + earlier
        random.shuffle(mixed)
        return mixed

    def last_number(self) -> int:
        """Give the highest number of a file that is there; 0 if there is none."""
        found = (_NUMBERED.fullmatch(path.name) for path in self.folder.glob("events-*.json"))
        return max((int(match[1]) for match in found if match), default=0)

    def _event(self, random: Random, number: int, index: int, moment: datetime) -> Event:
        age = (
            timedelta(minutes=random.uniform(3, 45))
            if random.random() < LATE
            else timedelta(seconds=random.uniform(0, 2))
        )
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
