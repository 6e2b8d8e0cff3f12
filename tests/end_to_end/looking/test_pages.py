"""Airflow's own pages in a browser: what a parked run says, and the form of a recovery."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.end_to_end.world import ENDING, RESET, World, without_deduplication
from tests.worlds.browser import Person

pytestmark = pytest.mark.long

NAME = "pages"
FLOW, DAG = f"{NAME}.clean_events", f"flow__{NAME}__clean_events"


@pytest.fixture(scope="module")
def parked(world: World) -> World:
    """A flow that a bad change parked, its run red."""
    world.await_flow("running", generation=1, batch=1)
    world.declare(NAME, without_deduplication(world))
    world.await_parked()
    return world


def test_the_parked_run_says_so_on_its_page(parked: World, person: Person) -> None:
    person.visit(f"/dags/{DAG}/runs/{quote(parked.await_red()['dag_run_id'])}")
    person.read("Recovery: reset_checkpoint")
    person.click("button[aria-label='Edit note']")
    assert "SQLSTATE 42K03" in person.read(f"The flow {FLOW} stopped")
    person.picture("parked")


def test_the_form_has_the_parked_flow_chosen_and_triggers_what_is_right(
    parked: World, person: Person
) -> None:
    before = parked.resets()
    parked.await_chosen()
    person.visit(f"/dags/{RESET}")
    person.click("[data-testid=trigger-dag-button]")
    person.read("Start of the new checkpoint")
    assert person.chosen("flow") == f"{FLOW} (parked)"
    assert person.enabled("[data-testid=trigger-dag-submit]"), "nothing more must be said"
    person.picture("form")
    for section, titles in {
        "Position": ["Timestamp", "Offsets", "Generation"],
        "State": ["Infer schemas again"],
        "Approval": ["Ask for approval", "Only plan", "Reason"],
    }.items():
        person.open_section(section)
        for title in titles:
            shown = person.read(title)
        assert "Accepted impact" not in shown, "an impact is accepted with the plan in view"
        assert person.boxes_of_json() == 0
    person.switch("dry_run")
    person.click("[data-testid=trigger-dag-submit]")
    run = parked.await_reset(before)
    assert parked.api.wait_for_run(RESET, run, ENDING) == "success"
    conf = parked.api.run(RESET, run)["conf"]
    assert (conf["flow"], conf["start"], conf["dry_run"]) == (FLOW, "after-last", True)
    assert parked.home.generations() == [1]


def test_the_approval_names_the_impact_has_its_buttons_on_the_first_screen_and_shows_a_reason_as_text(
    parked: World, person: Person
) -> None:
    values = parked.form(start="latest", reason="![x](http://x/x.png)")
    form = {name: value for name, value in values.items() if name != "accept"}
    before = parked.footprint()
    run = parked.api.trigger(RESET, form)
    parked.api.wait_for_task(RESET, run, "approve", ("awaiting_input",), ENDING)
    approve, reject = parked.api.question(RESET, run, "approve")["options"]
    assert approve.startswith("Approve, and lose ")
    assert reject == "Reject"
    person.visit(f"/dags/{RESET}/runs/{quote(run)}/tasks/approve/required_actions")
    person.on_screen(approve)
    person.on_screen(reject)
    assert "![x](http://x/x.png)" in person.read("Reason:"), "what someone wrote is text"
    person.picture("approval")
    assert parked.api.answer(RESET, run, "approve", reject, ENDING) == "success"
    assert parked.api.wait_for_run(RESET, run, ENDING) == "success"
    recovery = parked.api.xcom(RESET, run, "plan")["recovery"]
    assert parked.footprint() == {**before, "recoveries": sorted([*before["recoveries"], recovery])}


@pytest.mark.parametrize(
    ("typed", "found"), [(RESET, {RESET}), ("reset", {RESET}), (NAME, {DAG, f"schedule__{NAME}__yearly"})]
)
def test_the_search_finds_dags_by_what_one_calls_them(
    world: World, person: Person, typed: str, found: set[str]
) -> None:
    person.visit("/dags")
    person.write("[data-testid=search-dags]", typed)
    person.await_dags(found)
