"""Impacts that must be accepted before a plan is carried out."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from streamkeeper.flows.generations import EARLIEST, LATEST
from streamkeeper.recover.plans.move import Move
from streamkeeper.recover.plans.plan import IN_THE_TABLE, Refusal
from streamkeeper.support import amounts
from streamkeeper.support.amounts import (
    DATA_LOSS,
    DOWNSTREAM,
    IMPACTS,
    Amount,
    Impact,
    SourceImpact,
    in_words,
)
from streamkeeper.tables.readers import ReaderEffects


def impact_of_readers(felt: ReaderEffects, accepted: Collection[str]) -> Iterator[Refusal]:
    """Yield the impacts of removing and repeating rows of a table that has readers, unless accepted."""
    yield from _unless_accepted(DOWNSTREAM, "", felt.all, accepted)
    yield from _unless_accepted(
        DATA_LOSS, "in tables of readers, nobody knows how many: ", felt.losses, accepted
    )


def impact_of_other_writers(
    commits: Collection[str], version: int, accepted: Collection[str]
) -> Iterator[Refusal]:
    """Yield the impact of undoing commits by other writers than flows, unless it is accepted.

    :param version: of the table, after which they came.
    """
    heading = f"commits by other writers since version {version} are undone and cannot be repeated: "
    return _unless_accepted(DATA_LOSS, heading, commits, accepted)


def impact_of_others(others: Collection[str], accepted: Collection[str]) -> Iterator[Refusal]:
    """Yield the impact of removing rows that others than the table's flows wrote, unless it is accepted."""
    heading = "rows written by others are lost: no flow can produce them again: "
    return _unless_accepted(DATA_LOSS, heading, others, accepted)


def _unless_accepted(
    impact: Impact, heading: str, covers: Collection[str], accepted: Collection[str]
) -> Iterator[Refusal]:
    if covers and impact not in accepted:
        yield _refusal(impact, f"{heading}{'; '.join(covers)}", covers)


def refusals_of(
    impacts: tuple[SourceImpact, ...],
    move: Move,
    stateful: bool | None,
    missing_in_sink: str | None = None,
    *,
    target: str = "",
    again: Amount | None = None,
) -> Iterator[Refusal]:
    """Yield every impact that the move does not accept.

    :param again: duplicates in the table ``target``, according to its log; None if that is not counted, and
        what is read again counts.
    :param missing_in_sink: the batches that the checkpoint counts as done and the table lacks, in words.
    """
    for impact in impacts:
        if impact.blocked is not None:
            yield Refusal(None, f"It cannot be carried out: {impact.blocked}.")
    parts_by_impact = _of_sources(impacts, stateful)
    lost, repeated = parts_by_impact[amounts.DATA_LOSS], parts_by_impact[amounts.DUPLICATES]
    if move.start.mode == LATEST and not lost:
        lost["what arrives"] = (
            "nothing is unread now, but rows that arrive before the new generation begins are skipped and"
            " not counted"
        )
    if missing_in_sink is not None and move.start.mode != EARLIEST:
        lost["missing in the table"] = (
            f"the table lacks {missing_in_sink}, which the checkpoint has committed"
        )
    if again is not None and again.rows_unknown is None:
        if not again.nothing:
            repeated[IN_THE_TABLE] = f"the table {target}: {in_words(again)} that it has"
    elif again is not None:
        unclear = f"duplicates in the table {target}: {again.rows_unknown}"
        parts_by_impact[amounts.UNKNOWN_IMPACT][IN_THE_TABLE] = unclear
    for word, parts in parts_by_impact.items():
        if parts and word not in move.accept:
            yield _refusal(word, "; ".join(parts.values()), parts)


def _refusal(impact: Impact, reason: str, covers: Collection[str]) -> Refusal:
    message = f"{IMPACTS[impact]} ({reason}). To continue anyway, accept `{impact}`."
    return Refusal(impact, message, covers=tuple(covers))


def _of_sources(impacts: tuple[SourceImpact, ...], stateful: bool | None) -> dict[Impact, dict[str, str]]:
    """Return the impacts of sources in words, by the word of acceptance and the source."""
    unknown = [impact for impact in impacts if impact.unknown]
    counted = [impact for impact in impacts if not impact.unknown]
    return {
        amounts.DATA_LOSS: {
            impact.source: f"{impact.source}: {in_words(impact.lost)}"
            for impact in counted
            if not impact.lost.nothing
        },
        amounts.DUPLICATES: {
            impact.source: f"{impact.source}: {in_words(impact.repeated)}"
            for impact in counted
            if not impact.repeated.nothing
        },
        amounts.MISSING_HISTORY: {
            impact.source: f"{impact.source}: {in_words(impact.gone)}"
            + ("" if stateful else ", and whether the query keeps state is not known")
            for impact in counted
            if not impact.gone.nothing and stateful is not False
        },
        amounts.UNKNOWN_IMPACT: {
            impact.source: f"{impact.source}: {impact.lost.rows_unknown}" for impact in unknown
        },
    }
