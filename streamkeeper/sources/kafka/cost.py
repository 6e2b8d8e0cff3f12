"""Cost of a reset in a Kafka source.

Records between offsets are upper bounds: compaction and transactions leave gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from streamkeeper.amounts import NONE, Amount, SourcePrice, unknown
from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import describe
from streamkeeper.errors import RequestError, SourceError
from streamkeeper.flows.generations import AFTER_LAST, EARLIEST, StartMode
from streamkeeper.flows.position import CommittedPosition
from streamkeeper.sources.base.format import LOOKED_AT_AGAIN, UNREADABLE, Before, Case, Move, Resolved
from streamkeeper.sources.base.format import read_again as with_read_again
from streamkeeper.sources.kafka import client as kafka_client
from streamkeeper.sources.kafka.offsets import (
    Offsets,
    Onward,
    Topics,
    go_on,
    history_of,
    records_between,
)
from streamkeeper.sources.kafka.start import KafkaLook, KafkaPosition

Resolve = Callable[[Callable[[], KafkaLook]], Resolved[KafkaPosition]]


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
        return "; ".join(loss.said for loss in self._onward.losses if loss.anew) if self._onward else ""

    @property
    def uncounted(self) -> str:
        """Why it is unknown how many unread records are gone; empty if that is known."""
        return (
            "; ".join(loss.said for loss in self._onward.losses if loss.records is None)
            if self._onward
            else ""
        )

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
        """The old offsets, up to the end of what is there now, of the topics that may still be the same."""
        if self.topics is None or self._onward is None:
            return self.offset or {}
        others = {*self._onward.anew} - {*self._onward.guessed}
        return {
            topic: {
                part: min(at, self.topics.held[topic][part].end)
                for part, at in parts.items()
                if part in self.topics.held[topic]
            }
            for topic, parts in (self.offset or {}).items()
            if topic in self.topics.held and topic not in others
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


def price_of(case: Case, resolve: Resolve) -> SourcePrice:
    """Return the cost of a reset in a Kafka source.

    :raises RequestError: requested offsets omit a partition, or name one that does not exist.
    """
    seen = look(case.source, case.standing, case.offset)
    found, position = _price_of(case, seen, resolve)
    found = replace(found, notes=(*found.notes, *_policy_notes(seen)))
    if seen.uncounted and case.start.mode != AFTER_LAST:
        found = replace(found, lost=unknown(seen.uncounted), notes=(*found.notes, seen.uncounted))
    return _with_state(found, seen, position, case.stateful) if case.rebuilds else found


def _price_of(case: Case, seen: Seen, resolve: Resolve) -> tuple[SourcePrice, KafkaPosition | None]:
    """Return the cost without that of a rebuilt state, and the position that the driver will start from."""
    source, start = case.source, case.start
    if seen.topics is None:
        return _unseen(case, seen), None
    words = _words(case, seen)
    try:
        held = KafkaLook(seen.topics, partial(kafka_client.at_time, source))
        found = resolve(lambda: held)
    except SourceError as error:
        return case.price(words, lost=unknown(str(error)), repeated=unknown(str(error))), None
    if found.wrong:
        raise RequestError(f"offsets of {source.name} cannot be used: {found.wrong}.")
    position = found.position
    if start.mode == EARLIEST:
        again = records(records_between(seen.topics.earliest, seen.known))
        return case.price(words, repeated=again), position
    if start.mode != AFTER_LAST:
        assert position is not None, "this start is a position"
        return _moved(case.price(words), seen, position.offsets or {}), position
    if seen.offset is None and seen.initial is None:
        return case.price(words), position
    assert position is not None and position.onward is not None, "what was read is continued with"
    waiting = (
        f"at most {records_between(position.onward.offsets, seen.topics.latest):,} unread records"
        " will be read"
    )
    again = records(records_between(position.onward.offsets, seen.known))
    notes = (waiting, *found.notes, *((LOOKED_AT_AGAIN,) if found.may_pass else ()))
    price = case.price(words, lost=_lost(position.onward), repeated=again, notes=notes)
    return replace(price, expired=bool(found.lost)), position


_DECLARED = "the beginning, as the source declares it"


def _words(case: Case, seen: Seen) -> str:
    """Return in words where a start begins to read."""
    match case.start.mode:
        case StartMode.AFTER_LAST:
            if seen.offset is not None:
                return "after the last processed batch"
            begun = seen.initial is not None or seen.topics is None
            return "where the old generation was to begin" if begun else _DECLARED
        case StartMode.EARLIEST:
            return "the beginning: all records in the topics"
        case StartMode.LATEST:
            return "only records that are written after the new generation has begun"
        case StartMode.TIMESTAMP:
            return f"records written at or after {case.moment}"
        case (
            StartMode.OFFSETS | StartMode.BATCH | StartMode.GENERATION | StartMode.BESIDE | StartMode.ADOPTED
        ):
            return describe((case.start.offsets or {})[case.source.name])


def _unseen(case: Case, seen: Seen) -> SourcePrice:
    """Return the cost while the brokers do not answer: what lies between offsets that are numbers."""
    doubt, price = unknown(seen.why), case.price(_words(case, seen))
    match case.start.mode:
        case StartMode.AFTER_LAST:
            told = (
                f"it is unknown whether all unread rows still exist: {seen.why}. The driver checks before"
                " it changes anything"
            )
            return replace(price, notes=(told,))
        case StartMode.EARLIEST:
            return replace(price, repeated=doubt if seen.offset else NONE)
        case StartMode.LATEST:
            return replace(price, lost=doubt)
        case StartMode.OFFSETS:
            wanted: Offsets = (case.start.offsets or {})[case.source.name]
            if wrong := _left_out(wanted, seen.offset or {}):
                raise RequestError(
                    f"offsets of {case.source.name} cannot be used: {'; '.join(wrong)}. Give one for every"
                    " partition."
                )
            if all(end >= 0 for parts in wanted.values() for end in parts.values()):
                return _moved(price, seen, wanted)
    return replace(price, lost=doubt, repeated=doubt)


def _with_state(
    price: SourcePrice, seen: Seen, position: KafkaPosition | None, stateful: bool | None
) -> SourcePrice:
    """Add the cost of rebuilding state from history: what is replayed, and what of it is gone."""
    if seen.offset is None:
        return price
    if seen.topics is None or position is None:
        why = seen.why or price.lost.rows_unknown or ""
        return replace(price, replayed=unknown(why) if stateful else NONE)
    count, gone, notes = (
        records_between(position.replay_from, position.offsets or {}),
        position.gone,
        price.notes,
    )
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


def price_again(source: Source, move: Move, price: SourcePrice) -> SourcePrice:
    """Return the cost of a move to an earlier place: see :class:`SourceFormat`."""
    seen, then = look(source, move.standing, move.offset(source)), move.then(source)
    again = read_again(seen, then)
    if move.restored and not again.nothing and seen.holes:
        price = replace(price, lost=unknown(seen.holes))
    elif seen.uncounted:
        price = replace(price, lost=unknown(seen.uncounted))
    if move.restored and then is not None and seen.why:
        price = _unseen_before_restore(price, seen.why, move)
    return with_read_again(price, UNREADABLE if move.position is None else again, move.restored)


def _unseen_before_restore(price: SourcePrice, why: str, move: Move) -> SourcePrice:
    """Ask for what the driver would check itself before it begins: with a restore, that would be too late."""
    lost = unknown(f"it is unknown whether all unread rows still exist: {why}")
    history = unknown(f"it is unknown whether all rows that were read still exist: {why}")
    return replace(price, lost=lost, gone=history if move.rebuilds else price.gone, notes=())


def look(source: Source, standing: CommittedPosition, offset: Offsets | None) -> Seen:
    """Read a Kafka source, once for each plan: brokers that do not answer cost their timeout only once.

    :param source: opened as far as this process can.
    :param offset: the old offsets; None if nothing was committed.
    """
    before = Before.of(standing, source.name, offset, strict=False)
    initial, ids = before.initial(), before.ids(source)
    try:
        return Seen(offset, initial, kafka_client.look_at(source), ids=ids)
    except SourceError as error:
        return Seen(offset, initial, None, str(error), ids)


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


def _moved(price: SourcePrice, seen: Seen, target: Offsets) -> SourcePrice:
    """Compare the flow's position with the new start by partition.

    A partition that the flow did not know was not read.
    """
    stands = dict(seen.known if seen.offset else seen.initial or {})
    for topic, parts in (seen.topics.earliest if seen.topics else {}).items():
        stands[topic] = {**parts, **stands.get(topic, {})}
    lost, repeated = records_between(stands, target), records_between(target, stands)
    return replace(price, lost=records(lost), repeated=records(repeated if seen.offset else 0))


def _left_out(wanted: Offsets, known: Offsets) -> list[str]:
    return [
        f"{topic}/{part} is left out"
        for topic, parts in known.items()
        for part in parts
        if part not in wanted.get(topic, {})
    ]
