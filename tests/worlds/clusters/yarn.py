"""A real YARN on this machine: a resource manager and a node, from Maven's jars (tools/yarn.lock)."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from streamkeeper.jars.folder import ensure
from streamkeeper.jars.java import find_java
from streamkeeper.settings import PROJECT
from tests.worlds.clusters.standalone import APART
from tools.ports import free_ports

LOCK = PROJECT / "tools" / "yarn.lock"
JARS = PROJECT / ".cache" / "yarn-3.4.2"
STARTING = 120.0
"""Seconds that the daemons may take to start on a busy machine."""
_SERVER = "org.apache.hadoop.yarn.server"
_OPENS = tuple(
    part for name in ("java.lang", "java.util") for part in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")
)


@dataclass(frozen=True)
class Yarn:
    """A resource manager with one node. ``page`` is its web address, ``conf`` the folder of Hadoop's
    configuration, ``folder`` has logs and the containers' work.
    """

    page: str
    conf: Path
    folder: Path
    master = "yarn"

    def drivers(self) -> dict[str, str]:
        """Return the state of each application, by its id."""
        with urllib.request.urlopen(f"{self.page}/ws/v1/cluster/apps", timeout=10) as answer:
            known = json.load(answer)["apps"] or {"app": []}
        return {app["id"]: app["state"] for app in known["app"]}

    def jvm_of(self, driver: str) -> str:
        """Return what the command line of a driver's JVM, and of no other process, matches."""
        return f"^[^ ]*java .*{driver}.*ApplicationMaster"


@contextmanager
def yarn(folder: Path, memory: int = 4096) -> Iterator[Yarn]:
    """Run a resource manager and a node until the block ends. The node has a pid namespace of its own, so
    that nobody outside can tell whether its processes run, as on another host.
    """
    ensure(JARS, LOCK)
    conf = folder / "conf"
    conf.mkdir(parents=True)
    ports = [f"127.0.0.1:{port}" for port in free_ports(9)]
    _write(conf / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp")})
    _write(
        conf / "yarn-site.xml",
        {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.address": ports[0],
            "yarn.resourcemanager.scheduler.address": ports[1],
            "yarn.resourcemanager.resource-tracker.address": ports[2],
            "yarn.resourcemanager.admin.address": ports[3],
            "yarn.resourcemanager.webapp.address": ports[4],
            "yarn.resourcemanager.scheduler.class": (
                f"{_SERVER}.resourcemanager.scheduler.fifo.FifoScheduler"
            ),
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.address": ports[5],
            "yarn.nodemanager.localizer.address": ports[6],
            "yarn.nodemanager.webapp.address": ports[7],
            "yarn.nodemanager.collector-service.address": ports[8],
            "yarn.nodemanager.resource.memory-mb": str(memory),
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.local-dirs": str(folder / "local"),
            "yarn.nodemanager.log-dirs": str(folder / "logs"),
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
            "yarn.scheduler.minimum-allocation-mb": "128",
        },
    )
    made = Yarn(f"http://{ports[4]}", conf, folder)
    with ExitStack() as stack:
        for name, within in (("resourcemanager.ResourceManager", ()), ("nodemanager.NodeManager", APART)):
            stack.enter_context(_daemon(name, within, made))
        _wait_for(made)
        yield made


@contextmanager
def _daemon(name: str, within: tuple[str, ...], cluster: Yarn) -> Iterator[None]:
    command = [
        *within,
        str(find_java()),
        "-Xmx384m",
        *_OPENS,
        "-cp",
        f"{cluster.conf}:{JARS}/*",
        f"{_SERVER}.{name}",
    ]
    log = cluster.folder / f"{name}.log"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH",) and not name.startswith("STREAMKEEPER_")
    }
    with (
        log.open("wb") as out,
        subprocess.Popen(command, env=environment, cwd=cluster.folder, stdout=out, stderr=out) as process,
    ):
        try:
            yield
        finally:
            process.kill()  # unshare ignores SIGTERM


def _wait_for(cluster: Yarn) -> None:
    deadline = time.monotonic() + STARTING
    while True:
        try:
            with urllib.request.urlopen(f"{cluster.page}/ws/v1/cluster/nodes", timeout=10) as answer:
                nodes = json.load(answer)["nodes"] or {"node": []}
            if any(node["state"] == "RUNNING" for node in nodes["node"]):
                return
        except OSError:
            pass  # it does not listen yet
        assert time.monotonic() < deadline, "\n".join(
            log.read_text()[-3000:] for log in cluster.folder.glob("*.log")
        )
        time.sleep(0.3)


def _write(file: Path, values: dict[str, str]) -> None:
    rows = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>"
        for name, value in values.items()
    )
    file.write_text(f"<configuration>{rows}</configuration>")
