"""A history that comes again in other batches than it came in: what a plan says of it, and what it may cost.

A watermark moves at the end of a batch: so rows are late, and keys are forgotten, by where batches end.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamkeeper.amounts import IMPACTS, UNKNOWN_IMPACT
from streamkeeper.flows.generations import AFTER_LAST, BATCH, EARLIEST, REBUILT, Restart
from streamkeeper.flows.position import CommittedPosition
from streamkeeper.manifest.manifest import Flow
from streamkeeper.recover.plans.plan import Refusal
from streamkeeper.recover.restart.flow_now import FlowNow
from streamkeeper.sources.replay_steps import OWN_STATE, Bound, forgets_by_batches

REFRESHED = (
    "If the query has a watermark: its rows come in other batches than they did, so that rows which were late"
    " then may count now, and the other way round; of a watermark without delay, rows as old as it, too."
)
REBUILT_OTHERWISE = (
    "If the query has a watermark: rows that were dropped as late are not known, and a rebuilt state may"
    " count them."
)


def notes_of(present: FlowNow, restart: Restart, standing: CommittedPosition) -> Iterator[str]:
    """Yield what a plan says of the batches in which a history comes again.

    :param standing: where the new generation continues.
    """
    if restart.state != REBUILT or present.stateful is False or present.is_safe_to_repeat:
        return
    if restart.start.mode == EARLIEST:
        yield REFRESHED
    elif _all_known(restart, standing):
        yield (
            "If the query has a watermark, or a state that its own code makes: history is replayed in the"
            f" {len(standing.kept_batches()):,} batches that it came in, each with the watermark that it had."
        )
        return
    else:
        yield REBUILT_OTHERWISE
    if present.makes_its_state:
        yield OWN_STATE


def impact_of(
    flow: Flow, present: FlowNow, restart: Restart, standing: CommittedPosition, accept: tuple[str, ...]
) -> Iterator[Refusal]:
    """Yield the impact of a state that may have forgotten keys which the old one knows, unless it is
    accepted.

    :param standing: where the new generation continues.
    """
    declared = (present.failure or {}).get("operators")
    forgets = forgets_by_batches(present.operators) and (declared is None or forgets_by_batches(declared))
    harmless = present.is_safe_to_repeat or flow.declaration.replaces or UNKNOWN_IMPACT in accept
    if restart.state != REBUILT or restart.start.mode == EARLIEST or not forgets or harmless:
        return
    if not _all_known(restart, standing):
        yield Refusal(
            UNKNOWN_IMPACT,
            f"{IMPACTS[UNKNOWN_IMPACT]} (the state forgets keys at the end of batches, and of the batches"
            " that"
            f" it was made in only the last {len(standing.kept_batches()):,} are known: replayed in others,"
            " it may have forgotten keys that the old state knows, whose rows then come twice). A copied"
            " state knows them: reset from the present generation, or rewind. To continue anyway, accept"
            f" `{UNKNOWN_IMPACT}`.",
            covers=("batches of old",),
        )


def _all_known(restart: Restart, standing: CommittedPosition) -> bool:
    batches = standing.kept_batches()
    return restart.start.mode in (AFTER_LAST, BATCH) and 0 in batches and len(batches) <= Bound.batches
