"""Kinds of recovery, and the list of them.

A kind is a value: a form, a function that makes a plan, and steps. Airflow's DAG, the command line, the
schedule and the ledger are derived from it, so a new recovery is one module with a :class:`Kind`, named in
:data:`KINDS`. Steps that many kinds share are in :mod:`streamkeeper.recover.steps.shared`.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.ledger import GIVEN_UP, Ledger
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.recover.plans.plan import FlowPlan, Plan, Planned, refusals_of_all
from streamkeeper.recover.requests.form import NONE_ILL, FormField, Request
from streamkeeper.settings import Settings
from streamkeeper.support.json_values import read_as
from streamkeeper.support.times import now

KINDS: dict[str, str] = {
    "adopt": "streamkeeper.recover.kinds.adopt:KIND",
    "backup_table": "streamkeeper.recover.kinds.backup_table:KIND",
    "backfill": "streamkeeper.recover.kinds.backfill:KIND",
    "reset_checkpoint": "streamkeeper.recover.kinds.reset_checkpoint:KIND",
    "restore_table": "streamkeeper.recover.kinds.restore_table:KIND",
    "full_refresh": "streamkeeper.recover.kinds.full_refresh:KIND",
    "rebuild_without_downtime": "streamkeeper.recover.kinds.rebuild_without_downtime:KIND",
    "full_refresh_with_backup": "streamkeeper.recover.kinds.full_refresh_with_backup:KIND",
    "rewind": "streamkeeper.recover.kinds.rewind:KIND",
    "rehearse": "streamkeeper.recover.rehearse:KIND",
    "clean_up": "streamkeeper.recover.kinds.clean_up:KIND",
    "tidy_tables": "streamkeeper.recover.kinds.tidy_tables:KIND",
}
"""Module and name of the :class:`Kind` of every recovery, by its name. Imported only when needed."""

REGISTER_AGAIN = "streamkeeper_jobs.catalog.registration:register_again"
"""Called with Spark session and work after steps that may change tables (:meth:`Kind.may_have_changed`)."""

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """What a step of a recovery works with: the plan as it was approved, the ledger, and the step's name."""

    settings: Settings
    plan: Plan
    book: Ledger
    step: str

    def home(self, flow: FlowPlan) -> FlowHome:
        """Return where a flow is kept; it need not be declared any more."""
        return FlowHome(self.book.storage, flow.pipeline, flow.name)

    @property
    def attempt(self) -> int:
        """Which attempt at the step this is, from 1 on."""
        return sum(event.event == f"{self.step}.started" for event in self.book.events())

    def evidence(self, step: str) -> dict[str, Any] | None:
        """Return the evidence of a completed step; else None."""
        done = self.book.find(f"{step}.done")
        return done.evidence if done else None

    def result(self, step: str, result_type: type[T]) -> T:
        """Return what an earlier step handed on."""
        evidence = self.evidence(step)
        assert evidence is not None, "steps are carried out in their order"
        return read_as(result_type, evidence)

    def progress(self, **numbers: Any) -> None:
        """Write the step's progress to the ledger and the log.

        Numbers are such as ``chunk=3, of=12, rows=40_000, bytes=1_000_000``. Call it every few seconds at
        most: each call writes a file.
        """
        self.book.record(f"{self.step}.progress", numbers)
        _LOG.info("%s: %s", self.step, ", ".join(f"{name} {value}" for name, value in numbers.items()))

    def check_stop(self) -> None:
        """Raise if the recovery was given up; long steps call this between their parts.

        :raises RecoveryError: it was.
        """
        given_up = self.book.find(GIVEN_UP)
        if given_up is not None:
            raise RecoveryError(
                f"The recovery {self.plan.recovery_id} was given up ({given_up.evidence.get('why')}). Plan a"
                " new one."
            )


Act = Callable[[Work], dict[str, Any]]
"""Carries out a step that may have been killed half done; returns its evidence, a JSON object."""


@dataclass(frozen=True)
class StepKind:
    """One step of a kind of recovery.

    ``does`` describes it for the plan, in the imperative.

    ``act`` is a function of :class:`Work`, called in the task's or the command line's own process; or
    ``streamkeeper_jobs.<module>:<function>``, called with the Spark session and the work by
    ``spark_jobs/run_recovery.py``.

    ``changes``: from this step on something is changed for good, and a recovery that started it cannot be
    given up, only continued. ``changed``, if given, returns whether an incomplete run of the step changed
    anything yet.

    ``patient``: a step that cannot be done yet is repeated, as often as Airflow tries.

    ``unasked``: the step changes nothing, and runs before approval, also in a dry run; such steps come first.

    ``idle`` returns the evidence of a Spark step that has nothing to do by its plan, else None: then no Spark
    is started for it.
    """

    name: str
    does: str
    act: Act | str
    changes: bool = False
    changed: Callable[[Work], bool] | None = None
    patient: bool = False
    unasked: bool = False
    idle: Callable[[Work], dict[str, Any] | None] | None = None

    @property
    def needs_spark(self) -> bool:
        """Whether it is carried out with a Spark session."""
        return isinstance(self.act, str)


@dataclass(frozen=True)
class Kind:
    """A kind of recovery.

    ``name`` is that of its DAG and its commands; ``description`` is one sentence for the DAG's page. ``noun``
    is its name in approvals: "the reset of …".

    ``request`` is a dataclass from which form, options and checks are derived
    (:mod:`streamkeeper.recover.requests.form`). ``plan(settings, manifest, request, recovery id)`` changes
    nothing. ``rehearsal`` is the step that carries it out on a copy, before the approval, where a request
    asks for that; None if it cannot be rehearsed. ``given_up`` removes what the recovery made for itself,
    when it is given up or abandoned; it may be called more than once.
    """

    name: str
    description: str
    request: type[Request]
    plan: Callable[[Settings, Manifest, Any, str], Plan]
    steps: tuple[StepKind, ...]
    noun: str = ""
    rehearsal: StepKind | None = None
    given_up: Callable[[Work], object] | None = None

    def form(self, manifest: Manifest, ill: Mapping[str, str] = NONE_ILL) -> tuple[FormField, ...]:
        """Return the fields of the form; see :meth:`streamkeeper.recover.requests.form.Request.form`."""
        return self.request.form(manifest, ill)

    def parse(self, values: Mapping[str, Any], manifest: Manifest, by: str) -> Any:
        """Return a request from a form's values.

        :raises RequestError: any value does not fit; all misfits are listed.
        """
        return self.request.parse(values, manifest, by)

    def read_request(self, value: Mapping[str, Any]) -> Any:
        """Read a request back from a plan."""
        return self.request.from_json(value)

    def draft(
        self,
        request: Any,
        recovery_id: str,
        pipeline: str,
        tables: tuple[str, ...],
        planned: Sequence[Planned] = (),
    ) -> Plan:
        """Return a plan of this kind, made now, without its notes and details.

        :param request: a dataclass, which the plan keeps as JSON.
        :param planned: the plans of its flows, with their refusals.
        """
        return Plan(
            recovery=self.name,
            recovery_id=recovery_id,
            pipeline=pipeline,
            tables=tables,
            request=asdict(request),
            flows=tuple(flow for flow, _ in planned),
            steps=self.step_names,
            refusals=refusals_of_all(planned),
            at=now(),
        )

    def step(self, name: str) -> StepKind:
        """Return a step by its name.

        :raises RequestError: the kind has no such step.
        """
        steps = [*self.unasked, *self.after_approval]
        named_step = next((step for step in steps if step.name == name), None)
        if named_step is None:
            names = ", ".join(step.name for step in steps)
            raise RequestError(f"{self.name} has no step {name!r}. Its steps are {names}.")
        return named_step

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of the steps that it always has, in their order."""
        return tuple(step.name for step in self.steps)

    @property
    def unasked(self) -> tuple[StepKind, ...]:
        """The steps that run before approval, that which a request may ask for first."""
        first = () if self.rehearsal is None else (self.rehearsal,)
        return (*first, *(step for step in self.steps if step.unasked))

    @property
    def after_approval(self) -> tuple[StepKind, ...]:
        """The steps that run after approval."""
        return tuple(step for step in self.steps if not step.unasked)

    @property
    def first_change(self) -> StepKind | None:
        """The first step that changes something for good; None if none does."""
        return next((step for step in self.steps if step.changes), None)

    def may_have_changed(self, step: str) -> bool:
        """Return whether something may have been changed for good when a step ends."""
        names, first = self.step_names, self.first_change
        return first is not None and step in names[names.index(first.name) :]


def kind(name: str) -> Kind:
    """Return a kind of recovery by its name.

    :raises RequestError: there is none of that name.
    """
    place = KINDS.get(name)
    if place is None:
        raise RequestError(f"There is no recovery {name!r}. There are: {', '.join(sorted(KINDS))}.")
    module, _, attribute = place.partition(":")
    recovery_kind = getattr(importlib.import_module(module), attribute)
    assert isinstance(recovery_kind, Kind) and recovery_kind.name == name, f"{place} is no kind named {name}"
    return recovery_kind
