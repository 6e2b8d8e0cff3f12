"""Cost of a reset in a Kafka source.

Records between offsets are upper bounds: compaction and transactions leave gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from streamkeeper.amounts import NONE, Amount, SourcePrice
from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import describe
from streamkeeper.errors import CheckpointError, RequestError, SourceError
from streamkeeper.flows.generations import AFTER_LAST, EARLIEST, LATEST, TIMESTAMP, Restart
from streamkeeper.flows.position import CommittedPosition
from streamkeeper.sources.kafka import client as kafka_client
from streamkeeper.sources.kafka.offsets import (
    Offsets,
    Onward,
    Topics,
    go_on,
    history_of,
    misfits,
    records_between,
    resolved,
)


@dataclass(frozen=True)
class Seen:
    """Result of one look at a source.

    That is its old offsets, the first offsets that it ever read, and what its topics hold, or ``why`` that is
    unknown.
    """

    offset: Offsets | None
    initial: Offsets | None
    topics: Topics | None
    why: str = ""
    ids: Mapping[str, str] = field(default_factory=dict)
    """The topics' ids when the old generation began, as far as they are known."""

    @property
    def made_anew(self) -> str:
        """Which topics were deleted and created again since they were read; empty if none was."""
        return (
            "; ".join(loss.said for loss in self._onward.losses if loss.records is None)
            if self._onward is not None
            else ""
        )

    @property
    def anew(self) -> tuple[str, ...]:
        """The topics that were created again."""
        return self._onward.anew if self._onward is not None else ()

    @cached_property
    def _onward(self) -> Onward | None:
        """Where to continue after the old offsets; None if the topics are unknown, or nothing was read."""
        return (
            go_on(self.offset, self.topics, self.ids)
            if self.topics is not None and self.offset is not None
            else None
        )

    @property
    def known(self) -> Offsets:
        """The old offsets of the topics that still exist."""
        held = self.topics.held if self.topics is not None else {}
        return {
            topic: parts
            for topic, parts in (self.offset or {}).items()
            if topic in held and topic not in self.anew
        }

    @property
    def holes(self) -> str:
        """Why the history of the source is incomplete although its offsets exist.

        Empty if it is not, or unknown.
        """
        found = [
            topic
            for topic in (self.topics.compacted if self.topics is not None else ())
            if topic in (self.offset or {})
        ]
        return f"{_listed(found)} compacted: of the records of a key only the newest stay" if found else ""


def records(count: int) -> Amount:
    """Return an amount of at most so many records."""
    return Amount(None, 0, count, at_most=count > 0)


def unknown(why: str) -> Amount:
    """Return an unknown amount, with the reason."""
    return Amount(None, 0, None, why)


def price_of(source: Source, price: SourcePrice, seen: Seen, restart: Restart) -> SourcePrice:
    """Return the cost of a reset in a Kafka source.

    The cost of rebuilt state is added by :func:`with_state`.

    :param price: has the flow's position in words.
    :raises RequestError: requested offsets omit a partition, or name one that does not exist.
    """
    found = _price_of(source, price, seen, restart)
    notes = (*found.notes, *_policy_notes(seen))
    if seen.made_anew and restart.start.mode != AFTER_LAST:
        return replace(found, lost=unknown(seen.made_anew), notes=(*notes, seen.made_anew))
    return replace(found, notes=notes)


def _price_of(source: Source, price: SourcePrice, seen: Seen, restart: Restart) -> SourcePrice:
    start = restart.start
    match start.mode:
        case mode if mode == AFTER_LAST:
            return _after_last(price, seen)
        case mode if mode == EARLIEST:
            return _earliest(price, seen)
        case mode if mode == LATEST:
            return _moved(
                price, seen, None, "only records that are written after the new generation has begun"
            )
        case mode if mode == TIMESTAMP:
            assert start.timestamp_ms is not None, "a request by timestamp has one"
            return _from_moment(price, seen, source, start.timestamp_ms)
        case _:
            wanted: Offsets = (start.offsets or {})[source.name]
            _check_offsets(source, wanted, seen)
            by_words = any(end < 0 for parts in wanted.values() for end in parts.values())
            if seen.topics is None and by_words:
                return replace(
                    price, then=describe(wanted), lost=unknown(seen.why), repeated=unknown(seen.why)
                )
            return _moved(
                price, seen, resolved(wanted, seen.topics) if seen.topics else wanted, describe(wanted)
            )


def with_state(price: SourcePrice, seen: Seen, stateful: bool | None) -> SourcePrice:
    """Add the cost of rebuilding state from history: what is replayed, and what of it is gone."""
    if seen.offset is None:
        return price
    if seen.topics is None:
        return replace(price, replayed=unknown(seen.why) if stateful else NONE)
    start, gone = history_of(
        seen.initial if seen.initial is not None else seen.topics.earliest, seen.known, seen.topics
    )
    count = records_between(start, seen.known)
    notes = price.notes
    if stateful is None:
        notes += (
            (
                f"if the query keeps state, at most {count:,} processed records are read again to rebuild"
                " it, without writing"
            ),
        )
    if gone:
        notes += (
            (
                f"at most {gone:,} processed records are gone: a state rebuilt without them would let their"
                " keys come again"
            ),
        )
    holes = "; ".join(filter(None, (seen.made_anew, seen.holes)))
    if holes:
        notes += (f"a rebuilt state lacks part of the rows that were read: {holes}",)
    missing = (
        unknown(f"{holes}{f', and at most {gone:,} records expired' if gone else ''}")
        if holes
        else records(gone)
    )
    return replace(price, replayed=records(count) if stateful else NONE, gone=missing, notes=notes)


def read_again(seen: Seen, then: Offsets | None) -> Amount:
    """Return the records that were read since an earlier position and can be read again: not expired ones.

    :param seen: with the present offsets.
    :param then: the earlier position; None if nothing had been read.
    """
    if seen.offset is None:
        return NONE
    before: Offsets = then if then is not None else seen.initial or {}
    if seen.topics is None:
        start = {
            topic: {part: before.get(topic, {}).get(part, 0) for part in parts}
            for topic, parts in seen.offset.items()
        }
        return records(records_between(start, seen.offset))
    start, _ = history_of(before, seen.known, seen.topics)
    return records(records_between(start, seen.known))


def look(source: Source, standing: CommittedPosition, offset: Offsets | None) -> Seen:
    """Read a Kafka source, once for each plan: brokers that do not answer cost their timeout only once.

    :param source: opened as far as this process can.
    :param offset: the old offsets; None if nothing was committed.
    """
    initial = None
    ids: dict[str, str] = standing.start.evidence.get("topics", {}).get(source.name, {})
    try:
        if source.name in standing.checkpoint.sources():
            initial = standing.checkpoint.initial_offsets(source.name)
    except CheckpointError:
        pass  # only the first offsets ever read are missing; damage of the checkpoint is reported elsewhere
    try:
        return Seen(offset, initial, kafka_client.look_at(source), ids=ids)
    except SourceError as error:
        return Seen(offset, initial, None, str(error), ids)


def _after_last(price: SourcePrice, seen: Seen) -> SourcePrice:
    then = (
        "after the last processed batch"
        if seen.offset is not None
        else "where the old generation was to begin"
    )
    if seen.topics is None:
        told = (
            f"it is unknown whether all unread rows still exist: {seen.why}. The driver checks before it"
            " changes anything"
        )
        return replace(price, then=then, notes=(told,))
    if seen.offset is None and seen.initial is None:
        return replace(price, then="the beginning, as the source declares it")
    onward = go_on(seen.offset if seen.offset is not None else seen.initial or {}, seen.topics, seen.ids)
    return replace(price, then=then, lost=_lost(onward), notes=tuple(_notes(onward, seen.topics)))


def _policy_notes(seen: Seen) -> Iterator[str]:
    """Yield notes on the topics' clean-up policies, if they affect what can be read again."""
    if seen.topics is None:
        return
    if seen.holes:
        yield (
            f"{seen.holes}. Counts between offsets are upper bounds, and not all rows that were read are"
            " read again"
        )
    untold = [topic for topic in seen.topics.held if topic not in seen.topics.policies]
    if seen.topics.policies and untold:
        yield (
            f"whether {_listed(untold)} compacted is unknown: this client may not read the topics'"
            " configuration"
        )


def _listed(topics: Iterable[str]) -> str:
    names = list(topics)
    return f"topic{'s' if len(names) > 1 else ''} {', '.join(names)} {'are' if len(names) > 1 else 'is'}"


def _lost(onward: Onward) -> Amount:
    unsure = [loss.said for loss in onward.losses if loss.records is None]
    return unknown("; ".join(unsure)) if unsure else records(sum(loss.records or 0 for loss in onward.losses))


def _notes(onward: Onward, topics: Topics) -> Iterator[str]:
    yield (
        f"at most {records_between(onward.offsets, topics.latest):,} unread records are unread and will"
        " be read"
    )
    yield from (loss.said for loss in onward.losses)
    if onward.new:
        yield f"new since then, and read from the first record: {', '.join(onward.new)}"
    if onward.left:
        yield f"not read any more: {', '.join(onward.left)}; unread records there are not read"


def _earliest(price: SourcePrice, seen: Seen) -> SourcePrice:
    words = "the beginning: all records in the topics"
    if seen.topics is None:
        return replace(price, then=words, repeated=unknown(seen.why) if seen.offset else NONE)
    return replace(price, then=words, repeated=records(records_between(seen.topics.earliest, seen.known)))


def _from_moment(price: SourcePrice, seen: Seen, source: Source, moment_ms: int) -> SourcePrice:
    moment = datetime.fromtimestamp(moment_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
    words = f"records written at or after {moment}"
    try:
        return _moved(price, seen, kafka_client.at_time(source, moment_ms), words)
    except SourceError as error:
        return replace(price, then=words, lost=unknown(str(error)), repeated=unknown(str(error)))


def _moved(price: SourcePrice, seen: Seen, target: Offsets | None, then: str) -> SourcePrice:
    """Compare the flow's position with the new start (None: the end) by partition.

    A partition that the flow did not know was not read.
    """
    if seen.topics is None and target is None:
        return replace(price, then=then, lost=unknown(seen.why))
    stands: dict[str, dict[str, Any]] = {
        topic: dict(parts) for topic, parts in (seen.offset or seen.initial or {}).items()
    }
    for topic, parts in (seen.topics.earliest if seen.topics else {}).items():
        stands[topic] = {**parts, **(stands.get(topic, {}) if topic not in seen.anew else {})}
    wanted = target if target is not None else seen.topics.latest if seen.topics else {}
    lost, repeated = records_between(stands, wanted), records_between(wanted, stands)
    return replace(price, then=then, lost=records(lost), repeated=records(repeated if seen.offset else 0))


def _check_offsets(source: Source, wanted: Offsets, seen: Seen) -> None:
    wrong = misfits(wanted, seen.topics) if seen.topics else _left_out(wanted, seen.offset or {})
    if wrong:
        raise RequestError(
            f"offsets of {source.name} cannot be used: {'; '.join(wrong)}. Give one for every partition."
        )


def _left_out(wanted: Offsets, known: Offsets) -> list[str]:
    return [
        f"{topic}/{part} is left out"
        for topic, parts in known.items()
        for part in parts
        if part not in wanted.get(topic, {})
    ]
