"""Cuts a history into steps of bounded size, so that state is rebuilt in several batches.

Pure: nothing is read here. A step starts a query of its own, which takes a second or two and loads the state
so far. So a step is no smaller than a batch by the flow's own rate limit, and combines several small batches
up to the bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamkeeper.checkpoint import StateOperator
from streamkeeper.declare.model import Source
from streamkeeper.errors import DeclarationError
from streamkeeper.sources.kafka.offsets import Offsets

BYTES = "spark.streamkeeper.replay.bytes"
FILES = "spark.streamkeeper.replay.files"
RECORDS = "spark.streamkeeper.replay.records"
BATCHES = "spark.streamkeeper.replay.batches"

OWN_STATE = (
    "The query's state is made by its own code, which is run over history again, in larger batches than it"
    " came in: what its timers did on the way they do at the end, and times to live count anew."
)
"""Note of a plan on state that the pipeline's own code rebuilds, such as with transformWithState."""

OWN_STATES = frozenset(
    {
        "flatMapGroupsWithState",
        "applyInPandasWithState",
        "transformWithStateExec",
        "transformWithStateInPySparkExec",
        "transformWithStateInPandasExec",
    }
)
"""Stateful operators whose state is made by the pipeline's own code."""
_FORGETS = frozenset({"dedupeWithinWatermark"})
"""Stateful operators that forget a key after a time, and write a row of it that comes later."""

_SIZE = re.compile(r"([0-9]+)\s*([kmgtp]?)b?", re.IGNORECASE)
_POWERS = " kmgtp"


@dataclass(frozen=True)
class Bound:
    """Greatest size of a step: bytes and number of files, or Kafka records. ``spark_conf`` may set others.

    ``batches`` are the last batches of old that are replayed one by one, where the query heeds them.
    """

    bytes: int = 256 * 2**20
    files: int = 10_000
    records: int = 1_000_000
    batches: int = 1_000

    @classmethod
    def of(cls, setting: Callable[[str, str], str | None]) -> Bound:
        """Return the bound in a session's settings; ``setting(name, default)`` returns one of them.

        :raises DeclarationError: one is no number above 0.
        """
        limits = {
            name: _whole(name, str(setting(name, str(default))))
            for name, default in (
                (BYTES, cls.bytes),
                (FILES, cls.files),
                (RECORDS, cls.records),
                (BATCHES, cls.batches),
            )
        }
        return cls(limits[BYTES], limits[FILES], limits[RECORDS], limits[BATCHES])

    def of_source(self, source: Source) -> Bound:
        """Return the bound for one source: its own rate limit if that is higher."""
        limits = (
            source.option("maxBytesPerTrigger"),
            source.option("maxFilesPerTrigger"),
            source.option("maxOffsetsPerTrigger"),
        )
        own = [_size(text) for text in limits]
        return Bound(
            max(self.bytes, own[0]), max(self.files, own[1]), max(self.records, own[2]), self.batches
        )


def cut_files(sizes: Iterable[int], bound: Bound, least: int = 1) -> list[int]:
    """Cut a sequence of files; return for each step how many files lie before its end. No files make no step.

    :param sizes: in bytes, in the order of reading.
    :param least: files that a step has at least, whatever their size: a batch of the source's own.
    """
    ends, files, size, count = [], 0, 0, 0
    for item in sizes:
        if files and (files >= bound.files or (files >= least and size + item > bound.bytes)):
            ends.append(count)
            files = size = 0
        files, size, count = files + 1, size + item, count + 1
    return [*ends, count] if files else ends


def own_files(source: Source) -> int:
    """Return the greatest number of files in a batch by the source's own limit; 1 if it has none."""
    return max(1, _size(source.option("maxFilesPerTrigger")))


def cut_offsets(first: Offsets, end: Offsets, records: int) -> list[Offsets]:
    """Cut the records between two positions into steps, each a share of every partition; return the ends."""
    span = {
        (topic, part): upto - first.get(topic, {}).get(part, 0)
        for topic, parts in end.items()
        for part, upto in parts.items()
    }
    steps = max(1, math.ceil(sum(max(0, length) for length in span.values()) / records))
    return [
        {
            topic: {
                part: upto - max(0, span[topic, part]) * (steps - 1 - step) // steps
                for part, upto in parts.items()
            }
            for topic, parts in end.items()
        }
        for step in range(steps)
    ]


def cut_versions(first: int, end: int, sizes: Mapping[int, int], bound: Bound) -> list[int]:
    """Cut the commits ``first`` to ``end - 1`` of a table; return for each step the version that follows it.

    No commits make no step.

    :param sizes: in bytes, by version; 0 for a version that is missing.
    """
    return [
        first + count for count in cut_files((sizes.get(version, 0) for version in range(first, end)), bound)
    ]


def spread(ends: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the position of every source at the end of each step.

    A source with fewer ends than another advances less often, evenly spread.

    :param ends: by source, the ends of its own steps, the last of which is its final position.
    """
    steps = max((len(source_ends) for source_ends in ends.values()), default=0)
    return [
        {
            name: source_ends[math.ceil((step + 1) * len(source_ends) / steps) - 1]
            for name, source_ends in ends.items()
        }
        for step in range(steps)
    ]


def differences(operators: Iterable[StateOperator], remaining: Iterable[str]) -> str:
    """Return what a state that is rebuilt in other batches than it was made in may do otherwise; empty if
    nothing.

    :param operators: of the old state; ``remaining`` are the names of those that the query keeps.
    """
    same = [operator for operator in operators if operator.name in set(remaining)]
    forgets = any(operator.name in _FORGETS for operator in same)
    goes_by_time = any(operator.name in OWN_STATES and operator.time_mode != "NoTime" for operator in same)
    parts = [
        "may have forgotten keys that the old state knows, whose rows are then duplicated" if forgets else "",
        (
            "may have other timers and times to live than the old state, so that rows are missing, duplicated"
            " or have other values"
            if goes_by_time
            else ""
        ),
    ]
    return ", and ".join(filter(None, parts))


def _size(text: str) -> int:
    """Return a rate limit, such as ``10`` or ``64m``; 0 if there is none, or it cannot be parsed here."""
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * 1024 ** max(0, _POWERS.index(match[2].lower() or " ")) if match else 0


def _whole(name: str, text: str) -> int:
    number = _size(text)
    if number < 1:
        raise DeclarationError(
            f"{name} is {text!r}. Allowed is a whole number above 0, or a size such as 64m. Correct it in"
            " spark_conf."
        )
    return number
