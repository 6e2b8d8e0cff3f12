"""One loop that watches many drivers: whom it wakes and when, and what it sends and shows meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from streamkeeper.drivers import supervision
from streamkeeper.errors import SettingsError, StorageError
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome, open_home
from streamkeeper.flows.leases import Heartbeat, Lease, Process
from streamkeeper.health.driver_log import LogFile, LogTail
from streamkeeper.manifest import pipeline_files
from streamkeeper.storage import LocalStorage, to_json
from streamkeeper.supervise import changes
from streamkeeper.supervise.heart import Heart
from streamkeeper.supervise.loop import Handover, Reason, WatchLoop
from streamkeeper.trial import change, last_run
from streamkeeper.trial.change import Change, ChangeState
from streamkeeper.trial.verdict import Compatibility, Verdict
from tests.worlds.small_world import EVENTS, World
from tools.waiting import wait_until

TERM, BY = 60.0, "flow__events__clean_events now run, try 1"
HERE = Process.current()
ELSEWHERE = replace(HERE, boot_id="of another host")


@dataclass
class Triggerer:
    """A loop whose clock goes on by hand, what it woke, and what it wrote, by flow."""

    world: World
    now: float = 1000.0
    woken: dict[str, list[Reason | Exception]] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loop = WatchLoop(lambda: self.now)

    def watch(self, *homes: FlowHome, changes: bool = False, reported: str = "") -> None:
        for home in homes:
            name = home.full_name
            woken = self.woken.setdefault(name, [])
            lines = self.lines.setdefault(name, [])
            handover = Handover({name: 1}, BY, changes, reported)
            self.loop.add(self.world.settings, handover, lines.append, woken.append)

    def look(self, seconds: float = 1.0) -> None:
        """Look once a second for so long."""
        with ThreadPoolExecutor(4) as pool:
            for _ in range(int(seconds)):
                self.now += 1
                wait(self.loop.look(pool))


@pytest.fixture
def triggerer(world: World) -> Triggerer:
    world.more |= {"STREAMKEEPER_LEASE_TERM": str(TERM), "STREAMKEEPER_SUPERVISOR_TIMEOUT": "600"}
    return Triggerer(world)


def driver(home: FlowHome, process: Process = HERE, log: Path | None = None) -> Lease:
    """Let a driver work."""
    lease = Lease(1, process, 1, "2026-11-27T10:00:00+00:00", log=str(log) if log else None)
    home.storage.create(home.lease(1), to_json(asdict(lease)))
    beat(home, 1)
    return lease


def beat(home: FlowHome, count: int) -> None:
    leases.beat(home, Heartbeat(1, count, "running", 1, "then"))


@contextmanager
def reads(instead: object) -> Iterator[None]:
    """Let every read of the state folder do something else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStorage, "read", instead)
        yield


def test_of_many_drivers_the_one_that_ends_wakes_its_task_and_all_are_kept_supervised(
    triggerer: Triggerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = [open_home(triggerer.world.settings, f"events.flow_{number}") for number in range(20)]
    held = [driver(home) for home in homes]
    listed: list[Path] = []
    signature = pipeline_files.signature
    monkeypatch.setattr(
        pipeline_files, "signature", lambda folder: listed.append(folder) or signature(folder)
    )
    triggerer.watch(*homes, changes=True)
    triggerer.look(30)
    assert [woken for woken in triggerer.woken.values() if woken] == []
    beats = [supervision.read(home) for home in homes]
    assert [(seen.by, seen.count) for seen in beats if seen] == [(BY, 2)] * 20, "once in twenty seconds"
    assert len(listed) <= 16, "the pipeline files are listed for all at once"
    leases.leave(homes[7], held[7], "failed")
    triggerer.look(6)
    assert {name: woken for name, woken in triggerer.woken.items() if woken} == {
        "events.flow_7": [Reason.END]
    }
    triggerer.look(30)
    last = [supervision.read(home) for home in homes]
    assert [seen.count for seen in last if seen] == [4] * 7 + [3] + [4] * 12, "nobody watches that one now"


def test_a_driver_that_is_seen_to_work_costs_seven_requests_a_minute(
    triggerer: Triggerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, calls = triggerer.world.home, list[str]()
    driver(home)
    triggerer.watch(home)
    triggerer.look(60)

    def counted(name: str) -> Callable[..., object]:
        method = getattr(LocalStorage, name)
        return lambda *arguments: calls.append(name) or method(*arguments)

    for name in ("read", "names", "modified", "create", "overwrite"):
        monkeypatch.setattr(LocalStorage, name, counted(name))
    triggerer.look(60)
    assert Counter(calls) == {"overwrite": 3, "read": 4}, "heartbeats, and whether it has left"


def test_silence_is_measured_from_the_first_look_by_whoever_looks(triggerer: Triggerer) -> None:
    home = triggerer.world.home
    driver(home, ELSEWHERE)
    triggerer.watch(home)
    triggerer.look(50)
    later = Triggerer(triggerer.world, now=5.0)
    later.watch(home)
    later.look(50)
    assert later.woken[home.full_name] == [], "50 s of another triggerer count for nothing"
    beat(home, 2)
    later.look(50)
    assert later.woken[home.full_name] == []
    later.look(20)
    assert later.woken[home.full_name] == [Reason.END], "the task judges it, and does not wait again"


def test_a_driver_that_ended_while_triggerers_were_replaced_wakes_its_task_with_its_last_lines(
    triggerer: Triggerer, tmp_path: Path
) -> None:
    home, log = triggerer.world.home, tmp_path / "drivers" / "first" / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    lease = driver(home, log=log)
    triggerer.watch(home)
    triggerer.look(2)
    log.write_text("one\nthe end\n")
    leases.leave(home, lease, "failed")
    # Each is lost before Airflow has the event of the one before; the last is beside another one that lives.
    for _ in range(3):
        later = Triggerer(triggerer.world)
        later.watch(home)
        later.look(1)
        assert later.woken[home.full_name] == [Reason.END]
    triggerer.look(20)
    assert triggerer.woken[home.full_name] == [Reason.END]
    assert triggerer.lines[home.full_name] == ["one", "the end"]
    assert later.lines[home.full_name] == [], "the first of them has shown the last lines"


def test_silence_counts_while_the_pipeline_files_cannot_be_read(
    triggerer: Triggerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = triggerer.world.home
    driver(home, ELSEWHERE)

    def fail(_: object) -> object:
        raise SettingsError("the folder of pipelines is not there")

    monkeypatch.setattr(pipeline_files, "signature", fail)
    triggerer.watch(home, changes=True)
    triggerer.look(TERM + 10)
    assert triggerer.woken[home.full_name] == [Reason.END]
    assert triggerer.lines[home.full_name] == [
        "The declaration is looked at again in 15 s: the folder of pipelines is not there"
    ]


def test_an_outage_of_the_state_folder_is_no_silence(triggerer: Triggerer) -> None:
    home = triggerer.world.home
    driver(home, ELSEWHERE)
    triggerer.watch(home)
    triggerer.look(10)

    def fail(*_: object) -> bytes:
        raise StorageError("no route to the store")

    with reads(fail):
        triggerer.look(2 * TERM)
    triggerer.look(50)
    assert triggerer.woken[home.full_name] == [], "while nobody could read, it may have beaten"
    assert sum("no route to the store" in line for line in triggerer.lines[home.full_name]) == 1
    triggerer.look(20)
    assert triggerer.woken[home.full_name] == [Reason.END]


def test_a_store_that_hangs_keeps_no_other_flow_waiting(triggerer: Triggerer) -> None:
    hanging, other = (open_home(triggerer.world.settings, f"events.{name}") for name in ("slow", "fast"))
    for home in (hanging, other):
        driver(home)
    over, read = threading.Event(), LocalStorage.read

    def hang(storage: LocalStorage, name: str, most: int | None = None) -> bytes | None:
        if "slow" in name:
            over.wait()
        return read(storage, name, most)

    triggerer.watch(hanging, other)
    with ThreadPoolExecutor(2) as pool, reads(hang):
        for _ in range(30):
            triggerer.now += 1
            futures = triggerer.loop.look(pool)
            wait(futures[-1:])
        seen = supervision.read(other)
        assert seen is not None
        assert seen.count == 2
        over.set()


def test_a_driver_s_lines_are_shown_once_by_all_who_follow_it(triggerer: Triggerer, tmp_path: Path) -> None:
    home, log, shown = triggerer.world.home, tmp_path / "drivers" / "first" / "driver.log", list[str]()
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\nthr")
    driver(home, log=log)
    task = Heart([home], 600, BY, shown.append)
    tail = LogTail(LogFile(log), shown.append)
    tail.pump()
    task.shown[tail.location] = tail.position
    task.beat(at_once=True)
    assert shown == ["one", "two"]
    triggerer.watch(home)
    with log.open("a") as file:
        file.write("ee\nfour\nfi")
    triggerer.look(22)
    assert triggerer.lines[home.full_name] == ["three", "four"]
    later = Triggerer(triggerer.world)
    later.watch(home)
    with log.open("a") as file:
        file.write("ve\n")
    later.look(2)
    assert later.lines[home.full_name] == ["five"], "a triggerer that is replaced shows nothing again"
    beat = supervision.read(home)
    assert beat is not None
    assert beat.count == 4, "who goes on for the same try counts on"


def test_a_changed_declaration_wakes_the_task_until_people_were_told_of_it(triggerer: Triggerer) -> None:
    world, home = triggerer.world, triggerer.world.home
    world.declare(EVENTS.replace('target="events", s', 'target="events", on_change="try", s'))
    world.processed(1)
    ran = replace(last_run.record_of(world.flow, (), {"events.py": ""}), fingerprint="earlier")
    last_run.keep(home, 1, ran)
    driver(home)
    triggerer.watch(home, changes=True)
    triggerer.look(1)
    assert triggerer.woken[home.full_name] == [Reason.CHANGE]
    verdict = Verdict(home.full_name, Compatibility.UNKNOWN, ("it could not be tried",))
    refused = Change(world.flow.fingerprint, ChangeState.REFUSED, verdict)
    change.write(home, refused)
    for reported, woken in (("", [Reason.CHANGE]), (changes.mark(refused), [])):
        later = Triggerer(world)
        later.watch(home, changes=True, reported=reported)
        later.look(20)
        assert later.woken[home.full_name] == woken
    seen = later.world.home
    change.write(seen, replace(refused, state=ChangeState.ACCEPTED))
    later.look(20)
    assert later.woken[home.full_name] == [Reason.CHANGE], "a person accepted it"


def test_a_manifest_is_read_once_for_all_who_ask_what_is_declared_now(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the gates of many parked flows do, in the triggerer."""
    now, reads = [0.0], list[float]()
    monkeypatch.setattr(changes, "read_manifest", lambda _: reads.append(now[0]) or now[0])
    files = changes.PipelineFiles(world.settings, lambda: now[0])
    for second in range(30):
        now[0] = float(second)
        if second == 20:
            world.declare(EVENTS.replace("return raw", "return raw.distinct()"))
        assert {files.manifest() for _ in range(50)} == {reads[-1]}
    assert reads == [0.0, 15.0, 20.0], "a changed file at once, else every fifteen seconds"


def test_where_the_loop_ends_by_an_error_its_tasks_go_on_and_the_next_one_starts_it_anew(
    triggerer: Triggerer,
) -> None:
    home, loop = triggerer.world.home, triggerer.loop
    held = driver(home)
    triggerer.watch(home)
    refuse = Mock(side_effect=RuntimeError("can't start new thread"))
    with patch.object(threading.Thread, "start", refuse), pytest.raises(RuntimeError):
        loop.start()
    woken = triggerer.woken[home.full_name]
    with patch.object(ThreadPoolExecutor, "submit", refuse):
        loop.start()
        wait_until(lambda: woken or None, 30, "its task goes on")
    triggerer.watch(home)
    loop.start()
    wait_until(lambda: supervision.read(home), 30, "the loop watches again")
    leases.leave(home, held, "failed")
    triggerer.now += 60
    wait_until(lambda: len(woken) == 2 or None, 30, "the loop ends")
    assert [str(reason) for reason in woken] == ["can't start new thread", "end"]


def test_an_error_that_nobody_foresaw_ends_the_watch_of_its_driver_alone(triggerer: Triggerer) -> None:
    home, broken = (open_home(triggerer.world.settings, f"events.{name}") for name in ("fine", "broken"))
    for each in (home, broken):
        driver(each)
    read = LocalStorage.read

    def fail(storage: LocalStorage, name: str, most: int | None = None) -> bytes | None:
        if "broken" in name:
            raise ZeroDivisionError
        return read(storage, name, most)

    triggerer.watch(home, broken)
    with reads(fail):
        triggerer.look(20)
    assert triggerer.woken[home.full_name] == []
    [error] = triggerer.woken[broken.full_name]
    assert isinstance(error, ZeroDivisionError), "its task fails with it, and its next try attaches"
