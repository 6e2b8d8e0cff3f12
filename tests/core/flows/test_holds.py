"""Holds: each owner puts and removes only its own."""

from __future__ import annotations

import pytest

from streamkeeper.errors import RequestError, StorageError
from streamkeeper.flows import holds
from tests.worlds.small_world import World

OWNERS = [holds.PARK, holds.person("ada"), holds.person("grace"), holds.recovery("reset_checkpoint-x-1")]


@pytest.mark.parametrize("mine", OWNERS)
def test_an_owner_never_erases_another(mine: str, world: World) -> None:
    for owner in OWNERS:
        holds.put(world.home, owner, f"reason of {owner}", "someone")
    assert holds.release(world.home, mine)
    assert [hold.owner for hold in holds.all_of(world.home)] == sorted(set(OWNERS) - {mine})
    assert not holds.release(world.home, mine)


def test_a_hold_says_who_and_why(world: World) -> None:
    put = holds.put(world.home, holds.PARK, "it broke", "driver", {"condition": "X"})
    assert holds.all_of(world.home) == [put]
    assert holds.parked(world.home) == put
    assert (put.reason, put.by, put.details) == ("it broke", "driver", {"condition": "X"})


def test_putting_again_replaces_the_own_reason(world: World) -> None:
    holds.put(world.home, holds.PARK, "first", "driver")
    holds.put(world.home, holds.PARK, "second", "driver")
    assert [hold.reason for hold in holds.all_of(world.home)] == ["second"]


def test_two_persons_never_share_a_hold_whatever_their_names() -> None:
    names = [
        "ada",
        "Ada",
        "a da",
        "a/da",
        "a_da",
        "",
        "..",
        "/",
        "ä",
        "ö",
        "x" * 200,
        "x" * 201,
        "ada@example.org",
        "-ada",
        "ada\n",
    ]
    assert len({holds.person(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["a/b", "../../park", "x" * 500, "", "a'b", "ü", "a b", "a\nb"])
def test_any_persons_name_gives_an_owner_that_can_hold(name: str, world: World) -> None:
    holds.put(world.home, holds.person(name), "r", name)
    assert world.home.owners() == [holds.person(name)]


@pytest.mark.parametrize(
    "owner",
    ["", "me", "person-", "person-a/b", "recovery-../x", "park/x", "parks", "person-a b", "park\n", "PARK"],
)
def test_a_bad_owner_is_refused_and_nothing_is_written(owner: str, world: World) -> None:
    for act in (lambda: holds.put(world.home, owner, "r", "me"), lambda: holds.release(world.home, owner)):
        with pytest.raises(
            RequestError, match=r"cannot be owned by .* Allowed are park, person-<name> and recovery-<id>"
        ):
            act()
    assert world.home.owners() == []


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"owner": "park"}', b'{"strange": 1}'],
    ids=["empty", "list", "fields missing", "strange"],
)
def test_a_hold_that_cannot_be_read_still_holds(content: bytes, world: World) -> None:
    world.home.storage.overwrite(world.home.hold(holds.PARK), content)
    with pytest.raises(StorageError, match=r"holds/park.json"):
        holds.all_of(world.home)
    assert world.home.owners() == ["park"]


def test_a_hold_for_some_time_ends_by_the_storages_clock_and_the_others_stay(world: World) -> None:
    ada, ben = holds.person("ada"), holds.person("ben")
    holds.put(world.home, ada, "maintenance", "ada", seconds=7200)
    holds.put(world.home, ben, "until I say", "ben")
    holds.put(world.home, holds.PARK, "it broke", "driver")
    began = world.home.storage.modified(world.home.hold(ada))
    assert began is not None
    found = holds.all_of(world.home)[1]
    assert (found.owner, found.reason.startswith("maintenance (until 20")) == (ada, True)
    assert holds.end_overdue(world.home, began + 7199) == []
    assert holds.end_overdue(world.home, began + 7200) == [ada]
    assert [hold.owner for hold in holds.all_of(world.home)] == [holds.PARK, ben]
    assert holds.end_overdue(world.home, began + 9e9) == []
