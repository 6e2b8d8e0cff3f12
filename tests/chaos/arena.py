"""Where a run of chaos takes place: a folder of its own, a real Airflow in components, the flow of the demo,
and where to look.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demo.data.generator import Generator
from demo.leftovers import end_marked
from demo.lock import MARK
from streamkeeper.checkpoint import Checkpoint
from streamkeeper.delta import log as delta_log
from streamkeeper.drivers import supervision
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.storage import open_storage
from tests.chaos.auditor import Auditor
from tests.chaos.components import SHORT, SplitAirflow
from tests.events_producer import Producer
from tests.postgres import airflow_database

FLOW, DAG = "events.clean_events", "flow__events__clean_events"
EVERY = 1.0
"""Seconds between two files of the producer."""
FEW, MANY = '"maxFilesPerTrigger": 20', '"maxFilesPerTrigger": 500'
"""The limit of files a batch, the demo's and the one here: on a busy machine, to catch up must not take
longer than the outage took.
"""


class Parked(Exception):
    """The flow was parked or held, which nothing that chaos does may cause."""


@dataclass(frozen=True)
class Arena:
    """What the rounds work on, and look at."""

    settings: Settings
    service: SplitAirflow
    producer: Producer
    auditor: Auditor
    home: FlowHome

    @property
    def table(self) -> str:
        """The flow's table."""
        return self.settings.table_path("events")

    def generator(self) -> Generator:
        """Give a producer that writes files from here on."""
        return Generator(self.producer, EVERY)

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
        """Say whether a driver lives, runs its query, and has looked for data at least once.

        :raises Parked: the flow is held.
        """
        self.check_free()
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

    def check_free(self) -> None:
        """Make sure that nothing holds the flow.

        :raises Parked: something does.
        """
        found = holds.all_of(self.home)
        if found:
            raise Parked("; ".join(f"{hold.owner}: {hold.reason}" for hold in found))


@contextmanager
def arena(root: Path, mark: str, seed: int) -> Iterator[Arena]:
    """Start it all below a folder; end every process that it started, however the block ends.

    :param mark: what the processes carry in their environment, by which those that are left are found.
    :param seed: of the events.
    """
    (root / "pipelines").mkdir(parents=True)
    declared = (PROJECT / "tests" / "pipelines" / "events.py").read_text()
    assert FEW in declared, "the demo's pipeline limits its batches"
    (root / "pipelines" / "events.py").write_text(declared.replace(FEW, MANY))
    places = {name: str(root / name.lower()) for name in ("STATE", "WAREHOUSE", "DATA", "PIPELINES")}
    short = {"STREAMKEEPER_LEASE_TERM": "10", "STREAMKEEPER_HEARTBEAT_INTERVAL": "1"}
    settings = Settings.from_environment(
        {**os.environ, **{f"STREAMKEEPER_{name}": place for name, place in places.items()}, **short}
    )
    producer = Producer(Path(settings.data) / "events", seed)
    producer.write(1)
    home = FlowHome(open_storage(settings.state), *FLOW.split("."))
    try:
        with (
            airflow_database() as database,
            SplitAirflow(root / "airflow", settings, extra={**SHORT, **database, MARK: mark}) as service,
            Auditor(home, Path(settings.table_path("events"))) as auditor,
        ):
            yield Arena(settings, service, producer, auditor, home)
    finally:
        end_marked(mark)
