"""Strategies for a checkpoint that cannot continue: their trade-offs, and which of them fits a failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from streamkeeper.recover.plans.plan import FlowPlan, Plan
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.tables import backups
from streamkeeper.tables.backups import Backup

FULL_REFRESH = "full refresh"
FULL_REFRESH_WITH_BACKUP = "full refresh with backup and backfill"
RESET = "reset checkpoint"
REWIND = "rewind"
RESTORE = "restore from a backup"
BACKFILL = "reset and backfill"

_TABLE = f"""\
strategy | complexity | cost | rows may be lost | rows may be duplicated | needs the first snapshot | \
resets the table
{FULL_REFRESH} | low | medium | yes, if snapshot or source files no longer exist | \
not for AUTO CDC targets | yes | yes
{FULL_REFRESH_WITH_BACKUP} | medium | high | no | not for idempotent sinks | no | yes
{RESET} | medium | low | not from after-last | not from after-last, nor for idempotent writers | no | no
{REWIND} | low | low | not while sources keep the rows | if the table is kept and appended to | no | \
if asked for
{RESTORE} | low | medium | rows since the backup that sources no longer have | no | no | to the backup
{BACKFILL} | medium | by the rows read again | no, if the rows exist elsewhere | \
not for AUTO CDC targets | no | no
"""
TRADE_OFFS = tuple(tuple(row.split(" | ")) for row in _TABLE.splitlines())
"""Trade-offs of the strategies; the first row is the heading.

The first three strategies follow the guide on recovering a pipeline from a checkpoint failure.
"""


def advised(settings: Settings, plan: Plan) -> Plan:
    """Return a plan with its ways out: strategy and reason for each parked flow, and existing backups."""
    storage = open_storage(settings.state)
    newest = {
        table: entries[-1]
        for table in plan.tables
        if (entries := backups.listed(storage, plan.pipeline_of(table), table))
    }
    return replace(plan, ways=tuple(_advise(plan, newest)))


def _advise(plan: Plan, newest: Mapping[str, Backup]) -> Iterator[str]:
    for flow in plan.flows:
        if flow.failure:
            fits, reason = fitting(flow)
            yield f"Recommended for {flow.flow}: {fits}. {reason}"
            yield from _besides(flow, newest.get(flow.target))


def _besides(flow: FlowPlan, backup: Backup | None) -> Iterator[str]:
    """Yield further options for a parked flow, according to its plan."""
    if backup is not None:
        yield (
            f"The backup {backup.id} of {flow.target} was made at {backup.at}: `restore_table` restores it,"
            " and the flows then read again what came since."
        )
    elif fitting(flow)[0] == FULL_REFRESH_WITH_BACKUP:
        yield (
            f"There is no backup of {flow.target}: `full_refresh_with_backup` makes one before it empties the"
            " table."
        )
    lost = [impact.source for impact in flow.impacts if not impact.lost.nothing]
    if lost:
        yield (
            f"If the lost rows of {', '.join(lost)} exist elsewhere (files, a table, a topic), `backfill`"
            " can add them after the reset."
        )
    if flow.position.get("offsets") and flow.position.get("batch"):
        yield (
            "If rows since an earlier batch are wrong, `rewind` reads them again; the last batch is"
            f" {flow.position['batch']}."
        )


def fitting(flow: FlowPlan) -> tuple[str, str]:
    """Return the strategy that fits a parked flow according to its plan, and the reason in a sentence."""
    lost = [impact.source for impact in flow.impacts if not impact.lost.nothing]
    blocked = [impact.source for impact in flow.impacts if impact.blocked is not None]
    gone = [impact.source for impact in flow.impacts if not impact.gone.nothing]
    unreadable = flow.position.get("offsets", {}) is None
    if blocked or unreadable or (lost and flow.start.mode == "after-last"):
        reason = (
            f"data of {', '.join(lost or blocked)} no longer exists"
            if lost or blocked
            else "the old positions are unreadable"
        )
        return (
            FULL_REFRESH_WITH_BACKUP,
            (
                f"The flow cannot continue after its last batch: {reason}. A backup keeps the rows of the"
                " table. A reset from explicit offsets or a timestamp is cheaper if the data loss in its"
                " plan is acceptable."
            ),
        )
    if gone and flow.stateful is not False:
        return (
            RESET,
            (
                "The position is known, but the state cannot be rebuilt completely: part of the history of"
                f" {', '.join(gone)} is gone. If that is not acceptable, use {FULL_REFRESH_WITH_BACKUP}."
            ),
        )
    return (
        RESET,
        (
            "The position after the last batch is known, and the sources still have everything after it:"
            " the table is kept, without duplicates."
        ),
    )
