"""What the story looks at, and how it waits: with an end, and with words for what was seen instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from demo import evidence
from demo.airflow.api import AirflowApi, ApiError
from demo.tables import count_rows
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.flows import generations, holds
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.holds import Hold
from streamkeeper.manifest.manifest import Flow, read_manifest
from streamkeeper.observe import status
from streamkeeper.observe.status import FlowStatus
from streamkeeper.settings import Settings
from tools.waiting import NeverCame, NotYet, wait_until

Answer = TypeVar("Answer")
Observation = tuple[Answer | None, str]
"""What was looked for, or None; and in words what was seen."""

LONG = 900.0
"""Seconds that a step may take before the story fails: a driver's start on a busy small machine takes a good
part of a minute.
"""


class StoryFailed(Exception):
    """A step did not come true; the message says what was awaited, and what was seen instead."""


def wait(condition: str, look: Callable[[], Observation[Answer]], seconds: float = LONG) -> Answer:
    """Look until something is found, and give it.

    :raises StoryFailed: nothing was found in time; it says what was seen last.
    """

    def once() -> Answer:
        answer, description = look()
        if answer is None:
            raise NotYet(description)
        return answer

    try:
        return wait_until(once, seconds, condition)
    except NeverCame as error:
        raise StoryFailed(str(error)) from error


def check(claim: str, true: bool, observed: object) -> None:
    """Go on if it is true.

    :raises StoryFailed: it is not.
    """
    if not true:
        raise StoryFailed(f"It is not true that {claim}. Seen instead: {observed}")


@dataclass(frozen=True)
class FlowView:
    """Looks at a flow, its table and its checkpoint; the flow may change its declaration meanwhile."""

    settings: Settings
    home: FlowHome
    name: str

    @property
    def flow(self) -> Flow:
        """The flow as it is declared now."""
        return read_manifest(self.settings).find(self.name)

    @property
    def table(self) -> str:
        """The path of its table."""
        return self.settings.table_path(self.flow.declaration.target)

    def status(self) -> FlowStatus:
        """Return what the flow is doing."""
        return status.look(self.home.storage, self.flow)

    def decided(self) -> tuple[list[int], list[str]]:
        """Return the generations and the holds: what a dry run must leave as they are."""
        return self.home.generations(), self.home.owners()

    def other_rows_than(self, before: int) -> Callable[[], Observation[int]]:
        """Look whether the table is there, with another number of rows: changes may delete, and a truncate
        takes all that was before.
        """

        def look() -> Observation[int]:
            rows = count_rows(self.table)
            return (rows if rows not in (None, before) else None), f"{rows} rows; the flow is {self.status()}"

        return look

    def runs_on(self, generation: int, batch: int) -> Callable[[], Observation[FlowStatus]]:
        """Look whether the flow runs on a generation, and has committed a batch, or a later one."""

        def fits(current: FlowStatus) -> bool:
            here = current.state == "running" and current.generation == generation
            return here and current.batch is not None and current.batch >= batch

        return self._status_that(fits)

    def is_in(self, state: str) -> Callable[[], Observation[FlowStatus]]:
        """Look whether the flow is in a state."""
        return self._status_that(lambda current: current.state == state)

    def parked(self) -> Observation[Hold]:
        """Look whether the flow is parked."""
        return holds.parked(self.home), str(self.status())

    def all_processed(self, generation: int, paths: frozenset[str]) -> Callable[[], Observation[bool]]:
        """Look whether the generation, or those before it, processed all of some files."""

        def look() -> Observation[bool]:
            start = generations.read_start(self.home, generation)
            at = Checkpoint(self.home.storage, start.checkpoint) if start else None
            done = evidence.committed_files(at) if at else frozenset()
            progress = f"{len(paths & done)} of {len(paths)} are; the flow is {self.status()}"
            return (True if paths <= done else None), progress

        return look

    def _status_that(self, fits: Callable[[FlowStatus], bool]) -> Callable[[], Observation[FlowStatus]]:
        def look() -> Observation[FlowStatus]:
            current = self.status()
            return (current if fits(current) else None), str(current)

        return look


@dataclass(frozen=True)
class RunView:
    """Looks at one run of a recovery's DAG."""

    api: AirflowApi
    dag: str
    run: str

    def task_is(self, task: str, state: str) -> Callable[[], Observation[str]]:
        """Look whether a task is in a state; the look fails if the run did."""

        def look() -> Observation[str]:
            states = self._states()
            return (state if states.get(task) == state else None), f"the tasks are {states}"

        return look

    def succeeded(self) -> Observation[str]:
        """Look whether the run succeeded; the look fails if the run did."""
        states = self._states()
        state = str(self.api.run(self.dag, self.run)["state"])
        return (state if state == "success" else None), f"it is {state}; its tasks are {states}"

    def plan(self) -> dict[str, Any]:
        """Return what the task ``plan`` handed on."""
        plan: dict[str, Any] = self.api.xcom(self.dag, self.run, "plan")
        return plan

    def _end_of_log(self, task: str) -> str:
        try:
            return self.api.log(self.dag, self.run, task)[-3000:]
        except ApiError as error:
            return f"(it cannot be read: {error})"

    def _states(self) -> dict[str, str]:
        states = {name: str(item["state"]) for name, item in self.api.tasks(self.dag, self.run).items()}
        if self.api.run(self.dag, self.run)["state"] == "failed":
            failed = next((name for name, state in states.items() if state == "failed"), None)
            log = self._end_of_log(failed) if failed else "(no task failed)"
            raise StoryFailed(
                f"The run {self.run} of {self.dag} failed; its tasks are {states}. The end of the log of"
                f" {failed}:\n{log}"
            )
        return states
