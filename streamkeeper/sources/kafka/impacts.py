"""Impact of a reset in a Kafka source, with upper bounds: compaction and transactions leave gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from streamkeeper.declare.model import Source
from streamkeeper.errors import RequestError, SourceError
from streamkeeper.flows.generations import AFTER_LAST, EARLIEST, StartMode
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.sources.base.format import LOOKED_AT_AGAIN, UNREADABLE, Before, Case, Resolved, SourceMove
from streamkeeper.sources.base.format import read_again as with_read_again
from streamkeeper.sources.kafka import client as kafka_client
from streamkeeper.sources.kafka.offsets import Offsets, Onward, Topics, go_on, history_of, records_between
from streamkeeper.sources.kafka.start import KafkaLook, KafkaPosition, read_of
from streamkeeper.support.amounts import NONE, Amount, SourceImpact, unknown

Resolve = Callable[[Callable[[], KafkaLook]], Resolved[KafkaPosition]]


@dataclass(frozen=True)
class KafkaSnapshot:
    """Result of one look at a source.

    That is its old offsets, the first offsets that it ever read, and what its topics hold, or ``reason`` that
    is unknown.
    """

    offset: Offsets | None
    initial: Offsets | None
    topics: Topics | None
    reason: str = ""
    ids: Mapping[str, str] = field(default_factory=dict)
    """The topics' ids when the old generation began, as far as they are known."""

    @property
    def made_anew(self) -> str:
        """Which topics were deleted and created again since they were read; empty if none was."""
        return (
            "; ".join(loss.reason for loss in self._onward.losses if loss.recreated) if self._onward else ""
        )

    @property
    def uncounted(self) -> str:
        """Why it is unknown how many unread records are gone; empty if that is known."""
        return (
            "; ".join(loss.reason for loss in self._onward.losses if loss.records is None)
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
    def readable_offsets(self) -> Offsets:
        """The old offsets, up to the end of what is there now, of the topics that may still be the same."""
        if self.topics is None or self._onward is None:
            return self.offset or {}
        others = {*self._onward.recreated} - {*self._onward.guessed}
        return {
            topic: {
                part: min(at, self.topics.ranges[topic][part].end)
                for part, at in parts.items()
                if part in self.topics.ranges[topic]
            }
            for topic, parts in (self.offset or {}).items()
            if topic in self.topics.ranges and topic not in others
        }

    @property
    def holes(self) -> str:
        """Why the history of the source is incomplete though its offsets exist; empty if not, or unknown."""
        compacted = [
            topic
            for topic in (self.topics.compacted if self.topics is not None else ())
            if topic in (self.offset or {})
        ]
        return (
            f"{_listed(compacted)} compacted: of the records of a key only the newest stay"
            if compacted
            else ""
        )


def records(count: int) -> Amount:
    """Return an amount of at most so many records."""
    return Amount(None, 0, count, at_most=count > 0)


def impact_of(case: Case, resolve: Resolve) -> SourceImpact:
    """Return the impact of a reset in a Kafka source.

    :raises RequestError: requested offsets omit a partition, or name one that does not exist.
    """
    snapshot = look(case.source, case.standing, case.offset)
    impact, position = _impact_of(case, snapshot, resolve)
    impact = replace(impact, notes=(*impact.notes, *_policy_notes(snapshot)))
    if snapshot.uncounted and case.start.mode != AFTER_LAST:
        impact = replace(impact, lost=unknown(snapshot.uncounted), notes=(*impact.notes, snapshot.uncounted))
    return _with_state(impact, snapshot, position, case.stateful) if case.rebuilds else impact


def _impact_of(
    case: Case, snapshot: KafkaSnapshot, resolve: Resolve
) -> tuple[SourceImpact, KafkaPosition | None]:
    """Return the impact without that of a rebuilt state, and the position that the driver will start from."""
    source, start = case.source, case.start
    if snapshot.topics is None:
        return _unseen(case, snapshot), None
    words = _words(case, snapshot)
    try:
        contents = KafkaLook(snapshot.topics, partial(kafka_client.at_time, source))
        resolved = resolve(lambda: contents)
    except SourceError as error:
        return case.impact(words, lost=unknown(str(error)), repeated=unknown(str(error))), None
    if resolved.wrong:
        raise RequestError(f"offsets of {source.name} cannot be used: {resolved.wrong}.")
    position = resolved.position
    if start.mode == EARLIEST:
        again = records(records_between(snapshot.topics.earliest, snapshot.readable_offsets))
        return case.impact(words, repeated=again), position
    if start.mode != AFTER_LAST:
        assert position is not None, "this start is a position"
        return _moved(case.impact(words), snapshot, position.offsets or {}), position
    if snapshot.offset is None and snapshot.initial is None:
        return case.impact(words), position
    assert position is not None and position.onward is not None, "what was read is continued with"
    waiting = (
        f"at most {records_between(position.onward.offsets, snapshot.topics.latest):,} unread records"
        " will be read"
    )
    again = records(records_between(position.onward.offsets, snapshot.readable_offsets))
    notes = (waiting, *resolved.notes, *((LOOKED_AT_AGAIN,) if resolved.may_pass else ()))
    impact = case.impact(words, lost=_lost(position.onward), repeated=again, notes=notes)
    return replace(impact, expired=bool(resolved.lost)), position


_DECLARED = "the beginning, as the source declares it"


def _words(case: Case, snapshot: KafkaSnapshot) -> str:
    """Return in words where a start begins to read."""
    after_last = "after the last processed batch"
    if snapshot.offset is None:
        begun = snapshot.initial is not None or snapshot.topics is None
        after_last = "where the old generation was to begin" if begun else _DECLARED
    everything, later = "all records in the topics", "records that are written"
    return case.words(after_last, everything, later, "records written")


def _unseen(case: Case, snapshot: KafkaSnapshot) -> SourceImpact:
    """Return the impact while the brokers do not answer: what lies between offsets that are numbers."""
    doubt, impact = unknown(snapshot.reason), case.impact(_words(case, snapshot))
    match case.start.mode:
        case StartMode.AFTER_LAST:
            note = (
                f"it is unknown whether all unread rows still exist: {snapshot.reason}. The driver checks"
                " before it changes anything"
            )
            return replace(impact, notes=(note,))
        case StartMode.EARLIEST:
            return replace(impact, repeated=doubt if snapshot.offset else NONE)
        case StartMode.LATEST:
            return replace(impact, lost=doubt)
        case StartMode.OFFSETS:
            offsets: Offsets = (case.start.offsets or {})[case.source.name]
            if wrong := _left_out(offsets, snapshot.offset or {}):
                raise RequestError(
                    f"offsets of {case.source.name} cannot be used: {'; '.join(wrong)}. Give one for every"
                    " partition."
                )
            if all(end >= 0 for parts in offsets.values() for end in parts.values()):
                return _moved(impact, snapshot, offsets)
    return replace(impact, lost=doubt, repeated=doubt)


def _with_state(
    impact: SourceImpact, snapshot: KafkaSnapshot, position: KafkaPosition | None, stateful: bool | None
) -> SourceImpact:
    """Add the impact of rebuilding state from history: what is replayed, and what of it is gone."""
    if snapshot.offset is None:
        return impact
    if snapshot.topics is None or position is None:
        reason = snapshot.reason or impact.lost.rows_unknown or ""
        return replace(impact, replayed=unknown(reason) if stateful else NONE)
    count, gone, notes = (
        records_between(position.replay_from, position.offsets or {}),
        position.gone,
        impact.notes,
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
    holes = "; ".join(filter(None, (snapshot.made_anew, snapshot.holes)))
    if holes:
        notes += (f"a rebuilt state lacks part of the rows that were read: {holes}",)
    missing = (
        unknown(f"{holes}{f', and at most {gone:,} records expired' if gone else ''}")
        if holes
        else records(gone)
    )
    return replace(impact, replayed=records(count) if stateful else NONE, gone=missing, notes=notes)


def read_again(snapshot: KafkaSnapshot, then: Offsets | None) -> Amount:
    """Return the records that were read since an earlier position and can be read again: not expired ones.

    :param seen: with the present offsets.
    :param then: the earlier position; None if nothing had been read.
    """
    if snapshot.offset is None:
        return NONE
    before: Offsets = then if then is not None else snapshot.initial or {}
    if snapshot.topics is None:
        start = {
            topic: {part: before.get(topic, {}).get(part, 0) for part in parts}
            for topic, parts in snapshot.offset.items()
        }
        return records(records_between(start, snapshot.offset))
    start, _ = history_of(before, snapshot.readable_offsets, snapshot.topics)
    return records(records_between(start, snapshot.readable_offsets))


def impact_again(source: Source, move: SourceMove, impact: SourceImpact) -> SourceImpact:
    """Return the impact of a move to an earlier place: see :class:`SourceFormat`."""
    snapshot, then = look(source, move.standing, move.offset(source)), move.then(source)
    again = read_again(snapshot, then)
    if move.restored and not again.nothing and snapshot.holes:
        impact = replace(impact, lost=unknown(snapshot.holes))
    elif snapshot.uncounted:
        impact = replace(impact, lost=unknown(snapshot.uncounted))
    if move.restored and then is not None and snapshot.reason:
        impact = _unseen_before_restore(impact, snapshot.reason, move)
    return with_read_again(impact, UNREADABLE if move.position is None else again, move.restored)


def _unseen_before_restore(impact: SourceImpact, reason: str, move: SourceMove) -> SourceImpact:
    """Ask for what the driver would check itself before it begins: with a restore, that would be too late."""
    lost = unknown(f"it is unknown whether all unread rows still exist: {reason}")
    history = unknown(f"it is unknown whether all rows that were read still exist: {reason}")
    return replace(impact, lost=lost, gone=history if move.rebuilds else impact.gone, notes=())


def look(source: Source, standing: CommittedPosition, offset: Offsets | None) -> KafkaSnapshot:
    """Read a Kafka source, once for each plan: brokers that do not answer cost their timeout only once.

    :param source: opened as far as this process can.
    :param offset: the old offsets; None if nothing was committed.
    """
    before = Before.of(standing, source, offset, strict=False)
    initial = before.initial()
    try:
        topics = kafka_client.look_at(source)
    except SourceError as error:
        return KafkaSnapshot(offset, initial, None, str(error), before.ids(source))
    read = read_of(source, before, topics)
    return KafkaSnapshot(read.offsets, initial, topics, ids=read.ids)


def _policy_notes(snapshot: KafkaSnapshot) -> Iterator[str]:
    """Yield notes on the topics' clean-up policies, if they affect what can be read again."""
    if snapshot.topics is None:
        return
    if snapshot.holes:
        yield (
            f"{snapshot.holes}. Counts between offsets are upper bounds, and not all rows that were read are"
            " read again"
        )
    untold = [topic for topic in snapshot.topics.ranges if topic not in snapshot.topics.policies]
    if snapshot.topics.policies and untold:
        yield (
            f"whether {_listed(untold)} compacted is unknown: this client may not read the topics'"
            " configuration"
        )


def _listed(topics: Iterable[str]) -> str:
    names = list(topics)
    return f"topic{'s' if len(names) > 1 else ''} {', '.join(names)} {'are' if len(names) > 1 else 'is'}"


def _lost(onward: Onward) -> Amount:
    unsure = [loss.reason for loss in onward.losses if loss.records is None]
    return unknown("; ".join(unsure)) if unsure else records(sum(loss.records or 0 for loss in onward.losses))


def _moved(impact: SourceImpact, snapshot: KafkaSnapshot, target: Offsets) -> SourceImpact:
    """Compare position and new start by partition; one that the flow did not know was not read."""
    position = dict(snapshot.readable_offsets if snapshot.offset else snapshot.initial or {})
    for topic, parts in (snapshot.topics.earliest if snapshot.topics else {}).items():
        position[topic] = {**parts, **position.get(topic, {})}
    lost, repeated = records_between(position, target), records_between(target, position)
    return replace(impact, lost=records(lost), repeated=records(repeated if snapshot.offset else 0))


def _left_out(offsets: Offsets, old_offsets: Offsets) -> list[str]:
    return [
        f"{topic}/{part} is left out"
        for topic, parts in old_offsets.items()
        for part in parts
        if part not in offsets.get(topic, {})
    ]
