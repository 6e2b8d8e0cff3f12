"""``tidy_tables`` in Airflow, with nobody asked: the command of its job, and what follows a failure."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowException

from streamkeeper.drivers.submit import RECOVERY_JOB
from streamkeeper.errors import RecoveryError
from streamkeeper.recover import engine
from streamkeeper.settings import Settings
from tests.airflow.recovery.conftest import Cluster, Run, approved
from tests.recorder import Recorder
from tests.worlds.small_world import World

OF = "tidy_tables"


@pytest.fixture
def planned(stands: World) -> Run:
    """A run whose plan is made, of a table that is there, and approved by nobody but the run itself."""
    return approved(OF, pipeline="events", reason="daily")


def test_the_job_is_a_step_like_any_other_and_is_told_nothing_of_the_plan(
    planned: Run, recorder: Recorder
) -> None:
    with pytest.raises(AirflowException, match="the ledger has no end of tidy"):
        planned.carry_out("tidy")
    [submitted] = recorder.calls
    assert submitted.option("--master") == "local[2]"
    assert submitted.arguments[-7:] == [
        str(RECOVERY_JOB), "--pipeline", "events", "--recovery", planned.recovery, "--step", "tidy",
    ]  # fmt: skip
    tables = engine.read_plan(Settings.from_environment(), "events", planned.recovery).details["tables"]
    assert [(item["table"], item["left_alone"]) for item in tables] == [("events", None)]


def test_a_table_that_failed_is_tried_again(planned: Run, cluster: Cluster) -> None:
    cluster.error = RecoveryError("events could not be tidied")
    with pytest.raises(RecoveryError, match="could not be tidied"):
        planned.carry_out("tidy")


def test_where_there_is_no_table_yet_no_job_is_started(world: World, cluster: Cluster) -> None:
    found = approved(OF, pipeline="events").carry_out("tidy")
    assert found == {"tables": [], "left": {"events": "there is no table yet"}}
    assert cluster.submitted == []
