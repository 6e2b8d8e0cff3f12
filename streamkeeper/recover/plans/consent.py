"""Prices that must be accepted before a plan is carried out."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from streamkeeper import amounts
from streamkeeper.amounts import DOWNSTREAM, LOSS, PRICES, Amount, Price, SourcePrice, in_words
from streamkeeper.flows.generations import EARLIEST, LATEST
from streamkeeper.recover.plans.plan import IN_THE_TABLE, Refusal
from streamkeeper.recover.requests.reset_checkpoint import ResetRequest
from streamkeeper.tables.readers import ReaderEffects


def price_of_readers(felt: ReaderEffects, accepted: Collection[str]) -> Iterator[Refusal]:
    """Yield the prices of removing and repeating rows of a table that has readers, unless accepted."""
    yield from _unless_accepted(DOWNSTREAM, "", felt.all, accepted)
    yield from _unless_accepted(LOSS, "in tables of readers, nobody knows how many: ", felt.losses, accepted)


def price_of_other_writers(
    commits: Collection[str], version: int, accepted: Collection[str]
) -> Iterator[Refusal]:
    """Yield the price of undoing commits by other writers than flows, unless it is accepted.

    :param version: of the table, after which they came.
    """
    heading = f"commits by other writers since version {version} are undone and cannot be repeated: "
    return _unless_accepted(LOSS, heading, commits, accepted)


def price_of_others(others: Collection[str], accepted: Collection[str]) -> Iterator[Refusal]:
    """Yield the price of removing rows that others than the table's flows wrote, unless it is accepted."""
    heading = "rows written by others are lost: no flow can produce them again: "
    return _unless_accepted(LOSS, heading, others, accepted)


def _unless_accepted(
    price: Price, heading: str, covers: Collection[str], accepted: Collection[str]
) -> Iterator[Refusal]:
    if covers and price not in accepted:
        yield _refusal(price, f"{heading}{'; '.join(covers)}", covers)


def refusals_of(
    prices: tuple[SourcePrice, ...],
    request: ResetRequest,
    stateful: bool | None,
    missing_in_sink: str | None = None,
    *,
    target: str = "",
    again: Amount | None = None,
) -> Iterator[Refusal]:
    """Yield every price that the request does not accept.

    :param again: duplicates in the table ``target``, according to its log; None if that is not counted, and
        what is read again counts.
    :param missing_in_sink: the batches that the checkpoint counts as done and the table lacks, in words.
    """
    for price in prices:
        if price.blocked is not None:
            yield Refusal(None, f"It cannot be carried out: {price.blocked}.")
    priced_parts = _of_sources(prices, stateful)
    lost, repeated = priced_parts[amounts.LOSS], priced_parts[amounts.REPEATS]
    if request.start.mode == LATEST and not lost:
        lost["what arrives"] = (
            "nothing is unread now, but rows that arrive before the new generation begins are skipped and"
            " not counted"
        )
    if missing_in_sink is not None and request.start.mode != EARLIEST:
        lost["missing in the table"] = (
            f"the table lacks {missing_in_sink}, which the checkpoint has committed"
        )
    if again is not None and again.rows_unknown is None:
        if not again.nothing:
            repeated[IN_THE_TABLE] = f"the table {target}: {in_words(again)} that it has"
    elif again is not None:
        unclear = f"duplicates in the table {target}: {again.rows_unknown}"
        priced_parts[amounts.UNKNOWN_PRICE][IN_THE_TABLE] = unclear
    for word, parts in priced_parts.items():
        if parts and word not in request.accept:
            yield _refusal(word, "; ".join(parts.values()), parts)


def _refusal(price: Price, reason: str, covers: Collection[str]) -> Refusal:
    message = f"{PRICES[price]} ({reason}). To continue anyway, accept `{price}`."
    return Refusal(price, message, covers=tuple(covers))


def _of_sources(prices: tuple[SourcePrice, ...], stateful: bool | None) -> dict[Price, dict[str, str]]:
    """Return the prices of sources in words, by the word of acceptance and the source."""
    unknown = [price for price in prices if price.unknown]
    counted = [price for price in prices if not price.unknown]
    return {
        amounts.LOSS: {
            price.source: f"{price.source}: {in_words(price.lost)}"
            for price in counted
            if not price.lost.nothing
        },
        amounts.REPEATS: {
            price.source: f"{price.source}: {in_words(price.repeated)}"
            for price in counted
            if not price.repeated.nothing
        },
        amounts.MISSING_HISTORY: {
            price.source: f"{price.source}: {in_words(price.gone)}"
            + ("" if stateful else ", and whether the query keeps state is not known")
            for price in counted
            if not price.gone.nothing and stateful is not False
        },
        amounts.UNKNOWN_PRICE: {
            price.source: f"{price.source}: {price.lost.rows_unknown}" for price in unknown
        },
    }
