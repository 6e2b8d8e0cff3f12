"""Start position of a generation in a Kafka source. Pure: what the topics hold is handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from streamkeeper.declare.model import Source
from streamkeeper.errors import DeclarationError
from streamkeeper.sources.base.format import Before, Resolved, SourceFormat, topic_ids
from streamkeeper.sources.kafka.offsets import (
    Offsets,
    Onward,
    Topics,
    go_on,
    goes_back,
    history_of,
    misfits,
    resolved,
)
from streamkeeper.sources.kafka.options import patience, start_options


@dataclass(frozen=True)
class KafkaLook:
    """What a source's topics hold, and the offsets of a time (epoch ms), asked for only when needed."""

    topics: Topics
    at_time: Callable[[int], Offsets]


@dataclass(frozen=True)
class KafkaPosition:
    """Position of a generation in a Kafka source.

    Reading starts after ``offsets``; if they are None, nothing counts as processed, and it starts at
    ``initial``. ``initial`` are the first offsets that the flow ever read, and ``replay_from`` what of that
    is still retained: state is rebuilt from there to ``offsets``, without at most ``gone`` records.
    ``onward`` tells what changed in the topics, if reading continues after an old offset.
    """

    offsets: Offsets | None
    initial: Offsets
    replay_from: Offsets
    gone: int = 0
    onward: Onward | None = field(default=None, compare=False)


def after_last(
    offset: Offsets | None, initial: Offsets | None, topics: Topics, ids: Mapping[str, str]
) -> Resolved[KafkaPosition]:
    """Continue after an old offset; if none was committed, at the declared start of the old generation.

    :param initial: the first offsets that the flow ever read.
    :param ids: the topics' ids when the old generation began.
    """
    onward = go_on(offset if offset is not None else initial or {}, topics, ids)
    notes = tuple(loss.reason for loss in onward.losses)
    if onward.new:
        notes += (f"new since then, and read from the first record: {', '.join(onward.new)}",)
    if onward.removed:
        notes += (f"not read any more: {', '.join(onward.removed)}; unread records there are not read",)
    lost = "; ".join(loss.reason for loss in onward.losses)
    may_pass = bool(onward.short)
    if offset is None:
        begins = KafkaPosition(None, onward.offsets, onward.offsets, onward=onward)
        return Resolved(begins, notes, lost, may_pass=may_pass)
    first = topics.earliest if initial is None else initial
    read = {
        topic: parts
        for topic, parts in offset.items()
        if topic in topics.ranges and topic not in onward.recreated
    }
    began = {
        topic: {
            part: first.get(topic, {}).get(part, 0) if part in read.get(topic, {}) else after
            for part, after in parts.items()
        }
        for topic, parts in onward.offsets.items()
    }
    _, gone = history_of(first, read, topics)  # records that expired unread are a loss, not history
    position = replace(_at(onward.offsets, began, topics), gone=gone, onward=onward)
    return Resolved(position, notes, lost, may_pass=may_pass)


@dataclass(frozen=True)
class Read:
    """What was read of a source: offsets, and the topics' ids then. ``returned`` are topics among them that
    earlier generations read, and the last one did not.
    """

    offsets: Offsets | None
    ids: Mapping[str, str]
    returned: tuple[str, ...] = ()


def read_of(source: Source, before: Before, topics: Topics) -> Read:
    """Return what was read of the topics that a source has now, those included that it left out for a time:
    without them, they would be read from their first record, and their rows come twice.
    """
    ids = dict(before.ids(source))
    if before.offset is None:
        return Read(None, ids)
    offsets: Offsets = dict(before.offset)
    returned: list[str] = []
    for position, earlier in before.earlier():
        for topic in (topic for topic in earlier if topic in topics.ranges and topic not in offsets):
            old_id = topic_ids(position.start.evidence, source).get(topic)
            if old_id is not None and topics.ids.get(topic, old_id) != old_id:
                continue  # made anew: nothing of it was read
            offsets[topic] = earlier[topic]
            returned.append(topic)
            ids |= {} if old_id is None else {topic: old_id}
    return Read(offsets, ids, tuple(returned))


def _at(offsets: Offsets, initial: Offsets | None, topics: Topics) -> KafkaPosition:
    """Return the position; if the first offset ever read is unknown, the earliest retained offset is used."""
    first: dict[str, Any] = topics.earliest if initial is None else initial
    first_read = {
        topic: {part: min(first.get(topic, {}).get(part, 0), offset) for part, offset in parts.items()}
        for topic, parts in offsets.items()
    }
    replay_from, gone = history_of(first_read, offsets, topics)
    return KafkaPosition(offsets, first_read, replay_from, gone)


Look = Callable[[], KafkaLook]


class KafkaStarts(SourceFormat[KafkaLook, KafkaPosition]):
    """Starts in topics of Kafka."""

    expires = True

    def goes_back(self, start: Any, end: Any) -> bool:
        return goes_back(start, end)

    def after(self, source: Source, before: Before, look: Look) -> Resolved[KafkaPosition]:
        initial = before.initial()
        if before.offset is None and initial is None:
            return Resolved(self.declared(source, look))
        topics = look().topics
        read = read_of(source, before, topics)
        onward = after_last(read.offsets, initial, topics, read.ids)
        if not read.returned:
            return onward
        note = f"read again, from where an earlier generation ended: {', '.join(read.returned)}"
        return replace(onward, returned=read.returned, notes=(*onward.notes, note))

    def beginning(self, look: Look) -> KafkaPosition:
        earliest = look().topics.earliest
        return KafkaPosition(None, earliest, earliest)

    def declared(self, source: Source, look: Look) -> KafkaPosition | None:
        """Start at the declared offsets of a source; None for a word, which Spark's own reader understands.

        :raises DeclarationError: its offsets omit a partition, name one that does not exist, or lie outside
            of what is held.
        """
        if isinstance(source.start, str):
            return None
        topics = look().topics
        declared: Offsets = {topic: dict(parts) for topic, parts in source.start.items()}
        wrong = misfits(declared, topics)
        if wrong:
            raise DeclarationError(
                f"{source.location}: the source {source.name} cannot start as declared: {'; '.join(wrong)}."
                " Correct its start."
            )
        offsets = resolved(declared, topics)
        return KafkaPosition(None, offsets, offsets)

    def end(self, before: Before, look: Look) -> KafkaPosition:
        topics = look().topics
        return _at(topics.latest, before.initial(), topics)

    def moment(self, before: Before, look: Look, moment_ms: int) -> KafkaPosition:
        contents = look()
        offsets, topics = contents.at_time(moment_ms), contents.topics
        # Limited to what the topics held when they were read.
        within = {
            topic: {
                part: min(max(offsets.get(topic, {}).get(part, span.first), span.first), span.end)
                for part, span in parts.items()
            }
            for topic, parts in topics.ranges.items()
        }
        return _at(within, before.initial(), topics)

    def at(self, source: Source, before: Before, look: Look, offset: Any) -> Resolved[KafkaPosition]:
        topics = look().topics
        wrong = misfits(offset, topics)
        if wrong:
            return Resolved(wrong=f"{'; '.join(wrong)}. Give one for every partition")
        return Resolved(_at(resolved(offset, topics), before.initial(), topics))

    def reader_options(self, source: Source) -> Mapping[str, str]:
        return {**start_options(source), **patience(source)}

    def chunks(self, size: int) -> Mapping[str, str]:
        return {"maxOffsetsPerTrigger": str(size)}
