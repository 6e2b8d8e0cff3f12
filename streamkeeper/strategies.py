"""The three strategies against a checkpoint that cannot go on, compared, and which of them fits a failure (see SOURCES)."""

from __future__ import annotations

from collections.abc import Iterator

from streamkeeper.plans import FlowPlan, Plan

FULL_REFRESH = "full refresh"
FULL_REFRESH_WITH_BACKUP = "full refresh with backup and backfill"
RESET = "reset checkpoint"

TRADE_OFFS = (
    ("strategy", "complexity", "cost", "data may be lost", "data may come twice", "needs the first snapshot", "resets the table"),
    (FULL_REFRESH, "low", "medium", "yes, if snapshot or source files are gone", "not for AUTO CDC targets", "yes", "yes"),
    (FULL_REFRESH_WITH_BACKUP, "medium", "high", "no", "not for idempotent sinks", "no", "yes"),
    (RESET, "medium", "low", "not from after-last", "not from after-last, nor for idempotent writers", "no", "no"),
)
"""After the guide on recovering a pipeline from a checkpoint failure."""


def advise(plan: Plan) -> Iterator[str]:
    """Say for each parked flow of a plan which strategy fits, and why."""
    for flow in plan.flows:
        if flow.failure:
            fits, why = fitting(flow)
            yield f"For {flow.flow} the strategy that fits is: {fits}. {why}"


def fitting(flow: FlowPlan) -> tuple[str, str]:
    """Give the strategy that fits a parked flow, by what its plan found out, and the reason in a sentence."""
    lost = [price.source for price in flow.prices if not price.lost.nothing]
    blocked = [price.source for price in flow.prices if price.blocked is not None]
    gone = [price.source for price in flow.prices if not price.gone.nothing]
    unreadable = flow.position.get("offsets", {}) is None
    if blocked or unreadable or (lost and flow.start.mode == "after-last"):
        what = f"what {', '.join(lost or blocked)} had is not there any more" if lost or blocked else "the old positions cannot be read"
        return (
            FULL_REFRESH_WITH_BACKUP,
            f"The position after the last batch cannot be gone on from: {what}. A backup keeps what the table has; a reset from explicit "
            "offsets or a timestamp is the cheap way where the loss that the plan counts can be borne.",
        )
    if gone and flow.stateful is not False:
        return (
            RESET,
            f"The position is there, though state cannot be rebuilt whole: part of the history of {', '.join(gone)} is gone. Where that "
            f"cannot be borne: {FULL_REFRESH_WITH_BACKUP}.",
        )
    return RESET, "The position after the last batch is known and what follows it is still there: the table stays, nothing comes twice."
