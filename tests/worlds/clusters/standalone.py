"""A real cluster of Spark's own kind on this machine: a master and workers, started from pip's pyspark."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from streamkeeper.clusters.pages import read_json
from tests.worlds.servers import Server
from tools.ports import free_ports
from tools.waiting import NotYet

APART = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
PROGRAMS = Path(sys.executable).parent


@dataclass(frozen=True)
class Cluster:
    """A master with its workers. ``page`` is the master's, for people and, as JSON, for tests;
    ``replace_master`` kills it, and starts one in its place that knows nothing. ``kill_worker`` kills a
    worker with its executors and drivers: that with a page, or the newest; ``add_worker`` starts another.
    """

    master: str
    page: str
    replace_master: Callable[[], None] = field(default=lambda: None, compare=False)
    kill_worker: Callable[..., None] = field(default=lambda page=None: None, compare=False)
    add_worker: Callable[[], None] = field(default=lambda: None, compare=False)

    def state(self) -> dict[str, Any]:
        """Return what the master knows of workers and applications."""
        try:
            return read_json(f"{self.page}/json/")
        except OSError as error:
            raise NotYet(str(error)) from error

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
def standalone(
    folder: Path, cores: int = 2, memory: str = "1500m", apart: bool = False, workers: int = 1
) -> Iterator[Cluster]:
    """Run a master and workers until the block ends; their logs and work are in ``folder``.

    :param apart: whether a worker has a pid namespace of its own, so that nobody outside can tell whether its
        processes run, as on another host.
    """
    port, page = free_ports(2)
    cluster = Cluster(f"spark://127.0.0.1:{port}", f"http://127.0.0.1:{page}")
    here = ["--host", "127.0.0.1"]
    with ExitStack() as stack:
        where = [*here, "--port", str(port), "--webui-port", str(page)]
        master = daemon(
            "master.Master", where, folder / "master.log", lambda: cluster.state()["status"] == "ALIVE"
        )
        stack.callback(master.kill)
        master.start()

        def replace_master() -> None:
            master.kill()
            master.start()

        running: dict[str, Server] = {}
        made = count()

        def add_worker() -> None:
            (worker_page,) = free_ports(1)
            work = [*here, "--webui-port", str(worker_page), "--cores", str(cores), "--memory", memory]
            worker = daemon(
                "worker.Worker",
                [*work, "--work-dir", str(folder / "work"), cluster.master],
                folder / f"worker{next(made) or ''}.log",
                lambda: cluster.state()["aliveworkers"] == len(running),
                APART if apart else (),
            )
            running[f"http://127.0.0.1:{worker_page}"] = worker
            stack.callback(worker.kill)
            worker.start()

        def kill_worker(of: str | None = None) -> None:
            running.pop(of or [*running][-1]).kill()

        for _ in range(workers):
            add_worker()
        yield replace(cluster, replace_master=replace_master, kill_worker=kill_worker, add_worker=add_worker)


def daemon(
    name: str,
    arguments: Sequence[str],
    log: Path,
    ready: Callable[[], bool],
    within: Sequence[str] = (),
    **environment: str,
) -> Server:
    """Return a master (``master.Master``) or a worker (``worker.Worker``), not started yet.

    :param within: the command that runs it.
    """
    return Server(
        name,
        [*within, PROGRAMS / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
        log,
        ready,
        {
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            **environment,
        },
    )
