"""Flows that share a driver: their one DAG, its gate, a driver that is found again, whose end it was."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from streamkeeper_airflow.flow import shared_driver, supervise
from streamkeeper_airflow.flow import submit as submitting
from streamkeeper_airflow.flow.gate import HoldTrigger, all_held
from streamkeeper_airflow.flow.retries import DriverFailed
from streamkeeper_airflow.flow.supervise import FlowOperator

from streamkeeper.drivers import submit
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.flows.leases import Heartbeat, Process
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.supervise import attached
from streamkeeper.supervise.attached import Attached, AttachedToSharedDriver, Ending, find
from streamkeeper.support.times import now
from tests.airflow.conftest import a_try, elsewhere, lease, process_of
from tests.airflow.deferral import carry_out

PIPELINE = """
from streamkeeper import pipelines as dp

dp.configure_pipeline(shared_driver=%s)
dp.create_source("raw", format="json", path="{data}/raw", schema="id INT")
dp.create_streaming_table("both")

@dp.append_flow(name="left", target="both", sources=["raw"])
def left(raw):
    return raw

@dp.append_flow(name="right", target="both", sources=["raw"])
def right(raw):
    return raw
"""
LEFT, RIGHT = "shared.left", "shared.right"
BOTH = [LEFT, RIGHT]
DAG = "flows__shared"
RUN = a_try(dag_id=DAG)


@pytest.fixture
def homes(project: Path) -> list[FlowHome]:
    declare(project, shared=True)
    return [open_home(Settings.from_environment(), name) for name in BOTH]


@pytest.fixture
def bag(homes: list[FlowHome]) -> DagBag:
    return DagBag(str(PROJECT / "dags"))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the driver's: it lives until it is ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True
    )
    yield process
    process.kill()
    process.wait()


def declare(project: Path, shared: bool) -> None:
    (project / "pipelines" / "shared.py").write_text(PIPELINE % shared)


def gone() -> Process:
    return replace(Process.current(), started=1)


def test_a_shared_pipeline_has_one_dag_and_others_have_one_a_flow(bag: DagBag) -> None:
    assert bag.import_errors == {}
    assert {name for name in bag.dags if name.startswith("flow")} == {
        DAG,
        "flow__first__first_flow",
        "flow__second__second_flow",
    }
    assert {read_manifest(Settings.from_environment()).find(name).dag_id for name in BOTH} == {DAG}


def test_the_shared_dag_runs_as_those_of_single_flows_do(bag: DagBag) -> None:
    dag, single = bag.dags[DAG], bag.dags["flow__first__first_flow"]
    for of in (dag, single):
        assert type(of.timetable).__name__ == "ContinuousTimetable"
        assert (of.max_active_runs, of.catchup, of.dagrun_timeout, of.disable_bundle_versioning) == (
            1,
            False,
            None,
            True,
        )
        assert [str(kind.value) for kind in of.allowed_run_types] == ["scheduled"]
        assert of.task_dict["gate"].downstream_task_ids == {"run"}
        assert [task.execution_timeout for task in of.tasks] == [None, None]
        assert (of.task_dict["run"].pool, of.task_dict["gate"].pool) == ("streaming_flows", "default_pool")
        assert of.task_dict["run"].retries == of.task_dict["gate"].retries == 1_000_000
    assert all(f"**{name}** appends to `both`" in dag.doc_md for name in BOTH)
    assert "share one Spark application" in dag.doc_md
    assert "share one Spark application" not in single.doc_md


def test_the_gate_waits_while_every_flow_is_held_and_passes_once_one_is_free(homes: list[FlowHome]) -> None:
    settings = Settings.from_environment()
    assert all_held(settings, BOTH) == ""
    for home in homes:
        holds.put(home, holds.person("ann"), "a look at the table", "ann")
        assert bool(all_held(settings, BOTH)) is (home is homes[-1])
    assert f"{LEFT}: person-ann" in all_held(settings, BOTH)
    assert f"{RIGHT}: person-ann" in all_held(settings, BOTH)
    holds.release(homes[0], holds.person("ann"))
    assert all_held(settings, BOTH) == ""


def test_the_triggerer_can_make_the_trigger_of_several_flows_again() -> None:
    path, arguments = HoldTrigger(LEFT, [RIGHT]).serialize()
    module, name = path.rsplit(".", 1)
    again = getattr(__import__(module, fromlist=[name]), name)(**arguments)
    assert (again.flow, again.others) == (LEFT, [RIGHT])


def test_the_command_runs_all_flows_in_one_application(
    homes: list[FlowHome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", '{"conn_type": "spark", "host": "local[3]"}')
    settings = Settings.from_environment()
    flows = [read_manifest(settings).find(name) for name in BOTH]
    command, _ = submitting.prepare(settings, flows, settings.connection, tmp_path / "driver.log")
    assert "spark.scheduler.mode=FAIR" in command
    assert command[command.index("--name") + 1] == "shared"
    assert command[-5:] == [str(submit.JOB), "--flow", LEFT, "--flow", RIGHT]


def test_a_living_driver_of_any_of_the_flows_is_found_and_is_gone_when_it_has_left_all(
    homes: list[FlowHome], sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    log = tmp_path / "driver.log"
    log.touch()
    held = [lease(home, process_of(sleeper.pid), log=str(log)) for home in homes]
    found = AttachedToSharedDriver(find(homes, 1.0), 1.0)
    assert found.log == log
    assert found.wait() is None
    leases.leave(homes[1], held[1], "failed")
    assert found.wait() is None, "it ends its other flow"
    leases.leave(homes[0], held[0], "stopped")
    assert found.wait() == Ending(Outcome.FAILED, "it left a note: failed")
    assert find(homes, 1.0) == []


def test_a_driver_that_runs_one_of_the_flows_only_is_found_behind_a_flow_without_one(
    homes: list[FlowHome], sleeper: subprocess.Popen[bytes]
) -> None:
    lease(homes[0], gone())
    lease(homes[1], process_of(sleeper.pid))
    [found] = find(homes, 1.0)
    sleeper.terminate()
    assert sleeper.wait(30) == -signal.SIGTERM
    assert found.wait() == Ending(Outcome.FAILED, "it ended without a reason")


def test_the_term_of_a_silent_driver_elsewhere_is_waited_for_once_whatever_it_ran(
    homes: list[FlowHome], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [lease(home, elsewhere()) for home in homes]
    for home in homes:
        leases.beat(home, Heartbeat(1, 1, "running", 1, now()))
    moment = iter(range(10_000))
    monkeypatch.setattr(attached.time, "monotonic", lambda: next(moment) / 10)
    monkeypatch.setattr(attached.time, "sleep", lambda _: None)
    found = AttachedToSharedDriver(
        [Attached(home, mine, 10.0) for home, mine in zip(homes, held, strict=True)], 10.0
    )
    while found.wait() is None:
        pass
    assert (ended := next(moment) / 10) < 20, "both are silent after one term and a half, not after two"
    assert find(homes, 10.0) == []
    assert next(moment) / 10 < ended + 2, "the next try does not wait for what this one saw"
    count = iter(range(2, 10_000))
    found = find(homes, 10.0, lambda: leases.beat(homes[0], Heartbeat(1, next(count), "running", 1, now())))
    assert [part.epochs for part in found] == [{LEFT: 1}, {RIGHT: 1}], "also the flow that is silent already"
    ended = next(moment) / 10
    for home in homes:
        home.storage.remove(home.silent(1))
    assert find(homes, 10.0) == []
    assert next(moment) / 10 < ended + 18, "one that saw nothing watches both at once"


def test_a_park_of_one_flow_of_a_driver_that_was_attached_to_is_that_flow_s_alone(
    homes: list[FlowHome],
    sleeper: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    held = [lease(home, process_of(sleeper.pid), epoch=4) for home in homes]
    holds.put(homes[0], holds.PARK, "a stateful operation was removed", "driver")

    def ends(*_: object) -> Ending:
        for home, mine, why in zip(homes, held, ("parked", "stopped"), strict=True):
            leases.leave(home, mine, why)
        return Ending(Outcome.PARKED, "the flow is parked")

    monkeypatch.setattr(FlowOperator, "_follow_all", ends)
    with pytest.raises(AirflowFailException, match=rf"^{LEFT} is parked"):
        operator(*homes)._supervise(RUN)
    assert f"The flow {LEFT} is parked" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "left", "blamed"),
    [
        (Outcome.PARKED, {LEFT: "parked", RIGHT: "stopped"}, [LEFT]),
        (Outcome.FAILED, {LEFT: "stopped", RIGHT: "failed"}, [RIGHT]),
        (Outcome.PARKED, {LEFT: "parked", RIGHT: "parked"}, BOTH),
        (Outcome.PARKED, {LEFT: "failed", RIGHT: "parked"}, [RIGHT]),
        (-9, {LEFT: None, RIGHT: None}, BOTH),
        (1, {LEFT: None, RIGHT: "stopped"}, [LEFT]),
        (1, {LEFT: "stopped"}, [LEFT]),
        (Outcome.USAGE, {}, BOTH),
    ],
    ids=[
        "park",
        "failure",
        "two parks",
        "park and failure",
        "kill -9",
        "no word of one",
        "all in order",
        "none began",
    ],
)
def test_whose_end_a_driver_s_end_is(
    code: int, left: dict[str, str | None], blamed: list[str], homes: list[FlowHome]
) -> None:
    for home in homes:
        if home.full_name in left:
            mine, why = lease(home, gone()), left[home.full_name]
            if why is not None:
                leases.leave(home, mine, why)
        # Another try that watched the driver has started the next one, which ends, too.
        leases.leave(home, lease(home, gone(), epoch=2), "held")
    epochs = dict.fromkeys(left, 1)
    assert [home.full_name for home in shared_driver.flows_at_fault(homes, code, epochs)] == blamed


def operator(*homes: FlowHome, **kwargs: Any) -> FlowOperator:
    return FlowOperator(task_id="run", flows=[home.full_name for home in homes], **kwargs)


def test_the_triggerer_watches_a_driver_for_all_its_flows_and_the_task_judges_whose_end_it_was(
    homes: list[FlowHome], sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMKEEPER_SUPERVISION", "deferred")
    monkeypatch.setattr(attached, "LOOK", 0.1)
    monkeypatch.setattr(attached, "STORE_LOOK_VISIBLE", 0.1)
    held = [lease(home, process_of(sleeper.pid), epoch=4) for home in homes]
    for home in homes:
        leases.beat(home, Heartbeat(4, 1, "running", 1, now()))

    def ends() -> None:
        holds.put(homes[0], holds.PARK, "a stateful operation was removed", "driver")
        for home, mine, why in zip(homes, held, ("parked", "stopped"), strict=True):
            leases.leave(home, mine, why)

    deferred_to: list[str] = []
    with pytest.raises(AirflowFailException, match=rf"^{LEFT} is parked"):
        carry_out(lambda: operator(*homes), RUN, deferred_to, ends)
    assert deferred_to == ["DriverTrigger"]


def test_the_note_of_a_run_names_every_flow_that_was_parked(
    homes: list[FlowHome], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(supervise, "set_run_note", lambda _dag, _run, note: notes.append(note))
    for home in homes:
        holds.put(home, holds.PARK, "a stateful operation was removed", "driver")
    with pytest.raises(AirflowFailException, match=f"^{LEFT}, {RIGHT} is parked"):
        operator(*homes)._conclude(*homes, ending=Ending(Outcome.PARKED, "exit code 20"), context=RUN)
    [note] = notes
    assert LEFT in note and RIGHT in note


def test_a_driver_that_fails_is_tried_again_unless_all_its_flows_are_held(homes: list[FlowHome]) -> None:
    for home in homes:
        with pytest.raises(DriverFailed, match=rf"The driver of {home.full_name} ended: killed"):
            operator(*homes)._conclude(home, ending=Ending(-9, "killed"), context=RUN)
        holds.put(home, holds.person("ann"), "wait", "ann")
    with pytest.raises(AirflowSkipException, match="is held and is not started"):
        operator(*homes)._conclude(homes[0], ending=Ending(-9, "killed"), context=RUN)


def test_which_flows_share_the_driver_is_asked_anew_at_each_try(homes: list[FlowHome], project: Path) -> None:
    old = operator(homes[0])
    old._find_sharers(Settings.from_environment())
    assert old.flows == BOTH, "the DAG file was older than the second flow"
    declare(project, shared=False)
    with pytest.raises(AirflowSkipException, match="no longer share a driver"):
        old._find_sharers(Settings.from_environment())


def test_a_dag_from_before_its_flows_shared_a_driver_starts_none(
    homes: list[FlowHome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STREAMKEEPER_SPARK", '{"conn_type": "spark", "host": "local[2]"}')
    alone = FlowOperator(task_id="run", flow=LEFT)
    with pytest.raises(AirflowSkipException, match=rf"shares a driver .*; the DAG {DAG} runs it"):
        alone._submit(Settings.from_environment(), [], RUN)
