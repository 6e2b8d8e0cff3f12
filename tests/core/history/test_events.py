"""Events: each once and in order, whoever writes, folds, reads or is killed at the same time."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from streamkeeper.errors import StorageError
from streamkeeper.flows.files import FlowHome
from streamkeeper.history import events
from streamkeeper.history.events import Event, Kind
from streamkeeper.manifest import names
from streamkeeper.storage import LocalStorage
from tests.killing import Killed

HERE = f"{events.FOLDER}/sales"


class Restless(LocalStorage):
    """A storage in which other things happen before every operation, or a process ends."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.between: Iterator[None] | None = None
        self.left: int | None = None

    def _pass(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Killed
            self.left -= 1
        if self.between is not None:
            running, self.between = self.between, None
            next(running, None)
            self.between = running

    def create(self, name: str, content: bytes) -> bool:
        self._pass()
        return super().create(name, content)

    def read(self, name: str, most: int | None = None) -> bytes | None:
        self._pass()
        return super().read(name, most)

    def names(self, folder: str = "") -> list[str]:
        self._pass()
        return super().names(folder)

    def remove(self, name: str) -> None:
        self._pass()
        super().remove(name)


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Restless:
    monkeypatch.setattr(os, "fsync", lambda number: None)
    monkeypatch.setattr(events, "_LOADED", {})
    return Restless(str(tmp_path))


@pytest.fixture
def home(storage: Restless) -> FlowHome:
    return FlowHome(storage, "sales", "orders")


def told(storage: Restless) -> list[str]:
    return [event.text for event in events.read(storage, "sales")]


def test_an_event_is_noted_once_and_read_as_it_was(home: FlowHome, storage: Restless) -> None:
    for _ in range(2):
        events.note(home, Kind.STARTED, "pid 7", "7", by="driver", at=12.3456, generation=2, epoch=7)
    (found,) = events.read(storage, "sales")
    assert found == Event(found.id, 12.3456, "started", ("sales.orders",), "pid 7", "driver", 2, 7)
    assert str(found) == "1970-01-01 00:00:12  sales.orders  started: pid 7 (by driver)"


def test_other_kinds_flows_and_occasions_are_other_events(home: FlowHome, storage: Restless) -> None:
    events.note(home, Kind.STARTED, "a", 1, at=1.0)
    events.note(home, Kind.STOPPED, "b", 1, at=2.0)
    events.note(home, Kind.STARTED, "c", 2, at=3.0)
    events.note(home.beside("sales", "returns"), Kind.STARTED, "d", 1, at=4.0)
    assert told(storage) == ["a", "b", "c", "d"]
    assert [event.text for event in events.read(storage, "sales", since=2.0)] == ["b", "c", "d"]
    assert [event.text for event in events.read(storage, "sales", last=2)] == ["c", "d"]
    assert events.read(storage, "sales", last=0) == ()


def test_secrets_are_removed_and_long_texts_are_cut(home: FlowHome, storage: Restless) -> None:
    events.note(home, Kind.PARKED, f"password=hunter2 {'x' * 9000}", 1)
    (text,) = told(storage)
    assert "hunter2" not in text
    assert len(text) == events.LONGEST + 1


def test_a_log_that_cannot_be_written_stops_nobody_and_is_said(
    home: FlowHome, storage: Restless, caplog: pytest.LogCaptureFixture
) -> None:
    (Path(storage.root) / "ledger").write_text("a file where a folder belongs")
    events.note(home, Kind.STARTED, "x", 1)
    assert "The event started of sales.orders was not noted" in caplog.text
    with pytest.raises(StorageError):
        events.write(storage, "sales", Event("", 1.0, "started", (), "x"), 1)


def test_events_survive_a_rename_under_the_first_name_and_are_found_by_the_new(
    home: FlowHome, storage: Restless
) -> None:
    events.note(home, Kind.STARTED, "before", 1, at=1.0)
    renamed = names.read(storage).renamed("sales.orders", "sales.bookings").renamed("sales", "shop")
    assert names.write(storage, renamed)
    after = FlowHome(storage, "shop", "bookings")
    events.note(after, Kind.STARTED, "after", 2, at=2.0)
    events.note(after.beside("shop", "other"), Kind.STARTED, "other", 2, at=3.0)
    found = events.read(storage, "shop")
    assert [event.text for event in found] == ["before", "after", "other"]
    mine = events.of_flow(found, names.read(storage), "shop.bookings")
    assert [event.text for event in mine] == ["before", "after"]


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_writes_folds_and_kills_gives_each_event_once_and_in_order(
    home: FlowHome, storage: Restless, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "FOLD", 3)
    monkeypatch.setattr(events, "SEGMENT", 12)
    chance, noted = random.Random(seed), []
    for number in range(120):
        late = number - chance.choice([0, 0, 0, 5])
        noted.append((float(late), number))
        for _ in range(chance.choice([1, 1, 2])):
            events.note(home, Kind.STARTED, str(number), number, at=float(late))
        if chance.random() < 0.3 and number:
            again = chance.randrange(number)
            events.note(home, Kind.STARTED, str(again), again, at=noted[again][0])
        if chance.random() < 0.5:
            storage.left = chance.randrange(40) if chance.random() < 0.7 else None
            with suppress(Killed):
                events.fold(storage, "sales")
            storage.left = None
        if chance.random() < 0.3:
            assert sorted(int(text) for text in told(storage)) == list(range(number + 1))
    found = events.read(storage, "sales")
    assert [event.at for event in found] == sorted(at for at, _ in noted)
    assert sorted(int(event.text) for event in found) == list(range(120))
    folded(storage)
    assert events.read(storage, "sales") == found


def folded(storage: Restless) -> None:
    events.fold(storage, "sales")
    events.fold(storage, "sales")


@pytest.mark.parametrize("seed", range(12))
def test_a_reader_misses_nothing_and_sees_nothing_twice_while_others_fold(
    home: FlowHome, storage: Restless, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "FOLD", 2)
    monkeypatch.setattr(events, "SEGMENT", 9)
    chance = random.Random(seed)
    noted = [0]

    def meanwhile() -> Iterator[None]:
        other = LocalStorage(storage.root)
        there = FlowHome(other, "sales", "orders")
        while True:
            if chance.random() < 0.4:
                events.note(there, Kind.STARTED, str(noted[0]), noted[0], at=float(noted[0]))
                noted[0] += 1
            if chance.random() < 0.3:
                events.fold(other, "sales")
            yield

    storage.between = meanwhile()
    for _ in range(40):
        before = noted[0]
        found = [int(text) for text in told(storage)]
        assert found == sorted(set(found))
        assert set(range(before)) <= set(found)
        if chance.random() < 0.3:
            events.fold(storage, "sales")  # at the same time as the other
    storage.between = None
    assert [int(text) for text in told(storage)] == list(range(noted[0]))


def test_an_event_that_is_noted_again_after_its_fold_is_not_told_again(
    home: FlowHome, storage: Restless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "FOLD", 1)
    events.note(home, Kind.STARTED, "first", 1, at=1.0)
    assert events.fold(storage, "sales") == 1
    assert storage.names(f"{HERE}/new") == []
    events.note(home, Kind.STARTED, "again", 1, at=2.0)
    assert told(storage) == ["first"]
    events.fold(storage, "sales")
    assert storage.names(f"{HERE}/new") == []
    assert told(storage) == ["first"]


def test_few_new_events_are_not_folded(home: FlowHome, storage: Restless) -> None:
    for number in range(events.FOLD - 1):
        events.note(home, Kind.STARTED, "x", number)
    assert events.fold(storage, "sales") == 0
    events.note(home, Kind.STARTED, "x", "one more")
    assert events.fold(storage, "sales") == events.FOLD
    assert len(storage.names(HERE)) == 2


def test_the_log_is_bounded_over_a_simulated_year(
    home: FlowHome, storage: Restless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MIN_EVENTS", 300)
    monkeypatch.setattr(events, "SEGMENT", 50)
    for day in range(365):
        for hour in range(0, 24, 3):
            events.note(home, Kind.RETRIED, "x", f"{day} {hour}", at=86400.0 * day + 3600 * hour)
        events.fold(storage, "sales")
    kept = [event.at for event in events.read(storage, "sales")]
    assert 300 <= len(kept) <= 300 + 2 * 50 + events.FOLD
    newest = 86400.0 * 364 + 3600 * 21
    assert kept == [newest - 3 * 3600 * number for number in reversed(range(len(kept)))]
    assert len(storage.names(HERE)) <= 300 // 50 + 3


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"{}", b'{"events": 3}', b'{"id": "x", "at": "noon"}']
)
@pytest.mark.parametrize("name", ["new/started-0123.json", "new/copy.txt", "0001-abc.json"])
def test_a_torn_or_foreign_file_is_said_and_hides_no_event(
    home: FlowHome, storage: Restless, content: bytes, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "FOLD", 1)
    events.note(home, Kind.STARTED, "one", 1, at=1.0)
    storage.overwrite(f"{HERE}/{name}", content)
    for _ in range(2):
        found = events.read(storage, "sales")
        (torn,) = [event for event in found if event.kind == Kind.UNREADABLE]
        assert storage.path(f"{HERE}/{name}") in torn.text
        assert "remove it" in torn.text
        assert [event.text for event in found if event != torn] == ["one"]
        events.fold(storage, "sales")
        assert storage.read(f"{HERE}/{name}") == content


def test_a_file_that_is_listed_and_cannot_be_read_is_said_and_ends_the_look(
    home: FlowHome, storage: Restless
) -> None:
    events.note(home, Kind.STARTED, "one", 1, at=1.0)
    (Path(storage.root) / HERE / "1790000000000-0123456789abcdef.json").symlink_to("nowhere")
    found = events.read(storage, "sales")
    assert [event.text for event in found if event.kind != Kind.UNREADABLE] == ["one"]
    assert any("1790000000000-0123456789abcdef.json holds no events" in event.text for event in found)


def test_a_field_of_a_newer_release_is_left_out(home: FlowHome, storage: Restless) -> None:
    events.note(home, Kind.STARTED, "one", 1)
    (name,) = storage.names(f"{HERE}/new")
    value = json.loads(storage.read(f"{HERE}/new/{name}") or b"")
    storage.overwrite(f"{HERE}/new/{name}", json.dumps({**value, "mood": "good"}).encode())
    assert told(storage) == ["one"]


def test_follow_tells_each_event_once_and_those_that_come(
    home: FlowHome, storage: Restless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "FOLD", 1)
    events.note(home, Kind.STARTED, "old", 0, at=1.0)
    rounds = iter(range(1, 4))

    def asleep(seconds: float) -> None:
        number = next(rounds)
        events.note(home, Kind.STARTED, f"round {number}", number, at=10.0 - number)
        events.fold(storage, "sales")

    found = [event.text for event in islice(events.follow(storage, ["sales"], sleep=asleep), 4)]
    assert found == ["old", "round 1", "round 2", "round 3"]
