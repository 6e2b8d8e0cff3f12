"""Leases: from every state of the present holder to what the next driver is told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context

import pytest

from streamkeeper.errors import LeaseHeld, LeaseLost, StorageError
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import Heartbeat, Lease, Life, Process
from streamkeeper.storage import to_json
from tests.worlds.flows.recorded_storage import RecordedStorage
from tests.worlds.racing import claim
from tests.worlds.small_world import World


@dataclass
class Clock:
    """A monotonic clock that only sleeping moves. ``on_sleep`` is called at each sleep with the seconds slept
    so far.
    """

    on_sleep: Callable[[float], None] = lambda slept: None
    now: float = 1000.0
    sleeps: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds
        self.on_sleep(self.now - 1000.0)


HERE = Process.current()
ELSEWHERE = replace(HERE, host="other", boot_id="another-boot", pid_namespace="pid:[1]")


def hold_lease(home: FlowHome, process: Process, epoch: int = 1) -> Lease:
    lease = Lease(epoch, process, 1, "2026-11-21T10:00:00+00:00")
    assert home.storage.create(home.lease(epoch), to_json(asdict(lease)))
    return lease


def beat(home: FlowHome, count: int, epoch: int = 1) -> None:
    leases.beat(home, Heartbeat(epoch, count, "running", 1, "then"))


def dead_process() -> Process:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = int(open(f"/proc/{child.pid}/stat").read().rsplit(")", 1)[1].split()[19])  # noqa: PTH123, SIM115  # one line of /proc
    child.communicate(b"\n")
    return replace(HERE, pid=child.pid, started=started)


def acquire(home: FlowHome, clock: Clock | None = None, term: float = 60.0) -> Lease:
    clock = clock or Clock()
    return leases.acquire(home, 2, term, monotonic=clock, sleep=clock.sleep)


def test_the_first_driver_gets_epoch_one_at_once(world: World) -> None:
    clock = Clock()
    lease = acquire(world.home, clock)
    assert (lease.epoch, lease.process, lease.generation, clock.sleeps) == (1, HERE, 2, [])
    assert leases.current(world.home) == lease
    assert leases.life(world.home, lease) is Life.ALIVE


def test_a_lease_that_was_left_is_taken_at_once(world: World) -> None:
    old = hold_lease(world.home, ELSEWHERE)
    leases.leave(world.home, old, "held")
    clock = Clock()
    assert (acquire(world.home, clock).epoch, clock.sleeps) == (2, [])


@pytest.mark.parametrize("reused", [False, True], ids=["no such pid", "pid of another process"])
def test_a_lease_of_a_process_that_is_proven_dead_is_taken_at_once(reused: bool, world: World) -> None:
    holder = replace(HERE, started=HERE.started - 1) if reused else dead_process()
    old = hold_lease(world.home, holder)
    clock = Clock()
    assert leases.life(world.home, old) is Life.DEAD
    assert (acquire(world.home, clock).epoch, clock.sleeps) == (2, [])


def test_a_zombie_is_dead(world: World) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    started = int(open(f"/proc/{child.pid}/stat").read().rsplit(")", 1)[1].split()[19])  # noqa: PTH123, SIM115  # one line of /proc
    assert (
        leases.life(world.home, hold_lease(world.home, replace(HERE, pid=child.pid, started=started)))
        is Life.DEAD
    )
    child.wait()


def test_a_driver_that_is_alive_here_keeps_its_lease_and_the_message_says_how_to_stop_it(
    world: World,
) -> None:
    hold_lease(world.home, HERE)
    before = world.tree()
    with pytest.raises(
        LeaseHeld,
        match=rf"epoch 1, pid {HERE.pid} on .* is alive.* put a hold: streamkeeper hold events.clean_events",
    ):
        acquire(world.home)
    assert world.tree() == before


def test_a_driver_elsewhere_whose_heart_beats_keeps_its_lease(world: World) -> None:
    hold_lease(world.home, ELSEWHERE)
    beat(world.home, 1)
    clock = Clock(on_sleep=lambda slept: beat(world.home, 2) if slept >= 55 else None)
    with pytest.raises(LeaseHeld, match=r"Its heartbeat is current"):
        acquire(world.home, clock)
    assert 55 <= clock.now - 1000 < 60


@pytest.mark.parametrize("ever_beat", [True, False], ids=["went silent", "never gave a heartbeat"])
def test_a_driver_elsewhere_that_is_silent_for_a_whole_term_loses_its_lease(
    ever_beat: bool, world: World
) -> None:
    hold_lease(world.home, ELSEWHERE)
    if ever_beat:
        beat(world.home, 1)
    clock = Clock()
    assert acquire(world.home, clock).epoch == 2
    assert clock.now - 1000 >= 60


def test_a_silence_that_was_seen_for_a_term_is_not_waited_for_again_until_the_heart_beats(
    world: World,
) -> None:
    hold_lease(world.home, ELSEWHERE)
    beat(world.home, 1)
    clock = Clock()
    first = leases.Silence(world.home, 1, 60.0, clock)
    clock.sleep(59.9)
    assert not first.lasts()
    assert not leases.Silence(world.home, 1, 60.0, clock).lasts(), "nobody has seen it for the term"
    clock.sleep(0.2)
    assert first.lasts()
    assert leases.Silence(world.home, 1, 60.0, clock).lasts()
    assert not leases.Silence(world.home, 1, 61.0, clock).lasts(), "a longer term is not over"
    beat(world.home, 2)
    assert not leases.Silence(world.home, 1, 60.0, clock).lasts()
    assert (first.lasts(), first.beats) == (False, True)


def test_of_a_holder_that_has_never_beaten_no_silence_is_recorded(world: World) -> None:
    hold_lease(world.home, ELSEWHERE)
    assert wait(world.home, Clock()) is not None
    assert world.home.storage.read(world.home.silent(1)) is None
    clock = Clock()
    assert acquire(world.home, clock).epoch == 2
    assert clock.now - 1000 >= 60


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"count": 1, "seconds": "long"}'])
def test_a_record_of_a_silence_that_cannot_be_read_is_none(content: bytes, world: World) -> None:
    hold_lease(world.home, ELSEWHERE)
    beat(world.home, 1)
    world.home.storage.overwrite(world.home.silent(1), content)
    clock = Clock()
    assert not leases.Silence(world.home, 1, 60.0, clock).lasts()
    assert acquire(world.home, clock).epoch == 2
    assert clock.now - 1000 >= 60


def test_a_lease_whose_holder_the_task_saw_silent_for_a_term_is_taken_at_once(world: World) -> None:
    hold_lease(world.home, ELSEWHERE)
    beat(world.home, 1)
    assert wait(world.home, Clock()) is not None
    clock = Clock()
    lease = acquire(world.home, clock)
    assert (lease.took_over, lease.unproven, clock.sleeps) == (leases.SILENT, 1, [])


def test_a_driver_elsewhere_that_leaves_while_it_is_watched_is_not_waited_for(world: World) -> None:
    old = hold_lease(world.home, ELSEWHERE)
    clock = Clock(on_sleep=lambda slept: leases.leave(world.home, old, "held") if slept >= 10 else None)
    assert acquire(world.home, clock).epoch == 2
    assert clock.now - 1000 < 15


@pytest.mark.parametrize(
    "other", [{"boot_id": "x"}, {"pid_namespace": "pid:[1]"}], ids=["another boot", "another container"]
)
def test_only_the_same_boot_and_pid_namespace_can_prove_anything(other: dict[str, str], world: World) -> None:
    assert leases.life(world.home, hold_lease(world.home, replace(HERE, **other))) is Life.UNKNOWN  # type: ignore[arg-type]


def test_where_the_system_tells_no_boot_nothing_is_proven(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_boot_id", lambda: leases._UNTOLD)
    monkeypatch.setattr(leases, "process_started", lambda pid: None)
    assert leases.life(world.home, hold_lease(world.home, Process.current())) is Life.UNKNOWN


def test_of_six_processes_that_claim_at_once_exactly_one_has_the_lease(world: World) -> None:
    hold_lease(world.home, dead_process())
    context = get_context("fork")
    barrier, won = context.Barrier(6), context.Queue()
    racers = [
        context.Process(target=claim, args=(barrier, won, world.settings.state, str(number)))
        for number in range(6)
    ]
    for racer in racers:
        racer.start()
    results = [won.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join(60)
    assert sorted(did for _, did in results) == [False] * 5 + [True]
    assert world.home.epochs() == [1, 2]


@pytest.mark.parametrize("days", [31, 0, -31])
def test_whether_a_driver_elsewhere_may_run_is_told_by_the_storages_clock(
    days: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_lease(world.home, ELSEWHERE)
    beat(world.home, 1)
    moment = time.time()
    monkeypatch.setattr(time, "time", lambda: moment + days * 86400)
    assert leases.may_run(world.home)
    silent = moment - leases.UNPROTECTED_SECONDS - 60
    os.utime(world.home.storage.path(world.home.heartbeat(1)), (silent, silent))
    assert not leases.may_run(world.home)


def test_a_lease_holds_until_a_higher_epoch_is_there(world: World) -> None:
    mine = acquire(world.home)
    leases.check(world.home, mine)
    hold_lease(world.home, ELSEWHERE, epoch=2)
    with pytest.raises(LeaseLost, match=r"from epoch 1 to 2: another driver took over. This one stops"):
        leases.check(world.home, mine)


def test_a_heartbeat_is_read_as_it_was_written(world: World) -> None:
    written = Heartbeat(
        3, 7, "running", 2, "then", batch=5, triggers=9, application_id="app", details={"a": 1}
    )
    leases.beat(world.home, written)
    assert leases.read_heartbeat(world.home, 3) == written
    assert leases.read_heartbeat(world.home, 4) is None


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"process": {}}'], ids=["empty", "no fields", "fields missing"]
)
def test_a_damaged_lease_is_named_and_not_taken_over(content: bytes, world: World) -> None:
    world.home.storage.overwrite(world.home.lease(1), content)
    with pytest.raises(StorageError, match=r"lease/000001.json"):
        acquire(world.home)
    assert world.home.epochs() == [1]


def wait(home: FlowHome, clock: Clock, timeout: float = 300.0, term: float = 60.0) -> Lease | None:
    return leases.wait_until_gone(home, timeout, term, monotonic=clock, sleep=clock.sleep)


def test_waiting_for_a_flow_that_never_ran_ends_at_once(world: World) -> None:
    assert wait(world.home, clock := Clock()) is None
    assert clock.sleeps == []


def test_waiting_ends_when_the_driver_leaves(world: World) -> None:
    old = hold_lease(world.home, HERE)
    clock = Clock(on_sleep=lambda slept: leases.leave(world.home, old, "held") if slept >= 2 else None)
    assert wait(world.home, clock) == old


def test_waiting_ends_after_a_silent_term_of_a_driver_elsewhere(world: World) -> None:
    old = hold_lease(world.home, ELSEWHERE)
    clock = Clock(on_sleep=lambda slept: beat(world.home, int(slept)) if slept <= 100 else None)
    assert wait(world.home, clock) == old
    assert 158 <= clock.now - 1000 < 165


def test_waiting_for_a_driver_that_does_not_stop_says_so_after_its_time(world: World) -> None:
    hold_lease(world.home, HERE)
    said = (
        r"is still there 300 s after it was asked to stop. .*STREAMKEEPER_STOP_TIMEOUT.*or hold the flow.*end"
        r" that process"
    )
    with pytest.raises(LeaseHeld, match=said):
        wait(world.home, Clock())


def test_waiting_goes_on_with_a_driver_that_took_over_meanwhile(world: World) -> None:
    first = hold_lease(world.home, ELSEWHERE)
    second = Lease(2, HERE, 1, "2026-11-21T10:00:00+00:00")

    def happen(slept: float) -> None:
        if 10 <= slept < 10.3:
            world.home.storage.create(world.home.lease(2), to_json(asdict(second)))
        if slept >= 20:
            leases.leave(world.home, second, "held")

    assert wait(world.home, Clock(on_sleep=happen)) == second != first


@pytest.mark.parametrize("how", [leases.LEFT, leases.DEAD, leases.SILENT])
def test_a_lease_says_how_the_one_before_it_was_found_gone(how: str, world: World) -> None:
    before = hold_lease(world.home, dead_process() if how == leases.DEAD else ELSEWHERE)
    if how == leases.LEFT:
        leases.leave(world.home, before, "held")
    lease = acquire(world.home)
    assert (lease.took_over, lease.unproven) == (how, 1 if how == leases.SILENT else None)
    assert leases.read(world.home, 2) == lease


def test_the_newest_holder_that_was_not_proven_dead_is_remembered_through_later_takeovers(
    world: World,
) -> None:
    hold_lease(world.home, ELSEWHERE)
    for expected in ((leases.SILENT, 1), (leases.LEFT, 1)):
        lease = acquire(world.home)
        assert (lease.took_over, lease.unproven) == expected
        leases.leave(world.home, lease, "stopped")
    silent = replace(lease, epoch=4, process=ELSEWHERE)
    world.home.storage.create(world.home.lease(4), to_json(asdict(silent)))
    lease = acquire(world.home)
    assert (lease.took_over, lease.unproven) == (leases.SILENT, 4)


@pytest.mark.parametrize("epochs", [1, 300])
def test_a_look_at_ones_own_lease_costs_the_same_after_a_month_of_retries(epochs: int, world: World) -> None:
    for epoch in range(1, epochs + 1):
        hold_lease(world.home, HERE, epoch=epoch)
    storage = RecordedStorage(world.settings.state)
    home = replace(world.home, storage=storage)
    for _ in range(2):
        leases.check(home, Lease(epochs, HERE, 1, "2026-11-21T10:00:00+00:00"))
    assert storage.asked == [
        ("names", "ledger/names"),
        *[("read", world.home.lease(epochs + 1))] * 2,
    ], "names are looked up once"


def test_a_failure_is_written_down_once_for_the_supervisor(world: World) -> None:
    lease = acquire(world.home)
    assert leases.failure_of(world.home, 1) is None
    leases.note_failure(world.home, lease, {"meaning": "a stateful operation was removed"})
    leases.note_failure(world.home, lease, {"meaning": "another"})
    found = leases.failure_of(world.home, 1)
    assert found is not None
    assert (found["meaning"], found["epoch"]) == ("a stateful operation was removed", 1)
    assert world.home.epochs() == [1], "it is no lease"


@pytest.mark.parametrize("known", [1, 200, 299, 300])
def test_whoever_knows_an_epoch_finds_the_present_lease_without_listing_them_all(
    known: int, world: World
) -> None:
    for epoch in range(1, 301):
        hold_lease(world.home, HERE, epoch=epoch)
    storage = RecordedStorage(world.settings.state)
    found = leases.current(replace(world.home, storage=storage), known)
    assert found == leases.current(world.home)
    assert storage.asked == [
        ("names", "ledger/names"),
        *(("read", world.home.lease(epoch)) for epoch in range(known, 302)),
    ]


def test_an_epoch_that_is_not_there_any_more_is_no_hindrance_to_finding_the_present_lease(
    world: World,
) -> None:
    hold_lease(world.home, HERE, epoch=3)
    assert leases.current(world.home, known_epoch=7) == leases.read(world.home, 3)
    assert leases.current(world.home, known_epoch=2) == leases.read(world.home, 3)
