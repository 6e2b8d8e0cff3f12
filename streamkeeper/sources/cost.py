"""Cost of a reset in each source: what is lost, repeated, replayed or gone, and what must be accepted first.

Sources are only read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamkeeper.amounts import NONE, Amount, SourcePrice
from streamkeeper.declare.model import DELTA, KAFKA, Source
from streamkeeper.declare.offsets import check_fits, describe
from streamkeeper.errors import RequestError
from streamkeeper.flows.generations import AFTER_LAST, EARLIEST, EMPTY, OFFSETS, Restart
from streamkeeper.flows.position import CommittedPosition
from streamkeeper.sources.delta import cost as delta_cost
from streamkeeper.sources.files import cost as files_cost
from streamkeeper.sources.kafka import cost as kafka_cost


def price_of(
    source: Source,
    standing: CommittedPosition,
    position: dict[str, Any] | None,
    restart: Restart,
    stateful: bool | None,
) -> SourcePrice:
    """Return the cost of a reset in one source.

    :param source: opened (:mod:`streamkeeper.manifest.environment`); an environment variable that is not set
        here makes its price unknown.
    :param position: the old checkpoint's offsets by source, or None if they cannot be read.
    :param stateful: whether the query as declared now keeps state; None if that is unknown.
    :raises RequestError: the requested position does not belong to the old checkpoint.
    :raises CheckpointError: the list of processed files is damaged, and the new generation is to start right
        after it.
    :raises StorageError: the source cannot be listed.
    """
    offset = position.get(source.name) if position is not None else None
    misfit = check_fits(source.format, offset)
    if misfit is not None:
        if restart.start.mode == AFTER_LAST:
            raise RequestError(
                f"The source {source.name} was another kind of source in the old checkpoint: {misfit} It"
                " cannot continue from there. Give the new source another name, or choose earliest,"
                " latest, a timestamp or explicit offsets."
            )
        offset = None
    where = (
        "unknown: the checkpoint's offsets cannot be read" if position is None else "nothing processed yet"
    )
    if offset is not None:
        where = describe(offset)
    if standing.is_older_copy:
        unknown = Amount(
            None,
            0,
            None,
            "the table has batches that this checkpoint never planned; it is an older copy, or was recreated",
        )
        return SourcePrice(source.name, where, f"start {restart.start.mode}", lost=unknown, repeated=unknown)
    if source.format in (KAFKA, DELTA):
        return _log_price(
            source,
            standing,
            SourcePrice(source.name, where, ""),
            restart,
            offset=offset,
            stateful=stateful,
            told=position,
        )
    if not source.reads_files:
        return _plain_price(source, where, offset, restart)
    return files_cost.price_of(
        source, standing, position, restart, where=where, offset=offset, stateful=stateful
    )


def _log_price(
    source: Source,
    standing: CommittedPosition,
    price: SourcePrice,
    restart: Restart,
    *,
    offset: Any,
    stateful: bool | None,
    told: object,
) -> SourcePrice:
    """Return the cost of a reset in a source that is a log itself (Kafka, Delta).

    ``told`` is None if the old offsets cannot be read.
    """
    mode = restart.start.mode
    if told is None:
        unknown = Amount(None, 0, None, "the checkpoint's offsets cannot be read")
        return replace(
            price, then=f"start {mode}", lost=NONE if mode == EARLIEST else unknown, repeated=unknown
        )
    rebuilds = restart.state != EMPTY and stateful is not False and mode != EARLIEST
    if source.format == KAFKA:
        seen = kafka_cost.look(source, standing, offset)
        found = kafka_cost.price_of(source, price, seen, restart)
        return kafka_cost.with_state(found, seen, stateful) if rebuilds else found
    found = delta_cost.price_of(source, price, offset, restart)
    return delta_cost.with_state(found, source, offset, stateful) if rebuilds else found


def _plain_price(source: Source, where: str, offset: Any, restart: Restart) -> SourcePrice:
    unknown = Amount(None, 0, None, f"{source.format} keeps no history to count")
    if restart.start.mode == AFTER_LAST:
        return SourcePrice(source.name, where, "after the last processed batch")
    if restart.start.mode == OFFSETS:
        wanted = (restart.start.offsets or {})[source.name]
        told = isinstance(offset, int)  # only then the direction of the move is known
        lost = unknown if not told or wanted > offset else NONE
        repeated = unknown if not told or wanted < offset else NONE
        return SourcePrice(source.name, where, describe(wanted), lost=lost, repeated=repeated)
    return SourcePrice(source.name, where, "the beginning", repeated=unknown)
