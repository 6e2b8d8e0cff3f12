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


class Compatibility(StrEnum):
    """Whether a declaration goes on with its flow's checkpoint."""

    COMPATIBLE = "compatible"
    RESULTS_DIFFER = "compatible, results differ"
    """Spark raises no error, and what was read or written before was of another query."""
    UNKNOWN = "unknown"
    """It cannot be told, or Spark promises nothing."""
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True)
class Verdict:
    """Verdict on one flow. ``reasons`` are sentences; ``tried`` says whether Spark ran the declaration on a
    copy.

    ``recovery`` is the DAG that carries the change in, and ``impact`` what that costs; None and empty where
    no recovery is needed, or none helps.
    """

    flow: str
    compatibility: Compatibility
    reasons: tuple[str, ...] = ()
    recovery: str | None = None
    impact: tuple[str, ...] = ()
    tried: bool = False

    def in_words(self) -> str:
        """Return the verdict as lines of text."""
        lines = [f"{self.flow}: {self.compatibility}", *(f"  {line}" for line in self.reasons)]
        if self.recovery is not None:
            lines.append(f"  {self.recovery} carries the change in.")
        return "\n".join([*lines, *(f"  {line}" for line in self.impact)])

    def in_short(self) -> str:
        """Return the verdict as one line, without its impact."""
        carried = () if self.recovery is None else (f"{self.recovery} carries the change in.",)
        return " ".join((f"{self.compatibility}.", *self.reasons, *carried))


EXIT_CODES = {
    Compatibility.COMPATIBLE: 0,
    Compatibility.RESULTS_DIFFER: 0,
    Compatibility.UNKNOWN: 4,
    Compatibility.INCOMPATIBLE: 1,
}
"""Exit code of ``streamkeeper preflight`` by the worst verdict."""


def worst(verdicts: tuple[Verdict, ...]) -> Compatibility:
    """Return the worst of some verdicts."""
    order = list(Compatibility)
    return max(
        (verdict.compatibility for verdict in verdicts), key=order.index, default=Compatibility.COMPATIBLE
    )


def to_line(verdict: Verdict) -> str:
    """Return a verdict as the line that an application prints."""
    return f"{VERDICT}{json.dumps(asdict(verdict))}"
