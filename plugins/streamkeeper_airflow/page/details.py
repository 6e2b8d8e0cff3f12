"""What the page shows of one recovery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamkeeper.flows import ledger
from streamkeeper.health import one_flow
from streamkeeper.health.flows import FlowHealth
from streamkeeper.recover import engine
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage

_HOW = ("done", "failed", "started")
"""Events that tell of a step how far it is, the last first."""


def of_recovery(dag_id: str, run_id: str, rows: Sequence[FlowHealth]) -> dict[str, Any]:
    """Return a recovery: its plan in words, its prices, its steps, the events of its ledger, and the DAGs of
    all flows that it tells of.

    An empty object if the run has no plan, such as one whose values were refused.

    :raises StreamkeeperError: its ledger cannot be read.
    """
    settings = Settings.from_environment()
    recovery = engine.recovery_id(dag_id, run_id)
    storage = open_storage(settings.state)
    pipeline = ledger.pipeline_of(storage, recovery)
    if pipeline is None:
        return {}
    plan = engine.read_plan(settings, pipeline, recovery)
    events = ledger.open(storage, pipeline, recovery).events()
    named = {event.event for event in events}
    return {
        "recovery": recovery,
        "dags": _dags(plan, rows),
        "headline": explain.headline(plan),
        "plan": explain.as_text(plan),
        "prices": [price for flow in plan.flows for price in one_flow.prices_of(flow)],
        "steps": [
            {"name": step, "state": next((how for how in _HOW if f"{step}.{how}" in named), "to come")}
            for step in plan.steps
        ],
        "events": [{"at": event.at, "event": event.event} for event in events],
    }


def _dags(plan: Plan, rows: Sequence[FlowHealth]) -> set[str]:
    """Return the DAGs of the flows of a plan, and of those that write its tables. That of a flow which is no
    longer declared is the one that it would have alone.
    """
    known = {row.flow: row.dag_id for row in rows}
    names = {flow.flow for flow in plan.flows}
    names |= {row.flow for row in rows if row.pipeline == plan.pipeline and row.table in plan.tables}
    return {known.get(name, f"flow__{name.replace('.', '__')}") for name in names}
