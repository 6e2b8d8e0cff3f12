"""The write lock: from every state of its holder to what the next writer does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from streamkeeper.errors import StorageError
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome, LockFiles
from streamkeeper.flows.leases import Heartbeat, Lease, Process
from streamkeeper.storage import LocalStorage
from streamkeeper.tables import write_lock
from streamkeeper.tables.write_lock import Gone, Holder, WriteLock
from tests.worlds.tables.taking_write_locks import count_up, die_with_lock

HERE = Process.current()
ELSEWHERE = replace(HERE, host="other", boot_id="another-boot", pid_namespace="pid:[1]")
DEAD = replace(HERE, started=HERE.started - 1)
TERM = 10.0
PROCESSES, TIMES = 4, 40


class Ended(Exception):
    """The waiting ended."""


@dataclass
class Bed:
    """One table's lock. Waiting moves the clock and calls ``on_wait``; whoever is shut out, and what was
    said, is kept.
    """

    table: LockFiles
    now: float = 1000.0
    shut_out: list[Holder] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    kept: list[AbstractContextManager[None]] = field(default_factory=list)
    checks: int = 0
    patience: float = 3600.0
    on_wait: Callable[[], None] = lambda: None

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.on_wait()
        if self.now - 1000.0 >= self.patience:
            raise Ended

    def check(self) -> None:
        self.checks += 1

    def lock(self, me: Holder) -> WriteLock:
        return WriteLock(
            self.table,
            me,
            TERM,
            check=self.check,
            shut_out=self.shut_out.append,
            wait=self.wait,
            say=self.said.append,
            monotonic=lambda: self.now,
        )

    def home(self, holder: Holder) -> FlowHome:
        return FlowHome(self.table.storage, self.table.pipeline, holder.flow)

    def beat(self, holder: Holder, count: int) -> None:
        leases.beat(self.home(holder), Heartbeat(holder.epoch, count, "running", 1, "then"))

    @property
    def waited(self) -> float:
        return self.now - 1000.0


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(LockFiles(LocalStorage(str(tmp_path)), "p", "t"))


def holder(
    flow: str = "first", process: Process = HERE, jvm: Process | None = HERE, query_id: str | None = "q"
) -> Holder:
    return Holder(flow, 1, 1, query_id, process, jvm, "then")


ME = holder("second")


def leave_locked(bed: Bed, who: Holder) -> None:
    """Let a holder have the lock and never give it back."""
    bed.kept.append(bed.lock(who)())  # what nobody refers to ends, and would give the lock back
    bed.kept[-1].__enter__()
    bed.checks = 0


def test_a_turn_that_nobody_has_is_taken_at_once_and_given_back(bed: Bed) -> None:
    with bed.lock(ME)():
        assert write_lock.read(bed.table, 1) == ME
    assert write_lock.read(bed.table, 1) is None
    assert (bed.waited, bed.checks) == (0.0, 2)


def test_a_turn_is_given_back_when_the_batch_fails(bed: Bed) -> None:
    with pytest.raises(ZeroDivisionError), bed.lock(ME)():
        raise ZeroDivisionError
    assert write_lock.read(bed.table, 1) is None


def test_a_turn_is_given_back_at_once_where_its_flow_may_not_write_any_more(bed: Bed) -> None:
    def refuse() -> None:
        raise Ended

    bed.check = refuse  # type: ignore[method-assign]
    with pytest.raises(Ended), bed.lock(ME)():
        raise AssertionError("it must not write")
    assert write_lock.read(bed.table, 1) is None


def test_a_batch_that_fails_because_it_was_shut_out_is_told_as_shut_out(bed: Bed) -> None:
    def refuse() -> None:
        bed.checks += 1
        if bed.checks == 2:
            raise Ended

    bed.check = refuse  # type: ignore[method-assign]
    with pytest.raises(Ended) as told, bed.lock(ME)():
        raise ZeroDivisionError
    assert isinstance(told.value.__context__, ZeroDivisionError)
    assert write_lock.read(bed.table, 1) is None


def test_what_is_left_of_many_turns_is_the_last_two(bed: Bed) -> None:
    for _ in range(20):
        with bed.lock(ME)():
            pass
    assert bed.table.numbers() == [19, 20]
    assert len(bed.table.storage.names(bed.table.root)) == 4


def test_the_next_waits_until_the_holder_gives_its_turn_back(bed: Bed) -> None:
    first = bed.lock(holder())()
    first.__enter__()
    bed.on_wait = lambda: first.__exit__(None, None, None) if bed.waited > 5 else None
    with bed.lock(ME)():
        assert write_lock.read(bed.table, 2) == ME
    assert 5 < bed.waited < 6
    assert bed.shut_out == []


@pytest.mark.parametrize(
    ("process", "jvm", "state"),
    [
        (HERE, HERE, Gone.NO),
        (DEAD, DEAD, Gone.PROVEN),
        (DEAD, HERE, Gone.NO),
        (HERE, None, Gone.NO),
        (DEAD, None, Gone.UNKNOWN),
        (ELSEWHERE, ELSEWHERE, Gone.UNKNOWN),
        (DEAD, ELSEWHERE, Gone.UNKNOWN),
    ],
    ids=[
        "alive",
        "dead",
        "its JVM lives",
        "alive without a JVM",
        "its JVM was never seen",
        "elsewhere",
        "its JVM is elsewhere",
    ],
)
def test_a_holder_is_proven_gone_only_with_its_jvm(
    bed: Bed, process: Process, jvm: Process | None, state: Gone
) -> None:
    assert write_lock.gone(bed.table, holder(process=process, jvm=jvm)) is state


def test_a_driver_that_left_its_lease_is_gone_wherever_it_was(bed: Bed) -> None:
    was = holder(process=ELSEWHERE, jvm=ELSEWHERE)
    leases.leave(bed.home(was), Lease(1, ELSEWHERE, 1, "2026-11-21T10:00:00+00:00"), "stopped")
    assert write_lock.gone(bed.table, was) is Gone.PROVEN


def test_a_holder_that_is_proven_dead_is_displaced_at_once_and_nobody_is_shut_out(bed: Bed) -> None:
    leave_locked(bed, holder(process=DEAD, jvm=DEAD))
    with bed.lock(ME)():
        assert write_lock.read(bed.table, 2) == ME
    assert (bed.waited, bed.shut_out) == (0.0, [])


def test_a_silent_holder_elsewhere_is_shut_out_before_it_is_displaced(bed: Bed) -> None:
    was = holder(process=ELSEWHERE, jvm=ELSEWHERE)
    leave_locked(bed, was)
    with bed.lock(ME)():
        assert bed.shut_out == [was]
    assert bed.waited == pytest.approx(TERM, abs=0.5)


def test_a_holder_that_cannot_be_shut_out_keeps_its_turn(bed: Bed) -> None:
    leave_locked(bed, holder(process=ELSEWHERE, jvm=ELSEWHERE))

    def fail(who: Holder) -> None:
        raise StorageError("the table is out of reach")

    lock = bed.lock(ME)
    lock._shut_out = fail
    with pytest.raises(StorageError, match="out of reach"), lock():
        raise AssertionError("it must not write")
    assert bed.table.numbers() == [1]


def test_who_only_makes_the_table_is_displaced_without_being_shut_out(bed: Bed) -> None:
    leave_locked(bed, holder(process=ELSEWHERE, jvm=ELSEWHERE, query_id=None))
    with bed.lock(ME)():
        pass
    assert bed.shut_out == []


def test_each_turn_of_a_job_elsewhere_that_never_beats_is_waited_for(bed: Bed) -> None:
    job = replace(holder("tables", ELSEWHERE, ELSEWHERE, None), epoch=0)
    for number in (1, 2):
        leave_locked(bed, job)
        with bed.lock(ME)():
            assert bed.waited == pytest.approx(number * TERM, abs=number * 0.5)


def test_a_holder_elsewhere_whose_heart_beats_is_waited_for(bed: Bed) -> None:
    was = holder(process=ELSEWHERE, jvm=ELSEWHERE)
    leave_locked(bed, was)
    bed.on_wait = lambda: bed.beat(was, int(bed.waited))
    bed.patience = 5 * TERM
    with pytest.raises(Ended), bed.lock(ME)():
        raise AssertionError("the other holds the lock")
    assert bed.shut_out == []
    assert bed.said == [
        f"The flow second waits for the write lock of t, which {write_lock.describe(was)} has."
    ]


def test_waiting_ends_with_an_order(bed: Bed) -> None:
    leave_locked(bed, holder())
    bed.patience = 1.0
    with pytest.raises(Ended), bed.lock(ME)():
        raise AssertionError("the other holds the lock")


def test_a_displaced_holder_gives_back_its_own_turn_and_not_the_next_ones(bed: Bed) -> None:
    late = bed.lock(holder(process=DEAD, jvm=DEAD))()
    late.__enter__()
    with bed.lock(ME)():
        late.__exit__(None, None, None)
        assert write_lock.read(bed.table, 2) == ME


def test_who_was_slow_never_takes_a_turn_that_came_and_went(bed: Bed) -> None:
    """It looks, is stopped while others take and give back two locks and more, and goes on with what it
    saw.
    """
    slow = bed.lock(ME)
    for _ in range(5):
        with bed.lock(holder())():
            pass
    assert not slow._create(1)
    assert not slow._create(2)
    assert bed.table.numbers() == [4, 5]


def test_a_turn_that_its_own_flow_could_not_release_is_taken_anew(bed: Bed) -> None:
    leave_locked(bed, ME)
    with bed.lock(ME)():
        assert write_lock.read(bed.table, 2) == ME


def test_a_damaged_turn_is_told_with_its_file(bed: Bed) -> None:
    bed.table.storage.overwrite(bed.table.lock(1), b'{"flow": "f"}')
    with (
        pytest.raises(StorageError, match=r"p/tables/t/write_lock/000001\.json is not a write lock"),
        bed.lock(ME)(),
    ):
        raise AssertionError("it must not write")


def test_of_several_processes_one_at_a_time_has_the_turn(tmp_path: Path) -> None:
    (tmp_path / "counter").write_text("0")
    context = get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    started = [
        context.Process(target=count_up, args=(barrier, str(tmp_path), f"flow_{number}", TIMES), daemon=True)
        for number in range(PROCESSES)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
        assert process.exitcode == 0
    assert (tmp_path / "counter").read_text() == str(PROCESSES * TIMES)


def test_the_turn_of_a_killed_process_goes_to_the_next_at_once(bed: Bed, tmp_path: Path) -> None:
    process = get_context("spawn").Process(target=die_with_lock, args=(str(tmp_path), "first"))
    process.start()
    process.join(120)
    assert process.exitcode == 9
    with bed.lock(ME)():
        assert write_lock.read(bed.table, 2) == ME
    assert bed.waited == 0.0


def test_another_process_is_described_by_its_start_time(bed: Bed) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = Process.of_pid(child.pid)
    assert found is not None
    assert leases.is_running(found) is True
    child.communicate(b"\n")
    assert leases.is_running(found) is False
    assert Process.of_pid(child.pid) is None
