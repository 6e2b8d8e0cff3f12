"""The ledger of recoveries, and the table's lock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamkeeper.errors import TableLocked
from streamkeeper.flows import ledger
from streamkeeper.storage import LocalStorage
from streamkeeper.tables import recovery_lock
from tests.worlds.small_world import World


@pytest.fixture
def storage(world: World) -> LocalStorage:
    return LocalStorage(world.settings.state)


def test_events_are_read_in_the_order_in_which_they_were_written(storage: LocalStorage) -> None:
    book = ledger.open(storage, "events", "r1")
    for number in range(12):
        book.record("hold.started" if number % 2 else "planned", {"n": number})
    assert [(event.number, event.evidence["n"]) for event in book.events()] == [
        (number + 1, number) for number in range(12)
    ]
    assert book.find("hold.started") == book.events()[-1]
    assert book.find("release.done") is None


def test_an_event_is_never_overwritten_by_another_writer_of_the_same(storage: LocalStorage) -> None:
    first, second = ledger.open(storage, "events", "r1"), ledger.open(storage, "events", "r1")
    numbers = [
        book.record("planned", {"by": number}).number
        for number, book in enumerate((first, second, first, second))
    ]
    assert numbers == [1, 2, 3, 4]


def test_recoveries_are_found_by_pipeline(storage: LocalStorage) -> None:
    ledger.open(storage, "events", "r1").record("planned", {})
    ledger.open(storage, "orders", "r2").record("planned", {})
    assert ledger.recoveries(storage, "events") == ["r1"]
    assert (ledger.pipeline_of(storage, "r2"), ledger.pipeline_of(storage, "r3")) == ("orders", None)


def test_files_of_others_in_a_ledger_are_no_events(storage: LocalStorage) -> None:
    storage.create("events/ledger/r1/notes.txt", b"mine")
    assert ledger.open(storage, "events", "r1").record("planned", {}).number == 1


def test_a_recovery_that_has_the_lock_has_it_again(storage: LocalStorage) -> None:
    recovery_lock.take(storage, "events", "t", "r1")
    recovery_lock.take(storage, "events", "t", "r1")
    assert recovery_lock.holder(storage, "events", "t") == "r1"


def test_another_recovery_is_refused_and_told_how_to_go_on(storage: LocalStorage) -> None:
    recovery_lock.take(storage, "events", "t", "r1")
    with pytest.raises(
        TableLocked,
        match=r"The recovery r1 has locked the table t of events, so r2 cannot start.*--resume r1.*abandon",
    ):
        recovery_lock.take(storage, "events", "t", "r2")
    assert recovery_lock.holder(storage, "events", "t") == "r1"


def test_only_the_holder_gives_the_lock_back(storage: LocalStorage) -> None:
    recovery_lock.take(storage, "events", "t", "r1")
    recovery_lock.give_back(storage, "events", "t", "r2")
    assert recovery_lock.holder(storage, "events", "t") == "r1"
    recovery_lock.give_back(storage, "events", "t", "r1")
    recovery_lock.take(storage, "events", "t", "r2")
    assert recovery_lock.holder(storage, "events", "t") == "r2"


def test_tables_are_locked_apart(storage: LocalStorage) -> None:
    recovery_lock.take(storage, "events", "t", "r1")
    recovery_lock.take(storage, "events", "s.t", "r2")
    recovery_lock.take(storage, "orders", "u", "r3")
    assert [
        recovery_lock.holder(storage, *name) for name in (("events", "t"), ("events", "s.t"), ("orders", "u"))
    ] == ["r1", "r2", "r3"]


class Paused(LocalStorage):
    """A storage that lets something happen right before its first write or removal."""

    meanwhile: Callable[[], None] | None = None

    def create(self, name: str, content: bytes) -> bool:
        self._pause()
        return super().create(name, content)

    def remove(self, name: str) -> None:
        self._pause()
        super().remove(name)

    def _pause(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


def test_a_lock_that_another_recovery_took_meanwhile_is_not_merely_believed(
    storage: LocalStorage, world: World
) -> None:
    slow = Paused(world.settings.state)
    slow.meanwhile = lambda: recovery_lock.take(storage, "events", "t", "r1")
    with pytest.raises(TableLocked, match="The recovery r1 has locked"):
        recovery_lock.take(slow, "events", "t", "r2")
    assert recovery_lock.holder(storage, "events", "t") == "r1"


def test_a_recovery_that_was_paused_while_it_gave_its_lock_back_leaves_that_of_the_next_one(
    storage: LocalStorage, world: World
) -> None:
    def given_up() -> None:
        recovery_lock.give_back(storage, "events", "t", "r1")
        recovery_lock.take(storage, "events", "t", "r2")

    recovery_lock.take(storage, "events", "t", "r1")
    slow = Paused(world.settings.state)
    slow.meanwhile = given_up
    recovery_lock.give_back(slow, "events", "t", "r1")
    assert recovery_lock.holder(storage, "events", "t") == "r2"
