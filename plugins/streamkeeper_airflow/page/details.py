"""What the page shows of one flow, and of one recovery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from streamkeeper.amounts import in_words
from streamkeeper.cli.inspection import inspect
from streamkeeper.drivers import batch_numbers
from streamkeeper.flows import generations, holds, ledger
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.position import last_begun
from streamkeeper.health.flows import FlowHealth
from streamkeeper.manifest.manifest import Flow
from streamkeeper.preflight import change
from streamkeeper.recover import engine
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage

GENERATIONS = 20
"""Newest generations that are shown."""
_HOW = ("done", "failed", "started")
"""Events that tell of a step how far it is, the last first."""


def of_flow(flow: Flow, row: FlowHealth) -> dict[str, Any]:
    """Return a flow: its row, recent batches, generations, holds, the verdict on a change, its sources.

    :raises StreamkeeperError: one of its files cannot be read.
    """
    home = FlowHome(open_storage(Settings.from_environment().state), flow.pipeline.name, flow.name)
    numbers = home.generations()[-GENERATIONS:]
    began = {number: generations.read_start(home, number) for number in numbers}
    changed = change.read(home, flow.fingerprint)
    return {
        "row": row.to_json(),
        "batches": [asdict(batch) for batch in batch_numbers.recent(home)],
        "generations": [
            {
                **_only(one, "number", "why", "by", "at", "state", "recovery"),
                "start": one.start.mode,
                "began": start.at if (start := began[one.number]) is not None else None,
            }
            for number in numbers
            if (one := generations.read(home, number)) is not None
        ],
        "holds": [_only(hold, "owner", "reason", "by", "at") for hold in holds.all_of(home)],
        "verdict": None if changed is None else changed.in_words(),
        "sources": _sources(home),
    }


def _only(item: object, *names: str) -> dict[str, Any]:
    return {name: getattr(item, name) for name in names}


def _sources(home: FlowHome) -> list[dict[str, str]]:
    begun = last_begun(home)
    if begun is None:
        return []
    found = inspect(home.storage, begun[1].checkpoint, home)
    return [{"name": one.name, "kind": one.kind, "position": str(one.position)} for one in found.sources]


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
        "prices": _prices(plan),
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


def _prices(plan: Plan) -> list[dict[str, str]]:
    return [
        {
            "flow": flow.flow,
            "source": price.source,
            "from": price.now,
            "to": price.then,
            "lost": in_words(price.lost),
            "repeated": in_words(price.repeated),
        }
        for flow in plan.flows
        for price in flow.prices
    ]
