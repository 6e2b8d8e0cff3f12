"""Positions in Kafka: the new position from an old one and the topics' contents, and the records between.

Pure: no broker is asked. Offsets are as Spark writes them, ``{"orders": {"0": 5}}``: by topic and partition
the next offset to read. A distance between offsets is an upper bound of its rows, since compaction and
transaction markers leave gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Offsets = dict[str, dict[str, int]]
EARLIEST, LATEST = -2, -1
"""Placeholders for the first retained offset and for the end, in offsets that a person gives."""


class OffsetRange(NamedTuple):
    """The range of a partition: its first retained offset, and the next one to be written."""

    first: int
    end: int


@dataclass(frozen=True)
class Topics:
    """Contents of the topics of one source, by topic and partition.

    ``ids`` distinguish a topic from one that was created again under its name. ``policies`` are the topics'
    ``cleanup.policy``, as far as they are known.
    """

    ranges: Mapping[str, Mapping[str, OffsetRange]]
    ids: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def compacted(self) -> tuple[str, ...]:
        """The compacted topics, which keep only the newest record of each key."""
        return tuple(topic for topic, policy in self.policies.items() if "compact" in policy)

    @property
    def earliest(self) -> Offsets:
        """The offsets before all retained records."""
        return {
            topic: {part: offset_range.first for part, offset_range in parts.items()}
            for topic, parts in self.ranges.items()
        }

    @property
    def latest(self) -> Offsets:
        """The offsets after all retained records."""
        return {
            topic: {part: offset_range.end for part, offset_range in parts.items()}
            for topic, parts in self.ranges.items()
        }


@dataclass(frozen=True)
class Loss:
    """Unread records that are gone: their greatest number (None: unknown), and the reason in words.

    ``recreated`` says that their whole topic was made again.
    """

    records: int | None
    reason: str
    recreated: bool = False


@dataclass(frozen=True)
class Onward:
    """Where to continue after an old position.

    ``new`` are topics and partitions that it did not know, ``removed`` those that are no longer read.
    ``recreated`` are topics that were deleted and created again; of the ``guessed`` ones among them no id
    proves it, so that their records may come twice. ``short`` are the partitions that end before the
    old position.
    """

    offsets: Offsets
    losses: tuple[Loss, ...] = ()
    new: tuple[str, ...] = ()
    recreated: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def go_on(old: Offsets, topics: Topics, ids: Mapping[str, str]) -> Onward:
    """Return where to continue after an old position: there, if it is still retained.

    What is new or was created again is read from its first record. A partition of the same topic that ends
    before the position goes on at its end.

    :param ids: the topics' ids at the old position, as far as they are known.
    """
    offsets = topics.earliest
    losses: list[Loss] = []
    new: list[str] = []
    recreated: list[str] = []
    guessed: list[str] = []
    short: list[str] = []
    removed = [topic for topic in old if topic not in topics.ranges]
    for topic, parts in topics.ranges.items():
        before = old.get(topic)
        if before is None:
            new.append(topic)
            continue
        old_id, present_id = ids.get(topic), topics.ids.get(topic)
        proven = old_id is not None and present_id is not None
        behind = [part for part, at in before.items() if part in parts and at > parts[part].end]
        if not proven or old_id == present_id:
            short += [f"{topic}/{part}" for part in behind]
        reason = (
            _another_id(topic, old_id, present_id) if proven else _seems_anew(topic, before, parts, behind)
        )
        if reason is not None:
            losses.append(Loss(None, reason, recreated=True))
            recreated.append(topic)
            guessed += [] if proven else [topic]
            continue
        offsets[topic] = {
            part: min(max(offset_range.first, before.get(part, offset_range.first)), offset_range.end)
            for part, offset_range in parts.items()
        }
        losses += _expired(topic, before, parts)
        losses += [_cut_off(f"{topic}/{part}", before[part], parts[part].end) for part in behind]
        new += [f"{topic}/{part}" for part in parts if part not in before]
        removed += [f"{topic}/{part}" for part in before if part not in parts]
    return Onward(
        offsets, tuple(losses), tuple(new), tuple(recreated), tuple(guessed), tuple(short), tuple(removed)
    )


def misfits(offsets: Offsets, topics: Topics) -> list[str]:
    """Return what is wrong with given offsets: each partition needs one, within its retained range."""
    wrong = [
        f"the source has no topic {topic!r}; it has {', '.join(topics.ranges) or 'none'}"
        for topic in offsets
        if topic not in topics.ranges
    ]
    for topic, parts in topics.ranges.items():
        topic_offsets = offsets.get(topic)
        if topic_offsets is None:
            wrong.append(f"the topic {topic} is left out")
            continue
        wrong += [
            f"the topic {topic} has no partition {part}; it has {_listed(parts)}"
            for part in topic_offsets
            if part not in parts
        ]
        missing = [part for part in parts if part not in topic_offsets]
        if missing:
            wrong.append(
                f"of the topic {topic}, partition {_listed(missing)} is left out (-2 is earliest, -1 latest)"
            )
        wrong += [
            f"{topic}/{part} starts at {topic_offsets[part]}, and holds {offset_range.first} to"
            f" {offset_range.end}"
            for part, offset_range in parts.items()
            if part in topic_offsets
            and topic_offsets[part] not in (EARLIEST, LATEST)
            and not offset_range.first <= topic_offsets[part] <= offset_range.end
        ]
    return wrong


def resolved(offsets: Offsets, topics: Topics) -> Offsets:
    """Return valid offsets (:func:`misfits`) with numbers for earliest and latest."""
    numbers = {EARLIEST: topics.earliest, LATEST: topics.latest}
    return {
        topic: {
            part: numbers[offset][topic][part] if offset in numbers else offset
            for part, offset in parts.items()
        }
        for topic, parts in offsets.items()
    }


def records_between(start: Offsets, end: Offsets) -> int:
    """Return the greatest number of records from ``start`` up to ``end``, in partitions that both have."""
    return sum(max(0, upto - after) for _, _, after, upto in _both(start, end))


def goes_back(start: Offsets, end: Offsets) -> bool:
    """Return whether an end lies before its start in a partition that both have."""
    return any(upto < after for _, _, after, upto in _both(start, end))


def history_of(initial: Offsets, upto: Offsets, topics: Topics) -> tuple[Offsets, int]:
    """Return from where records up to a position can be read again, and how many are gone at most.

    :param initial: the first offsets ever read; partitions that it does not name were read from their first
        record, 0.
    """
    start: Offsets = {}
    gone = 0
    for topic, parts in upto.items():
        start[topic] = {}
        for part, end in parts.items():
            offset_range = topics.ranges.get(topic, {}).get(part)
            wished = min(initial.get(topic, {}).get(part, 0), end)
            first = (
                wished
                if offset_range is None
                else min(max(wished, offset_range.first), end, offset_range.end)
            )
            gone += max(0, first - wished)
            if offset_range is not None:
                gone += max(0, end - max(offset_range.end, wished))
            start[topic][part] = first
    return start, gone


def _another_id(topic: str, old_id: str | None, present_id: str | None) -> str | None:
    if old_id == present_id:
        return None
    return (
        f"the topic {topic} was deleted and recreated (its id was {old_id}, and is {present_id}): its unread"
        " rows are lost"
    )


def _seems_anew(
    topic: str, before: Mapping[str, int], parts: Mapping[str, OffsetRange], behind: Sequence[str]
) -> str | None:
    """Return why a topic of which no id tells seems to be made anew; None if nothing says so."""
    guess = (
        "it was deleted and recreated, or its brokers lost records: no id of the topic tells which, and it is"
        " read again from its first record"
    )
    for part in before:
        if part not in parts:
            return f"the topic {topic} has no partition {part} any more: {guess}"
    for part in behind:
        return f"{topic}/{part} was read up to {before[part]}, and ends at {parts[part].end}: {guess}"
    return None


def _cut_off(partition: str, offset: int, end: int) -> Loss:
    return Loss(
        None,
        f"{partition} was read up to {offset}, and ends at {end}, though it is the same topic: its brokers"
        f" lost its last records, of which {offset - end} had been read. Reading can only go on at its end."
        f" How many unread records are gone, or were written before {end} since then, nobody can count",
    )


def _expired(topic: str, before: Mapping[str, int], parts: Mapping[str, OffsetRange]) -> Iterator[Loss]:
    for part, offset_range in parts.items():
        offset = before.get(part, 0)
        if offset < offset_range.first:
            description = f"was read up to {offset}" if part in before else "is new"
            yield Loss(
                offset_range.first - offset,
                f"{topic}/{part} {description}, and holds nothing before {offset_range.first} any more",
            )


def _both(start: Offsets, end: Offsets) -> Iterator[tuple[str, str, int, int]]:
    for topic, parts in end.items():
        for part, upto in parts.items():
            if part in start.get(topic, {}):
                yield topic, part, start[topic][part], upto


def _listed(parts: Mapping[str, object] | list[str]) -> str:
    return ", ".join(sorted(parts, key=int))
