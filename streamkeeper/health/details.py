"""All that can be known of one flow without a JVM, as plain values: what its page shows, and its terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from streamkeeper.declare.driver import needs_of
from streamkeeper.declare.model import pipeline_to_json
from streamkeeper.declare.offsets import describe
from streamkeeper.drivers import failures
from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.flows.generations import Generation
from streamkeeper.flows.holds import Hold
from streamkeeper.health.driver_log import last_lines, output_of
from streamkeeper.health.flows import IDLE, SLOW, FlowHealth
from streamkeeper.health.inspection import inspect
from streamkeeper.health.tables import size_of
from streamkeeper.history import events
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.observe.status import FlowState
from streamkeeper.recover import engine
from streamkeeper.recover.plans.plan import FlowPlan
from streamkeeper.redaction import redact, redact_text
from streamkeeper.settings import Settings
from streamkeeper.storage import one_look
from streamkeeper.support.amounts import in_words
from streamkeeper.tables import backups
from streamkeeper.trial import change
from streamkeeper.watch import batch_numbers

GENERATIONS, BACKUPS, EVENTS, LINES = 20, 10, 50, 20
"""Newest generations, backups, events and lines of the log that are shown."""
RUNS = (FlowState.RUNNING, FlowState.CHANGE_REFUSED, FlowState.STOPPING, IDLE, SLOW)
"""States in which there is a driver."""


@one_look()
def look(settings: Settings, flow: Flow, row: FlowHealth) -> dict[str, Any]:
    """Return a flow: its row, recent batches, generations, holds, the verdict on a change, its sources, its
    table and backups, its newest events, what is declared, and the end of its driver's log.

    :raises StreamkeeperError: one of its files cannot be read.
    """
    home = open_home(settings, flow.full_name)
    changed = change.read(home, flow.fingerprint)
    return {
        "row": row.to_json(),
        "batches": [asdict(batch) for batch in batch_numbers.recent(home)],
        "generations": [
            _generation(settings, home, one)
            for number in home.generations()[-GENERATIONS:]
            if (one := generations.read(home, number)) is not None
        ],
        "holds": [
            {
                **_only(hold, "owner", "reason", "by", "at"),
                "details": redact(hold.details),
                "description": _hold_text(home, hold),
                "recovery": hold.details.get("recovery"),
            }
            for hold in holds.all_of(home)
        ],
        "verdict": None if changed is None else changed.in_words(),
        "sources": _sources(home, flow),
        "table": _table(settings, flow.declaration.target),
        "backups": _backups(home, flow.declaration.target),
        "events": _events(home),
        "declaration": _declaration(flow),
        "log": _log(home),
        "spark": _spark(settings, home, row.state in RUNS),
    }


def _only(item: object, *names: str) -> dict[str, Any]:
    return {name: getattr(item, name) for name in names}


def _hold_text(home: FlowHome, hold: Hold) -> str:
    """Return why a flow is held; of a park what failed, and what helps."""
    failure = failures.read(hold.details) if hold.owner == holds.PARK else None
    return hold.reason if failure is None else redact_text(failures.describe(home.full_name, failure))


def _generation(settings: Settings, home: FlowHome, one: Generation) -> dict[str, Any]:
    """Return a generation: why it began, how, and what the plan that it is of said it would cost."""
    start = generations.read_start(home, one.number)
    return {
        **_only(one, "number", "previous", "reason", "by", "at", "state", "recovery"),
        "start": one.start.mode,
        "began": None if start is None else start.at,
        "positions": {} if start is None else {name: describe(at) for name, at in start.positions.items()},
        "last_batch": generations.committed(home, one.number, None),
        "impacts": _impacts(settings, home, one),
    }


def _impacts(settings: Settings, home: FlowHome, one: Generation) -> list[dict[str, str]]:
    """Return what the plan of a generation's recovery said; empty where there was none, or it is gone."""
    if one.recovery is None:
        return []
    try:
        plan = engine.read_plan(settings, home.pipeline, one.recovery)
    except StreamkeeperError:
        return []
    return [impact for flow in plan.flows if flow.flow == home.full_name for impact in impacts_of(flow)]


def impacts_of(flow: FlowPlan) -> list[dict[str, str]]:
    """Return the impacts of a flow in a plan, a row a source, in words."""
    return [
        {
            "flow": flow.flow,
            "source": impact.source,
            "from": impact.now,
            "to": impact.then,
            "lost": in_words(impact.lost),
            "repeated": in_words(impact.repeated),
        }
        for impact in flow.impacts
    ]


def _sources(home: FlowHome, flow: Flow) -> list[dict[str, Any]]:
    """Return each source and its position, which is None where the flow has read nothing of it yet."""
    begun = Observed(home).begun
    positions = () if begun is None else inspect(home.storage, begun[1].checkpoint).sources
    read = [{"name": one.name, "kind": one.kind, "position": str(one.position)} for one in positions]
    names = {one["name"] for one in read}
    return [
        *read,
        *(
            {"name": one.name, "kind": one.format, "position": None}
            for one in flow.sources
            if one.name not in names
        ),
    ]


def _events(home: FlowHome) -> list[dict[str, Any]]:
    """Return the newest events of a flow, the newest first."""
    flow_events = events.of_flow(events.read(home.storage, home.pipeline), home.names, home.full_name)
    return [_only(one, "at", "kind", "text", "by", "recovery") for one in reversed(flow_events[-EVENTS:])]


def _table(settings: Settings, name: str) -> dict[str, Any]:
    """Return a table's place and size."""
    path = settings.table_path(name)
    return {"name": name, "path": path, **asdict(size_of(path))}


def _backups(home: FlowHome, table: str) -> list[dict[str, Any]]:
    listed = backups.listed(home.storage, home.pipeline, table)[-BACKUPS:]
    return [
        {**_only(one, "id", "at", "bytes"), "version": one.copy.version, "rows": one.copy.checksum.rows}
        for one in listed
    ]


def _declaration(flow: Flow) -> dict[str, Any]:
    """Return what is declared of a flow, its driver, sources, views without code, and its table."""
    plain = pipeline_to_json(flow.pipeline)
    read = {item.name for item in flow.pipeline.inputs(flow.declaration)}
    own = next(item for item in plain["flows"] if item["name"] == flow.name)
    return {
        "file": flow.pipeline.file,
        "fingerprint": flow.fingerprint,
        "flow": {name: value for name, value in own.items() if name != "spark_conf"},
        "driver": redact(needs_of(own["spark_conf"])),
        "sources": redact([item for item in plain["sources"] if item["name"] in read]),
        "views": [item["name"] for item in plain["views"] if item["name"] in read],
        "table": next(item for item in plain["tables"] if item["name"] == flow.declaration.target),
    }


def _log(home: FlowHome) -> dict[str, Any]:
    """Return where the log of the newest driver is, and its last lines, if it can be read from here."""
    lease = leases.current(home)
    output = None if lease is None else output_of(lease)
    if output is None:
        return {"location": None, "lines": []}
    try:
        return {"location": output.location, "lines": last_lines(output, LINES)}
    except OSError:
        return {"location": output.location, "lines": []}


def _spark(settings: Settings, home: FlowHome, runs: bool) -> dict[str, str | None]:
    """Return the address of the present driver's UI, and of its page in the history server."""
    beat = leases.present_heartbeat(home)
    application, history = None if beat is None else beat.application_id, settings.history_server
    return {
        "ui": None if beat is None or not runs else beat.details.get(batch_numbers.UI),
        "history": f"{history}/history/{application}/" if history and application else None,
    }
