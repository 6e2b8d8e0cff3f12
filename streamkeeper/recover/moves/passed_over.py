"""Rows that a recovery took from a table for a later generation to bring again: a start behind them loses
what that generation has not brought yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamkeeper.flows import generations, ledger
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.flows.generations import AFTER_LAST, EARLIEST, Generation, StartAt
from streamkeeper.flows.ledger import PLANNED
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.recover.plans.move import Move
from streamkeeper.recover.plans.plan import Refusal
from streamkeeper.settings import Settings
from streamkeeper.support.amounts import DATA_LOSS, IMPACTS, UNKNOWN_IMPACT

_EMPTIES = ("full_refresh", "rebuild_without_downtime", "full_refresh_with_backup", "restore_table")
"""Recoveries that replace the rows of a table, whatever they are asked for."""


def impact_of_begun_anew(settings: Settings, flow: Flow, after: int, move: Move) -> Iterator[Refusal]:
    """Yield the impact of a start that passes over what later generations were to bring, unless it is
    accepted.

    :param after: the generation by whose position the start is found.
    """
    if move.start.mode == EARLIEST:
        return
    home, target = open_home(settings, flow.full_name), flow.declaration.target
    begun = Observed(home).begun
    for generation in (item for item in generations.decided(home) if item.number > after):
        if generation.start in (StartAt(AFTER_LAST), move.start) or not _took_rows(home, generation):
            continue
        number = generation.number
        waits = begun is None or number > begun[0].number
        impact = DATA_LOSS if waits else UNKNOWN_IMPACT
        if impact in move.accept:
            continue
        progress = "has not begun" if waits else "began after that position, and may not have come as far"
        yield Refusal(
            impact,
            f"{IMPACTS[impact]} (generation {number}, decided by {generation.recovery}, {progress}: it brings"
            f" again rows that the recovery took from the table {target}, and this start passes over them)."
            f" Choose `earliest`, or the start that generation {number} has: {generation.start.mode}. To"
            f" continue anyway, accept `{impact}`.",
            flow.full_name,
            covers=(f"generation {number}",),
        )


def _took_rows(home: FlowHome, generation: Generation) -> bool:
    """Return whether the recovery that decided a generation took rows for it to bring again."""
    if generation.recovery is None:
        return False
    planned = ledger.open(home.storage, home.pipeline, generation.recovery).find(PLANNED)
    if planned is None:
        return True  # its ledger is gone, and nothing says that it did not
    kind, request = planned.evidence.get("recovery"), planned.evidence.get("request") or {}
    return kind in _EMPTIES or (kind == "rewind" and request.get("target") == "restored")
