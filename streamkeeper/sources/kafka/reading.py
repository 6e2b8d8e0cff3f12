"""Size of a bounded read of a Kafka source, for the plan of a backfill."""

from __future__ import annotations

from collections.abc import Iterator

from streamkeeper.declare.model import Source
from streamkeeper.errors import RequestError, SourceError
from streamkeeper.sources.base.format import Reading
from streamkeeper.sources.kafka import client as kafka_client
from streamkeeper.sources.kafka.impacts import KafkaSnapshot, records
from streamkeeper.sources.kafka.offsets import LATEST, Offsets, Topics, misfits, records_between, resolved
from streamkeeper.support.amounts import unknown


def reading(source: Source, start: Offsets | None, ends: Offsets | None) -> Reading:
    """Bound the records between the start, or all that is held, and the end, or all that is there now."""
    try:
        topics = kafka_client.look_at(source)
    except SourceError as error:
        return _unanswered(start, ends or {}, str(error))
    start, ends = topics.earliest if start is None else _checked(start, topics), ends or {}
    upto = {
        topic: {
            part: min(ends.get(topic, {}).get(part, offset_range.end), offset_range.end)
            for part, offset_range in topics.ranges[topic].items()
            if part in parts
        }
        for topic, parts in start.items()
    }
    return Reading(
        records(records_between(start, upto)), tuple(_notes(KafkaSnapshot(upto, start, topics), ends))
    )


def _notes(snapshot: KafkaSnapshot, ends: Offsets) -> Iterator[str]:
    if snapshot.holes:
        yield f"{snapshot.holes[0].upper()}{snapshot.holes[1:]}."
    endless = [
        f"{topic}/{part}"
        for topic, parts in (snapshot.offset or {}).items()
        for part in parts
        if part not in ends.get(topic, {})
    ]
    if endless:
        yield (
            f"Read up to the end of {', '.join(endless)} at that time. Records written until then are"
            " included."
        )


def _checked(start: Offsets, topics: Topics) -> Offsets:
    """Return a start as numbers; partitions that it does not name are not read.

    :raises RequestError: it names what is not there, or offsets that are not held.
    """
    whole = {
        topic: {**dict.fromkeys(parts, LATEST), **start.get(topic, {})}
        for topic, parts in topics.ranges.items()
    }
    wrong = misfits({**start, **whole}, topics)
    if wrong:
        raise RequestError(
            f"from_offsets cannot be used: {'; '.join(wrong)}. Give offsets that exist; -2 is the first"
            " offset of a partition."
        )
    return resolved(start, topics)


def _unanswered(start: Offsets | None, ends: Offsets, reason: str) -> Reading:
    """Bound the records between offsets that are numbers; what a broker would have to say is unknown."""
    if start is None or any(
        at < 0 or part not in ends.get(topic, {})
        for topic, parts in start.items()
        for part, at in parts.items()
    ):
        return Reading(unknown(reason))
    note = f"Counted are the offsets that were asked for; whether they still exist is unknown: {reason}."
    return Reading(records(records_between(start, ends)), (note,))
