"""Runs of recoveries' DAGs on the core's small world, task by task; only the jobs in Spark are played."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException
from streamkeeper_airflow.operate.notify import page
from streamkeeper_airflow.recovery.approvals import PlanApproval
from streamkeeper_airflow.recovery.tasks import PlanRecovery, RecoveryStep, SparkStep

from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows.files import open_home
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import Work, kind
from streamkeeper.settings import Settings
from streamkeeper.watch import alerts
from streamkeeper.watch.alerts import Alert
from tests.recorder import lay_jars
from tests.worlds.small_world import World


class Run:
    """A run of a recovery's DAG, whose tasks are executed one by one and find what earlier ones handed on.

    :param conf: the values that it was triggered with.
    """

    def __init__(self, of: str, run_type: str = "manual", run_id: str = "manual__1", **conf: Any) -> None:
        self.of, self.run_type, self.run_id, self.conf = of, run_type, run_id, conf
        self.handed_on: dict[str, Any] = {}

    @property
    def recovery(self) -> str:
        return engine.recovery_id(self.of, self.run_id)

    def context(self, tries: tuple[int, int] = (1, 2)) -> Context:
        """Make what a task reads of its context.

        :param tries: the number of this try, and the greatest that is not the last.
        """
        run = SimpleNamespace(
            dag_id=self.of,
            run_id=self.run_id,
            run_type=self.run_type,
            conf=self.conf,
            triggering_user_name="ada",
        )
        ti = SimpleNamespace(
            try_number=tries[0],
            max_tries=tries[1],
            map_index=-1,
            xcom_pull=lambda *, task_ids: self.handed_on.get(task_ids),
            xcom_push=lambda key, value: self.handed_on.update({key: value}),
        )
        form = kind(self.of).form(read_manifest(Settings.from_environment()))
        params = {item.name: item.default for item in form}
        return cast("Context", {"dag_run": run, "params": params, "ti": ti})

    def execute(self, task: Any, tries: tuple[int, int] = (1, 2)) -> Any:
        self.handed_on[task.task_id] = task.execute(self.context(tries))
        return self.handed_on[task.task_id]

    def plan(self) -> dict[str, Any]:
        """Plan it, and return what the task hands on."""
        handed_on: dict[str, Any] = self.execute(PlanRecovery(task_id="plan", kind_name=self.of))
        return handed_on

    def step(self, name: str) -> RecoveryStep | SparkStep:
        """Make the task of a step, as the recovery's DAG does."""
        step = kind(self.of).step(name)
        task = SparkStep if step.needs_spark else RecoveryStep
        return task(task_id=name, kind_name=self.of, patient=step.patient)

    def carry_out(self, *steps: str) -> Any:
        """Execute the tasks of some steps, and return what the last one hands on."""
        return [self.execute(self.step(name)) for name in steps][-1]


def approved(of: str, *steps: str, **conf: Any) -> Run:
    """Plan a recovery with its approval switched off in the form, and carry out its first steps."""
    run = Run(of, approval=False, **conf)
    run.plan()
    run.execute(PlanApproval(task_id="approve"))
    if steps:
        run.carry_out(*steps)
    return run


def alerts_of(run: Run, flow: str = "events.clean_events") -> list[Alert]:
    """Return the alerts of a flow, each of which leads to the run."""
    pending = alerts.pending(open_home(Settings.from_environment(), flow))
    recorded = [one.alert for one in pending]
    assert all((alert.flow, alert.link) == (flow, page(run.of, run.run_id)) for alert in recorded)
    return recorded


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The core's small world, in which this process lives: its flow never ran."""
    made = World(tmp_path)
    made.declare()
    lay_jars(made.settings.jars)
    (tmp_path / "data" / "events").mkdir(parents=True)
    made.enter(monkeypatch)
    monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
    return made


@pytest.fixture
def stands(world: World) -> World:
    """The same; three batches of one file (two rows each) are done, two files wait."""
    world.processed(3)
    world.add_files(2)
    return world


@dataclass
class Cluster:
    """Plays the jobs of spark-submit: carries out the step that a job is submitted for, with ``evidence``.

    ``error`` is what the step fails with; ``dies`` is whether the job ends before it began the step.
    """

    evidence: dict[str, Any] = field(default_factory=lambda: {"tables": []})
    error: StreamkeeperError | None = None
    dies: bool = False
    submitted: list[list[str]] = field(default_factory=list)

    def submit(self, task: SparkStep) -> None:
        arguments = list(task.application_args or ())
        self.submitted.append(arguments)
        _, pipeline, _, recovery, _, step = arguments
        try:
            if not self.dies:
                engine.carry_out(Settings.from_environment(), pipeline, recovery, step, self._in_spark)
                return
        except StreamkeeperError:
            pass  # the job's exit code says it
        raise AirflowException("Cannot execute: spark-submit … Error code is: 1.")

    def _in_spark(self, _act: str, _work: Work) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return self.evidence


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """What stands in for spark-submit."""
    made = Cluster()
    monkeypatch.setattr(SparkSubmitOperator, "execute", lambda task, _context: made.submit(task))
    return made
