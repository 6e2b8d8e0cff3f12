"""What a reset costs in each source: what is lost, repeated, replayed, gone; and what of that someone must
accept first.

Sources are looked at, by their files; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from streamkeeper import amounts
from streamkeeper.amounts import NONE, Amount, SourcePrice
from streamkeeper.declare.model import DELTA, KAFKA, Source
from streamkeeper.declare.offsets import check_fits, describe
from streamkeeper.errors import RequestError
from streamkeeper.flows.generations import AFTER_LAST, EARLIEST, EMPTY, LATEST, OFFSETS
from streamkeeper.flows.position import Standing
from streamkeeper.recover.plans.plan import Refusal
from streamkeeper.recover.requests.reset_checkpoint import ResetRequest
from streamkeeper.sources.delta import cost as delta_cost
from streamkeeper.sources.files import cost as files_cost
from streamkeeper.sources.kafka import cost as kafka_cost


def price_of(
    source: Source,
    standing: Standing,
    position: dict[str, Any] | None,
    request: ResetRequest,
    stateful: bool | None,
) -> SourcePrice:
    """Say what a reset costs in one source.

    :param source: opened (:mod:`streamkeeper.manifest.environment`); an environment variable that is not set
        here makes its price unknown.
    :param position: the old checkpoint's offsets by source, or None where they cannot be read.
    :param stateful: whether the query as declared now keeps state; None where that is not known.
    :raises RequestError: the position asked for is not one of the old checkpoint.
    :raises CheckpointError: the list of processed files is damaged, and the new generation is to start right
        after it.
    :raises StorageError: the source cannot be listed.
    """
    offset = position.get(source.name) if position is not None else None
    misfit = check_fits(source.format, offset)
    if misfit is not None:
        if request.start.mode == AFTER_LAST:
            raise RequestError(
                f"The source {source.name} was another kind of source in the old checkpoint: {misfit} So it"
                " cannot go on from there. Give the new source another name, or choose earliest, latest, a"
                " timestamp or explicit offsets."
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
            "the table has batches that this checkpoint never planned; it is an older copy, or was made anew",
        )
        return SourcePrice(source.name, where, f"start {request.start.mode}", lost=unknown, repeated=unknown)
    if source.format in (KAFKA, DELTA):
        return _log_price(
            source,
            standing,
            SourcePrice(source.name, where, ""),
            request,
            offset=offset,
            stateful=stateful,
            told=position,
        )
    if not source.reads_files:
        return _plain_price(source, where, offset, request)
    return files_cost.price_of(
        source, standing, position, request, where=where, offset=offset, stateful=stateful
    )


def _log_price(
    source: Source,
    standing: Standing,
    price: SourcePrice,
    request: ResetRequest,
    *,
    offset: Any,
    stateful: bool | None,
    told: object,
) -> SourcePrice:
    """Say what a reset costs in a source that is itself a log: Kafka, Delta. ``told`` is None where the old
    offsets cannot be read.
    """
    mode = request.start.mode
    if told is None:
        unknown = Amount(None, 0, None, "the checkpoint's offsets cannot be read")
        return replace(
            price, then=f"start {mode}", lost=NONE if mode == EARLIEST else unknown, repeated=unknown
        )
    rebuilds = request.state != EMPTY and stateful is not False and mode != EARLIEST
    if source.format == KAFKA:
        seen = kafka_cost.look(source, standing, offset)
        found = kafka_cost.price_of(source, price, seen, request)
        return kafka_cost.with_state(found, seen, stateful) if rebuilds else found
    found = delta_cost.price_of(source, price, offset, request)
    return delta_cost.with_state(found, source, offset, stateful) if rebuilds else found


def _plain_price(source: Source, where: str, offset: Any, request: ResetRequest) -> SourcePrice:
    unknown = Amount(None, 0, None, f"{source.format} keeps no history to count")
    if request.start.mode == AFTER_LAST:
        return SourcePrice(source.name, where, "after the last processed batch")
    if request.start.mode == OFFSETS:
        wanted = (request.start.offsets or {})[source.name]
        told = isinstance(offset, int)  # then it is known which way the position moves
        lost = unknown if not told or wanted > offset else NONE
        repeated = unknown if not told or wanted < offset else NONE
        return SourcePrice(source.name, where, describe(wanted), lost=lost, repeated=repeated)
    return SourcePrice(source.name, where, "the beginning", repeated=unknown)


def refusals_of(
    prices: tuple[SourcePrice, ...],
    request: ResetRequest,
    stateful: bool | None,
    missing_in_sink: str | None = None,
    *,
    target: str = "",
    again: Amount | None = None,
) -> Iterator[Refusal]:
    """Give every price that the request does not accept.

    :param again: what the table ``target`` gets a second time, by its log; None where that is not counted,
        and what is read again counts.
    :param missing_in_sink: the batches that the checkpoint counts as done and the table has not, in words.
    """
    for price in prices:
        if price.blocked is not None:
            yield Refusal(None, f"It cannot be carried out: {price.blocked}.")
    unknown = [price for price in prices if price.unknown]
    counted = [price for price in prices if not price.unknown]
    found = {
        amounts.LOSS: [
            f"{price.source}: {amounts.in_words(price.lost)}" for price in counted if not price.lost.nothing
        ],
        amounts.REPEATS: [
            f"{price.source}: {amounts.in_words(price.repeated)}"
            for price in counted
            if not price.repeated.nothing
        ],
        amounts.MISSING_HISTORY: [
            f"{price.source}:"
            f" {amounts.in_words(price.gone)}{'' if stateful else ', and whether the query keeps state is not known'}"
            for price in counted
            if not price.gone.nothing and stateful is not False
        ],
        amounts.UNKNOWN_PRICE: [f"{price.source}: {price.lost.rows_unknown}" for price in unknown],
    }
    if request.start.mode == LATEST and not found[amounts.LOSS]:
        found[amounts.LOSS].append(
            "nothing waits now, but what appears until the new generation has begun is skipped uncounted"
        )
    if missing_in_sink is not None and request.start.mode != EARLIEST:
        found[amounts.LOSS].append(
            f"the table has not {missing_in_sink}, which the checkpoint counts as done"
        )
    if again is not None and again.rows_unknown is None:
        found[amounts.REPEATS] += (
            [] if again.nothing else [f"the table {target}: {amounts.in_words(again)} that it has"]
        )
    elif again is not None:
        found[amounts.UNKNOWN_PRICE].append(
            f"what the table {target} gets a second time: {again.rows_unknown}"
        )
    for word, sources in found.items():
        if sources and word not in request.accept:
            yield Refusal(
                word,
                f"{amounts.PRICES[word]} ({'; '.join(sources)}). To go on all the same, accept `{word}`.",
            )
