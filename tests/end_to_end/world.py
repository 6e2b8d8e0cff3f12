"""What the end-to-end tests work on: a running Airflow, a flow of each file's own, and where to look."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo import evidence
from demo.airflow.api import AirflowApi, ApiError
from demo.airflow.service import AirflowService
from demo.data.generator import Generator
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.flows import generations, holds, ledger
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.holds import Hold
from streamkeeper.manifest.manifest import Flow, read_manifest
from streamkeeper.observe import status
from streamkeeper.observe.status import FlowStatus
from streamkeeper.recover.plans.kind import KINDS
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.tables import recovery_lock
from tests import events_evidence
from tests.airflow.listeners import Inbox
from tools.waiting import wait_until

RESET = "reset_checkpoint"
STARTING, ENDING = 420.0, 420.0
"""Seconds: a driver's start and a recovery's tasks take well under a minute on a machine that is not busy,
and minutes on one that is.
"""
PARSING = 30.0
"""Seconds between two requests to parse all DAG files."""
TOKEN_SECONDS = 60
"""How long the token of a task lasts in these tests."""


@dataclass(frozen=True)
class World:
    """What the tests of a file work on. ``pipeline`` is the file's own, and so are its flow, its table and
    its folder of data.
    """

    settings: Settings
    service: AirflowService
    generator: Generator
    mail: Inbox
    hook: Inbox
    pipeline: str = "resting"

    @property
    def api(self) -> AirflowApi:
        return self.service.api

    @property
    def pipeline_file(self) -> Path:
        return self.settings.pipelines / f"{self.pipeline}.py"

    @property
    def home(self) -> FlowHome:
        return FlowHome(open_storage(self.settings.state), self.pipeline, "clean_events")

    @property
    def table(self) -> str:
        return self.settings.table_path(self.pipeline)

    def flow(self) -> Flow:
        return read_manifest(self.settings).find(f"{self.pipeline}.clean_events")

    def look(self) -> FlowStatus:
        return status.look(self.home.storage, self.flow())

    @property
    def dag(self) -> str:
        """The id of the flow's DAG."""
        return f"flow__{self.pipeline}__clean_events"

    def run_at_its_gate(self) -> str | None:
        """Give the id of the newest run, if its gate waits without a slot."""
        newest = str(self.api.runs(self.dag, limit=1)[0]["dag_run_id"])
        return newest if self.api.tasks(self.dag, newest)["gate"]["state"] == "deferred" else None

    def last_batch(self) -> str | None:
        """Give the last batch that the newest generation has committed, as the form of a rewind takes it."""
        newest = generations.latest(self.home)
        start = generations.read_start(self.home, newest.number) if newest is not None else None
        last = Checkpoint(self.home.storage, start.checkpoint).last_commit() if start is not None else None
        return None if start is None or last is None else f"{start.number}/{last}"

    def await_offered(self) -> None:
        """Wait until the form of every recovery offers the pipeline. Where a file is being parsed, Airflow
        forgets who asked for it.
        """

        asked = [time.monotonic()]

        def look() -> bool | None:
            try:
                forms = [str(self.api.read(f"/dags/{name}/details")["params"]) for name in KINDS]
            except ApiError as error:
                if error.status != 404:
                    raise
                forms = [""]
            if all(f"'{self.pipeline}" in form for form in forms):
                return True
            # Each request puts all files in front of the queue again, so many of them starve the last ones.
            if time.monotonic() - asked[-1] > PARSING * len(asked):
                asked.append(time.monotonic())
                self.api.parse_again()
            return None

        wait_until(look, STARTING, f"every form offers {self.pipeline}", interval=2.0)

    def declare(self, pipeline: str, text: str) -> None:
        """Write a pipeline's file, whole, and let Airflow parse its DAGs for it."""
        file = self.settings.pipelines / f"{pipeline}.py"
        aside = file.with_suffix(".new")
        aside.write_text(text)
        aside.replace(file)
        self.api.parse_again()

    def withdraw(self, pipeline: str) -> None:
        """Remove a pipeline's file; Airflow's DAGs of it go, too."""
        (self.settings.pipelines / f"{pipeline}.py").unlink()
        self.api.parse_again()

    def await_flow(self, state: str, generation: int | None = None, batch: int = 0) -> FlowStatus:
        """Wait until the flow has a state, on a generation, at a batch or later."""

        def seen() -> FlowStatus | None:
            found = self.look()
            at = found.state == state and generation in (None, found.generation)
            return found if at and (found.batch or 0) >= batch else None

        try:
            return wait_until(
                seen, STARTING, f"the flow is {state}, generation {generation}, batch {batch} or later"
            )
        except TimeoutError as error:
            raise TimeoutError(f"{error} It is {self.look()}.") from error

    def await_parked(self) -> Hold:
        return wait_until(lambda: holds.parked(self.home), STARTING, "the flow is parked")

    def another_file(self) -> None:
        """Let one more file of events arrive; the generator, if it still runs, writes none beside it."""
        self.generator.stop()
        self.generator.producer.write(self.generator.producer.last_number() + 1)

    def await_all_processed(self) -> frozenset[str]:
        """Stop the generator, wait until the newest generation has committed every file that is there, and
        give these files.
        """
        self.generator.stop()
        paths = evidence.present(f"{self.settings.data}/{self.pipeline}")
        start = generations.read_start(self.home, self.home.generations()[-1])
        assert start is not None, "the newest generation has begun"
        checkpoint = Checkpoint(self.home.storage, start.checkpoint)

        def look() -> bool | None:
            return paths <= evidence.committed_files(checkpoint, events_evidence.SOURCE) or None

        wait_until(look, 2 * ENDING, f"all {len(paths)} files are processed")
        return paths

    def footprint(self) -> dict[str, Any]:
        """Give all that a recovery could have changed, but for what a running driver writes."""
        storage, pipeline = self.home.storage, self.home.pipeline
        return {
            "generations": {
                number: generations.read(self.home, number) for number in self.home.generations()
            },
            "holds": self.home.owners(),
            "lock": recovery_lock.holder(storage, pipeline, pipeline),
            "recoveries": ledger.recoveries(storage, pipeline),
        }

    def trigger(self, recovery: str, conf: dict[str, Any]) -> str:
        """Trigger a recovery as soon as its form offers the flow or the pipeline: of a new one it knows only
        once its own file was parsed again. Return the run's id.
        """
        named = conf.get("flow") or conf["pipeline"]

        def taken() -> str | None:
            try:
                return self.api.trigger(recovery, conf)
            except ApiError as error:
                if error.status != 400 or named not in error.detail:
                    raise
                return None

        return wait_until(taken, STARTING, f"the form of {recovery} offers {named}")

    def form(self, **values: Any) -> dict[str, Any]:
        """Give what the form of ``reset_checkpoint`` sends: every field, with these values instead of the
        defaults.
        """
        defaults = {
            "flow": f"{self.pipeline}.clean_events",
            "flows": [],
            "start": "after-last",
            "timestamp": None,
            "offsets": None,
            "state": "rebuilt",
            "infer_schemas": False,
            "accept": [],
            "approval": True,
            "dry_run": False,
            "reason": None,
        }
        return {**defaults, **values}

    def await_red(self) -> dict[str, Any]:
        """Wait until a run of the flow has failed, and give it."""

        def red() -> dict[str, Any] | None:
            return next((run for run in self.api.runs(self.dag) if run["state"] == "failed"), None)

        return wait_until(red, ENDING, "a run is red")

    def await_chosen(self) -> None:
        """Have all DAG files parsed again, and wait until the form of a reset has the flow chosen."""
        chosen = f"{self.pipeline}.clean_events"
        self.api.parse_again()
        wait_until(
            lambda: self.api.read(f"/dags/{RESET}/details")["params"]["flow"]["value"] == chosen or None,
            ENDING,
            f"the form has {chosen} chosen",
        )

    def resets(self) -> set[str]:
        """Give the ids of the newest resets' runs."""
        return {str(run["dag_run_id"]) for run in self.api.runs(RESET)}

    def await_reset(self, before: set[str]) -> str:
        """Wait until a person has triggered a reset beside those before, and give its run's id."""
        return wait_until(lambda: next(iter(self.resets() - before), None), ENDING, "a reset is triggered")


def arrive(world: World, name: str, *numbers: int, folder: str = "members") -> None:
    into = Path(world.settings.data) / folder
    into.mkdir(parents=True, exist_ok=True)
    aside = into / f".{name}"
    aside.write_text("".join(json.dumps({"id": number, "name": f"n{number}"}) + "\n" for number in numbers))
    aside.rename(into / name)


def without_deduplication(world: World) -> str:
    """Give the file's pipeline as somebody changes it who does not know that its state will not fit."""
    return re.sub(r"^\s*\.dropDuplicates\(.*\n", "", world.pipeline_file.read_text(), flags=re.MULTILINE)
