"""A history that comes again in other batches than it came in: what a plan says of it, and what it may cost.

A watermark moves at the end of a batch: so rows are late, and keys are forgotten, by where batches end.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamkeeper.flows.generations import AFTER_LAST, BATCH, EARLIEST, REBUILT
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.recover.moves.present import FlowNow
from streamkeeper.recover.plans.move import Move
from streamkeeper.recover.plans.plan import Refusal
from streamkeeper.sources.replay_steps import OWN_STATE, Bound, differences
from streamkeeper.support.amounts import IMPACTS, UNKNOWN_IMPACT

REFRESHED = (
    "If the query has a watermark: its rows come in other batches than they did, so that rows which were late"
    " then may count now, and the other way round; of a watermark without delay, rows as old as it, too."
)
REBUILT_OTHERWISE = (
    "If the query has a watermark: rows that were dropped as late are not known, and a rebuilt state may"
    " count them."
)


def notes_of(present: FlowNow, move: Move) -> Iterator[str]:
    """Yield what a plan says of the batches in which a history comes again."""
    standing = _continued(present, move)
    if move.state != REBUILT or present.stateful is False or present.is_safe_to_repeat:
        return
    if move.start.mode == EARLIEST:
        yield REFRESHED
    elif _all_known(move, standing):
        yield (
            "If the query has a watermark, or a state that its own code makes: history is replayed in the"
            f" {len(standing.kept_batches()):,} batches that it came in, each with the watermark that it had."
        )
        return
    else:
        yield REBUILT_OTHERWISE
    if present.makes_its_state:
        yield OWN_STATE


def impact_of(flow: Flow, present: FlowNow, move: Move) -> Iterator[Refusal]:
    """Yield the impact of a state that goes by the ends of batches and is rebuilt in others, unless it is
    accepted. Nothing counts it: what the old state kept is only in itself.
    """
    standing = _continued(present, move)
    differs = differences(present.standing.operators, present.declared_operators)
    harmless = present.is_safe_to_repeat or flow.declaration.replaces or UNKNOWN_IMPACT in move.accept
    if move.state != REBUILT or move.start.mode == EARLIEST or not differs or harmless:
        return
    if present.stateful is not False and standing.batch is not None and not _all_known(move, standing):
        yield Refusal(
            UNKNOWN_IMPACT,
            f"{IMPACTS[UNKNOWN_IMPACT]} (the state goes by the ends of batches, and of those that it was"
            f" made in only the last {len(standing.kept_batches()):,} are known: replayed in others, it"
            f" {differs}). A copied state is exact: reset from the present generation, or rewind. To continue"
            f" anyway, accept `{UNKNOWN_IMPACT}`.",
            covers=("batches of old",),
        )


def _continued(present: FlowNow, move: Move) -> CommittedPosition:
    """Return where the new generation continues."""
    return present.standing if move.place is None else move.place.standing


def _all_known(move: Move, standing: CommittedPosition) -> bool:
    batches = standing.kept_batches()
    return move.start.mode in (AFTER_LAST, BATCH) and 0 in batches and len(batches) <= Bound.batches
