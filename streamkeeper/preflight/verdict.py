"""What a look before the restart says of one flow."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

UNCHANGED = "It is the declaration that ran last."
"""Reason of a verdict on a flow whose declaration is the one that ran."""

VERDICT = "VERDICT "
"""How the line begins that an application prints for each verdict."""
SAMPLE = "SAMPLE "
"""How the line begins that an application prints with rows of a flow."""


class Fit(StrEnum):
    """Whether a declaration goes on with its flow's checkpoint."""

    GOES_ON = "goes on"
    NOTED = "goes on, and note"
    """Spark raises no error, and what was read or written before was of another query."""
    UNDEFINED = "undefined"
    """It cannot be told, or Spark promises nothing."""
    BREAKS = "breaks"


@dataclass(frozen=True)
class Verdict:
    """Verdict on one flow. ``reasons`` are sentences; ``tried`` says whether Spark ran the declaration on a
    copy.

    ``recovery`` is the DAG that carries the change in, and ``price`` what that costs; None and empty where no
    recovery is needed, or none helps.
    """

    flow: str
    fit: Fit
    reasons: tuple[str, ...] = ()
    recovery: str | None = None
    price: tuple[str, ...] = ()
    tried: bool = False

    def in_words(self) -> str:
        """Return the verdict as lines of text."""
        lines = [f"{self.flow}: {self.fit}", *(f"  {line}" for line in self.reasons)]
        if self.recovery is not None:
            lines.append(f"  {self.recovery} carries the change in.")
        return "\n".join([*lines, *(f"  {line}" for line in self.price)])

    def in_short(self) -> str:
        """Return the verdict as one line, without its price."""
        carried = () if self.recovery is None else (f"{self.recovery} carries the change in.",)
        return " ".join((f"{self.fit}.", *self.reasons, *carried))


EXIT_CODES = {Fit.GOES_ON: 0, Fit.NOTED: 0, Fit.UNDEFINED: 4, Fit.BREAKS: 1}
"""Exit code of ``streamkeeper preflight`` by the worst verdict."""


def worst(verdicts: tuple[Verdict, ...]) -> Fit:
    """Return the worst of some verdicts."""
    order = list(Fit)
    return max((verdict.fit for verdict in verdicts), key=order.index, default=Fit.GOES_ON)


def to_line(verdict: Verdict) -> str:
    """Return a verdict as the line that an application prints."""
    return f"{VERDICT}{json.dumps(asdict(verdict))}"
