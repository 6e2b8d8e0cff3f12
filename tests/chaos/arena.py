"""Where a run of chaos takes place: a folder of its own, a real Airflow in components, flows with what
produces their input, and where to look.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from demo import evidence
from demo.data.generator import Feed, Generator
from demo.leftovers import end_marked
from demo.lock import MARK
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.delta import log as delta_log
from streamkeeper.drivers import supervision
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.settings import PROJECT, SLOT, Settings
from streamkeeper.storage import open_storage
from tests import events_evidence
from tests.chaos.auditor import Auditor
from tests.chaos.choosing import Blow, Victim
from tests.chaos.components import SHORT, SplitAirflow
from tests.events_producer import Producer
from tests.postgres import airflow_database
from tests.worlds.states.small_disk import fill

FLOW, DAG = "events.clean_events", "flow__events__clean_events"
EVERY = 1.0
"""Seconds between two files of the producer."""
FEW, MANY = '"maxFilesPerTrigger": 20', '"maxFilesPerTrigger": 500'
"""The limit of files a batch, the demo's and the one here: on a busy machine, to catch up must not take
longer than the outage took.
"""
SMALL_DISK_MB = 256
BACK = 300.0
"""Seconds until a step of a round counts as failed: some ten times what it takes on a machine with nothing
else to do.
"""


ENDED_WITH = frozenset((Victim.TASK, Victim.WORKER, Victim.SCHEDULER, Victim.SCHEDULER_GROUP, Victim.BOTH))
"""With LocalExecutor. A driver alone is followed by the next within the same try."""


class Parked(Exception):
    """The flow was parked or held, which nothing that chaos does may cause."""


@dataclass(frozen=True)
class Watched:
    """A flow under audit.

    :param home: the flow's files, read where no blow reaches: on the disk of this machine.
    :param table: the folder of its table, on the same terms.
    :param feed: starts what produces its input.
    :param behind: says what is not processed yet, in words; empty where all is.
    :param compare: gives the rows that an oracle expects, and those of the table.
    """

    dag: str
    home: FlowHome
    table: str
    auditor: Auditor
    feed: Callable[[], Feed]
    behind: Callable[[Checkpoint], str]
    compare: Callable[[], tuple[Counter, Counter]]  # type: ignore[type-arg]  # rows of whatever kind

    def version(self) -> int:
        """Give the table's latest version; -1 where there is none."""
        found = delta_log.latest_version(self.table)
        return -1 if found is None else found

    def checkpoint(self) -> Checkpoint | None:
        """Give the checkpoint of the flow's generation, once that has begun."""
        newest = generations.latest(self.home)
        start = generations.read_start(self.home, newest.number) if newest else None
        return Checkpoint(self.home.storage, start.checkpoint) if start else None

    def works(self) -> bool:
        """Say whether a driver lives, runs its query, and has looked for data at least once."""
        lease = leases.current(self.home)
        beat = leases.read_heartbeat(self.home, lease.epoch) if lease else None
        living = lease is not None and leases.life(self.home, lease) is leases.Life.ALIVE
        return living and beat is not None and beat.phase == "running" and beat.triggers > 0

    def watched_by(self) -> str:
        """Name the try of the task that watches the driver; empty where none ever did."""
        found = supervision.read(self.home)
        return found.by if found else ""

    def beats(self) -> int:
        """Give the count of the watching task's last beat; another try counts from its own beginning."""
        found = supervision.read(self.home)
        return found.count if found else 0


class Restarted(Protocol):
    """A server that rounds strike. ``start`` waits until it serves."""

    @property
    def runs(self) -> bool: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> object: ...
    def kill(self) -> None: ...


@dataclass(frozen=True)
class Arena:
    """What the rounds work on, and look at.

    :param servers: those that Airflow's components are not: by victim, the servers of that kind.
    :param disturb: makes a way to a server, a file or a disk bad while the block lasts.
    :param ended_with: victims whose kill takes the watching task along.
    :param patience: seconds until a step of a round counts as failed.
    """

    service: SplitAirflow
    flows: tuple[Watched, ...]
    ended_with: frozenset[Victim]
    disturb: Callable[[Victim, Blow], AbstractContextManager[None]]
    servers: Mapping[Victim, tuple[Restarted, ...]] = field(default_factory=dict)
    patience: float = BACK

    def tend(self) -> None:
        """Start again what ended, and make sure that no flow is held.

        :raises Parked: one is.
        """
        self.service.relaunch_ended()
        for server in (server for kind in self.servers.values() for server in kind):
            if not server.runs:
                server.kill()  # what it left
                server.start()
        for flow in self.flows:
            if found := holds.all_of(flow.home):
                raise Parked("; ".join(f"{hold.owner}: {hold.reason}" for hold in found))


def declare(root: Path, file: Path) -> None:
    """Write a pipeline of the project, with larger batches."""
    declared = file.read_text()
    assert FEW in declared, "the pipeline limits its batches"
    (root / "pipelines").mkdir(parents=True, exist_ok=True)
    (root / "pipelines" / file.name).write_text(declared.replace(FEW, MANY))


@contextmanager
def arena(root: Path, mark: str, seed: int) -> Iterator[Arena]:
    """Start it all below a folder; end every process that it started, however the block ends.

    :param mark: what the processes carry in their environment, by which those that are left are found.
    :param seed: of the events.
    """
    declare(root, PROJECT / "tests" / "pipelines" / "events.py")
    places = {name: str(root / name.lower()) for name in ("DATA", "PIPELINES")}
    places |= {name: str(_disk(root) / name.lower()) for name in ("STATE", "WAREHOUSE")}
    short = {"STREAMKEEPER_LEASE_TERM": "10", "STREAMKEEPER_HEARTBEAT_INTERVAL": "1"}
    settings = Settings.from_environment(
        {**os.environ, **{f"STREAMKEEPER_{name}": place for name, place in places.items()}, **short}
    )
    producer = Producer(Path(settings.data) / "events", seed)
    producer.write(1)
    home = FlowHome(open_storage(settings.state), *FLOW.split("."))
    table = settings.table_path("events")

    def paths() -> frozenset[str]:
        return evidence.present(f"{settings.data}/events")

    try:
        with (
            airflow_database() as database,
            SplitAirflow(root / "airflow", settings, extra={**SHORT, **database, MARK: mark}) as service,
            Auditor(home, Path(table)) as auditor,
        ):
            flow = Watched(
                DAG, home, table, auditor,
                feed=lambda: Generator(producer, EVERY),
                behind=lambda checkpoint: files_behind(checkpoint, paths(), events_evidence.SOURCE),
                compare=lambda: (
                    events_evidence.expected(sorted(paths()), ()), events_evidence.actual(table)
                ),
            )  # fmt: skip
            gone = ENDED_WITH if settings.supervision == SLOT else frozenset()
            yield Arena(service, (flow,), gone, partial(_disturbed, root))
    finally:
        end_marked(mark)


@contextmanager
def on_small_disk(root: Path, mark: str, seed: int) -> Iterator[Arena]:
    """As :func:`arena`, with the state folder and the tables on a disk of their own, for which this process
    must be root.
    """
    _disk(root).mkdir(parents=True)
    size = f"size={SMALL_DISK_MB}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", _disk(root)], check=True)
    try:
        with arena(root, mark, seed) as place:
            yield place
    finally:
        subprocess.run(["umount", "--lazy", _disk(root)], check=True)


def _disk(root: Path) -> Path:
    return root / "disk"


@contextmanager
def _disturbed(root: Path, victim: Victim, blow: Blow) -> Iterator[None]:
    with half_written(root / "pipelines" / "events.py") if victim is Victim.FILE else _full(_disk(root)):
        yield


@contextmanager
def half_written(file: Path) -> Iterator[None]:
    """Leave the first half of a file, or a little less, so that it is no Python, while the block lasts."""
    whole = file.read_bytes()
    half = next(length for length in range(len(whole) // 2, 0, -1) if not _is_python(whole[:length]))
    file.write_bytes(whole[:half])
    try:
        yield
    finally:
        file.write_bytes(whole)


def _is_python(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


@contextmanager
def _full(disk: Path) -> Iterator[None]:
    filler = fill(disk)
    try:
        yield
    finally:
        filler.unlink()


def files_behind(checkpoint: Checkpoint, paths: frozenset[str], source: str) -> str:
    """Say how many files a source has that are not committed."""
    missing = paths - evidence.committed_files(checkpoint, source)
    return f"{len(missing)} of {len(paths)} files are not processed" if missing else ""
