"""Pictures of the page *Streams* for docs/ and the README, of the demo's own flow: it outlives a kill, is
parked, shows a plan that loses twelve rows, and is brought back. It takes half an hour, in which its history
grows.

python -m tests.end_to_end.looking.pictures
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from demo import evidence
from demo.airflow.service import AirflowService
from demo.data.customers import Customers
from demo.data.generator import Generator
from demo.seeing import LONG, FlowView, RunView, check, wait
from demo.story import FLOW, RESET, Story, prepare
from streamkeeper.flows import holds, leases
from streamkeeper.history import rows
from streamkeeper.settings import PROJECT, Settings
from tests.worlds.browser import Person

LIST = "/plugin/streams"
PICTURES = PROJECT / "docs" / "pictures"
LOST = 12
"""Rows that wait when the plan is made."""
MINUTES = 5
"""Minutes of history before the kill, after it, and of the next generation."""
WINDOW = (1280, 3000)
"""So high that nothing of a page must be scrolled to."""
HOLDER = holds.person("ada")
REASON = "the corrected changes come as new files"


def main() -> None:
    """Take all pictures, and put them into docs/ once the last one is taken."""
    home, settings = prepare(PROJECT / ".demo" / "pictures", Settings.from_environment())
    customers = Customers(Path(settings.data) / "customers")
    with (
        AirflowService(home / "airflow", settings, tell=print) as service,
        closing(Person(service, home)) as person,
    ):
        with Generator(customers) as generator:
            story = Story.of(service.api, settings, generator)
            break_the_flow(story, customers)
        person.visit(LIST)
        person.show_for_readers(*WINDOW)
        taken = [*of_a_parked_flow(story, person), of_its_last_hours(story, customers, person)]
    PICTURES.mkdir(exist_ok=True)
    for picture in taken:
        shutil.copy(picture, PICTURES)
        print(f"{PICTURES / picture.name}: {picture.stat().st_size // 1000} kB")


def break_the_flow(story: Story, customers: Customers) -> None:
    """Let the flow run, outlive a kill, and be parked with :data:`LOST` rows that it has not read."""
    view = story.view
    story.it_runs()
    await_minutes(view, 1, MINUTES)
    lease = leases.current(view.home)
    assert lease is not None
    os.kill(lease.process.pid, signal.SIGKILL)
    wait(
        "the next driver has the flow",
        lambda: ((leases.current(view.home) or lease).epoch > lease.epoch or None, str(view.status())),
    )
    await_minutes(view, 1, 2 * MINUTES)
    story.generator.stop()
    files = evidence.present(f"{view.settings.data}/customers/cdc")
    wait(f"all {len(files)} files are processed", view.all_processed(1, files))
    holds.put(view.home, HOLDER, "a release", "ada")
    wait("the flow is held", view.is_in("held"))
    write_changes(customers, LOST)
    story.remove_deduplication()
    holds.release(view.home, HOLDER)
    wait("the flow is parked", view.parked)


def of_a_parked_flow(story: Story, person: Person) -> Iterator[Path]:
    """Take the list, the reason of the park, and the plan of a reset that passes over what waits."""
    person.visit(LIST)
    person.reads(f"[data-flow='{FLOW}']", "parked")
    yield person.crop("streams", ".streamkeeper")
    person.visit(page_of(story.view))
    person.read("Parked after a failure")
    yield person.crop("parked", ".streamkeeper h2", "section[aria-label='Why it does not run']")
    values = {"flow": FLOW, "start": "latest", "approval": True, "reason": REASON}
    run = RunView(story.api, RESET, story.api.trigger(RESET, values))
    wait("the plan waits for approval", run.task_is("approve", "awaiting_input"))
    options = story.api.question(RESET, run.run, "approve")["options"]
    check(f"the plan loses {LOST} rows", options[0] == f"Approve, and lose {LOST} rows", options)
    person.visit(f"/dags/{RESET}/runs/{quote(run.run)}/plugin/stream_run")
    person.await_that("all('[data-answer]').length === 2", "the plan waits for an answer")
    yield person.crop("plan", ".streamkeeper h2", "section:has([data-answer])")
    story.api.answer(RESET, run.run, "approve", "Reject")
    story.api.wait_for_run(RESET, run.run, LONG)


def of_its_last_hours(story: Story, customers: Customers, person: Person) -> Path:
    """Bring the flow back, and take the charts of both generations."""
    story.it_is_brought_back()
    with Generator(customers):
        wait("the flow runs on generation 2", story.view.runs_on(2, 1))
        await_minutes(story.view, 2, MINUTES)
        person.visit(page_of(story.view))
        person.press("1 h")
        for mark in ("restart", "recovery"):
            marks = f"document.querySelectorAll('[data-mark={mark}]').length"
            person.await_that(marks, f"a {mark} is marked")
        return person.crop("charts", "section[aria-label='Last hours']")


def page_of(view: FlowView) -> str:
    """Return the path of the flow's page."""
    return f"{LIST}?dag={quote(view.flow.dag_id)}&flow={quote(FLOW)}"


def await_minutes(view: FlowView, generation: int, count: int) -> None:
    """Wait until the history has so many minutes of a generation."""

    def look() -> tuple[bool | None, str]:
        minutes = sum(row.generation == generation for row in rows.minutes(view.home))
        return minutes >= count or None, f"{minutes} minutes are kept; the flow is {view.status()}"

    wait(f"{count} minutes of generation {generation} are kept", look)


def write_changes(customers: Customers, count: int) -> None:
    """Write the next file of changes with so many rows, whole."""
    number = customers.last_number() + 1
    file = customers.folder / "cdc" / f"changes-{number:08d}.json"
    aside = file.with_name(f".{file.name}.writing")
    aside.write_text("".join(f"{json.dumps(change)}\n" for change in customers.arriving(number)[:count]))
    aside.rename(file)


if __name__ == "__main__":
    main()
