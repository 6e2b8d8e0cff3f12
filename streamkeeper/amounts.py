"""The prices that a plan may have, by the word that accepts each: ``accept`` of a request, ``--accept`` of a
command.
"""

from __future__ import annotations

from dataclasses import dataclass

LOSS = "loss"
REPEATS = "repeats"
MISSING_HISTORY = "missing-history"
UNKNOWN_PRICE = "unknown-price"
DOWNSTREAM = "downstream"

PRICES = {
    LOSS: "rows that no generation will ever read",
    REPEATS: "rows that the target will get a second time",
    MISSING_HISTORY: (
        "a rebuilt state without rows of the history that are gone, or in files that were written anew"
    ),
    UNKNOWN_PRICE: "a price that could not be found out",
    DOWNSTREAM: "streams that read the table feel that its rows go and are written again",
}


@dataclass(frozen=True)
class Amount:
    """An amount of source data: files, bytes, and rows where they could be counted.

    ``rows`` is exact if ``rows_unknown`` is None, and a bound with ``at_most``; else ``rows_unknown`` says
    why there is no number.
    """

    files: int | None = 0
    bytes: int = 0
    rows: int | None = 0
    rows_unknown: str | None = None
    at_most: bool = False

    @property
    def nothing(self) -> bool:
        """Whether there is none of it, for sure."""
        return not self.files and not self.rows and self.rows_unknown is None


NONE = Amount()


@dataclass(frozen=True)
class SourcePrice:
    """What the plan costs in one source.

    ``now`` and ``then`` say in words where the flow stands and where the new generation will start. ``lost``:
    never read by any generation. ``repeated``: read by an earlier generation and again by this one.
    ``replayed``: read once more to rebuild state, with the sink muted. ``gone``: history that was read and is
    not there any more. ``blocked`` says why the plan cannot be carried out, whatever is accepted.
    ``otherwise``: some of what was read and would be read again is not there any more, or is not as it was.
    ``first_again`` is the batch of the files log that read the earliest of the files that are read again.
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

    @property
    def unknown(self) -> bool:
        """Whether it could not even be told if rows are lost or repeated."""
        return all(amount.files is None and amount.rows is None for amount in (self.lost, self.repeated))


def in_words(amount: Amount) -> str:
    """Say an amount: ``nothing``, ``3 files, 1.2 kB, 40 rows``."""
    if amount.nothing:
        return "nothing"
    parts = [] if amount.files is None else [f"{amount.files:,} file{'' if amount.files == 1 else 's'}"]
    parts += [size_in_words(amount.bytes)] if parts and amount.bytes else []
    count = (
        f"{'at most ' if amount.at_most else ''}{amount.rows:,} row{'' if amount.rows == 1 else 's'}"
        if amount.rows is not None
        else ""
    )
    parts.append(f"rows unknown: {amount.rows_unknown}" if amount.rows_unknown else count)
    return ", ".join(parts)


def size_in_words(size: float) -> str:
    """Say a number of bytes: ``512 B``, ``1.2 kB``, ``3.4 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
