"""One real Airflow with PostgreSQL whose triggerer watches many flows, each with a simulated driver."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from demo.lock import MARK
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Life
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import DEFERRED, PROJECT, Settings
from streamkeeper.storage import LocalStorage
from tests.benchmarks.thousand.company import PROGRAM, Company
from tests.benchmarks.thousand.parts import Place, children_of, session
from tests.benchmarks.thousand.player import Entry
from tests.chaos.components import API, PROCESSOR, SCHEDULER, TRIGGERER, SplitAirflow
from tests.postgres import Database, postgres
from tests.worlds.flows import counted_calls, many_flows
from tests.worlds.small_world import World
from tools.waiting import NotYet, wait_until

DATABASE, SIMULATED = "PostgreSQL", "simulated drivers"
PARALLELISM = 8
"""Tasks at once; so many drivers start at once."""


class CountedAirflow(SplitAirflow):
    """An Airflow whose triggerer counts its requests to the state folder, each by a byte in a file."""

    @property
    def counted(self) -> Path:
        return self.home / "requests"

    def _command_line(self, command: str) -> list[str]:
        line = super()._command_line(command)
        return (
            [sys.executable, str(counted_calls.PROGRAM), str(self.counted), *line]
            if command == TRIGGERER
            else line
        )


@dataclass
class Thousand:
    """What the stages of the benchmark work on."""

    settings: Settings
    flows: tuple[Flow, ...]
    service: CountedAirflow
    company: Company
    database: Database
    parked: set[str] = field(default_factory=set)
    """Flows that have, or are to have, a park."""

    def home(self, name: str) -> FlowHome:
        return FlowHome(LocalStorage(self.settings.state), *name.split("."))

    @property
    def names(self) -> list[str]:
        """The flows that are to run, by their full names."""
        return [flow.full_name for flow in self.flows if flow.full_name not in self.parked]

    @property
    def place(self) -> Place:
        parts = {
            name: session(lambda name=name: self.service.components[name].pid)  # type: ignore[misc]
            for name in (API, SCHEDULER, PROCESSOR, TRIGGERER)
        }
        parts[DATABASE] = lambda: children_of(self.database.server.pid)
        parts[SIMULATED] = lambda: [
            self.company.player.pid,
            *(entry.pid for entries in self.company.living().values() for entry in entries),
        ]
        return Place(
            parts, self.database.folder, self.service.home / "logs", Path(self.settings.state), self.requests
        )

    def requests(self) -> Mapping[str, int]:
        """Return the requests to the state folder so far, of the triggerer and of all drivers."""
        counted = self.service.counted
        triggerer = counted.stat().st_size if counted.exists() else 0
        return {"triggerer": triggerer, "drivers": sum(self.company.requests().values())}

    def page(self) -> tuple[float, dict[str, str]]:
        """Ask the page for all flows; return the seconds that the answer took, and each flow's state."""
        began = time.monotonic()
        answer = self.service.api.page("/streamkeeper/api/flows")
        return time.monotonic() - began, {row["flow"]: row["state"] for row in answer["flows"]}

    def await_watched(self, seconds: float, *, blow: float | None = None) -> float:
        """Wait until each flow that is to run has a driver that beats and that the triggerer watches, and
        return the seconds that it took.

        :param blow: when parts of Airflow were killed, in seconds since 1970: they are started again, and
        each flow must have been watched since.
        """
        began, lacking = time.monotonic(), self.names

        def look() -> bool:
            if blow is not None:
                self.service.relaunch_ended()
            # Those that worked once are not asked again until all did: a thousand would keep a core busy.
            lacking[:] = self._lacking(lacking, blow) or self._lacking(self.names, blow)
            slots = self.service.api.call("GET", "/pools/streaming_flows")
            if lacking or slots["deferred_slots"] < len(self.names) or slots["running_slots"]:
                raise NotYet(
                    f"{len(lacking):,} of {len(self.names):,} flows have no driver that works"
                    f" ({', '.join(lacking[:3])}); tasks: {slots['deferred_slots']} deferred,"
                    f" {slots['running_slots']} running, {slots['queued_slots']} queued"
                )
            return True

        wait_until(look, seconds, "all flows are watched", 2.0, tell=partial(print, flush=True))
        return time.monotonic() - began

    def await_entry(self, event: str, flow: str, after: float, seconds: float) -> Entry:
        """Wait until something has happened to a flow after a time, in seconds since 1970."""

        def look() -> Entry | None:
            entries = (one for one in self.company.entries() if one.at >= after and one.flow == flow)
            return next((one for one in entries if one.event == event), None)

        return wait_until(look, seconds, f"{flow} {event}", 0.05)

    def _lacking(self, names: Sequence[str], blow: float | None) -> list[str]:
        return [name for name in names if not self._works(self.home(name), blow or 0.0)]

    @staticmethod
    def _works(home: FlowHome, since: float) -> bool:
        lease = leases.current(home)
        return (
            lease is not None
            and leases.life(home, lease) is Life.ALIVE
            and leases.read_heartbeat(home, lease.epoch) is not None
            and (home.storage.modified(home.supervisor) or 0.0) > since
        )


@contextmanager
def thousand(root: Path, number: int, mark: str) -> Iterator[Thousand]:
    """Declare so many flows and start it all; end every process that it started, however the block ends."""
    more = {
        "STREAMKEEPER_LEASE_TERM": "60", "STREAMKEEPER_HEARTBEAT_INTERVAL": "12",
        "STREAMKEEPER_SUPERVISION": DEFERRED, "STREAMKEEPER_JARS": str(PROJECT / ".cache" / "jars"),
    }  # fmt: skip
    world = World(root, more=more)
    (root / "data" / "raw").mkdir(parents=True)
    flows = tuple(many_flows.declare(world, number).flows())
    for flow in flows:
        many_flows.begin(many_flows.home_of(world.settings, flow), flow)
    marked = {MARK: mark}
    company = Company(root / "company", world.settings, marked)
    with postgres() as database:
        service = CountedAirflow(
            root / "airflow", world.settings, extra={**airflow_settings(number, database), **marked}
        )
        service.extra = {**service.extra, "PATH": f"{company.programs}:{service.environment()['PATH']}"}
        with company, service:
            try:
                yield Thousand(world.settings, flows, service, company, database)
            finally:
                company.end()


def airflow_settings(number: int, database: Database) -> dict[str, str]:
    """Return what is set of Airflow; all else is as it comes."""
    connection = {"conn_type": "spark", "host": "local[2]", "extra": {"spark-binary": PROGRAM}}
    return {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.address(),
        # As docs/reference/airflow-settings.md has them.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "180",
        "AIRFLOW__CORE__PARALLELISM": str(PARALLELISM),
        "AIRFLOW__TRIGGERER__CAPACITY": str(2 * number + 100),
        "AIRFLOW_CONN_STREAMKEEPER_SPARK": json.dumps(connection),
    }
