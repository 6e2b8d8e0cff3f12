"""``tidy_tables`` in Airflow, with nobody asked: the command of its job, and what follows a failure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from streamkeeper_airflow.recovery.approvals import PlanApproval
from streamkeeper_airflow.recovery.tasks import PlanRecovery, SparkStep

from streamkeeper.drivers.submit import RECOVERY_JOB
from streamkeeper.flows import ledger
from streamkeeper.recover import engine
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from tests.recorder import Recorder

OF = "tidy_tables"


class Run:
    """A run of the DAG that the nightly one triggered; its tasks hand on what they give."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"pipeline": "first", "approval": False, "reason": "daily"}
        self.handed_on: dict[str, Any] = {}

    def xcom_pull(self, task_ids: str) -> Any:
        return self.handed_on.get(task_ids)

    def execute(self, task: Any) -> Any:
        run = SimpleNamespace(
            dag_id=OF, run_id="r1", conf=self.values, run_type="operator_triggered", triggering_user_name=None
        )
        ti = SimpleNamespace(xcom_pull=self.xcom_pull, try_number=1, max_tries=2)
        context = cast("Context", {"params": {}, "dag_run": run, "ti": ti})
        self.handed_on[task.task_id] = task.execute(context)
        return self.handed_on[task.task_id]


@pytest.fixture
def planned(project: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose plan is made, of a table that is there, and approved by nobody but the run itself."""
    monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
    log = project / "warehouse" / "first_clean" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text('{"metaData":{"id":"t"}}\n')
    run = Run()
    run.execute(PlanRecovery(task_id="plan", kind_name=OF))
    run.execute(PlanApproval(task_id="approve"))
    return run


def step() -> SparkStep:
    return SparkStep(task_id="tidy", kind_name=OF, patient=True)


def test_the_job_is_a_step_like_any_other_and_is_told_nothing_of_the_plan(
    planned: Run, recorder: Recorder
) -> None:
    with pytest.raises(AirflowException, match="the ledger has no end of tidy"):
        planned.execute(step())
    [submitted] = recorder.calls
    recovery = planned.handed_on["plan"]["recovery"]
    assert submitted.option("--master") == "local[2]"
    assert submitted.arguments[-7:] == [
        str(RECOVERY_JOB), "--pipeline", "first", "--recovery", recovery, "--step", "tidy",
    ]  # fmt: skip
    found = engine.read_plan(Settings.from_environment(), "first", recovery).details["tables"]
    assert [(item["table"], item["left_alone"]) for item in found] == [("first_clean", None)]


def test_a_table_that_failed_is_tried_again(planned: Run, recorder: Recorder) -> None:
    storage = open_storage(Settings.from_environment().state)
    book = ledger.open(storage, "first", planned.handed_on["plan"]["recovery"])
    book.record("tidy.failed", {"error": "RecoveryError: first_clean could not be tidied"})
    Recorder(recorder.program, code=1)
    with pytest.raises(Exception, match="could not be tidied") as failed:
        planned.execute(step())
    assert not isinstance(failed.value, AirflowFailException)


def test_where_there_is_no_table_yet_no_job_is_started(project: Path, recorder: Recorder) -> None:
    run = Run()
    run.execute(PlanRecovery(task_id="plan", kind_name=OF))
    run.execute(PlanApproval(task_id="approve"))
    assert run.execute(step()) == {"tables": [], "left": {"first_clean": "there is no table yet"}}
    assert recorder.calls == []
