"""What the end-to-end tests work on: a running Airflow, a flow, and where to look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo import evidence
from demo.airflow_api import AirflowApi, wait_until
from demo.airflow_service import AirflowService
from demo.generator import Generator
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.flows import generations, holds, ledger, status
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.holds import Hold
from streamkeeper.flows.status import FlowStatus
from streamkeeper.manifest.manifest import Flow, read_manifest
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.tables import recovery_lock
from tests import events_evidence
from tests.airflow.listeners import Inbox

FLOW, DAG, RESET = "events.clean_events", "flow__events__clean_events", "reset_checkpoint"
STARTING, ENDING = 420.0, 420.0
"""Seconds: a driver's start and a recovery's tasks take well under a minute on a machine that is not busy,
and minutes on one that is.
"""
TOKEN_SECONDS = 60
"""How long the token of a task lasts in these tests."""


@dataclass(frozen=True)
class World:
    """What the tests work on."""

    settings: Settings
    service: AirflowService
    generator: Generator
    mail: Inbox
    hook: Inbox

    @property
    def api(self) -> AirflowApi:
        return self.service.api

    @property
    def pipeline_file(self) -> Path:
        return self.settings.pipelines / "events.py"

    @property
    def home(self) -> FlowHome:
        return FlowHome(open_storage(self.settings.state), "events", "clean_events")

    @property
    def table(self) -> str:
        return self.settings.table_path("events")

    def flow(self) -> Flow:
        return read_manifest(self.settings).find(FLOW)

    def look(self) -> FlowStatus:
        return status.look(self.home.storage, self.flow())

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

    def await_flow(
        self, state: str, generation: int | None = None, batch: int = 0, timeout: float = STARTING
    ) -> FlowStatus:
        """Wait until the flow has a state, on a generation, at a batch or later."""

        def seen() -> FlowStatus | None:
            found = self.look()
            at = found.state == state and generation in (None, found.generation)
            return found if at and (found.batch or 0) >= batch else None

        try:
            return wait_until(
                seen, timeout, f"the flow is {state}, generation {generation}, batch {batch} or later"
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
        paths = evidence.present(f"{self.settings.data}/events")
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
            "lock": recovery_lock.holder(storage, pipeline, "events"),
            "recoveries": ledger.recoveries(storage, pipeline),
        }

    def form(self, **values: Any) -> dict[str, Any]:
        """Give what the form of ``reset_checkpoint`` sends: every field, with these values instead of the
        defaults.
        """
        defaults = {
            "flow": FLOW,
            "flows": [],
            "start_from": "after-last",
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

    def failure_of(self, run: str, task: str) -> str:
        """Wait until a run of the reset is over; give the log of the task that must have failed it."""
        assert self.api.wait_for_run(RESET, run, ENDING) == "failed"
        found = self.api.tasks(RESET, run)[task]
        assert found["state"] == "failed", {
            name: item["state"] for name, item in self.api.tasks(RESET, run).items()
        }
        return self.api.log(RESET, run, task, found["try_number"])
