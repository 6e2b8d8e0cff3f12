"""What a rehearsal came to, and what follows from it for the plan of the recovery that was rehearsed.

A rehearsal is a step before the approval (:mod:`streamkeeper.recover.steps.rehearse`). Its evidence is in the
ledger of the recovery that asked for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from streamkeeper.errors import RequestError
from streamkeeper.flows import ledger
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.plan import Plan, Refusal
from streamkeeper.recover.requests.rehearsal import Rehearsable
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.support.amounts import size_in_words
from streamkeeper.support.json_values import read_as
from streamkeeper.support.markdown import literal, plain

REHEARSE = "rehearse"
"""Name of the step, and of the recovery that does nothing else."""
EXAMPLES = 10
"""Rows that are shown of those that differ."""
_OF_PEOPLE = ("rehearse", "rehearsal", "accept", "reason", "by")
"""Fields of a request that change nothing of what is carried out."""


@dataclass(frozen=True)
class DriverEvidence:
    """What a driver did on the copy. ``ended`` is how, in a word or two; ``whole`` is whether it read all
    input that there was.

    ``slowest`` is the seconds of its longest batch; ``state_bytes`` are those of its checkpoint's state.
    ``total`` is the number of rows that the real one reads, where the plan of its flow does not say so.
    """

    flow: str
    ended: str
    whole: bool
    generation: int
    rows: int
    batches: int
    seconds: float
    slowest: float
    state_bytes: int
    total: int | None = None

    def in_words(self) -> str:
        """Return it as a sentence, with what the real one will take."""
        rate = f"{self.rows / self.seconds:,.0f} rows a second" if self.seconds else "at once"
        read = "all that there was" if self.whole else f"and not all that there was ({self.ended})"
        return (
            f"{self.flow}, generation {self.generation}: {self.rows:,} rows in {self.batches:,} batches and"
            f" {self.seconds:,.0f} s ({rate}, longest batch {self.slowest:,.1f} s), {read}. State:"
            f" {size_in_words(self.state_bytes)}."
        )


@dataclass(frozen=True)
class TableEvidence:
    """A table before and after: numbers of rows, and of those that the other one lacks, repeats counted.

    ``checksum`` and ``checksum_after`` are equal if the rows are. ``gone`` and ``new`` are examples of rows,
    as JSON; ``columns`` names columns that only one of the two has.
    """

    table: str
    rows: int
    rows_after: int
    only_before: int
    only_after: int
    checksum: str
    checksum_after: str
    gone: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepTime:
    """How long a step took on the copy, in seconds."""

    step: str
    seconds: float


@dataclass(frozen=True)
class Evidence:
    """What a rehearsal came to.

    ``plan`` is the plan that was made and carried out on the copy; None if there was no recovery.
    ``pipelines`` is the folder with the declarations, ``environment`` the name of where it was rehearsed.
    ``files`` and ``bytes`` are those of the copy, shared ones included. ``skipped_steps`` were not rehearsed,
    since one before them was stopped at its bounds.
    """

    plan: Plan | None
    pipelines: str
    seconds: float
    files: int
    bytes: int
    steps: tuple[StepTime, ...] = ()
    drivers: tuple[DriverEvidence, ...] = ()
    tables: tuple[TableEvidence, ...] = ()
    environment: str = ""
    skipped_steps: tuple[str, ...] = ()

    def in_words(self) -> Iterator[str]:
        """Yield it as sentences, without the tables."""
        steps = ", ".join(f"{one.step} {one.seconds:,.1f} s" for one in self.steps)
        environment = f", in the environment {self.environment}" if self.environment else ""
        yield (
            f"Rehearsed in {self.seconds:,.0f} s on a copy of {self.files:,} files"
            f" ({size_in_words(self.bytes)}), with the declarations in {self.pipelines}{environment}."
        )
        yield from ((f"Steps: {steps}.",) if steps else ())
        if self.skipped_steps:
            yield f"Not rehearsed, since the bounds were reached: {', '.join(self.skipped_steps)}."
        yield from (one.in_words() for one in self.drivers)
        yield from (
            f"{one.flow}, for real: about {seconds:,.0f} s, at this rate."
            for one in self.drivers
            if not one.whole and (seconds := self._for_real(one)) is not None
        )

    def _for_real(self, driver: DriverEvidence) -> float | None:
        """Return the seconds that a driver needs for the rows that are read again; None if not counted."""
        if driver.total is not None:
            return driver.seconds * driver.total / driver.rows if driver.rows else None
        flow = self.plan.flow(driver.flow) if self.plan is not None else None
        amounts = (
            [amount for impact in flow.impacts for amount in (impact.repeated, impact.replayed)]
            if flow
            else []
        )
        rows = [amount.rows for amount in amounts if not amount.nothing]
        if not rows or not driver.rows or any(count is None for count in rows):
            return None
        return driver.seconds * sum(count or 0 for count in rows) / driver.rows

    def as_markdown(self) -> str:
        """Return it for the approval."""
        return "\n".join(self._markdown())

    def as_text(self) -> str:
        """Return it for a terminal and the task's log."""
        return "\n".join(
            ["rehearsal", *(f"  {line}" for line in self.in_words()), *(f"  {row}" for row in self._rows())]
        )

    def _rows(self) -> Iterator[str]:
        for one in self.tables:
            same = "the same rows" if one.checksum == one.checksum_after else "other rows"
            yield (
                f"table {one.table}: {one.rows:,} rows before, {one.rows_after:,} after, {same};"
                f" {one.only_before:,} gone, {one.only_after:,} new"
            )
            yield from (f"  - {row}" for row in one.gone)
            yield from (f"  + {row}" for row in one.new)

    def _markdown(self) -> Iterator[str]:
        yield "### Rehearsal"
        yield ""
        yield from (f"- {plain(line)}" for line in self.in_words())
        yield ""
        yield "| table | rows before | rows after | gone | new | checksum before | after |"
        yield "|---|---|---|---|---|---|---|"
        for one in self.tables:
            yield (
                f"| {plain(one.table)} | {one.rows:,} | {one.rows_after:,} | {one.only_before:,} |"
                f" {one.only_after:,} | {one.checksum} | {one.checksum_after} |"
            )
        for one in self.tables:
            yield ""
            yield from (f"- only before: {literal(row)}" for row in one.gone)
            yield from (f"- only after: {literal(row)}" for row in one.new)
            yield from (f"- column of one of the two: {literal(name)}" for name in one.columns)


def read(evidence: dict[str, Any]) -> Evidence:
    """Return the evidence of a step from its JSON object."""
    return read_as(Evidence, evidence["rehearsed"])


def settled(settings: Settings, manifest: Manifest, plan: Plan, request: Any) -> Plan:
    """Return the plan with its rehearsal settled: the step is added if requested.

    The plan is refused if a required rehearsal is missing or was of another request.

    :raises RequestError: there is no rehearsal of the name.
    """
    if not isinstance(request, Rehearsable):
        return plan
    # A backfill's plan says nothing of its flow, but names the sink.
    writers = [flow for table in plan.tables for flow in manifest.writers(plan.pipeline_of(table), table)]
    if sinks := [reason for flow in writers if (reason := not_for_sinks(flow))]:
        return replace(plan, refusals=(*plan.refusals, Refusal(None, sinks[0]))) if request.rehearse else plan
    if request.rehearse:
        return replace(plan, steps=(REHEARSE, *plan.steps))
    if request.rehearsal:
        return _backed(settings, plan, request.rehearsal)
    demanding = [
        one.name for one in manifest.pipelines if one.name in plan.pipelines and plan.recovery in one.rehearse
    ]
    if not demanding:
        return plan
    message = (
        f"The pipeline {demanding[0]} demands that a {plan.recovery} is rehearsed (configure_pipeline)."
        " Choose Rehearse first (rehearse), or name the rehearsal that was done (rehearsal)."
    )
    return replace(plan, refusals=(*plan.refusals, Refusal(None, message)))


def not_for_sinks(flow: Flow) -> str | None:
    """Return why a flow is not rehearsed; None where it is."""
    sink = flow.sink
    if sink is None:
        return None
    return (
        f"{flow.full_name} writes the sink {sink.name}, and a rehearsal would write there, too: nothing is"
        " rehearsed. Try a copy of the flow whose sink is another one, or look at the plan alone (Only plan)."
    )


def _backed(settings: Settings, plan: Plan, rehearsal: str) -> Plan:
    """Return a plan with the evidence of an earlier rehearsal, refused if that was of something else."""
    book = ledger.open(open_storage(settings.state), plan.pipeline, rehearsal)
    done = book.find(f"{REHEARSE}.done")
    if done is None or "rehearsed" not in done.evidence:
        raise RequestError(
            f"rehearsal is {rehearsal!r}, and the ledger of {plan.pipeline} has no rehearsal of that id that"
            " came to an end. Nothing was changed. Rehearse it, and name the id that its run shows."
        )
    evidence = read(done.evidence)
    differ = list(_differences(evidence.plan, plan))
    notes = (f"Rehearsed by {rehearsal}, {done.at}:", *evidence.in_words(), *evidence._rows())
    if not differ:
        return replace(plan, notes=(*plan.notes, *notes))
    message = f"The rehearsal {rehearsal} was of something else: {'; '.join(differ)}. Rehearse it anew."
    return replace(plan, refusals=(*plan.refusals, Refusal(None, message)))


def _differences(rehearsed: Plan | None, plan: Plan) -> Iterator[str]:
    if rehearsed is None or rehearsed.recovery != plan.recovery:
        was = "of a declaration alone" if rehearsed is None else f"a {rehearsed.recovery}"
        yield f"it was {was}, and this is a {plan.recovery}"
        return
    before, now = _essence(rehearsed), _essence(plan)
    yield from (
        f"{name} was {_shown(before.get(name))}, and is {_shown(now.get(name))}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    )
    for flow in plan.flows:
        old = rehearsed.flow(flow.flow)
        if old is None:
            continue  # plans.worse says so
        if (old.generation, old.next_generation) != (flow.generation, flow.next_generation):
            yield f"{flow.flow} was on generation {old.generation}, and is on {flow.generation}"
        if old.fingerprint != flow.fingerprint:
            yield f"the declaration of {flow.flow} was {old.fingerprint}, and is {flow.fingerprint}"
    yield from plans.worse(rehearsed, plan)


def _shown(value: Any) -> str:
    without_nulls = (
        {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value
    )
    return repr(without_nulls)


def _essence(plan: Plan) -> dict[str, Any]:
    request = plans.as_stored(plan).request
    return {name: value for name, value in request.items() if name not in _OF_PEOPLE}
