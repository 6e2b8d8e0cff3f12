"""A real Airflow on this machine, for the demo and the tests: SQLite, LocalExecutor, ports and folders of its
own, nothing left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from demo.airflow.api import REQUEST_SECONDS, AirflowApi
from demo.processes import await_end, end_group, end_process, session_members
from streamkeeper.flows import leases
from streamkeeper.flows.files import kept_flows, kept_pipelines
from streamkeeper.flows.leases import Lease, Life
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.storage import open_storage
from tools.ports import free_ports
from tools.waiting import NeverCame, wait_until

POOL = "streaming_flows"
PARALLELISM, FLOW_SLOTS = 12, 8
"""Tasks at once, and how many of them may be flows: recoveries always have room."""
USER = "admin"
HEALTHY_SECONDS = 420.0
POOL_SECONDS = 180.0
WRITER_SECONDS = 30
"""How long who writes to Airflow's database waits for who writes: less than the 60 s that this project's
clients wait for an answer.
"""


class ServiceError(Exception):
    """Airflow cannot be started or did not get healthy; the message says what to do."""


@dataclass(frozen=True)
class Ports:
    """The three ports that Airflow listens on."""

    api: int
    worker_log: int
    trigger_log: int

    @classmethod
    def free(cls, api: int | None = None) -> Ports:
        """Choose free ports; ``api`` may be given."""
        ports = free_ports(3)
        return cls(api or ports[0], ports[1], ports[2])


@dataclass
class AirflowService:
    """``airflow standalone`` below ``home``, with the project's DAGs and plugins and a pool for flows.

    :param home: ``AIRFLOW_HOME``; made if it is not there. A used one goes on with its database and its
        password.
    :param settings: what the flows' drivers and the recoveries get to see.
    :param extra: further environment variables; they win.
    :param request_seconds: how long one request to it waits for its answer.
    :param tell: is told what is waited for, where that takes long.
    """

    home: Path
    settings: Settings
    ports: Ports = field(default_factory=Ports.free)
    extra: Mapping[str, str] = field(default_factory=dict)
    request_seconds: float = REQUEST_SECONDS
    tell: Callable[[str], None] | None = None
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where the UI and the REST API are."""
        return f"http://127.0.0.1:{self.ports.api}"

    @cached_property
    def password(self) -> str:
        """The password of :data:`USER`, made when it is first asked for.

        It is read before Airflow starts, which empties the file and writes it again.
        """
        file = self.home / "simple_auth_manager_passwords.json.generated"
        if not file.exists():
            self.home.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)
            file.write_text(json.dumps({USER: secrets.token_urlsafe(12)}))
        return str(json.loads(file.read_text())[USER])

    @property
    def output(self) -> Path:
        """The file that Airflow's own output goes to."""
        return self.home / "airflow.out"

    @property
    def api(self) -> AirflowApi:
        """A client, logged in as :data:`USER`."""
        return AirflowApi(self.url, USER, self.password, self.request_seconds)

    def start(self) -> AirflowService:
        """Start Airflow, wait until every component is healthy, and make the pool.

        :raises ServiceError: it ended, or was not healthy in time; the end of its output is in the message.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        try:
            self._launch_all()
            wait_until(self._healthy, HEALTHY_SECONDS, "Airflow is healthy", tell=self.tell)
            self._fit_out()
        except BaseException as error:
            self.stop()
            if isinstance(error, NeverCame):
                raise ServiceError(f"{error} The end of {self.output}:\n{self._last_output()}") from error
            raise
        return self

    def stop(self) -> None:
        """End Airflow's whole process group, then the drivers, which live in sessions of their own: asked
        first, then ended.
        """
        if self._process is not None:
            end_group(self._process.pid, grace=10)
            self._process.wait()
            self._process = None
        for lease, stopping in living_drivers(self.settings):
            # It obeys a hold or a SIGTERM already; a second SIGTERM would end it in the middle of its batch.
            if stopping:
                await_end(lease.process.pid, lease.process.started, 20)
            end_process(lease.process.pid, lease.process.started, grace=20)
        for pid, started in self._submits():
            end_process(pid, started, grace=5, group=True)

    def crash(self) -> None:
        """End all of Airflow's processes at once by SIGKILL, as a power cut would; the drivers go on.
        :meth:`start` starts it again.
        """
        if self._process is not None:
            for pid in session_members(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def environment(self) -> dict[str, str]:
        """Return the environment of all of Airflow's processes."""
        port = self.ports.api
        connection = {
            "conn_type": "http",
            "host": "127.0.0.1",
            "port": port,
            "login": USER,
            "password": self.password,
        }
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("AIRFLOW__", "AIRFLOW_CONN_"))
        }
        paths = [str(Path(sys.executable).parent), inherited.get("PATH", "")]
        return {
            **inherited,
            "PATH": os.pathsep.join(paths),
            "AIRFLOW_HOME": str(self.home),
            # By default a writer waits 5 s for another, after which Airflow answers with 500 (measured on a
            # busy machine).
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": (
                f"sqlite:///{self.home.resolve()}/airflow.db?timeout={WRITER_SECONDS}"
            ),
            "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__CORE__PARALLELISM": str(PARALLELISM),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.url,
            # On a small machine a JVM's start can starve the API server for longer than the 5 s that tasks
            # wait by default.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self.ports.worker_log),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self.ports.trigger_log),
            "AIRFLOW_CONN_STREAMKEEPER_SPARK": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "AIRFLOW_CONN_STREAMKEEPER_AIRFLOW": json.dumps(connection),
            **self.settings.as_environment(),
            "STREAMKEEPER_DAG_PREFIX": "",  # nobody else's DAGs are here
            **self.extra,
        }

    def __enter__(self) -> AirflowService:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def program(self) -> Path:
        """The ``airflow`` that is started: the one beside this Python."""
        return Path(sys.executable).with_name("airflow")

    def _fit_out(self) -> None:
        pool = {"name": POOL, "slots": FLOW_SLOTS, "description": "One slot a running streaming flow"}
        self.api.insist("POST", "/pools", pool, POOL_SECONDS)

    def _launch_all(self) -> None:
        self._process = self._launched("standalone")

    def _launched(self, command: str) -> subprocess.Popen[bytes]:
        """Start an ``airflow`` command in a session of its own, which writes to :attr:`output`."""
        with self.output.open("ab") as output:
            return subprocess.Popen(
                self._command_line(command),
                env=self.environment(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _command_line(self, command: str) -> list[str]:
        if not os.access(self.program, os.X_OK):
            raise ServiceError(
                f"There is no {self.program}. Run this with the project's own Python, by make."
            )
        return [str(self.program), *command.split()]

    def _healthy(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise ServiceError(
                f"Airflow ended with exit code {self._process.returncode}. The end of"
                f" {self.output}:\n{self._last_output()}"
            )
        return self.api.healthy()

    def _last_output(self) -> str:
        return self.output.read_text(errors="replace")[-4000:] if self.output.exists() else "(nothing)"

    def _submits(self) -> Iterable[tuple[int, int]]:
        """Yield pid and start time of every spark-submit that a task of this Airflow noted beside its log;
        its group has that pid too.
        """
        for note in (self.home / "logs" / "drivers").rglob("*.pid"):
            process = json.loads(note.read_text())
            yield process["pid"], process["started"]


def living_drivers(settings: Settings) -> Iterable[tuple[Lease, bool]]:
    """Yield the lease of every living driver of this host below the state folder, and whether it is stopping
    already.
    """
    storage = open_storage(settings.state)
    for pipeline in kept_pipelines(storage):
        for home in kept_flows(storage, pipeline):
            lease = leases.current(home)
            if lease is not None and leases.life(home, lease) is Life.ALIVE:
                beat = leases.read_heartbeat(home, lease.epoch)
                yield lease, beat is not None and beat.phase == "stopping"
