"""A flow to try things on: folders of its own, event files, a pipeline file that changes, drivers in this
process and in others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.crc_files import twin_of
from streamkeeper.drivers import submit
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome, query_id
from streamkeeper.flows.generations import AFTER_LAST, REBUILT, Generation, Start, StartAt
from streamkeeper.manifest.import_file import fingerprint, load_pipeline
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.storage import open_storage
from streamkeeper.support.times import now
from tests.oracle import counted
from tools import waiting

FIRST_FILE = 1_780_000_000
NAME = "events.clean_events"
COLUMNS = ("event_id", "user_id", "n")
SCHEMA = "event_id STRING, user_id INT, n INT, event_time TIMESTAMP"

PIPELINE = """
from pyspark.sql import functions as F
from streamkeeper import pipelines as dp

dp.create_source("events_raw", {source})
{more}

@dp.temporary_view(sources=["events_raw"])
def distinct_events(events):
    return events{view}

dp.create_streaming_table("events")

@dp.append_flow(name="clean_events", target="events", sources={sources}, trigger="200 milliseconds")
def clean_events({parameters}):
    return {flow}
"""
FILES = 'format="json", path="{{data}}/events", {schema}options={{"maxFilesPerTrigger": {files}}}'
DEDUPE = '.dropDuplicates(["event_id"])'


def pipeline(  # noqa: PLR0917 - each has a default and is given by name
    view: str = DEDUPE,
    schema: str | None = SCHEMA,
    files: int = 2,
    more: str = "",
    sources: Sequence[str] = ("distinct_events",),
    parameters: str = "events",
    flow: str = "events",
    source: str | None = None,
) -> str:
    """Write the pipeline file of a test; ``view`` is what comes after ``events``, ``source`` how another
    source than files is declared.
    """
    declared = f'schema="{schema}", ' if schema else ""
    return PIPELINE.format(
        view=view,
        source=source or FILES.format(schema=declared, files=files),
        more=more,
        sources=list(sources),
        parameters=parameters,
        flow=flow,
    )


def event(number: int, user: int | None = None, event_id: str | None = None) -> dict[str, Any]:
    """Make an event; everything in it follows from its number, so that a repeated event equals the first."""
    return {
        "event_id": event_id or f"e{number}",
        "user_id": number % 7 if user is None else user,
        "n": number,
        "event_time": f"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z",
    }


@dataclass
class Flowbed:
    """One flow in folders of its own. ``events`` are all that were written, in their order; ``name`` is the
    flow's full name, and ``target`` its table.
    """

    root: Path
    spark: SparkSession
    settings: Settings
    events: list[dict[str, Any]] = field(default_factory=list)
    name: str = NAME
    target: str = "events"
    inside: Sequence[str] = ("",)
    """What the names of files have inside, by their numbers."""
    _files: int = 0

    @classmethod
    def make(
        cls,
        root: Path,
        spark: SparkSession,
        text: str | None = None,
        name: str = NAME,
        target: str = "events",
    ) -> Flowbed:
        """Make the folders and the pipeline file."""
        for folder in ("pipelines", "data/events"):
            (root / folder).mkdir(parents=True)
        settings = quick_settings(root)
        bed = cls(root, spark, settings, name=name, target=target)
        bed.declare(text or pipeline())
        return bed

    @property
    def home(self) -> FlowHome:
        return FlowHome(open_storage(self.settings.state), *self.name.split("."))

    @property
    def table(self) -> Path:
        return self.root / "warehouse" / self.target

    @property
    def file(self) -> Path:
        return self.settings.pipelines / f"{self.home.pipeline}.py"

    def declare(self, text: str) -> None:
        """Write the pipeline file, whole."""
        aside = self.root / "pipeline.py.new"
        aside.write_text(text)
        aside.replace(self.file)

    def arrive(self, *numbers: int, folder: str = "events", **same: Any) -> Path:
        """Write one file of events, atomically."""
        return self.put([event(number, **same) for number in numbers], folder)

    def put(self, made: list[dict[str, Any]], folder: str) -> Path:
        """Write one file of rows, atomically."""
        self._files += 1
        self.events += made
        inside = self.inside[self._files % len(self.inside)]
        return write_rows(self.root / "data" / folder, self._files, made, inside)

    def fingerprint(self) -> str:
        return self.flow().fingerprint

    def flow(self) -> Flow:
        loaded = load_pipeline(self.file, self.settings.data)
        flow = loaded.flow(self.home.flow)
        assert flow is not None
        return Flow(loaded, flow, fingerprint(loaded, flow))

    def run(self, *names: str) -> Outcome:
        """Run a driver in this process, of the bed's flow by default, until all that is there is done."""
        from streamkeeper_jobs.driver.application import run

        return run(self.settings, names or (self.name,), available_now=True)

    @contextmanager
    def running(self, *names: str) -> Iterator[Future[Outcome]]:
        """Run a driver in a thread of this process, of the bed's flow by default, until the block stops it,
        or ends: then a hold does. Its result is how it ended.
        """
        from streamkeeper_jobs.driver.application import run

        flows = names or (self.name,)
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(run, self.settings, flows)
            try:
                yield ended
            finally:
                if not ended.done():
                    for flow in flows:
                        home = replace(self, name=flow).home
                        holds.put(home, holds.person("test"), "the test is over", "test")
                ended.result(180)

    def rows(self) -> list[dict[str, Any]]:
        frame = self.spark.read.format("delta").load(str(self.table))
        return [row.asDict() for row in frame.collect()]

    def holds(self, expected: Sequence[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> None:
        """Assert that the table holds exactly these rows, by some columns."""
        found, wanted = counted(self.rows(), columns), counted(expected, columns)
        assert found == wanted, f"too many: {_minus(found, wanted)}; too few: {_minus(wanted, found)}"

    def start(self, number: int) -> Start:
        found = generations.read_start(self.home, number)
        assert found is not None, f"generation {number} did not begin"
        return found

    def checkpoint(self, number: int) -> Checkpoint:
        return Checkpoint(self.home.storage, self.start(number).checkpoint)

    def forget_commit(self, batch: int | None = None) -> None:
        """Leave generation 1 as a driver does that dies between the sink's commit of a batch, the last by
        default, and the checkpoint's.
        """
        checkpoint = self.checkpoint(1)
        name = checkpoint.name(f"commits/{checkpoint.last_commit() if batch is None else batch}")
        for file in (name, twin_of(name)):
            self.home.storage.remove(file)

    def reset(
        self,
        start: StartAt | None = None,
        state: str = REBUILT,
        accepted: tuple[str, ...] = (),
        **changes: Any,
    ) -> Generation:
        """Decide the next generation, as a recovery's step would, and take a park away."""
        before = generations.latest(self.home)
        assert before is not None
        began = generations.read_start(self.home, before.number)
        decided = Generation(
            number=before.number + 1,
            previous=before.number,
            start=start or StartAt(AFTER_LAST),
            state=state,
            query_id=query_id(self.name, before.number + 1),
            reason="a test",
            by="a test",
            at=now(),
            fingerprint=self.fingerprint(),
            recovery="test-recovery",
            schemas=began.schemas if began else {},
            accepted=accepted,
        )
        decided = replace(decided, **changes)
        generations.decide(self.home, decided)
        holds.release(self.home, holds.PARK)
        return decided

    def park(self) -> holds.Hold:
        found = holds.parked(self.home)
        assert found is not None, "the flow is not parked"
        return found

    @contextmanager
    def driver(self, *arguments: str, name: str | None = None) -> Iterator[Driver]:
        """Run a driver as a real process of spark-submit, in a process group of its own, which ends with the
        block.
        """
        command = [*submit.driver(self.settings, [self.flow()]).command(), *arguments]
        command[command.index("--flow") + 1] = name or self.name
        self.log = self.root / f"driver-{time.monotonic_ns()}.log"
        with running_driver(self.settings, command, self.log) as driver:
            yield driver


@dataclass
class Driver:
    """A driver's processes: spark-submit's JVM, and the Python process below it."""

    process: subprocess.Popen[bytes]
    log: Path

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group."""
        os.killpg(self.process.pid, number)

    def let_jvm_go_on(self) -> None:
        """Let a stopped group go on, all but the driver's own Python: its JVM may have been stopped while it
        waited for a child.

        (Hadoop's local file system sets a file's mode by running chmod.)
        """
        for folder in self._alive():
            try:
                program = (folder / "cmdline").read_bytes().split(b"\0")[0]
                if not Path(program.decode()).name.startswith("python"):
                    os.kill(int(folder.name), signal.SIGCONT)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended

    def kill(self) -> None:
        """End the whole group at once, as ``kill -9`` does, if it is still there."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """Wait until every process of the group that was killed is gone: the lease is that of the Python."""
        self.process.wait()
        wait_until(lambda: not [*self._alive()])

    def _alive(self) -> Iterator[Path]:
        """Give the folder in ``/proc`` of each process of the group."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state, _, group = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            if int(group) == self.process.pid and state not in "ZX":
                yield folder

    def wait(self, timeout: float = 180) -> int:
        """Wait until it ends by itself; give its exit code."""
        return self.process.wait(timeout)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, condition: Callable[[], object], timeout: float = 180, poll: float = 0.05) -> None:
        """Wait until a condition holds while the driver lives."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, (
                f"the driver ended with {self.process.returncode}:\n{self.said()[-4000:]}"
            )
            assert time.monotonic() < deadline, f"waited {timeout} s in vain:\n{self.said()[-4000:]}"
            time.sleep(poll)


def write_rows(folder: Path, number: int, rows: Sequence[Mapping[str, Any]], inside: str = "") -> Path:
    """Write a file of rows, atomically, whose time follows from its number."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{number:04d}{inside}.json"
    aside = target.with_name(f".{target.name}")
    aside.write_text("".join(json.dumps(item) + "\n" for item in rows))
    # Spark reads files in the order of their times; those of files written at once would be equal.
    os.utime(aside, (FIRST_FILE + number, FIRST_FILE + number))
    return aside.replace(target)


def quick_settings(root: Path) -> Settings:
    """Give settings whose folders lie below ``root``, and whose terms are short."""
    return Settings(
        pipelines=root / "pipelines",
        state=str(root / "state"),
        warehouse=str(root / "warehouse"),
        data=str(root / "data"),
        jars=PROJECT / ".cache" / "jars",
        lease_term=2.0,
        heartbeat_interval=0.2,
    )


@contextmanager
def running_driver(settings: Settings, command: Sequence[str], log: Path) -> Iterator[Driver]:
    """Run a driver's command in a process group of its own, which ends with the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env={**os.environ, **submit.environment(settings)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    driver = Driver(process, log)
    try:
        yield driver
    finally:
        driver.kill()


def wait_until(condition: Callable[[], object], timeout: float = 120) -> None:
    """Wait until a condition holds."""
    waiting.wait_until(lambda: condition() or None, timeout, "a condition holds", interval=0.05)


def refused_loudly(driver: Driver) -> bool:
    """Whether the sink refused a batch of a driver's because its query was fenced while that batch was under
    way.
    """
    return "ConcurrentTransactionException" in driver.said()


def heartbeat(bed: Flowbed) -> leases.Heartbeat | None:
    """Read the last heartbeat of the flow's present driver."""
    lease = leases.current(bed.home)
    return leases.read_heartbeat(bed.home, lease.epoch) if lease else None


def _minus(left: Mapping[Any, int], right: Mapping[Any, int]) -> dict[Any, int]:
    return {key: count - right.get(key, 0) for key, count in left.items() if count > right.get(key, 0)}
