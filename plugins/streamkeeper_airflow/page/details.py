"""What the page shows of one recovery."""

from __future__ import annotations

from typing import Any

from streamkeeper.flows import ledger
from streamkeeper.health import one_flow
from streamkeeper.recover import engine
from streamkeeper.recover.plans import explain
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage

_HOW = ("done", "failed", "started")
"""Events that tell of a step how far it is, the last first."""


def of_recovery(dag_id: str, run_id: str) -> dict[str, Any]:
    """Return a recovery: its plan in words, its prices, its steps, and the events of its ledger.

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
        "headline": explain.headline(plan),
        "plan": explain.as_text(plan),
        "prices": [price for flow in plan.flows for price in one_flow.prices_of(flow)],
        "steps": [
            {"name": step, "state": next((how for how in _HOW if f"{step}.{how}" in named), "to come")}
            for step in plan.steps
        ],
        "events": [{"at": event.at, "event": event.event} for event in events],
    }
