"""A real cluster of Spark's own kind on this machine: a master and a worker, started from pip's pyspark."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

APART = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
PROGRAMS = Path(sys.executable).parent
DAEMON = {
    "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_NO_DAEMONIZE": "1",
    "SPARK_LOCAL_IP": "127.0.0.1",
}
"""The environment of a master and of a worker."""
STARTING = 120.0
"""Seconds that master and worker may take to start on a busy machine."""


@dataclass(frozen=True)
class Cluster:
    """A master with one worker. ``page`` is the master's, for people and, as JSON, for tests;
    ``replace_master`` kills it, and starts one in its place that knows nothing. ``kill_worker`` kills the
    worker with its executors, ``add_worker`` starts another.
    """

    master: str
    page: str
    replace_master: Callable[[], None] = field(default=lambda: None, compare=False)
    kill_worker: Callable[[], None] = field(default=lambda: None, compare=False)
    add_worker: Callable[[], None] = field(default=lambda: None, compare=False)

    def state(self) -> dict[str, Any]:
        """Return what the master knows of workers and applications."""
        with urllib.request.urlopen(f"{self.page}/json/", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def drivers(self) -> dict[str, str]:
        """Return the state of each driver that the master knows, by its id."""
        known = self.state()
        return {found["id"]: found["state"] for found in known["activedrivers"] + known["completeddrivers"]}

    def jvm_of(self, driver: str) -> str:
        """Return what the command line of a driver's JVM, and of no other process, matches."""
        return f"^[^ ]*java .*DriverWrapper.*{driver}"

    def finished(self) -> list[str]:
        """Return the names of the applications that ran here to their end, in the order in which they
        came.
        """
        done = [
            application for application in self.state()["completedapps"] if application["state"] == "FINISHED"
        ]
        return [
            application["name"]
            for application in sorted(done, key=lambda application: application["starttime"])
        ]


@contextmanager
def standalone(folder: Path, cores: int = 2, memory: str = "1500m", apart: bool = False) -> Iterator[Cluster]:
    """Run a master and a worker until the block ends; their logs and work are in ``folder``.

    :param apart: whether the worker has a pid namespace of its own, so that nobody outside can tell whether
        its processes run, as on another host.
    """
    port, page, worker_page = free_ports(3)
    cluster = Cluster(f"spark://127.0.0.1:{port}", f"http://127.0.0.1:{page}")
    with ExitStack() as stack:
        where = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
        log = folder / "master.log"

        def start_master() -> subprocess.Popen[bytes]:
            made = stack.enter_context(_daemon("master.Master", where, log))
            _wait_for(made, log, lambda: cluster.state()["status"] == "ALIVE")
            return made

        masters = [start_master()]

        def replace_master() -> None:
            masters[-1].kill()
            masters[-1].wait()
            masters.append(start_master())

        work = [
            "--host",
            "127.0.0.1",
            "--webui-port",
            str(worker_page),
            "--cores",
            str(cores),
            "--memory",
            memory,
        ]
        asked = [*work, "--work-dir", str(folder / "work"), cluster.master]
        workers: list[subprocess.Popen[bytes]] = []

        def add_worker() -> None:
            log = folder / f"worker{len(workers) or ''}.log"
            workers.append(stack.enter_context(_daemon("worker.Worker", asked, log, APART if apart else ())))
            _wait_for(workers[-1], log, lambda: cluster.state()["aliveworkers"] == 1)

        def kill_worker() -> None:
            workers[-1].kill()  # in a pid namespace of its own: its executors end with it
            workers[-1].wait()

        add_worker()
        yield replace(cluster, replace_master=replace_master, kill_worker=kill_worker, add_worker=add_worker)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, each another."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def daemon_command(name: str, arguments: Sequence[str]) -> list[str]:
    """Return the command of a master (``master.Master``) or a worker (``worker.Worker``)."""
    return [str(PROGRAMS / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]


@contextmanager
def _daemon(
    name: str, arguments: list[str], log: Path, within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    command = [*within, *daemon_command(name, arguments)]
    environment = {**os.environ, **DAEMON}
    with log.open("wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.kill()  # unshare ignores SIGTERM


def _wait_for(process: subprocess.Popen[bytes], log: Path, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STARTING
    while True:
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, f"waited {STARTING:g} s in vain:\n{log.read_text()[-4000:]}"
        try:
            if condition():
                return
        except OSError:
            pass  # it does not listen yet
        time.sleep(0.2)
