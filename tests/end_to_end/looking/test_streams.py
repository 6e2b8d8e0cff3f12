"""The page *Streams* in a browser: what it shows, and a recovery from a click to the first new batch."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from demo.airflow.service import Ports
from demo.processes import end_group
from streamkeeper.flows import generations
from streamkeeper.health.flows import STATES, FlowHealth
from streamkeeper.sources.base.format import Lag
from streamkeeper.watch.behind import Behind
from tests.end_to_end.conftest import VIEWER
from tests.end_to_end.world import ENDING, RESET, World
from tests.worlds.browser import Person
from tools.waiting import wait_until

pytestmark = pytest.mark.long

NAME = "shown"
FLOW, DAG = f"{NAME}.clean_events", f"flow__{NAME}__clean_events"
LIST, TAB = "/plugin/streams", f"/dags/{DAG}/plugin/stream"
SPITE = "<img src=x onerror='window.hurt=1'>"
FAINT = """(() => {
  const brush = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const pixel = (colour) => {
    brush.clearRect(0, 0, 1, 1); brush.fillStyle = colour; brush.fillRect(0, 0, 1, 1);
    return brush.getImageData(0, 0, 1, 1).data;
  };
  const light = ([...colour]) => colour.slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const below = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const found = pixel(getComputedStyle(at).backgroundColor);
      if (found[3] > 200) return found;
    }
    return [255, 255, 255];
  };
  const faint = (one) => {
    const [a, b] = [light(pixel(getComputedStyle(one).color)), light(below(one))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05) < 3;
  };
  const texts = all('.streamkeeper *').filter((one) => [...one.childNodes].some(
    (child) => child.nodeType === 3 && child.textContent.trim()) && !one.closest('button:disabled'));
  return JSON.stringify({ texts: texts.length, faint: texts.filter(faint).map((one) => one.textContent) });
})()"""
"""The number of texts on the page, and those whose contrast is below 3 (WCAG 2.2, 1.4.3 and 1.4.11)."""
WIDTH = "document.documentElement.scrollWidth <= window.innerWidth"


def row(number: int, state: str, **more: Any) -> dict[str, Any]:
    """Give the row of a flow as the page gets it."""
    name = f"p{number % 7}.flow_{number:04d}"
    seen = FlowHealth(name, f"p{number % 7}", "t", f"flow__{number}", "10 seconds", state, f"it is {state}")
    return {**replace(seen, **more).to_json()}


def answer(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Give the page's answer with some rows."""
    counts = {state: sum(one["state"] == state for one in rows) for state in STATES}
    found = {state: count for state, count in counts.items() if count}
    return {"at": time.time(), "overdue": None, "counts": found, "flows": rows, "errors": {}, "may": {}}


def one_flow(ill: dict[str, Any]) -> dict[str, Any]:
    """Give the answer of a flow's tab: one that is parked, with a source that cannot be measured."""
    hold = {"owner": "park", "reason": "r", "by": "driver", "at": "2026-11-24T10:00:00+00:00", "details": {}}
    happened = {"at": time.time(), "kind": "parked", "text": "y" * 400, "by": "driver", "recovery": None}
    read = {"name": "other", "kind": "files", "position": "files log 7"}
    unread = {"name": "raw", "kind": "kafka", "position": None}
    return {
        "row": ill,
        "at": time.time(),
        "overdue": None,
        "may": {name: name for name in ("reset_checkpoint", "hold_flows")},
        "holds": [{**hold, "description": f"{SPITE} Recover it.", "recovery": "reset_checkpoint"}],
        "verdict": None,
        "sources": [read, unread],
        "events": [happened],
        "generations": [],
        "backups": [],
        "beside": [],
        "batches": [],
        "stateful": True,
        "read": ["raw"],
        "others": [],
        "table": {"name": "t", "path": "/t", "version": None, "files": None, "bytes": None, "rows": None},
        "declaration": {
            "file": "p.py",
            "flow": {"name": "f"},
            "driver": {},
            "sources": [],
            "views": [],
            "table": {},
        },
        "log": {"location": None, "lines": []},
        "spark": {"ui": None, "history": None},
    }


def approve(world: World, person: Person, generation: int) -> None:
    """Press the approving button until the generation is decided: Airflow 3.3 may lose an answer."""
    person.click("[data-answer='0']")
    again = "all('[data-answer=\"0\"]:not([disabled])').forEach(one => one.click()) || 1"

    def look() -> bool | None:
        if generation in world.home.generations():
            return True
        person.await_that(again, "the page is there")
        return None

    wait_until(look, ENDING, f"generation {generation} is decided", interval=5.0)


@pytest.fixture
def viewer(world: World, tmp_path: Path) -> Iterator[Person]:
    """Somebody who may look, and start nothing."""
    passwords = json.loads((world.service.home / "simple_auth_manager_passwords.json.generated").read_text())
    (tmp_path / VIEWER).mkdir()
    somebody = Person(world.service, tmp_path / VIEWER, VIEWER, passwords[VIEWER])
    yield somebody
    somebody.close()


def test_every_state_is_a_row_in_words_and_texts_of_users_are_text(person: Person) -> None:
    rows = [row(number, state) for number, state in enumerate(STATES)]
    rows[0] |= {"detail": SPITE, "last_recovery": SPITE}
    person.answers("/streamkeeper/api/flows", answer(rows))
    person.visit(LIST)
    for one in rows:
        person.reads(f"[data-flow='{one['flow']}']", one["state"])
        if one["state"] not in ("running", "idle", "slow"):
            person.reads(f"[data-flow='{one['flow']}']", one["detail"])
    person.await_that("typeof window.hurt === 'undefined'", "no text of a user was run")
    shown = person.await_that("all('[data-flow]').map(one => one.dataset.flow).join()", "the rows")
    assert shown.split(",")[0] == next(one["flow"] for one in rows if one["state"] == "parked")
    person.resize(400)
    person.await_that(WIDTH, "a window of 400 pixels needs no scrolling sideways")
    person.await_that("all('[data-flow] a')[0].focus() || 1", "the first flow has the focus")
    person.type_key("Enter", 13, "\r")
    person.await_that("location.search.includes('flow=')", "Enter opens it")


def test_long_texts_stay_in_their_place_and_what_is_unknown_or_fits_is_said(person: Person) -> None:
    unknown = Behind(time.time(), {"raw": Lag(reason="no broker answers"), "other": Lag(seconds=0.0)})
    ill = row(1, "parked", detail=f"{SPITE} \u202e{'word ' * 90}{'x' * 300}", lag=unknown)
    ill |= {"flow": f"p1.{'long_name_' * 10}"}
    person.answers("/streamkeeper/api/flows", answer([ill, row(2, "running")]))
    person.answers(f"/streamkeeper/api/dags/{DAG}", one_flow(ill))
    for width in (1280, 400):
        person.resize(width)
        person.visit(LIST)
        person.reads("[data-flow]", "unknown")
        person.await_that("all('[data-flow]')[0].getBoundingClientRect().height < 260", "its row is low")
        inside = "one.getBoundingClientRect().right <= window.innerWidth"
        person.await_that(f"all('[data-flow] [data-detail]').every(one => {inside})", "why is in the window")
        person.visit(TAB)
        person.read("Parked after a failure")
        person.read("raw (kafka): nothing is read yet; what waits is unknown: no broker answers")
        person.read("other (files): files log 7; nothing waits")
        person.read("There is none: it has never started.")
        person.await_that(WIDTH, "the page needs no scrolling sideways")
        person.await_that("all('[data-start=reset_checkpoint][title]').length", "what fits is marked")
        person.await_that("all('[data-start]').length === 2", "hold is there, too, and unmarked")
        person.await_that("!document.body.innerText.includes('\\u202e')", "no text turns what follows")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_can_be_told_from_what_is_behind_them(person: Person, world: World, theme: str) -> None:
    world.await_flow("running", generation=1, batch=1)
    person.visit(LIST)
    person.await_that(f"localStorage.setItem('theme', '{theme}') || 1", "the theme is chosen")
    for page, there in ((LIST, FLOW), (TAB, "Generations")):
        person.visit(page)
        person.read(there)
        person.await_that(f"document.documentElement.classList.contains('{theme}')", f"it is {theme}")
        seen = json.loads(str(person.await_that(FAINT, "the texts")))
        assert seen["texts"] > 20
        assert seen["faint"] == []
    person.picture(f"stream_{theme}")


def test_a_thousand_flows_are_drawn_by_the_hundred_and_a_search_answers_at_once(person: Person) -> None:
    rows = [row(number, STATES[number % len(STATES)]) for number in range(1000)]
    person.answers("/streamkeeper/api/flows", answer(rows))
    person.visit(LIST)
    person.await_that("all('[data-flow]').length === 100", "a hundred rows are drawn")
    person.press("Show 100 more")
    person.await_that("all('[data-flow]').length === 200", "a hundred more are drawn")
    person.await_that("performance.mark('typed') && 1", "the clock is started")
    person.write("input[aria-label=Search]", "flow_0777")
    person.await_that("all('[data-flow]').length === 1", "one row fits")
    person.reads("[data-flow]", "flow_0777")


def test_a_default_that_is_emptied_in_a_form_is_sent_as_nothing(person: Person) -> None:
    person.visit(TAB)
    person.click("[data-start=hold_flows]")
    person.click("form summary")
    person.click("input[name=deadline]")
    person.await_that("document.execCommand('selectAll') && document.execCommand('delete')", "it is emptied")
    kept = "more?.method === 'POST' ? (window.sent = more.body, new Response('{}')) : ask(path, more)"
    taken = f"(ask => !!(window.fetch = async (path, more) => {kept}))(window.fetch)"
    person.await_that(taken, "what is sent is kept here")
    person.click("form [type=submit]")
    assert json.loads(person.await_that("window.sent", "it is sent"))["conf"] == {
        "deadline": None,
        "flows": [FLOW],
    }


def test_a_reset_goes_from_a_click_to_the_first_new_batch_and_a_viewer_only_looks(
    world: World, person: Person, viewer: Person
) -> None:
    world.await_flow("running", generation=1, batch=1)
    person.visit(LIST)
    person.reads(f"[data-flow='{FLOW}']", "1")
    person.picture("streams")
    person.click(f"[data-flow='{FLOW}'] a")
    person.click("[data-start=reset_checkpoint]")
    person.write("input[name=reason]", SPITE)
    person.press("Make the plan")
    person.read("Impact")
    viewer.visit(TAB)
    viewer.read("Declaration")
    viewer.await_that("all('[data-start]').length === 0", "a viewer gets no buttons")
    person.await_that("all('[data-answer]').length === 2", "the plan waits for an answer")
    where = person.await_that("location.pathname", "the run's page")
    viewer.visit(str(where))
    viewer.read("It waits for somebody who may approve it.")
    viewer.await_that("all('[data-answer]').length === 0", "a viewer cannot answer")
    person.picture("plan")
    approve(world, person, 2)
    world.await_flow("running", generation=2, batch=1)
    person.read("It is done.")
    person.await_that("typeof window.hurt === 'undefined'", "the reason was not run")
    decided = generations.read(world.home, 2)
    assert decided is not None and SPITE in decided.reason


def test_a_rewind_to_a_point_picked_on_the_chart_goes_to_its_first_new_batch(
    world: World, person: Person
) -> None:
    before = world.await_flow("running", generation=2, batch=1)
    person.visit(TAB)
    person.press("1 h")
    wait_until(lambda: (world.look().batch or 0) > (before.batch or 0) + 3 or None, ENDING, "more batches")
    person.click("svg[data-chart='Rows/s']", across=0.985)
    picked = person.await_that("document.querySelector('#streamkeeper-timestamp')?.value", "the moment")
    assert picked
    person.picture("stream")
    person.press("Make the plan")
    approve(world, person, 3)
    world.await_flow("running", generation=3, batch=1)
    person.read("It is done.")
    person.visit(TAB)
    person.await_that("all('[data-generation]').length === 3", "three generations are on the line")
    person.await_that("document.querySelectorAll('[data-mark=recovery]').length", "they are marked")


@pytest.mark.parametrize("button", ["Resume", "Abandon"])
def test_a_recovery_that_stopped_midway_is_ended_by_a_button(
    world: World, person: Person, button: str
) -> None:
    number = (world.await_flow("running", batch=1).generation or 0) + 1
    person.visit(TAB)
    person.click("[data-start=reset_checkpoint]")
    person.press("Make the plan")
    person.read("Impact")
    person.await_that("all('[data-answer]').length === 2", "the plan waits for an answer")
    (run, *_) = world.api.runs(RESET)
    # Somebody marks a step as failed in Airflow's own page: the run stops after the generation is decided.
    tasks = f"/dags/{RESET}/dagRuns/{quote(run['dag_run_id'])}/taskInstances"
    world.api.call("PATCH", f"{tasks}/release", {"new_state": "failed"})
    approve(world, person, number)
    person.read("It stopped. What it did stays")
    assert world.look().state == "held"
    person.press(button)
    person.read({"Resume": "It is done.", "Abandon": "It was given up."}[button])
    world.await_flow("running", generation=number, batch=1)


def test_the_page_works_below_a_path(world: World, tmp_path: Path) -> None:
    ports = Ports.free()
    base = f"http://127.0.0.1:{ports.api}/air"
    below = replace(world.service, ports=ports, extra={**world.service.extra, "AIRFLOW__API__BASE_URL": base})
    command = [Path(sys.executable).with_name("airflow"), "api-server", "--port", str(ports.api)]
    with (tmp_path / "api.out").open("wb") as output:
        server = subprocess.Popen(
            command,
            env=below.environment(),
            cwd=below.home,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(below.api.healthy, ENDING, "it serves")
        somebody = Person(below, tmp_path)
        try:
            somebody.visit(f"/air{LIST}")
            somebody.click(f"[data-flow='{FLOW}'] a")
            somebody.read("Generations")
            assert str(somebody.await_that("location.pathname", "the flow")).startswith("/air/plugin/streams")
            somebody.click("[data-start=hold_flows]")
            somebody.read("Hours after which the hold ends")
        finally:
            somebody.close()
    finally:
        end_group(server.pid, grace=10)
        server.wait()
