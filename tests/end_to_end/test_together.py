"""Two flows of one pipeline in one Spark application, and the people who are told of them, by real mail and a
real webhook.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from demo.tables import count_rows, read_rows
from streamkeeper.flows import holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Lease
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.observe import status
from streamkeeper.observe.status import FlowStatus
from streamkeeper.storage import open_storage
from streamkeeper.watch.progress import position
from tests.end_to_end.world import ENDING, RESET, STARTING, World
from tools.waiting import wait_until

pytestmark = pytest.mark.long

LEFT, RIGHT = "pair.left", "pair.right"
PIPELINE = """
from streamkeeper import pipelines as dp

dp.configure_pipeline(
    shared_driver=True,
    no_progress_after="5 seconds",
    notifiers=[
        dp.notifier(
            "airflow.providers.smtp.notifications.smtp.SmtpNotifier",
            to="ops@example.org",
            from_email="streams@example.org",
        ),
        dp.notifier(
            "airflow.providers.http.notifications.http.HttpNotifier",
            http_conn_id="chat",
            endpoint="streams",
            json={
                "kind": "{{ alert.kind }}",
                "flow": "{{ alert.flow }}",
                "text": "{{ alert.text }}",
                "link": "{{ alert.link }}",
            },
        ),
    ],
)
dp.create_source(
    "numbers", format="json", path="{data}/pair", schema="n INT", options={"maxFilesPerTrigger": 5}
)
dp.create_streaming_table("left_numbers")
dp.create_streaming_table("right_numbers")


@dp.append_flow(name="left", target="left_numbers", sources=["numbers"], trigger="1 second")
def left(numbers):
    return numbers.dropDuplicates(["n"])


@dp.append_flow(name="right", target="right_numbers", sources=["numbers"], trigger="1 second")
def right(numbers):
    return numbers
"""
DEDUPLICATION = '.dropDuplicates(["n"])'


class Pair:
    """The two flows, and what was produced for them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.folder = Path(world.settings.data) / "pair"
        self.produced: list[int] = []
        self.left: list[int] = []
        self.distinct = True

    def declare(self, text: str) -> None:
        self.world.declare("pair", text)

    def produce(self, *numbers: int) -> None:
        """Let one file with these numbers appear, whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = self.folder / ".writing"
        aside.write_text("".join(json.dumps({"n": number}) + "\n" for number in numbers))
        aside.rename(self.folder / f"{len(self.produced):08d}.json")
        self.produced.extend(numbers)
        for number in numbers:
            if not self.distinct or number not in self.left:
                self.left.append(number)

    def home(self, flow: str) -> FlowHome:
        return FlowHome(open_storage(self.world.settings.state), *flow.split("."))

    def lease(self, flow: str) -> Lease:
        found = leases.current(self.home(flow))
        assert found is not None
        return found

    def look(self, flow: str) -> FlowStatus:
        return status.look(
            open_storage(self.world.settings.state), read_manifest(self.world.settings).find(flow)
        )

    def await_both(self, after: dict[str, int] | None = None) -> None:
        """Wait until both flows run, each under a later epoch than one of these."""

        def run() -> bool | None:
            found = {flow: self.look(flow) for flow in (LEFT, RIGHT)}
            late = {flow for flow, look in found.items() if (look.epoch or 0) > (after or {}).get(flow, 0)}
            return (len(late) == 2 and {look.state for look in found.values()} == {"running"}) or None

        wait_until(run, 2 * STARTING, "both flows run")

    def await_rows(self, table: str, wanted: list[int]) -> None:
        """Wait until a table has exactly these numbers."""
        path = self.world.settings.table_path(table)
        wait_until(
            lambda: True if (count_rows(path) or 0) >= len(wanted) else None,
            STARTING,
            f"{table} has {len(wanted)} rows",
        )
        assert sorted(row["n"] for row in read_rows(path)) == sorted(wanted)

    def epochs(self) -> dict[str, int]:
        return {flow: self.lease(flow).epoch for flow in (LEFT, RIGHT)}

    def told(self, kind: str, flow: str = LEFT) -> list[dict[str, Any]]:
        """Give what the webhook was sent of a kind of alert about a flow."""
        return [body for body in self.world.hook.bodies if (body["kind"], body["flow"]) == (kind, flow)]

    def await_told(self, kind: str, saying: str) -> dict[str, Any]:
        """Let the monitor look until it sent an alert of a kind that says something, once; return it."""

        def came() -> list[dict[str, Any]] | None:
            run = self.world.api.trigger("monitor_flows", {})
            assert self.world.api.wait_for_run("monitor_flows", run, ENDING) == "success"
            return [body for body in self.told(kind) if saying in body["text"]] or None

        try:
            [found] = wait_until(came, ENDING, f"an alert {kind} says {saying!r}")
        except TimeoutError as error:
            raise TimeoutError(f"{error} There are {self.world.hook.bodies}.") from error
        return found


@pytest.fixture(scope="module")
def pair(world: World) -> Pair:
    """Both flows, running."""
    made = Pair(world)
    made.produce(1, 2, 2)
    made.declare(PIPELINE)
    made.await_both()
    return made


def test_they_live_through_a_kill_a_park_a_reset_and_a_silence_and_people_are_told(pair: Pair) -> None:
    both_run_in_one_application_each_with_its_own_lease(pair)
    the_end_of_their_driver_is_the_end_of_both_and_both_come_back_exactly(pair)
    one_that_breaks_is_parked_alone_and_people_are_told_once_by_mail_and_webhook(pair)
    its_reset_and_its_first_commit_after_it_are_told(pair)
    the_monitor_tells_of_no_progress_and_of_its_end(pair)


def both_run_in_one_application_each_with_its_own_lease(pair: Pair) -> None:
    assert pair.lease(LEFT).process == pair.lease(RIGHT).process
    pair.produce(2, 3)
    pair.await_rows("left_numbers", pair.left)
    pair.await_rows("right_numbers", pair.produced)


def the_end_of_their_driver_is_the_end_of_both_and_both_come_back_exactly(pair: Pair) -> None:
    before = pair.epochs()
    os.kill(pair.lease(LEFT).process.pid, signal.SIGKILL)
    pair.produce(3, 4)
    pair.await_both(after=before)
    pair.await_rows("left_numbers", pair.left)
    pair.await_rows("right_numbers", pair.produced)


def one_that_breaks_is_parked_alone_and_people_are_told_once_by_mail_and_webhook(pair: Pair) -> None:
    before = pair.epochs()
    pair.declare(PIPELINE.replace(DEDUPLICATION, ""))
    pair.distinct = False
    wait_until(
        lambda: pair.look(LEFT).epoch != before[LEFT] or None,
        STARTING,
        "the changed declaration restarts both",
    )
    pair.produce(4, 5)  # nothing fails before a batch is planned
    wait_until(lambda: holds.parked(pair.home(LEFT)), STARTING, f"{LEFT} is parked")
    pair.await_rows("right_numbers", pair.produced)
    told = pair.await_told("parked", "42K03")
    assert told["link"] == f"{pair.world.service.url}/dags/{RESET}", "of the form of the recovery that fits"
    mails = [
        mail for mail in pair.world.mail.mails if LEFT in mail["subject"] and "parked" in mail["subject"]
    ]
    assert [mail["to"] for mail in mails] == ["ops@example.org"]
    assert pair.told("parked", RIGHT) == []


def its_reset_and_its_first_commit_after_it_are_told(pair: Pair) -> None:
    form = pair.world.form(flow=LEFT, approval=False, reason="duplicates are wanted now")
    run = pair.world.trigger(RESET, form)
    assert pair.world.api.wait_for_run(RESET, run, 2 * ENDING) == "success"
    finished = pair.await_told("recovery-finished", "its new generation runs")
    assert finished["link"].startswith(f"{pair.world.service.url}/dags/{RESET}/runs/")
    pair.await_both()
    pair.produce(5, 6)
    pair.await_rows("left_numbers", pair.left)
    pair.await_rows("right_numbers", pair.produced)
    recovered = pair.await_told("recovered", "(parked) is resolved")
    assert f"{LEFT} commits again: generation 2" in recovered["text"]
    assert len(pair.told("parked")) == 1


def the_monitor_tells_of_no_progress_and_of_its_end(pair: Pair) -> None:
    """The application is stopped as a hanging one would be: its processes are there, and do nothing."""
    group = os.getpgid(pair.lease(LEFT).process.pid)
    before = position(pair.home(LEFT))
    os.killpg(group, signal.SIGSTOP)
    try:
        pair.produce(7)
        pair.await_told("no-progress", f"({before})")
    finally:
        os.killpg(group, signal.SIGCONT)
    pair.await_rows("left_numbers", pair.left)
    pair.await_told("recovered", "(no-progress) is resolved")
