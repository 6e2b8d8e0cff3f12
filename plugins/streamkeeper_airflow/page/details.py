"""What the page shows of one flow beside what the command line does, and of one recovery."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from statistics import median
from typing import Any

from streamkeeper.flows import generations, ledger
from streamkeeper.flows.files import open_home
from streamkeeper.flows.ledger import Event
from streamkeeper.health import details as one_flow
from streamkeeper.health.flows import FlowHealth
from streamkeeper.history import rows
from streamkeeper.manifest.manifest import Flow
from streamkeeper.recover import engine
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans.kind import kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.settings import Settings, dag_name
from streamkeeper.storage import open_storage

PAST = 5
"""Newest recoveries of a kind whose steps tell how long a step takes."""
_HOW = ("done", "failed", "started")
"""Events that tell of a step how far it is, the last first."""


def of_flow(settings: Settings, flow: Flow, row: FlowHealth) -> dict[str, Any]:
    """Return all that is known of a flow, and what its forms are filled in with.

    :raises StreamkeeperError: one of its files cannot be read.
    """
    home = open_home(settings, flow.full_name)
    numbers = home.generations()
    start = generations.read_start(home, numbers[-1]) if numbers else None
    return {
        **one_flow.look(settings, flow, row),
        "stateful": None if start is None else bool(start.operators),
        "read": [one.name for one in flow.pipeline.sources_of(flow.declaration)],
        "others": [
            f"{flow.pipeline.name}.{one.name}" for one in flow.pipeline.flows if one.name != flow.name
        ],
    }


def of_history(flow: Flow, hours: float) -> dict[str, Any]:
    """Return the minutes of the last hours as columns, oldest first, and when each generation was decided.

    :raises StreamkeeperError: a file of the history is damaged.
    """
    home = open_home(Settings.from_environment(), flow.full_name)
    now = time.time()
    minutes = rows.minutes(home, now - hours * 3600)
    shown = (
        "at", "seconds", "drivers", "batches", "rows", "state_rows", "state_bytes", "watermark", "lag_seconds"
    )  # fmt: skip
    phases = sorted({name for row in minutes for name in row.phases})
    return {
        "now": now,
        "hours": hours,
        "columns": {name: [getattr(row, name) for row in minutes] for name in shown},
        "phases": {name: [row.phases.get(name, 0.0) for row in minutes] for name in phases},
    }


def _only(item: object, *fields: str) -> dict[str, Any]:
    return {name: getattr(item, name) for name in fields}


def of_recovery(dag_id: str, run_id: str, flows: Sequence[FlowHealth]) -> dict[str, Any]:
    """Return a recovery: its plan in words, its impacts, its steps, the events of its ledger, and the DAGs of
    all flows that it tells of.

    An empty object if the run has no plan, such as one whose values were refused.

    :raises StreamkeeperError: its ledger cannot be read.
    """
    settings = Settings.from_environment()
    recovery = engine.recovery_id(dag_name(dag_id), run_id)
    storage = open_storage(settings.state)
    pipeline = ledger.pipeline_of(storage, recovery)
    if pipeline is None:
        return {}
    plan = engine.read_plan(settings, pipeline, recovery)
    events = ledger.open(storage, pipeline, recovery).events()
    named = {event.event for event in events}
    over = next((event for event in ledger.OVER if event in named), None)
    usual = {} if over else _usual_seconds(settings.state, pipeline, recovery, plan.recovery)
    return {
        "now": time.time(),
        "recovery": recovery,
        "flows": [flow.flow for flow in plan.flows],
        "by": plan.by,
        "reason": plan.reason,
        "read_by": _read_by(plan, flows),
        "headline": explain.headline(plan),
        "plan": explain.as_text(plan),
        "impacts": [impact for flow in plan.flows for impact in one_flow.impacts_of(flow)],
        "copies": [_only(one, "label", "bytes", "rows", "files") for one in plan.copies],
        "refusals": [one.message for one in plan.refusals],
        "over": over,
        "past_return": over is None and engine.is_past_return(settings, pipeline, recovery),
        "steps": [_step(plan, step, events, usual.get(step)) for step in plan.steps],
        "events": [
            {
                "at": event.at,
                "event": event.event,
                "evidence": {} if event.event == ledger.PLANNED else event.evidence,
            }
            for event in events
        ],
    }


def _step(plan: Plan, step: str, events: Sequence[Event], usual: float | None) -> dict[str, Any]:
    """Return how far a step is; times are in seconds since 1970, ``usual`` is how long it took before."""
    mine = {
        event.event.rpartition(".")[2]: event for event in events if event.event.rpartition(".")[0] == step
    }
    state = next((how for how in _HOW if how in mine), "to come")
    if state == "failed" and mine["started"].number > mine["failed"].number:
        state = "started"
    return {
        "name": step,
        "does": kind(plan.recovery).step(step).does,
        "state": state,
        "began": _moment(mine.get("started")),
        "ended": _moment(mine.get("done")),
        "progress": mine["progress"].evidence if "progress" in mine and state != "done" else None,
        "error": mine["failed"].evidence.get("error") if state == "failed" else None,
        "usual": usual,
    }


def _moment(event: Event | None) -> float | None:
    return None if event is None else datetime.fromisoformat(event.at).timestamp()


def _usual_seconds(state: str, pipeline: str, recovery: str, kind_name: str) -> dict[str, float]:
    """Return how long each step took in other recoveries of the kind: the median of the newest that ended."""
    storage = open_storage(state)
    others = [
        one
        for one in ledger.recoveries(storage, pipeline)
        if one != recovery and one.startswith(f"{kind_name}-")
    ]
    ended = [one for one in others if ledger.open(storage, pipeline, one).end() is not None][-PAST:]
    durations: dict[str, list[float]] = {}
    for one in ended:
        for step, seconds in _seconds_of(state, pipeline, one).items():
            durations.setdefault(step, []).append(seconds)
    return {step: median(seconds) for step, seconds in durations.items()}


@lru_cache(maxsize=256)
def _seconds_of(state: str, pipeline: str, recovery: str) -> Mapping[str, float]:
    """Return how long each step of a recovery that has ended took; its ledger does not change any more."""
    events = ledger.open(open_storage(state), pipeline, recovery).events()
    began = {event.event: _moment(event) or 0.0 for event in events}
    return {
        step: ended - began[f"{step}.started"]
        for name, ended in began.items()
        if (step := name.removesuffix(".done")) != name and f"{step}.started" in began
    }


def _read_by(plan: Plan, flows: Sequence[FlowHealth]) -> set[str]:
    """Return the DAGs of the flows of a plan, and of those that write its tables. That of a flow which is no
    longer declared is the one that it would have alone.
    """
    dag_ids = {row.flow: row.dag_id for row in flows}
    names = {flow.flow for flow in plan.flows}
    names |= {row.flow for row in flows if row.pipeline in plan.pipelines and row.table in plan.tables}
    return {dag_ids.get(name, f"flow__{name.replace('.', '__')}") for name in names}
