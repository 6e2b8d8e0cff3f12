"""The story: a flow runs, breaks, and is brought back exactly, through Airflow's own API, as a person at its
pages would do it.

python -m demo.story URL   plays it at an Airflow that runs, with AIRFLOW_PASSWORD and the settings of the
environment. It writes the changes itself, and edits the pipeline file in its place.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from demo import evidence
from demo.airflow.api import AirflowApi
from demo.airflow.service import HEALTHY_SECONDS, USER
from demo.data.customers import Customers
from demo.data.generator import Generator
from demo.seeing import LONG, FlowView, Observation, RunView, StoryFailed, check, wait
from streamkeeper.flows import generations, holds, ledger
from streamkeeper.flows.files import FlowHome
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from tools.waiting import wait_until

FLOW, SNAPSHOT = "customers.customers_incremental_flow", "customers.customers_snapshot_flow"
FILE, RESET = "customers.py", "reset_checkpoint"
FILE_SECONDS = 5.0
"""How long a file may take on a busy machine, in a batch of twenty."""
DEDUPLICATION = re.compile(r"^\s*\.dropDuplicates\(.*\n", re.MULTILINE)


def prepare(home: Path, settings: Settings) -> tuple[Path, Settings]:
    """Make a clean folder below ``home`` with a copy of the pipeline file, and give it with the settings that
    point there.

    :raises StoryFailed: the pipeline file does not have what the story takes away.
    """
    original = settings.pipelines / FILE
    count = len(DEDUPLICATION.findall(original.read_text(encoding="utf-8"))) if original.exists() else 0
    if count != 1:
        raise StoryFailed(
            f"{original} has {count} lines that start with .dropDuplicates(; the story takes the only one"
            " away from a copy of it. Put the file back as it was, and start again."
        )
    story = home / "story"
    shutil.rmtree(story, ignore_errors=True)
    pipelines = story / "pipelines"
    pipelines.mkdir(parents=True)
    shutil.copy(original, pipelines)
    return story, replace(
        settings,
        pipelines=pipelines,
        state=str(story / "state"),
        warehouse=str(story / "warehouse"),
        data=str(story / "data"),
    )


def tell(api: AirflowApi, settings: Settings, generator: Generator) -> int:
    """Play the story; return 0, or 1 after saying what did not come true."""
    story = Story.of(api, settings, generator)
    try:
        story.it_runs()
        story.it_breaks()
        story.a_dry_run_shows_the_plan()
        story.it_is_brought_back()
        story.it_goes_on_from_where_it_stood()
        story.every_customer_is_there()
    except StoryFailed as failure:
        print(f"\nFAILED after {story.elapsed()}: {failure}", flush=True)
        return 1
    print(f"\nThe story is true; it took {story.elapsed()}.", flush=True)
    return 0


@dataclass
class Story:
    """The steps, in their order. Each says what it does and what shows that it came true."""

    api: AirflowApi
    generator: Generator
    view: FlowView
    snapshot: FlowView
    began: float = field(default_factory=time.monotonic)
    step: int = 0

    @classmethod
    def of(cls, api: AirflowApi, settings: Settings, generator: Generator) -> Story:
        """Return the story of the flows that these settings name."""
        view, snapshot = (
            FlowView(settings, FlowHome(open_storage(settings.state), *name.split(".")), name)
            for name in (FLOW, SNAPSHOT)
        )
        return cls(api, generator, view, snapshot)

    def it_runs(self) -> None:
        """The flow runs under Airflow, its table changes, and the snapshot is read once."""
        self._title(f"The flow {FLOW} runs under Airflow, and its table changes with every batch")
        self._changes(generation=1, batch=2)
        run = self.api.runs(self.view.flow.dag_id)[0]
        self._say(f"DAG {self.view.flow.dag_id}: run {run['dag_run_id']} is {run['state']}")
        done = wait(f"{SNAPSHOT} is done", self.snapshot.is_in("done"))
        once = wait(f"the run of {SNAPSHOT} succeeded", self._snapshot_run)
        self._say(f"{SNAPSHOT} is {done.state}: {done.detail}; its one run, {once}, succeeded")

    def it_breaks(self) -> None:
        """The pipeline file loses its deduplication, and the flow is parked."""
        self._title("Someone removes dropDuplicates from the pipeline file")
        self.remove_deduplication()
        park = wait("the flow is parked", self.view.parked)
        check("the park names SQLSTATE 42K03", park.details.get("sql_state") == "42K03", park)
        self._say(f"parked: {park.details['condition']}, SQLSTATE {park.details['sql_state']}")
        note = wait("the failed run has a note with 42K03", self._note)
        self._say("the note on the failed run says:")
        self._quote(note)

    def remove_deduplication(self) -> None:
        """Take ``dropDuplicates`` away from the pipeline file."""
        file = self.view.settings.pipelines / FILE
        before = file.read_text(encoding="utf-8")
        aside = file.with_name(f".{FILE}.writing")
        aside.write_text(DEDUPLICATION.sub("", before), encoding="utf-8")
        aside.replace(file)
        removed = DEDUPLICATION.findall(before)[0].split("#")[0].strip()
        self._say(f"{file}: {removed} is gone")

    def a_dry_run_shows_the_plan(self) -> None:
        """The recovery's plan, without anything being changed."""
        self._title(f"{RESET} with dry_run: what would it do, and cost?")
        before = self.view.decided()
        run = self._trigger(
            {"flow": FLOW, "start": "after-last", "dry_run": True, "reason": "the story, dry"}
        )
        wait(f"the run {run.run} of {RESET} succeeds", run.succeeded)
        self._quote(run.plan()["markdown"].split("Steps: ")[0])
        check("the dry run changed nothing", self.view.decided() == before, self.view.decided())
        self._say("nothing was changed: the same generations, the same holds")

    def it_is_brought_back(self) -> None:
        """The same for real: the plan is approved, as under Required Actions."""
        self._title(f"{RESET} for real: plan, approval, steps")
        run = self._trigger({"flow": FLOW, "start": "after-last", "approval": True, "reason": "the story"})
        wait("the plan waits for approval", run.task_is("approve", "awaiting_input"))
        question = self.api.question(RESET, run.run, "approve")
        self._say(f"asked: {question['subject']}; answered: Approve")
        self.api.answer(RESET, run.run, "approve", "Approve")
        wait(f"the run {run.run} of {RESET} succeeds", run.succeeded)
        book = ledger.open(self.view.home.storage, self.view.home.pipeline, run.plan()["recovery"])
        self._say(
            "its ledger:"
            f" {', '.join(event.event for event in book.events() if not event.event.endswith('.started'))}"
        )

    def it_goes_on_from_where_it_stood(self) -> None:
        """Generation 2 begins behind the very files that generation 1 processed, and the snapshot is not read
        again.
        """
        self._title("The flow continues, on generation 2, from exactly where it stood")
        check(
            "generation 2 began",
            generations.read_start(self.view.home, 2) is not None,
            self.view.home.generations(),
        )
        handed = evidence.read_handover(self.view.home, 2)
        description = (
            f"generation 1 ended with batch {handed.batch} (known by the {handed.ruled_by}),"
            f" {len(handed.old)} files"
        )
        check(
            "generation 2 stands behind the same files",
            handed.exact,
            f"{description}; generation 2 stands behind {len(handed.new)}",
        )
        self._say(f"{description}; generation 2 began behind the same {len(handed.new)}")
        self._changes(generation=2, batch=1)
        still = self.snapshot.status()
        check(
            f"{SNAPSHOT} stayed done, on generation 1", (still.state, still.generation) == ("done", 1), still
        )
        self._say(f"{SNAPSHOT} stayed {still.state}, on generation {still.generation}")

    def every_customer_is_there(self) -> None:
        """Once all is processed, the table is what the oracle says."""
        self._title(
            "Every customer is there as the newest change has it, and no other: the table against the oracle"
        )
        self.generator.stop()
        paths = evidence.present(f"{self.view.settings.data}/customers/cdc")
        self._say(f"the generator stopped after {len(paths)} files")
        patience = LONG + FILE_SECONDS * len(paths)
        wait(f"all {len(paths)} files are processed", self.view.all_processed(2, paths), patience)
        holds.put(self.view.home, holds.person("story"), "the story compares the table", "story")
        wait("the flow is held, and its driver gone", self.view.is_in("held"))
        handed = evidence.read_handover(self.view.home, 2)
        expected_rows = evidence.expected(
            paths, evidence.present(f"{self.view.settings.data}/customers/snapshot")
        )
        actual_rows = evidence.actual(self.view.table)
        different = evidence.differences(expected_rows, actual_rows)
        check("the table equals the oracle", not different, "; ".join(different))
        self._say(
            f"{len(handed.old)} files were read before the reset, {len(paths) - len(handed.old)} after it,"
            " and the snapshot"
        )
        self._say(
            f"the table has {actual_rows.total():,} rows, the oracle {expected_rows.total():,}: the same, in"
            " every column"
        )

    def elapsed(self) -> str:
        """Return the time since the story began, in words."""
        seconds = int(time.monotonic() - self.began)
        return f"{seconds // 60} min {seconds % 60} s"

    def _changes(self, generation: int, batch: int) -> None:
        first = wait("the table has rows", self.view.other_rows_than(0))
        then = wait(f"the table has other than {first:,} rows", self.view.other_rows_than(first))
        current = wait(
            f"the flow runs on generation {generation}, at batch {batch} or later",
            self.view.runs_on(generation, batch),
        )
        self._say(
            f"{current.flow} is {current.state}, generation {current.generation}, batch {current.batch}; its"
            f" table has {first:,} rows, then {then:,}"
        )

    def _snapshot_run(self) -> Observation[str]:
        runs = self.api.runs(self.snapshot.flow.dag_id)
        run_states = [(str(run["dag_run_id"]), str(run["state"])) for run in runs]
        return (
            run_states[0][0] if [state for _, state in run_states] == ["success"] else None
        ), f"its runs are {run_states}"

    def _note(self) -> Observation[str]:
        runs = self.api.runs(self.view.flow.dag_id)
        notes = [
            str(run["note"]) for run in runs if run["state"] == "failed" and "42K03" in (run["note"] or "")
        ]
        return (notes[0] if notes else None), f"the runs are {[(run['state'], run['note']) for run in runs]}"

    def _trigger(self, form: dict[str, object]) -> RunView:
        run = RunView(self.api, RESET, self.api.trigger(RESET, form))
        self._say(f"triggered {RESET} with {form}")
        return run

    def _title(self, text: str) -> None:
        self.step += 1
        print(f"\n[{self.elapsed()}] {self.step}. {text}", flush=True)

    def _say(self, text: str) -> None:
        print(f"    {text}", flush=True)

    def _quote(self, text: str) -> None:
        for line in text.strip().splitlines():
            print(f"      | {line}", flush=True)


def main() -> int:
    """Play the story at the Airflow whose address is the argument; return 0, or 1 if it did not come true."""
    settings = Settings.from_environment()
    api = AirflowApi(sys.argv[1], USER, os.environ["AIRFLOW_PASSWORD"])
    wait_until(api.healthy, HEALTHY_SECONDS, "Airflow is healthy", tell=print)
    with Generator(Customers(Path(settings.data) / "customers")) as generator:
        return tell(api, settings, generator)


if __name__ == "__main__":
    sys.exit(main())
