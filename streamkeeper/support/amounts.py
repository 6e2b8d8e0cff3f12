"""Amounts of source data, and the impacts of a plan.

Each impact has a word that accepts it: in the field ``accept`` of a request, or with ``--accept`` of a
command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Impact(StrEnum):
    """Kind of an impact, by the word that accepts it."""

    DATA_LOSS = "data-loss"
    DUPLICATES = "duplicates"
    MISSING_HISTORY = "missing-history"
    UNKNOWN_IMPACT = "unknown-impact"
    DOWNSTREAM = "downstream"


DATA_LOSS, DUPLICATES, MISSING_HISTORY = Impact.DATA_LOSS, Impact.DUPLICATES, Impact.MISSING_HISTORY
UNKNOWN_IMPACT, DOWNSTREAM = Impact.UNKNOWN_IMPACT, Impact.DOWNSTREAM

IMPACTS = {
    DATA_LOSS: "data loss: rows that no generation will read",
    DUPLICATES: "duplicates: rows that the target gets twice",
    MISSING_HISTORY: (
        "a state that is rebuilt without part of its history, because that was removed or rewritten"
    ),
    UNKNOWN_IMPACT: "an impact that cannot be counted",
    DOWNSTREAM: "streams that read the table see its rows removed and written again",
}


@dataclass(frozen=True)
class Amount:
    """Amount of source data: files, bytes, and rows where they could be counted.

    ``rows`` is exact if ``rows_unknown`` is None and ``at_most`` is False, and an upper bound with
    ``at_most``. Otherwise ``rows_unknown`` holds the reason why there is no number. ``files`` is None if
    unknown.
    """

    files: int | None = 0
    bytes: int = 0
    rows: int | None = 0
    rows_unknown: str | None = None
    at_most: bool = False

    @property
    def nothing(self) -> bool:
        """Whether the amount is zero for certain."""
        return not self.files and not self.rows and self.rows_unknown is None


def sum_known(counts: Sequence[int | None]) -> int | None:
    """Return the sum of some numbers; None where one of them is unknown."""
    return None if None in counts else sum(count for count in counts if count is not None)


NONE = Amount()


def unknown(reason: str) -> Amount:
    """Return an amount of which nothing is known, with the reason."""
    return Amount(None, 0, None, reason)


def total(amounts: Sequence[Amount]) -> Amount:
    """Return the sum of some amounts: exact only if each is."""
    unknowns = [amount for amount in amounts if amount.rows_unknown is not None]
    reason = f"in {len(unknowns)} of {counted(len(amounts), 'sources')}" if unknowns else None
    return Amount(
        None if any(amount.files is None for amount in amounts) else sum(a.files or 0 for a in amounts),
        sum(amount.bytes for amount in amounts),
        sum(amount.rows or 0 for amount in amounts),
        reason,
        any(amount.at_most for amount in amounts),
    )


@dataclass(frozen=True)
class SourceImpact:
    """Impact of a plan in one source.

    ``now`` and ``then`` describe the flow's current position and the start of the new generation. ``lost`` is
    never read by any generation. ``repeated`` was read by an earlier generation and is read again by the new
    one. ``replayed`` is read again to rebuild state, with the sink muted. ``gone`` is history that was read
    and no longer exists. ``blocked`` is the reason why the plan cannot be carried out, whatever is accepted.
    ``otherwise`` is True if some of the data to be read again is missing or has changed. ``first_again`` is
    the batch of the files log that read the earliest of the files to be read again. ``expired`` says that
    what follows the old position is gone: no copied checkpoint continues there, whatever is accepted.
    """

    source: str
    now: str
    then: str
    lost: Amount = NONE
    repeated: Amount = NONE
    replayed: Amount = NONE
    gone: Amount = NONE
    notes: tuple[str, ...] = ()
    blocked: str | None = None
    otherwise: bool = False
    first_again: int | None = None
    expired: bool = False

    @property
    def unknown(self) -> bool:
        """Whether it is unknown if any row is lost or repeated."""
        return all(amount.files is None and amount.rows is None for amount in (self.lost, self.repeated))


def in_words(amount: Amount) -> str:
    """Return an amount as text: ``nothing``, ``3 files, 1.2 kB, 40 rows``."""
    if amount.nothing:
        return "nothing"
    parts = [] if amount.files is None else [counted(amount.files, "files")]
    parts += [size_in_words(amount.bytes)] if parts and amount.bytes else []
    count = "" if amount.rows is None else counted(amount.rows, "rows")
    at_most = "at most " if count and amount.at_most else ""
    parts.append(f"rows unknown: {amount.rows_unknown}" if amount.rows_unknown else f"{at_most}{count}")
    return ", ".join(parts)


def counted(number: int, noun: str) -> str:
    """Return a number of things, which are named in the plural: ``1 file``, ``1,234 files``."""
    return f"{number:,} {noun.removesuffix('s') if number == 1 else noun}"


def size_in_words(size: float) -> str:
    """Return a number of bytes as text: ``512 B``, ``1.2 kB``, ``3.4 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
