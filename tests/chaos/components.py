"""A real Airflow whose components are processes of their own, each in a session of its own, so that one can
be killed without the rest.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from demo.airflow.service import AirflowService, ServiceError
from demo.processes import end_group

API, SCHEDULER, PROCESSOR, TRIGGERER = "api-server", "scheduler", "dag-processor", "triggerer"
CELERY = "celery worker"

SHORT: Mapping[str, str] = {
    "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    "AIRFLOW__CORE__PARALLELISM": "4",
}
"""Airflow's own times, cut so that a round of chaos takes half a minute: 300 s until a task counts as lost
are 15 s here, and so on.
"""


@dataclass
class SplitAirflow(AirflowService):
    """Like ``airflow standalone``, each component in a session. What a killed one left in its session is
    remembered, and ended by :meth:`stop`.
    """

    names: tuple[str, ...] = (API, SCHEDULER, PROCESSOR, TRIGGERER)
    components: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Processes that lead a session each."""
    _left: list[int] = field(default_factory=list)

    def launch(self, name: str) -> None:
        """Start a component, for the first time or again."""
        if name in self.components:
            self._left.append(self.components[name].pid)
        self.components[name] = self._launched(name)

    def stop(self) -> None:
        """End every component's session, those of killed ones too, then the drivers."""
        for process in self.components.values():
            end_group(process.pid, grace=10)
            process.wait()
        for session in self._left:
            end_group(session, grace=2)
        self.components, self._left = {}, []
        super().stop()

    def _launch_all(self) -> None:
        code = self._launched("db migrate").wait()
        if code:
            raise ServiceError(
                f"airflow db migrate ended with exit code {code}. The end of"
                f" {self.output}:\n{self._last_output()}"
            )
        for name in self.names:
            self.launch(name)

    def relaunch_ended(self) -> None:
        """Start again what ended, as whatever keeps services running does."""
        for name, process in list(self.components.items()):
            if process.poll() is not None:
                self.launch(name)

    def _healthy(self) -> bool | None:
        for name, process in self.components.items():
            if process.poll() is not None:
                raise ServiceError(
                    f"airflow {name} ended with exit code {process.returncode}. The end"
                    f" of {self.output}:\n{self._last_output()}"
                )
        return super()._healthy()
