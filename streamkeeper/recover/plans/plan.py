"""Plans: what a recovery will do and what it will cost, as one value.

The same plan is shown, approved, carried out and kept in the ledger. Making one changes nothing (see
streamkeeper.recover.plans.kind).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar, cast

from streamkeeper.errors import StorageError
from streamkeeper.flows.generations import InitialState, StartAt
from streamkeeper.redaction import redact
from streamkeeper.support.amounts import NONE, Amount, Impact, SourceImpact, in_words
from streamkeeper.support.json_values import read_as

T = TypeVar("T")
FORMAT = 1
IN_THE_TABLE = "in the table"
"""Name of what a refusal covers that was counted in the table's log, and not in a source."""

NAMED = 8
"""Flows or tables that are named, and not counted."""


@dataclass(frozen=True)
class Refusal:
    """An impact that must be accepted first, or a reason why the plan cannot be carried out.

    ``impact`` is the word by which it is accepted; None if nothing makes the plan possible. ``flow`` is the
    flow that has the impact, or None if it is the plan's as a whole. ``covers`` names what is accepted with
    it, such as commits or readers: more of them need another approval.
    """

    impact: Impact | None
    message: str
    flow: str | None = None
    covers: tuple[str, ...] = ()

    @property
    def parts(self) -> frozenset[tuple[str | None, str | None, str]]:
        """What is accepted with it, each by flow, impact and name."""
        return frozenset((self.flow, self.impact, name) for name in self.covers or ("",))


@dataclass(frozen=True)
class FlowPlan:
    """What a recovery does with one flow.

    ``generation`` is the one that ends (None: the flow never had one), ``previous`` the one whose position
    and history count. ``fingerprint`` is that of the declaration for which the plan is made.
    ``next_generation`` is None for a flow that is only held meanwhile. ``failure`` are the details of its
    park, ``verdict`` what a look before the restart said of its declaration (empty: that it goes on).

    ``written_again`` are the duplicates that it writes to its table
    (:mod:`streamkeeper.recover.moves.repeats`); None if they are not counted: for a table that is
    kept by key, or is emptied.
    """

    flow: str
    target: str
    generation: int | None
    next_generation: int | None
    previous: int | None
    fingerprint: str
    start: StartAt
    state: InitialState
    position: dict[str, Any] = field(default_factory=dict)
    stateful: bool | None = None
    operators_before: tuple[str, ...] = ()
    impacts: tuple[SourceImpact, ...] = ()
    notes: tuple[str, ...] = ()
    keeps_schemas: bool = True
    once: bool = False
    failure: dict[str, Any] | None = None
    written_again: Amount | None = None
    verdict: str = ""

    @property
    def pipeline(self) -> str:
        """The flow's pipeline."""
        return self.flow.partition(".")[0]

    @property
    def name(self) -> str:
        """The flow's name within its pipeline."""
        return self.flow.partition(".")[2]


@dataclass(frozen=True)
class CopyPlan:
    """Bytes that a recovery copies. ``rows`` is None if they were not counted."""

    label: str
    source: str
    destination: str
    bytes: int
    rows: int | None
    files: int


@dataclass(frozen=True)
class Plan:
    """A planned recovery.

    ``request`` is the request, ``details`` the part that only this kind of recovery knows, both as JSON
    objects. ``steps`` are names, in their order. ``tables`` are locked during the recovery. ``pipeline`` has
    the ledger. Flows and tables may be of others, too: ``owners`` are the pipelines of tables, where one is
    not of ``pipeline``. ``ways`` name the strategy that fits its parked flows
    (:mod:`streamkeeper.recover.plans.advice`).
    """

    recovery: str
    recovery_id: str
    pipeline: str
    tables: tuple[str, ...]
    request: dict[str, Any]
    flows: tuple[FlowPlan, ...]
    steps: tuple[str, ...]
    at: str
    copies: tuple[CopyPlan, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    ways: tuple[str, ...] = ()
    owners: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def by(self) -> str:
        """Who asked for it."""
        return str(self.request.get("by") or "someone")

    @property
    def reason(self) -> str:
        """Why it was asked for; may be empty."""
        return str(self.request.get("reason") or "")

    @property
    def accept(self) -> tuple[str, ...]:
        """The impacts that were accepted beforehand."""
        return tuple(self.request.get("accept") or ())

    @property
    def pipelines(self) -> tuple[str, ...]:
        """The pipelines of the flows and tables, sorted."""
        return tuple(sorted({self.pipeline, *self.owners.values()}))

    def pipeline_of(self, table: str) -> str:
        """Return the pipeline of a table."""
        return self.owners.get(table, self.pipeline)

    @property
    def subject(self) -> str:
        """What is recovered: flows, or without flows the tables, or else the pipeline. Of many, how many."""
        names = [flow.flow for flow in self.flows]
        names = names or [f"{self.pipeline_of(table)}.{table}" for table in self.tables]
        if len(names) > NAMED:
            return f"{len(names)} {'flows' if self.flows else 'tables'} of {', '.join(self.pipelines)}"
        return ", ".join(names) or self.pipeline

    def details_as(self, part_type: type[T]) -> T:
        """Return that of :attr:`details` which one part of a recovery works with.

        :param part_type: the dataclass of that part; its fields are read.
        :raises StorageError: the plan lacks it: another process changed the ledger.
        """
        names = {field.name for field in fields(cast("Any", part_type))}
        return _read(part_type, {name: value for name, value in self.details.items() if name in names})

    def flow(self, name: str) -> FlowPlan | None:
        """Return the part of one flow, by its full name."""
        return next((flow for flow in self.flows if flow.flow == name), None)


Planned = tuple[FlowPlan, tuple[Refusal, ...]]
"""The plan of one flow, and what keeps it from being carried out as it was asked for."""


def refusals_of_all(planned: Sequence[Planned]) -> tuple[Refusal, ...]:
    """Return the refusals of the flows of a plan, with the flow's name where there are several flows."""
    return tuple(
        replace(item, message=f"{item.flow}: {item.message}") if item.flow and len(planned) > 1 else item
        for _, refused in planned
        for item in refused
    )


def to_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as a JSON object."""
    return asdict(plan)


def from_json(value: dict[str, Any]) -> Plan:
    """Return a plan from the JSON object of :func:`to_json`.

    :raises StorageError: it is none: another process changed the ledger.
    """
    return _read(Plan, value)


def _read(part_type: type[T], value: dict[str, Any]) -> T:
    try:
        return read_as(part_type, value)
    except (TypeError, ValueError) as error:
        raise StorageError(
            f"The ledger holds a plan that is none: {error}. Restore the recovery's 0001-planned.json from a"
            " copy of the state folder, or remove that recovery's folder below ledger/ and its holds."
        ) from error


def as_stored(plan: Plan) -> Plan:
    """Return a plan as it comes back from the ledger: without secrets, and as JSON converts its values."""
    return from_json(json.loads(json.dumps(redact(to_json(plan)))))


def worse(approved: Plan, again: Plan) -> list[str]:
    """Return in which ways a plan made again costs more than the approved one; empty if in none."""
    accepted = frozenset[tuple[str | None, str | None, str]]().union(
        *(old.parts for old in approved.refusals)
    )
    reasons = [f"new refusal: {item.message}" for item in again.refusals if not item.parts <= accepted]
    copied = {copy.label for copy in approved.copies}
    reasons += [
        f"a copy of {copy.label} was not in the approved plan"
        for copy in again.copies
        if copy.label not in copied
    ]
    several = len(again.flows) > 1
    for flow in again.flows:
        old = approved.flow(flow.flow)
        if old is None:
            reasons.append(f"flow {flow.flow} was not in the approved plan")
        else:
            costs = [*_worse_sources(old, flow), *_more_written(old, flow), *_other_state(old, flow)]
            reasons += [f"flow {flow.flow}, {item}" if several else item for item in costs]
    return reasons


def _other_state(approved: FlowPlan, again: FlowPlan) -> Iterator[str]:
    if approved.state != again.state:
        yield f"the state is {again.state}, and was to be {approved.state}"


def _more_written(approved: FlowPlan, again: FlowPlan) -> Iterator[str]:
    was, now = approved.written_again or NONE, again.written_again or NONE
    if _grew(was, now):
        yield f"table {again.target}: its duplicates went from {in_words(was)} to {in_words(now)}"


def _worse_sources(approved: FlowPlan, again: FlowPlan) -> Iterator[str]:
    before = {impact.source: impact for impact in approved.impacts}
    for impact in again.impacts:
        old = before.get(impact.source)
        if old is None:
            yield f"source {impact.source} was not in the approved plan"
            continue
        for name, label in (("lost", "data loss"), ("repeated", "duplicates"), ("gone", "missing history")):
            was, now = getattr(old, name), getattr(impact, name)
            if _grew(was, now):
                yield f"source {impact.source}: {label} went from {in_words(was)} to {in_words(now)}"


def _grew(was: Amount, now: Amount) -> bool:
    """Return whether an amount costs more than the accepted one; a larger unknown part costs no more."""
    if now.rows_unknown and not was.rows_unknown:
        return True
    more_files = was.files is not None and (now.files or 0) > was.files
    more_rows = was.rows is not None and was.rows_unknown is None and (now.rows or 0) > was.rows
    return more_files or more_rows
