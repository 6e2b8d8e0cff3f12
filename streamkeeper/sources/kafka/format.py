"""Kafka as a format of source."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.declare.model import Source
from streamkeeper.errors import NotAskable, SourceError
from streamkeeper.manifest.environment import variables
from streamkeeper.sources.base.format import (
    Case,
    Lag,
    PlannedFormat,
    Reading,
    SourceMove,
    Waiting,
    age_of,
    not_begun,
    not_inspected,
)
from streamkeeper.sources.kafka import client, impacts
from streamkeeper.sources.kafka.offsets import OffsetRange, Offsets, goes_back, records_between
from streamkeeper.sources.kafka.reading import reading
from streamkeeper.sources.kafka.start import KafkaLook, KafkaPosition, KafkaStarts
from streamkeeper.support.amounts import SourceImpact

MOST = 64
"""Partitions of which the oldest unread record's time is read to tell a lag: those with most that waits."""


class Kafka(KafkaStarts, PlannedFormat[KafkaLook, KafkaPosition]):
    """Topics of Kafka; positions are offsets by partition."""

    def look(self, source: Source) -> KafkaLook:
        return KafkaLook(client.look_at(source), partial(client.at_time, source))

    def impact(self, case: Case) -> SourceImpact:
        if case.position is None:
            return case.unreadable()
        return impacts.impact_of(case, partial(self.resolve, case.source, case.start, case.before))

    def impact_again(self, source: Source, move: SourceMove, impact: SourceImpact) -> SourceImpact:
        return impacts.impact_again(source, move, impact)

    def waiting(self, source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Waiting:
        """Count the records after a position; an unknown position counts as the beginning."""
        end = _position(checkpoint, key, end)
        try:
            topics = client.look_at(source)
        except NotAskable as error:
            return Waiting(False, f"whether records wait in the source {source.name} is unknown: {error}")
        except SourceError as error:
            return not_inspected(source, error)
        offsets: Offsets = end if isinstance(end, dict) else {}
        position = {topic: {**parts, **offsets.get(topic, {})} for topic, parts in topics.earliest.items()}
        count = records_between(position, topics.latest)
        return Waiting(
            count > 0, f"{count:,} records at most wait in the source {source.name}" if count else ""
        )

    def lag(self, source: Source, checkpoint: Checkpoint | None, key: str, end: Any) -> Lag:
        """Count the records after a position, and ask for the time of the first one of each partition."""
        end = _position(checkpoint, key, end)
        if not isinstance(end, dict) and source.start != "earliest":
            return not_begun(source)
        position: Offsets = end if isinstance(end, dict) else {}
        topics = client.look_at(source)
        if goes_back(position, topics.latest):
            return Lag(
                reason="a topic ends before the flow's position: its brokers lost records, or it was"
                " recreated"
            )
        unread = {
            (topic, part): OffsetRange(
                max(offset_range.first, position.get(topic, {}).get(part, 0)), offset_range.end
            )
            for topic, parts in topics.ranges.items()
            for part, offset_range in parts.items()
        }
        waiting = sorted(
            (
                (offset_range.end - offset_range.first, place)
                for place, offset_range in unread.items()
                if offset_range.end > offset_range.first
            ),
            reverse=True,
        )
        count, sampled = sum(records for records, _ in waiting), waiting[:MOST]
        if not count:
            return Lag(records=0, seconds=0.0)
        offsets: Offsets = {}
        for _, (topic, part) in sampled:
            offsets.setdefault(topic, {})[part] = unread[topic, part].first
        try:
            written = client.written_at(source, offsets)
        except SourceError as error:
            return Lag(records=count, reason=f"how old its oldest unread record is, is unknown: {error}")
        count -= sum(records for records, (topic, part) in sampled if part not in written.get(topic, {}))
        moments = [moment for parts in written.values() for moment in parts.values()]
        return Lag(records=count, seconds=age_of(min(moments)) if moments else None if count else 0.0)

    def reading(self, source: Source, start: Any, ends: Any) -> Reading:
        return reading(source, start, ends)

    def misfit(self, source: Source, checkpoint: Checkpoint, key: str, offset: Any) -> str | None:
        topics, pattern = set(offset), source.option("subscribePattern")
        if variables(source):  # what this process lacks cannot be compared; the driver's has it
            return None
        if pattern:
            try:
                strange = sorted(topic for topic in topics if not re.fullmatch(pattern, topic))
            except re.error:  # Java's patterns are not Python's: nothing can be compared
                return None
        elif source.option("assign"):
            strange = sorted(topics - set(json.loads(source.option("assign"))))
        else:
            strange = sorted(topics - {topic.strip() for topic in source.option("subscribe").split(",")})
        read = ", ".join(sorted(topics))
        return (
            f"{key} has read the topics {read}; {source.name} does not read {', '.join(strange)}"
            if strange
            else None
        )


def _position(checkpoint: Checkpoint | None, key: str, end: Any) -> Any:
    """Return where a flow stands: where it was to begin, if it committed nothing; None if that is unknown."""
    if end is None and checkpoint is not None and key in checkpoint.sources():
        return checkpoint.initial_offsets(key)
    return end
