"""A real Airflow whose components are processes of their own, each in a session of its own, so that one can be killed without the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from demo.airflow_api import wait_until
from demo.airflow_service import HEALTHY_SECONDS, AirflowService, ServiceError
from demo.processes import end_group, started

API, SCHEDULER, PROCESSOR, TRIGGERER = "api-server", "scheduler", "dag-processor", "triggerer"

SHORT: Mapping[str, str] = {
    "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    "AIRFLOW__CORE__PARALLELISM": "4",
}
"""Airflow's own times, cut so that a round of chaos takes half a minute: 300 s until a task counts as lost are 15 s here, and so on."""


@dataclass(frozen=True)
class Component:
    """One component: its process, which leads its session, and the start time that tells it from a later process of that id."""

    name: str
    process: subprocess.Popen[bytes]
    since: int


@dataclass
class SplitAirflow(AirflowService):
    """Like ``airflow standalone``, in four sessions. What a killed one left in its session is remembered, and ended by :meth:`stop`."""

    components: dict[str, Component] = field(default_factory=dict)
    _left: list[int] = field(default_factory=list)

    def start(self) -> SplitAirflow:
        """Make the database, start the components, and wait until each is healthy.

        :raises ServiceError: the database could not be made, a component ended, or they were not healthy in time.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        assert self.password, "made before the API server looks for it"
        try:
            self._migrate()
            for name in (API, SCHEDULER, PROCESSOR, TRIGGERER):
                self.launch(name)
            wait_until(self._healthy, HEALTHY_SECONDS, "Airflow is healthy")
            wait_until(self._pool_made, 60, "Airflow has the pool of the flows")
        except BaseException as error:
            self.stop()
            if isinstance(error, TimeoutError):
                raise ServiceError(f"{error} The end of {self.output}:\n{self._last_output()}") from error
            raise
        return self

    def launch(self, name: str) -> Component:
        """Start a component, for the first time or again."""
        before = self.components.get(name)
        if before is not None:
            self._left.append(before.process.pid)
        with self.output.open("ab") as output:
            process = subprocess.Popen(
                [_airflow(), name],
                env=self.environment(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.components[name] = Component(name, process, started(process.pid) or 0)
        return self.components[name]

    def stop(self) -> None:
        """End every component's session, those of killed ones too, then the drivers."""
        for component in self.components.values():
            end_group(component.process.pid, grace=10)
            component.process.wait()
        for session in self._left:
            end_group(session, grace=2)
        self.components, self._left = {}, []
        super().stop()

    def __enter__(self) -> SplitAirflow:
        return self.start()

    def _migrate(self) -> None:
        with self.output.open("ab") as output:
            code = subprocess.run(
                [_airflow(), "db", "migrate"],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        if code:
            raise ServiceError(f"airflow db migrate ended with exit code {code}. The end of {self.output}:\n{self._last_output()}")

    def _healthy(self) -> bool | None:
        for component in self.components.values():
            if component.process.poll() is not None:
                raise ServiceError(
                    f"airflow {component.name} ended with exit code {component.process.returncode}. The end of {self.output}:\n"
                    f"{self._last_output()}"
                )
        return super()._healthy()


def _airflow() -> str:
    beside = Path(sys.executable).with_name("airflow")
    if not os.access(beside, os.X_OK):
        raise ServiceError(f"There is no airflow beside {sys.executable}. Run this with the project's own Python: make chaos.")
    return str(beside)
