"""Start position of a generation in a Kafka source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamkeeper.amounts import LOSS
from streamkeeper.declare.model import Source
from streamkeeper.errors import DeclarationError, RecoveryError
from streamkeeper.sources.kafka.offsets import Offsets, Topics, go_on, history_of, misfits, resolved
from streamkeeper.sources.kafka.options import fails_on_loss


@dataclass(frozen=True)
class KafkaOrigin:
    """Position of a generation in a Kafka source.

    Reading starts after ``offsets``; if they are None, nothing counts as processed, and it starts at
    ``initial``. ``initial`` are the first offsets that the flow ever read, and ``replay_from`` what of that
    is still retained: state is rebuilt from there to ``offsets``, without at most ``gone`` records.
    """

    offsets: Offsets | None
    initial: Offsets
    replay_from: Offsets
    gone: int = 0


def after_last(
    source: Source,
    offset: Offsets | None,
    initial: Offsets | None,
    topics: Topics,
    *,
    ids: Mapping[str, str],
    accepted: tuple[str, ...],
) -> tuple[KafkaOrigin, list[str]]:
    """Continue after an old offset; if none was committed, at the declared start of the old generation.

    :param initial: the first offsets that the flow ever read.
    :param ids: the topics' ids when the old generation began.
    :param accepted: prices that were accepted.
    :raises RecoveryError: unread records are gone, and their loss was not accepted.
    """
    onward = go_on(offset if offset is not None else initial or {}, topics, ids)
    notes = (
        [f"source {source.name} has new partitions, read from their first record: {', '.join(onward.new)}"]
        if onward.new
        else []
    )
    notes += [f"source {source.name} does not read the topic {topic} any more" for topic in onward.left]
    notes += [f"source {source.name}: {loss.said}" for loss in onward.losses]
    if onward.losses and fails_on_loss(source) and LOSS not in accepted:
        raise RecoveryError(
            f"The source {source.name} cannot continue from its position:"
            f" {'; '.join(loss.said for loss in onward.losses)}. Nothing was changed. reset_checkpoint"
            f" continues with the rows that still exist, if `{LOSS}` is accepted; its plan counts the loss."
        )
    if offset is None:
        return KafkaOrigin(None, onward.offsets, onward.offsets), notes
    first = topics.earliest if initial is None else initial
    read = {
        topic: parts for topic, parts in offset.items() if topic in topics.held and topic not in onward.anew
    }
    began = {
        topic: {
            part: first.get(topic, {}).get(part, 0) if part in read.get(topic, {}) else after
            for part, after in parts.items()
        }
        for topic, parts in onward.offsets.items()
    }
    _, gone = history_of(first, read, topics)  # records that expired unread are a loss, not history
    return replace(_at(onward.offsets, began, topics), gone=gone), notes


def at(source: Source, wanted: Offsets, initial: Offsets | None, topics: Topics) -> KafkaOrigin:
    """Continue at requested offsets.

    :raises RecoveryError: they omit a partition, name one that does not exist, or lie outside of what is
        held.
    """
    wrong = misfits(wanted, topics)
    if wrong:
        raise RecoveryError(
            f"The offsets of source {source.name} cannot be used: {'; '.join(wrong)}. Reset the flow again"
            " with others."
        )
    return _at(resolved(wanted, topics), initial, topics)


def at_moment(offsets: Offsets, initial: Offsets | None, topics: Topics) -> KafkaOrigin:
    """Continue at the offsets of a time, limited to what the topics held when they were read."""
    within = {
        topic: {
            part: min(max(offsets.get(topic, {}).get(part, held.first), held.first), held.end)
            for part, held in parts.items()
        }
        for topic, parts in topics.held.items()
    }
    return _at(within, initial, topics)


def at_end(initial: Offsets | None, topics: Topics) -> KafkaOrigin:
    """Continue with the records that arrive from now on."""
    return _at(topics.latest, initial, topics)


def at_beginning(topics: Topics) -> KafkaOrigin:
    """Read all retained records."""
    return KafkaOrigin(None, topics.earliest, topics.earliest)


def as_declared(source: Source, topics: Callable[[], Topics]) -> KafkaOrigin | None:
    """Start at the declared offsets of a source; None for a word, which Spark's own reader understands.

    :param topics: returns the contents of the topics.
    :raises DeclarationError: its offsets omit a partition, name one that does not exist, or lie outside of
        what is held.
    """
    if isinstance(source.start, str):
        return None
    held = topics()
    wanted: Offsets = {topic: dict(parts) for topic, parts in source.start.items()}
    wrong = misfits(wanted, held)
    if wrong:
        raise DeclarationError(
            f"{source.where}: the source {source.name} cannot start as declared: {'; '.join(wrong)}. Correct"
            " its start."
        )
    found = resolved(wanted, held)
    return KafkaOrigin(None, found, found)


def _at(offsets: Offsets, initial: Offsets | None, topics: Topics) -> KafkaOrigin:
    """Return the origin; if the first offset ever read is unknown, the earliest retained offset is used."""
    first: dict[str, Any] = topics.earliest if initial is None else initial
    known = {
        topic: {part: min(first.get(topic, {}).get(part, 0), offset) for part, offset in parts.items()}
        for topic, parts in offsets.items()
    }
    replay_from, gone = history_of(known, offsets, topics)
    return KafkaOrigin(offsets, known, replay_from, gone)
