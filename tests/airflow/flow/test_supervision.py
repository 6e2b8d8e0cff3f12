"""From every state of a flow to the next, as its task, its drivers and its holds bring it about: real
operators, processes and files.

Only Spark is missing: ``small_driver.py`` stands for the driver, in a process and session of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from uuid import uuid4

import httpx
import pytest
from airflow.sdk import Context
from airflow.sdk.api.client import ServerResponseError
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time import supervisor
from airflow.sdk.execution_time.supervisor import ActivitySubprocess
from streamkeeper_airflow.flow import supervise
from streamkeeper_airflow.flow.drivers import Submitted
from streamkeeper_airflow.flow.gate import blocking
from streamkeeper_airflow.flow.retries import DriverFailed, WrongSettings
from streamkeeper_airflow.flow.supervise import FlowOperator

from streamkeeper.drivers import stopping, submit, supervision
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Lease, Life
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import DEFERRED, PROJECT, SLOT, Settings
from streamkeeper.supervise import attached, heart
from streamkeeper.watch import alerts, crash_loops
from streamkeeper.watch.alerts import AlertKind
from tests.airflow.conftest import a_try, elsewhere, lease
from tests.airflow.deferral import carry_out
from tests.worlds.suites import long_after, long_but
from tools.waiting import wait_until

FLOW = "first.first_flow"
SMALL_DRIVER = Path(__file__).parents[1] / "small_driver.py"
SOON = 60.0
PERSON = holds.person("ada")


@dataclass
class Task:
    """A try of the flow's task, running beside the test, in the worker or deferred in the triggerer."""

    once: bool = False
    operator: FlowOperator | None = None
    thread: threading.Thread | None = None
    ended: BaseException | str | None = None
    deferred_to: list[str] = field(default_factory=list)

    def run(self, context: Context) -> None:
        try:
            carry_out(self.make, context, self.deferred_to)
            self.ended = "success"
        except Exception as error:  # noqa: BLE001 - what a task ends with is what is looked at
            self.ended = error

    def make(self) -> FlowOperator:
        self.operator = FlowOperator(task_id="run", flow=FLOW, once=self.once)
        return self.operator

    def end(self) -> BaseException | str:
        assert self.thread is not None
        self.thread.join(SOON)
        assert self.ended is not None, "the task continues"
        return self.ended


@dataclass
class Bed:
    """A flow with its home, and tasks that supervise it. ``alerts`` are the kinds that people would be told,
    with their occasions.
    """

    home: FlowHome
    root: Path
    habit: str = "polite"
    tries: int = 0
    tasks: list[Task] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        return Settings.from_environment()

    @property
    def alerts(self) -> list[tuple[AlertKind, str]]:
        return [(one.alert.kind, one.alert.occasion) for one in alerts.pending(self.home)]

    @property
    def command(self) -> list[str]:
        fingerprint = read_manifest(self.settings).find(FLOW).fingerprint
        # Only what has a job's name in its command line is ever killed.
        return [sys.executable, "-X", submit.JOB.name, str(SMALL_DRIVER), FLOW, fingerprint, self.habit]

    def environment(self, log: Path, **more: str) -> dict[str, str]:
        ours = {submit.LOG_VARIABLE: str(log), submit.SUPERVISED_VARIABLE: "1", "PYTHONPATH": str(PROJECT)}
        return {**os.environ, **self.settings.as_environment(), **ours, **more}

    def task(self, *, once: bool = False) -> Task:
        """Start a try of the flow's task."""
        self.tries += 1
        task = Task(once)
        task.thread = threading.Thread(target=task.run, args=(a_try(self.tries),), daemon=True)
        task.thread.start()
        self.tasks.append(task)
        return task

    def driver(self, epoch: int) -> Lease:
        """Wait until the driver of an epoch runs."""

        def beats() -> Lease | None:
            return leases.read(self.home, epoch) if leases.read_heartbeat(self.home, epoch) else None

        return wait_until(beats, SOON, f"the driver of epoch {epoch} runs")

    def life(self, epoch: int) -> Life:
        lease = leases.read(self.home, epoch)
        assert lease is not None
        return leases.life(self.home, lease)

    def tell(self, word: str) -> None:
        self.home.storage.overwrite(f"{self.home.root}/{word}", b"")

    def orphan(self, **environment: str) -> Submitted:
        """Start a driver whose task is gone."""
        log = self.root / "driver.log"
        return Submitted(self.command, self.environment(log, **environment), log)


@pytest.fixture(params=[SLOT, DEFERRED])
def bed(
    project: Path, home: FlowHome, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Bed]:
    monkeypatch.setenv("STREAMKEEPER_SUPERVISION", request.param)
    monkeypatch.setenv("STREAMKEEPER_HEARTBEAT_INTERVAL", "0.1")
    monkeypatch.setenv("STREAMKEEPER_LEASE_TERM", "1")
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(project / "logs"))
    made = Bed(home, project)

    def prepare(
        settings: Settings, flow: Any, connection: str, log: Path, take_over: bool
    ) -> tuple[list[str], dict[str, str]]:
        return made.command, made.environment(log)

    monkeypatch.setattr(supervise.submitting, "prepare", prepare)
    monkeypatch.setattr(attached, "LOOK", 0.1)
    monkeypatch.setattr(heart, "LONGEST_INTERVAL", 0.3)
    yield made
    # Else a task would start the next driver at once.
    holds.put(made.home, holds.person("test"), "the test is over", "test")
    for epoch in made.home.epochs():
        found = leases.read(made.home, epoch)
        if found is not None and leases.life(made.home, found) is Life.ALIVE:
            os.kill(found.process.pid, signal.SIGKILL)
    for task in made.tasks:
        assert task.thread is not None
        task.thread.join(SOON)
        assert not task.thread.is_alive(), "a task continues after its test"


# --- each case: from a state, by an event, to a state


def start(bed: Bed) -> None:
    bed.task()
    assert bed.driver(1).log is not None
    seen = supervision.read(bed.home)
    assert seen is not None
    assert seen.by == "flow__first__first_flow now run, try 1"


def attach(bed: Bed) -> None:
    bed.orphan()
    first = bed.driver(1)
    task = bed.task()
    wait_until(lambda: supervision.read(bed.home), SOON, "the task watches")
    holds.put(bed.home, PERSON, "enough", "ada")
    assert task.end() == "success"
    assert leases.current(bed.home) == first, "no second driver was started"


def attach_to_one_that_fails(bed: Bed) -> None:
    bed.orphan()
    bed.driver(1)
    task = bed.task()
    wait_until(lambda: supervision.read(bed.home), SOON, "the task watches")
    bed.tell("fail-once")
    assert bed.driver(2).log is not None, "the same try starts the next one"
    holds.put(bed.home, PERSON, "enough", "ada")
    assert task.end() == "success"
    failures = crash_loops.read(bed.home)
    assert failures is not None
    assert (len(failures.times), failures.looping) == (1, False)


def take_over_a_dead_driver_at_once(bed: Bed) -> None:
    task = bed.task()
    first = bed.driver(1)
    os.kill(first.process.pid, signal.SIGKILL)
    second = bed.driver(2)
    assert second.log != first.log
    holds.put(bed.home, PERSON, "enough", "ada")
    assert task.end() == "success", "the same try started it"


def take_over_one_that_never_worked_in_the_next_try(bed: Bed) -> None:
    bed.habit = "idle"
    task = bed.task()
    os.kill(bed.driver(1).process.pid, signal.SIGKILL)
    ended = task.end()
    assert isinstance(ended, DriverFailed)
    assert (ended.streak, ended.looping) == (1, False)
    bed.task()
    assert bed.driver(2).epoch == 2


def the_task_is_told_to_stop(bed: Bed) -> None:
    task = bed.task()
    first = bed.driver(1)
    operator = wait_until(lambda: task.operator, SOON, "the task runs")
    wait_until(lambda: operator._driver, SOON, "the task follows it")
    operator.on_kill()
    beat = leases.read_heartbeat(bed.home, 1)
    assert beat is not None
    wait_until(
        lambda: leases.read_heartbeat(bed.home, 1).count > beat.count + 5 or None, SOON, "it continues"
    )  # type: ignore[union-attr]
    assert leases.current(bed.home) == first


def take_over_from_another_host_after_the_term(bed: Bed) -> None:
    lease(bed.home, elsewhere())
    bed.task()
    assert bed.driver(2).epoch == 2


def hold(bed: Bed) -> None:
    task = bed.task()
    bed.driver(1)
    holds.put(bed.home, PERSON, "a look", "ada")
    assert task.end() == "success"
    assert bed.life(1) is Life.LEFT
    assert isinstance(bed.task().end(), AirflowSkipException)
    assert bed.home.epochs() == [1]


def release(bed: Bed) -> None:
    hold(bed)
    holds.release(bed.home, PERSON)
    bed.task()
    bed.driver(2)


def hold_of_a_once_flow(bed: Bed) -> None:
    task = bed.task(once=True)
    bed.driver(1)
    holds.put(bed.home, PERSON, "a look", "ada")
    wait_until(lambda: "HoldTrigger" in task.deferred_to or None, SOON, "the task itself waits")
    holds.release(bed.home, PERSON)
    bed.driver(2)
    generations.decide(bed.home, generations.first(bed.home, "fingerprint"))
    generations.finish(bed.home, 1, 4)
    os.kill(bed.driver(2).process.pid, signal.SIGKILL)
    assert task.end() == "success", "it is done"


def park(bed: Bed) -> None:
    task = bed.task()
    bed.driver(1)
    bed.tell("break")
    assert isinstance(task.end(), AirflowFailException)
    assert bed.alerts == [], "the monitor alerts, which sees the hold"
    assert isinstance(bed.task().end(), AirflowSkipException)
    assert [found.owner for found in blocking(bed.settings, FLOW)] == ["park"]


def unpark_by_a_changed_declaration(bed: Bed) -> None:
    park(bed)
    bed.home.storage.remove(f"{bed.home.root}/break")
    file = bed.root / "pipelines" / "first.py"
    file.write_text(file.read_text().replace("return raw", "return raw.dropDuplicates()"))
    bed.task()
    bed.driver(2)
    assert bed.home.owners() == []


def stop_by_force(bed: Bed) -> None:
    bed.habit = "deaf"
    task = bed.task()
    bed.driver(1)
    holds.put(bed.home, PERSON, "now", "ada")
    assert stopping.stop(bed.home, deadline=0.2, kill_after=0.2).by is stopping.By.KILL
    assert isinstance(task.end(), AirflowSkipException), "it is held: neither red nor tried again"
    assert bed.alerts == []


def orphan(bed: Bed) -> None:
    alone = bed.orphan(STREAMKEEPER_SUPERVISOR_TIMEOUT="1.5")
    bed.driver(1)
    assert wait_until(alone.wait, SOON, "the orphan stops by itself").code == 0
    bed.task()
    bed.driver(2)


def watched_driver_is_no_orphan(bed: Bed) -> None:
    bed.orphan(STREAMKEEPER_SUPERVISOR_TIMEOUT="3")
    first = bed.driver(1)
    bed.task()
    beat = wait_until(lambda: leases.read_heartbeat(bed.home, 1), SOON, "it beats")
    wait_until(
        lambda: leases.read_heartbeat(bed.home, 1).count > beat.count + 50 or None,
        SOON,
        "it outlives the timeout",
    )  # type: ignore[union-attr]
    assert leases.current(bed.home) == first
    assert bed.life(1) is Life.ALIVE


def two_starts_at_once(bed: Bed) -> None:
    tasks = [bed.task(), bed.task()]
    bed.driver(1)
    by = wait_until(lambda: supervision.read(bed.home), SOON, "a task watches").by
    wait_until(lambda: supervision.read(bed.home).by != by or None, SOON, "the other one watches too")  # type: ignore[union-attr]
    holds.put(bed.home, PERSON, "enough", "ada")
    assert {str(task.end()) for task in tasks} <= {
        "success",
        f"{FLOW} was held before its driver began; the next run waits at the gate.",
    }
    assert bed.home.epochs() == [1], "never a second driver"


def second_try_beside_the_first(bed: Bed) -> None:
    tasks = [bed.task()]
    first = bed.driver(1)
    tasks.append(bed.task())  # Airflow heard nothing of the first try, and takes it for lost

    def watch() -> bool | None:
        seen = supervision.read(bed.home)
        return (seen is not None and seen.by.endswith("try 2")) or None

    wait_until(watch, SOON, "the second try watches")
    os.kill(first.process.pid, signal.SIGKILL)
    bed.driver(2)
    wait_until(lambda: bed.life(2) is Life.ALIVE or None, SOON, "the next driver works")
    holds.put(bed.home, PERSON, "enough", "ada")
    assert {str(task.end()).partition(" ")[0] for task in tasks} <= {"success", FLOW}, "success, or held"
    assert bed.home.epochs() == [1, 2], "both tries saw the end, and one driver followed"
    failures = crash_loops.read(bed.home)
    assert failures is not None
    assert (len(failures.times), failures.epoch) == (1, 1), "its end counts once"


def crash_loop(bed: Bed) -> None:
    bed.tell("fail")
    ends = [bed.task().end() for _ in range(2)]
    assert [isinstance(end, DriverFailed) and end.looping for end in ends] == [True, True]
    assert bed.home.epochs()[-1] == crash_loops.FAILURES + 1, (
        "five in the first try, which is the loop, and then one a try"
    )
    assert [kind for kind, _ in bed.alerts] == [AlertKind.CRASH_LOOP], "it is told once"


def settings_that_cannot_fit(bed: Bed) -> None:
    os.environ["STREAMKEEPER_SUPERVISOR_TIMEOUT"] = "60"
    ended = bed.task().end()
    assert isinstance(ended, WrongSettings)
    assert bed.home.epochs() == [], "nothing was submitted"
    assert bed.alerts == [(AlertKind.SETTINGS, str(ended))], "another wrong setting is told, too"


def settings_that_cannot_fit_beside_a_driver_that_runs(bed: Bed) -> None:
    bed.orphan()
    bed.driver(1)
    os.environ["STREAMKEEPER_SUPERVISOR_TIMEOUT"] = "60"
    task = bed.task()
    wait_until(lambda: supervision.read(bed.home), SOON, "the task watches it anyway")
    holds.put(bed.home, PERSON, "enough", "ada")
    assert task.end() == "success"


CASES: dict[str, Callable[[Bed], None]] = {
    "declared → start → running": start,
    "running, its task lost → next try → attached": attach,
    "attached → it fails → started again at once": attach_to_one_that_fails,
    "running → killed → taken over at once": take_over_a_dead_driver_at_once,
    "starting → killed → next try → taken over": take_over_one_that_never_worked_in_the_next_try,
    "running → its task is told to stop → running": the_task_is_told_to_stop,
    "running on another host, silent → term over → taken over": take_over_from_another_host_after_the_term,
    "running → hold → held": hold,
    "held → release → running": release,
    "once, running → hold → held → release → running → done": hold_of_a_once_flow,
    "running → it breaks → parked": park,
    "parked → another declaration → running": unpark_by_a_changed_declaration,
    "running, deaf → hold, deadline → killed and held": stop_by_force,
    "running, its task gone → timeout → stopped → next try → running": orphan,
    "running, watched → longer than the timeout → running": watched_driver_is_no_orphan,
    "declared → two starts at once → one driver": two_starts_at_once,
    "running → second try beside the first → killed → one driver": second_try_beside_the_first,
    "running → fails again and again → crash loop": crash_loop,
    "declared → start with wrong settings → refused": settings_that_cannot_fit,
    "running → attach with wrong settings → attached": settings_that_cannot_fit_beside_a_driver_that_runs,
}


UNWATCHED = (
    "starting → killed → next try → taken over",
    "running on another host, silent → term over → taken over",
    "running → fails again and again → crash loop",
    "declared → start with wrong settings → refused",
)
"""Cases that are over before anybody is known to have deferred."""
FAST = (
    "running, its task lost → next try → attached",
    "running → killed → taken over at once",
    "held → release → running",
    "parked → another declaration → running",
    "declared → two starts at once → one driver",
    "running → fails again and again → crash loop",
    "declared → start with wrong settings → refused",
)
"""What ``make test`` runs; two of them go through the hold and the park on their way."""


@pytest.mark.parametrize("name", long_but(CASES, *FAST))
def test_a_flow_goes_through_the_states_of_its_case(
    name: str, bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMKEEPER_SUPERVISOR_TIMEOUT", "600")
    CASES[name](bed)
    assert bed.home.epochs() or bed.alerts, "a driver was started, or people are told why not"

    def is_watched_elsewhere() -> bool | None:
        return any("DriverTrigger" in task.deferred_to for task in bed.tasks) or None

    if bed.settings.supervision == SLOT:
        assert not is_watched_elsewhere()
    elif name not in UNWATCHED:
        wait_until(is_watched_elsewhere, SOON, "a task is deferred, and its driver watched by the trigger")


class Unlisted(ActivitySubprocess):
    """Airflow's own supervisor of a task, which begins without telling the API server."""

    def _on_child_started(self, **_: object) -> None: ...


@pytest.mark.parametrize("bed", [SLOT], indirect=True)
@pytest.mark.parametrize("status", long_after(1, [404, 403]), ids=["heartbeat answered 404", "token ended"])
def test_a_driver_outlives_a_task_that_airflow_kills_and_the_next_try_attaches(
    status: int, bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As was reported of others' long tasks: their driver was killed too, or got a second one beside it."""
    monkeypatch.setattr(supervisor, "MIN_HEARTBEAT_INTERVAL", 0.2)
    request = httpx.Request("PUT", "http://airflow/execution")
    refusal = ServerResponseError("no", request=request, response=httpx.Response(status))
    refusal.detail = "no"
    client = MagicMock()

    def refuse(*_: object, **__: object) -> None:
        if leases.read_heartbeat(bed.home, 1) is not None:
            raise refusal

    client.task_instances.heartbeat.side_effect = refuse
    task = Unlisted.start(
        what=MagicMock(id=uuid4()), dag_rel_path="", bundle_info=None, client=client,
        target=lambda: FlowOperator(task_id="run", flow=FLOW).execute(a_try()),
    )  # fmt: skip
    assert task.wait() != 0
    first = bed.driver(1)
    assert bed.life(1) is Life.ALIVE
    bed.tries = 1
    bed.task()
    wait_until(lambda: supervision.read(bed.home).by.endswith("try 2") or None, SOON, "it is watched")  # type: ignore[union-attr]
    assert leases.current(bed.home) == first, "no second driver was started"
