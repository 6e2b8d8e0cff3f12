"""``hold_flows`` and ``release_flows``: their forms, and what their tasks do to holds and drivers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException
from streamkeeper_airflow.operate.hold_tasks import HoldFlows, ReleaseFlows, StopDrivers

from streamkeeper.flows import holds
from streamkeeper.flows.files import FlowHome
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.storage import open_storage

FLOWS = ["first.first_flow", "second.second_flow"]


def home_of(flow: str) -> FlowHome:
    pipeline, _, name = flow.partition(".")
    return FlowHome(open_storage(Settings.from_environment().state), pipeline, name)


def owners() -> dict[str, list[str]]:
    return {flow: home_of(flow).owners() for flow in FLOWS}


def run_of(by: str, values: dict[str, Any], held: dict[str, Any] | None = None) -> Context:
    """A run that ``by`` triggered with the form's values."""
    run = SimpleNamespace(conf=values, triggering_user_name=by, run_type="manual")
    ti = SimpleNamespace(xcom_pull=lambda task_ids: held)
    return cast("Context", {"params": {}, "dag_run": run, "ti": ti})


def hold(by: str, **values: Any) -> dict[str, Any]:
    return HoldFlows(task_id="hold").execute(run_of(by, values))


def release(by: str, **values: Any) -> dict[str, list[str]]:
    return ReleaseFlows(task_id="release").execute(run_of(by, values))


pytestmark = pytest.mark.usefixtures("project")


def test_the_dags_are_there_with_their_forms() -> None:
    bag = DagBag(str(PROJECT / "dags"))
    assert bag.import_errors == {}
    params = bag.dags["hold_flows"].params
    assert params.get_param("flows").schema["items"]["enum"] == FLOWS
    assert params.get_param("pipeline").schema["examples"] == ["first", "second"]
    assert {"flows", "pipeline", "all", "reason", "deadline", "hours"} == set(params)
    params.validate()
    released = bag.dags["release_flows"].params
    assert {"flows", "pipeline", "all", "owner", "any_person", "wave", "patience"} == set(released)
    for name, things in (("reset_checkpoint", "flows"), ("backup_table", "tables")):
        fields = bag.dags[name].params
        assert {things, "pipeline", "all"} <= set(fields)
        fields.validate()  # nothing is chosen, which the recovery refuses
        chosen = fields.get_param(things.removesuffix("s")).schema
        assert chosen["enum"][-1] is None, "a list to choose one from, or none"
    assert [task.task_id for task in bag.dags["hold_flows"].topological_sort()] == ["hold", "stop"]
    assert [
        task.execution_timeout for name in ("hold_flows", "release_flows") for task in bag.dags[name].tasks
    ] == [None] * 3
    assert {task.pool for name in ("hold_flows", "release_flows") for task in bag.dags[name].tasks} == {
        "default_pool"
    }


@pytest.mark.parametrize(
    ("values", "held"),
    [
        pytest.param({"flows": ["first.first_flow"]}, FLOWS[:1], id="a flow"),
        pytest.param({"flows": FLOWS}, FLOWS, id="several"),
        pytest.param({"pipeline": "second"}, FLOWS[1:], id="a pipeline"),
        pytest.param({"all": True, "flows": [], "pipeline": None}, FLOWS, id="all"),
    ],
)
def test_the_flows_that_are_asked_for_are_held_by_who_asked_and_nobody_else_is(
    values: dict[str, Any], held: list[str]
) -> None:
    assert hold("ada", **values) == {"flows": held, "owner": "person-ada", "deadline": 600.0}
    assert owners() == {flow: ["person-ada"] if flow in held else [] for flow in FLOWS}
    assert {home_of(flow).full_name: holds.all_of(home_of(flow))[0].reason for flow in held} == dict.fromkeys(
        held, "held by ada"
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({}, ["Given are none of flows, pipeline and all. Give exactly one"], id="nothing"),
        pytest.param(
            {"flows": ["nope"]},
            ["flows is ['nope']; allowed are first.first_flow, second.second_flow"],
            id="unknown flow",
        ),
        pytest.param(
            {"al": True, "deadline": "soon"}, ["Unknown: 'al'", "deadline is 'soon'"], id="two at once"
        ),
    ],
)
def test_what_does_not_fit_is_listed_and_nothing_is_touched(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(AirflowFailException) as raised:
        hold("ada", **values)
    assert str(raised.value).startswith("No flow was held, and nothing was changed:")
    assert [word for word in words if word not in str(raised.value)] == []
    assert owners() == {flow: [] for flow in FLOWS}


@pytest.mark.parametrize(
    ("by", "values", "left"),
    [
        pytest.param("ada", {}, ["park", "person-grace", "recovery-r1"], id="one's own"),
        pytest.param("ada", {"owner": "grace"}, ["park", "person-ada", "recovery-r1"], id="a named person's"),
        pytest.param("ada", {"any_person": True}, ["park", "recovery-r1"], id="every person's"),
        pytest.param("eve", {}, ["park", "person-ada", "person-grace", "recovery-r1"], id="one who has none"),
        pytest.param(
            "eve",
            {"owner": "park"},
            ["park", "person-ada", "person-grace", "recovery-r1"],
            id="a person named park",
        ),
    ],
)
def test_a_release_takes_persons_holds_only_and_only_those_it_names(
    by: str, values: dict[str, Any], left: list[str]
) -> None:
    home = home_of(FLOWS[0])
    for owner in (holds.PARK, holds.recovery("r1"), holds.person("ada"), holds.person("grace")):
        holds.put(home, owner, "why", "someone")
    assert release(by, flows=FLOWS[:1], **values) == {FLOWS[0]: left}
    assert home.owners() == left


def test_a_release_of_one_s_own_and_of_everybody_s_at_once_is_refused() -> None:
    hold("ada", all=True)
    with pytest.raises(
        AirflowFailException,
        match=r"No flow was released.*\n- owner is 'ada' and any_person is on\. Choose one",
    ):
        release("ada", all=True, owner="ada", any_person=True)
    assert owners() == {flow: ["person-ada"] for flow in FLOWS}


def test_stopping_says_of_each_flow_how_it_came_to_stand_still() -> None:
    held = hold("ada", all=True)
    assert StopDrivers(task_id="stop").execute(run_of("ada", {}, held)) == dict.fromkeys(
        FLOWS, "had no driver"
    )


def test_stopping_what_was_released_meanwhile_fails_once_and_says_so() -> None:
    held = hold("ada", flows=FLOWS[:1])
    release("ada", flows=FLOWS[:1])
    with pytest.raises(AirflowFailException, match=r"first\.first_flow is not stopped: it is not held"):
        StopDrivers(task_id="stop").execute(run_of("ada", {}, held))
