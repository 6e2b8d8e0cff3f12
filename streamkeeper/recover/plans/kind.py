"""What a kind of recovery is, and which there are.

A kind is a value: a form, a function that makes a plan, and steps. Airflow's DAG, the command line, the
schedule and the ledger are made of it, so a new recovery is one module with a :class:`Kind` in it, named in
:data:`KINDS`. The steps that many share are in
:mod:`streamkeeper.recover.steps.shared`.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.ledger import GIVEN_UP, Ledger
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.recover.plans.plan import FlowPlan, Plan
from streamkeeper.recover.requests.form import FormField, Request
from streamkeeper.settings import Settings

KINDS: dict[str, str] = {
    "adopt": "streamkeeper.recover.kinds.adopt:KIND",
    "backup_table": "streamkeeper.recover.kinds.backup_table:KIND",
    "backfill": "streamkeeper.recover.kinds.backfill:KIND",
    "reset_checkpoint": "streamkeeper.recover.kinds.reset_checkpoint:KIND",
    "restore_table": "streamkeeper.recover.kinds.restore_table:KIND",
    "full_refresh": "streamkeeper.recover.kinds.full_refresh:KIND",
    "full_refresh_beside": "streamkeeper.recover.kinds.full_refresh_beside:KIND",
    "full_refresh_with_backup": "streamkeeper.recover.kinds.full_refresh_with_backup:KIND",
    "rewind": "streamkeeper.recover.kinds.rewind:KIND",
    "clean_up": "streamkeeper.recover.kinds.clean_up:KIND",
    "tidy_tables": "streamkeeper.recover.kinds.tidy_tables:KIND",
}
"""Every recovery by its name, and the module and name where its :class:`Kind` is. Imported only when it is
asked for.
"""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """What a step of a recovery works with: the plan as it was approved, and the ledger. ``step`` is the
    step's own name.
    """

    settings: Settings
    plan: Plan
    book: Ledger
    step: str

    def home(self, flow: FlowPlan) -> FlowHome:
        """Give where a flow is kept; it need not be declared any more."""
        return FlowHome(self.book.storage, self.plan.pipeline, flow.name)

    def evidence(self, step: str) -> dict[str, Any] | None:
        """Give the evidence of a step that is done; else None."""
        done = self.book.find(f"{step}.done")
        return done.evidence if done else None

    def progress(self, **numbers: Any) -> None:
        """Write to the ledger and the log how far the step is, such as ``chunk=3, of=12, rows=40_000,
        bytes=1_000_000``.

        Call it every few seconds at most: each call is a file. The newest is found by :meth:`last_progress`
        when the step is run again.
        """
        self.book.record(f"{self.step}.progress", numbers)
        _LOG.info("%s: %s", self.step, ", ".join(f"{name} {value}" for name, value in numbers.items()))

    def last_progress(self) -> dict[str, Any] | None:
        """Give what :meth:`progress` wrote last in this step, by this or an earlier process; else None."""
        found = self.book.find(f"{self.step}.progress")
        return found.evidence if found else None

    def check_stop(self) -> None:
        """Go on unless the recovery was given up meanwhile; long steps ask between their parts.

        :raises RecoveryError: it was.
        """
        given_up = self.book.find(GIVEN_UP)
        if given_up is not None:
            raise RecoveryError(
                f"The recovery {self.plan.recovery_id} was given up ({given_up.evidence.get('why')}). Plan a"
                " new one."
            )


Act = Callable[[Work], dict[str, Any]]
"""Does a step and gives its evidence, a JSON object. It may have been killed before, at any moment: what was
done is found.
"""


@dataclass(frozen=True)
class StepKind:
    """One step of a kind of recovery. ``does`` says what it does, in the imperative, for the plan.

    ``where`` is ``here`` (the task's or the command line's own process; ``act`` is a function of
    :class:`Work`) or ``spark`` (``act`` is ``streamkeeper_jobs.<module>:<function>``, called with the Spark
    session and the work by ``spark_jobs/run_recovery.py``).

    ``changes``: from this step on something is changed for good, and a recovery that started it cannot be
    given up, only run on. Where ``changed`` is given it is asked whether a start that did not come to its end
    changed anything yet. ``patient``: what cannot be done yet is tried again, as often as Airflow tries.
    ``unasked``: it changes nothing, and runs before anybody is asked, in a dry run too; such steps come
    first. ``idle`` gives the evidence of a Spark step that has nothing to do by its plan, else None: then no
    Spark is started for it.
    """

    name: str
    does: str
    where: Literal["here", "spark"]
    act: Act | str
    changes: bool = False
    changed: Callable[[Work], bool] | None = None
    patient: bool = False
    unasked: bool = False
    idle: Callable[[Work], dict[str, Any] | None] | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of recovery. ``name`` is that of its DAG and its commands; ``description`` is one sentence for
    the DAG's page.

    ``request`` is what can be asked for: a dataclass that form, options and checks are made of
    (:mod:`streamkeeper.recover.requests.form`). ``plan(settings, manifest, request, recovery id)`` touches
    nothing. ``noun`` is what approvals call it: "the reset of …". ``given_up`` takes away what the recovery
    made for itself, when it is given up or abandoned; it may be called more than once.
    """

    name: str
    title: str
    description: str
    request: type[Request]
    plan: Callable[[Settings, Manifest, Any, str], Plan]
    steps: tuple[StepKind, ...]
    noun: str = ""
    given_up: Callable[[Work], None] | None = None

    def form(self, manifest: Manifest, parked: Sequence[str] = ()) -> tuple[FormField, ...]:
        """Return the fields of the form; see :meth:`streamkeeper.recover.requests.form.Request.form`."""
        return self.request.form(manifest, parked)

    def parse(self, values: Mapping[str, Any], manifest: Manifest, by: str) -> Any:
        """Make a request of a form's values.

        :raises RequestError: any value does not fit; all misfits are listed.
        """
        return self.request.parse(values, manifest, by)

    def read_request(self, value: Mapping[str, Any]) -> Any:
        """Read a request back from a plan."""
        return self.request.from_json(value)

    def step(self, name: str) -> StepKind:
        """Give a step by its name.

        :raises RequestError: the kind has no such step.
        """
        found = next((step for step in self.steps if step.name == name), None)
        if found is None:
            raise RequestError(
                f"{self.name} has no step {name!r}. Its steps are {', '.join(self.step_names)}."
            )
        return found

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of the steps, in their order."""
        return tuple(step.name for step in self.steps)

    @property
    def unasked(self) -> tuple[StepKind, ...]:
        """The steps that run before anybody is asked."""
        return tuple(step for step in self.steps if step.unasked)

    @property
    def first_change(self) -> StepKind | None:
        """The first step that changes something for good; None where none does."""
        return next((step for step in self.steps if step.changes), None)

    def is_past_return(self, step: str) -> bool:
        """Say whether a recovery that is at a step can only be run on: nothing takes back what it did."""
        first = self.first_change
        return first is None or self.step_names.index(step) > self.step_names.index(first.name)


def kind(name: str) -> Kind:
    """Give a kind of recovery by its name.

    :raises RequestError: there is none of that name.
    """
    place = KINDS.get(name)
    if place is None:
        raise RequestError(f"There is no recovery {name!r}. There are: {', '.join(sorted(KINDS))}.")
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    assert isinstance(found, Kind) and found.name == name, f"{place} is no kind named {name}"
    return found
