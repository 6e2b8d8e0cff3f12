"""What the page shows of one flow, and of one recovery."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from streamkeeper.amounts import in_words
from streamkeeper.cli.inspection import inspect
from streamkeeper.declare.model import pipeline_to_json
from streamkeeper.declare.offsets import describe
from streamkeeper.delta.log import latest_version
from streamkeeper.delta.summary import newest_summary
from streamkeeper.drivers import batch_numbers
from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows import generations, holds, leases, ledger
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import Generation, Start
from streamkeeper.flows.ledger import Event
from streamkeeper.flows.position import last_begun
from streamkeeper.health.flows import FlowHealth
from streamkeeper.history import events, rows
from streamkeeper.manifest import names
from streamkeeper.manifest.manifest import Flow
from streamkeeper.preflight import change
from streamkeeper.recover import engine
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.kind import kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps.shared import APPROVED
from streamkeeper.redaction import redact, redact_text
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.tables import backups

GENERATIONS = 20
"""Newest generations that are shown."""
EVENTS, BACKUPS, LINES = 50, 20, 60
"""Newest events and backups, and last lines of the driver's log, that are shown."""
PAST = 5
"""Newest recoveries of a kind whose steps tell how long a step takes."""
LOG_BYTES = 32_000
_HOW = ("done", "failed", "started")
"""Events that tell of a step how far it is, the last first."""


def of_flow(flow: Flow, row: FlowHealth) -> dict[str, Any]:
    """Return a flow: its row, recent batches, generations, holds, the verdict on a change, its sources.

    What lies outside the flow's own files (table, backups, events) is there even where one of them fails:
    its place then says why.

    :raises StreamkeeperError: one of its files cannot be read.
    """
    settings = Settings.from_environment()
    home = FlowHome(open_storage(settings.state), flow.pipeline.name, flow.name)
    changed = change.read(home, flow.fingerprint)
    lives = _generations(home)
    return {
        "row": row.to_json(),
        "batches": [asdict(batch) for batch in batch_numbers.recent(home)],
        "generations": lives,
        "stateful": _stateful(home),
        "holds": [_only(hold, "owner", "reason", "by", "at", "details") for hold in holds.all_of(home)],
        "verdict": None if changed is None else changed.in_words(),
        "sources": _sources(home),
        "source_names": [one.name for one in flow.pipeline.sources_of(flow.declaration)],
        "declaration": _declaration(flow),
        "others": [one.name for one in flow.pipeline.flows if one.name != flow.name],
        "table": _or_why(lambda: _table(settings, flow)),
        "backups": _or_why(lambda: _backups(home, flow)),
        "events": _or_why(lambda: _events(home)),
    }


def of_history(flow: Flow, hours: float) -> dict[str, Any]:
    """Return the minutes of the last hours as columns, oldest first, and when each generation was decided.

    :raises StreamkeeperError: a file of the history is damaged.
    """
    home = FlowHome(open_storage(Settings.from_environment().state), flow.pipeline.name, flow.name)
    now = time.time()
    found = rows.minutes(home, now - hours * 3600)
    plain = (
        "at",
        "seconds",
        "drivers",
        "generation",
        "batches",
        "rows",
        "batch_seconds",
        "late",
        "state_rows",
    )
    more = ("state_bytes", "watermark", "lag_seconds", "lag_records")
    phases = sorted({name for row in found for name in row.phases})
    return {
        "now": now,
        "hours": hours,
        "columns": {name: [getattr(row, name) for row in found] for name in (*plain, *more)},
        "phases": {name: [row.phases.get(name, 0.0) for row in found] for name in phases},
    }


def last_lines(flow: Flow) -> dict[str, Any]:
    """Return the last lines of the log of a flow's newest driver, without secrets, or why there are none.

    :raises StreamkeeperError: its lease cannot be read.
    """
    home = FlowHome(open_storage(Settings.from_environment().state), flow.pipeline.name, flow.name)
    lease = leases.current(home)
    if lease is None or not lease.log:
        return {"lines": [], "why": "No driver has a log here."}
    file = Path(lease.log)
    try:
        with file.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_BYTES))
            text = log.read(LOG_BYTES).decode(errors="replace")
    except OSError as error:
        return {"lines": [], "why": f"{file} of {lease.process.host} cannot be read here: {error.strerror}."}
    return {"lines": redact_text(text).splitlines()[-LINES:], "why": None}


def _or_why(read: Callable[[], Any]) -> Any:
    """Return what is read or, if it cannot be, an object that says why."""
    try:
        return read()
    except StreamkeeperError as error:
        return {"why": str(error)}


def _only(item: object, *fields: str) -> dict[str, Any]:
    return {name: getattr(item, name) for name in fields}


def _generations(home: FlowHome) -> list[dict[str, Any]]:
    """Return the newest generations, oldest first: why each began, from where to where, and its price."""
    numbers = home.generations()[-GENERATIONS:]
    began = {number: generations.read_start(home, number) for number in numbers}
    return [
        {
            **_only(one, "number", "previous", "why", "by", "at", "state", "recovery"),
            "start": one.start.mode,
            "began": start.at if (start := began[number]) is not None else None,
            "from": _positions(start),
            "to": _positions(began.get(number + 1)),
            "cost": _cost(home, one),
        }
        for number in numbers
        if (one := generations.read(home, number)) is not None
    ]


def _positions(start: Start | None) -> dict[str, str] | None:
    """Return where a generation begins in each source, in words; None if it has not begun."""
    if start is None:
        return None
    return {name: describe(offset) for name, offset in start.positions.items()}


def _cost(home: FlowHome, one: Generation) -> dict[str, Any] | None:
    """Return what a recovery's plan said that this generation costs; None if no recovery decided it."""
    if one.recovery is None:
        return None
    planned = ledger.open(home.storage, home.pipeline, one.recovery).find(ledger.PLANNED)
    if planned is None:
        return None
    plan = plans.from_json(planned.evidence)
    return {
        "kind": plan.recovery,
        "prices": [price for price in _prices(plan) if price["flow"] == home.full_name],
    }


def _stateful(home: FlowHome) -> bool | None:
    """Return whether the query keeps state; None if that is unknown."""
    numbers = home.generations()
    start = generations.read_start(home, numbers[-1]) if numbers else None
    return None if start is None else bool(start.operators)


def _declaration(flow: Flow) -> dict[str, Any]:
    """Return what is declared of a flow, its sources and its table, without code and secrets."""
    whole = pipeline_to_json(flow.pipeline)
    target = flow.declaration.target
    read = {one.name for one in flow.pipeline.sources_of(flow.declaration)}
    return {
        "flow": _set(next(one for one in whole["flows"] if one["name"] == flow.name)),
        "sources": [_set(one) for one in whole["sources"] if one["name"] in read],
        "table": _set(next((one for one in whole["tables"] if one["name"] == target), {})),
        "file": flow.pipeline.file,
    }


def _set(declared: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in redact(dict(declared)).items() if value not in (None, "", [], {})}


def _table(settings: Settings, flow: Flow) -> dict[str, Any] | None:
    """Return size and version of a flow's table; None if there is none yet."""
    path = settings.table_path(flow.declaration.target)
    found = newest_summary(path)
    if found is not None:
        return {"path": path, **_only(found, "version", "files", "bytes")}
    version = latest_version(path)
    return None if version is None else {"path": path, "version": version, "files": None, "bytes": None}


def _backups(home: FlowHome, flow: Flow) -> list[dict[str, Any]]:
    found = backups.listed(home.storage, home.pipeline, flow.declaration.target)[-BACKUPS:]
    return [
        {
            **_only(one, "id", "at", "by", "bytes", "reason"),
            "rows": one.target.checksum.rows,
            "version": one.target.version,
            "expires": None if (end := one.expires()) is None else end.isoformat(),
        }
        for one in reversed(found)
    ]


def _events(home: FlowHome) -> list[dict[str, Any]]:
    """Return the newest events of a flow, the newest first."""
    found = events.of_flow(events.read(home.storage, home.pipeline), names.read(home.storage), home.full_name)
    return [_only(one, "at", "kind", "text", "by", "recovery") for one in reversed(found[-EVENTS:])]


def _sources(home: FlowHome) -> list[dict[str, str]]:
    begun = last_begun(home)
    if begun is None:
        return []
    found = inspect(home.storage, begun[1].checkpoint, home)
    return [{"name": one.name, "kind": one.kind, "position": str(one.position)} for one in found.sources]


def of_recovery(dag_id: str, run_id: str) -> dict[str, Any]:
    """Return a recovery: its plan in words, its prices, its steps with their times, and its ledger.

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
    told = ledger.open(storage, pipeline, recovery).events()
    named = {event.event for event in told}
    over = next((event for event in ledger.OVER if event in named), None)
    usual = {} if over else _usual_seconds(settings.state, pipeline, recovery, plan.recovery)
    return {
        "recovery": recovery,
        "kind": plan.recovery,
        "flows": [flow.flow for flow in plan.flows],
        "by": plan.by,
        "reason": plan.reason,
        "headline": explain.headline(plan),
        "plan": explain.as_text(plan),
        "prices": _prices(plan),
        "copies": [_only(one, "what", "bytes", "rows", "files") for one in plan.copies],
        "refusals": [one.message for one in plan.refusals],
        "approved": APPROVED in named,
        "over": over,
        "past_return": _past_return(plan, named),
        "steps": [_step(plan, step, told, usual.get(step)) for step in plan.steps],
        "events": [
            {
                "at": event.at,
                "event": event.event,
                "evidence": {} if event.event == ledger.PLANNED else event.evidence,
            }
            for event in told
        ],
    }


def _past_return(plan: Plan, named: set[str]) -> bool:
    """Return whether the recovery began a step that changes something for good."""
    of = kind(plan.recovery)
    return any(f"{step.name}.started" in named for step in of.steps if step.changes)


def _step(plan: Plan, step: str, told: Sequence[Event], usual: float | None) -> dict[str, Any]:
    """Return how far a step is; times are in seconds since 1970, ``usual`` is how long it took before."""
    mine = {event.event.rpartition(".")[2]: event for event in told if event.event.rpartition(".")[0] == step}
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


def _usual_seconds(state: str, pipeline: str, recovery: str, of: str) -> dict[str, float]:
    """Return how long each step took in other recoveries of the kind: the median of the newest that ended."""
    storage = open_storage(state)
    others = [
        one for one in ledger.recoveries(storage, pipeline) if one != recovery and one.startswith(f"{of}-")
    ]
    ended = [one for one in others if ledger.open(storage, pipeline, one).end() is not None][-PAST:]
    found: dict[str, list[float]] = {}
    for one in ended:
        for step, seconds in _seconds_of(state, pipeline, one).items():
            found.setdefault(step, []).append(seconds)
    return {step: median(seconds) for step, seconds in found.items()}


@lru_cache(maxsize=256)
def _seconds_of(state: str, pipeline: str, recovery: str) -> Mapping[str, float]:
    """Return how long each step of a recovery that has ended took; its ledger does not change any more."""
    told = ledger.open(open_storage(state), pipeline, recovery).events()
    began = {event.event: _moment(event) or 0.0 for event in told}
    return {
        step: ended - began[f"{step}.started"]
        for name, ended in began.items()
        if (step := name.removesuffix(".done")) != name and f"{step}.started" in began
    }


def _prices(plan: Plan) -> list[dict[str, str]]:
    return [
        {
            "flow": flow.flow,
            "source": price.source,
            "from": price.now,
            "to": price.then,
            "lost": in_words(price.lost),
            "repeated": in_words(price.repeated),
            "replayed": in_words(price.replayed),
            "notes": "; ".join(price.notes),
        }
        for flow in plan.flows
        for price in flow.prices
    ]
