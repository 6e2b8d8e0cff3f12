"""Two recoveries of one table, of whatever kinds, whichever comes first: the second is refused, says by whom,
and leaves nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamkeeper.errors import RecoveryError, TableLocked
from streamkeeper.flows import generations, holds, ledger
from streamkeeper.flows.generations import StartAt
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import KINDS, Work, kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps import clean_up as clean_up_steps
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.storage import LocalStorage
from streamkeeper.tables import recovery_lock
from tests.killing import Killed
from tests.worlds.recover.asked import ASKED, SET_APART
from tests.worlds.recover.recoveries import approve, carry_out, planned
from tests.worlds.small_world import World

PATIENT = {"clean_up", "tidy_tables"}
"""Kinds that leave what is locked for another day."""
LOCKS_NONE = {"backup_table", *PATIENT}
"""Kinds whose plan goes on beside others: a backup looks when it pins its versions."""
LOCKING = sorted(set(ASKED) - LOCKS_NONE)
FIRST = ("full_refresh", "backfill")
"""Kinds that come first: one that holds the flows and locks their table, one that only locks it."""


def test_every_kind_is_asked_for() -> None:
    assert sorted([*ASKED, *SET_APART]) == sorted(KINDS)


def plan(world: World, name: str, recovery: str) -> Plan:
    return approve(world, planned(world, name, recovery, **ASKED[name]))


def first_step(world: World, name: str, recovery: str) -> dict[str, Any]:
    return carry_out(world, kind(name).step_names[0], recovery=recovery)


def kept(world: World) -> dict[str, str]:
    """Everything but what recoveries write about themselves."""
    return {name: found for name, found in world.tree().items() if "/ledger/" not in name}


@pytest.mark.parametrize("second", sorted(set(ASKED) - PATIENT))
@pytest.mark.parametrize("first", FIRST)
def test_who_comes_while_another_is_at_work_is_refused_in_the_plan(
    first: str, second: str, stands: World
) -> None:
    plan(stands, first, f"{first}-1")
    first_step(stands, first, f"{first}-1")
    said = rf"The recovery {first}-1 has locked the table events of events, so second cannot start"
    with pytest.raises(TableLocked, match=said):
        plan(stands, second, "second")


@pytest.mark.parametrize("second", LOCKING)
@pytest.mark.parametrize("first", FIRST)
def test_of_two_that_were_planned_the_one_that_is_later_is_refused_and_the_other_goes_on(
    first: str, second: str, stands: World
) -> None:
    plan(stands, second, "second")
    plan(stands, first, "first")
    first_step(stands, first, "first")
    before = kept(stands)
    with pytest.raises(TableLocked, match=r"--resume first.*streamkeeper abandon first"):
        first_step(stands, second, "second")
    assert kept(stands) == before
    assert engine.give_up(stands.settings, "events", "second", "locked out")
    assert kept(stands) == before, "who is given up takes nothing of the other's away"
    assert recovery_lock.holder(stands.home.storage, "events", "events") == "first"
    assert engine.give_up(stands.settings, "events", "first", "rejected")
    assert (stands.home.owners(), recovery_lock.holder(stands.home.storage, "events", "events")) == ([], None)


def test_a_recovery_whose_plan_another_made_old_is_refused_under_its_hold_and_leaves_nothing(
    stands: World,
) -> None:
    """Both were planned on generation 1; the first is done before the second begins."""
    plan(stands, "reset_checkpoint", "first")
    plan(stands, "full_refresh", "second")
    steps = ("hold", "plan_again", "decide", "verify_tables", "release")
    carry_out(stands, *steps, recovery="first")
    carry_out(stands, "hold", recovery="second")
    with pytest.raises(
        RecoveryError, match=r"is on generation 2 now; the plan was made for generation 1.*abandon second"
    ):
        carry_out(stands, "plan_again", recovery="second")
    assert engine.give_up(stands.settings, "events", "second", "old")
    assert (stands.home.owners(), recovery_lock.holder(stands.home.storage, "events", "events")) == ([], None)
    assert stands.home.generations() == [1, 2]


# --- a clean-up that was killed while it had a table's lock


@pytest.fixture
def interrupted(stands: World, monkeypatch: pytest.MonkeyPatch) -> Work:
    """A clean-up that was killed in the middle of a checkpoint, with the table's lock."""
    made = planned(stands, "clean_up", "c1", **ASKED["clean_up"])
    names = ["events/clean_events/checkpoints/000001-000001"]
    removal = {"flow": "clean_events", "generation": 1, "names": names, "note": "old"}
    decided = generations.read(stands.home, 1)
    assert decided is not None
    generations.decide(stands.home, generations.with_number(decided, stands.home, 2))
    generations.begin(
        stands.home,
        generations.Start(
            2, stands.home.checkpoint(2, 2), 0, {}, {}, (), None, 2, "2026-11-21T10:00:00+00:00"
        ),
    )
    work = Work(stands.settings, made, ledger.open(stands.home.storage, "events", "c1"), "remove")
    work.plan.details["remove"] = [removal]
    engine.propose(stands.settings, work.plan)

    def dying(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(LocalStorage, "remove", dying)
        patch.setattr(recovery_lock, "give_back", dying)  # on the way out
        clean_up_steps.remove(work)
    assert recovery_lock.holder(stands.home.storage, "events", "events") == "c1"
    return work


def test_a_clean_up_that_was_killed_with_a_lock_gives_it_back_when_it_is_run_again(
    interrupted: Work, stands: World
) -> None:
    assert clean_up_steps.remove(interrupted) == {"removed": 1, "left": {}}
    assert recovery_lock.holder(stands.home.storage, "events", "events") is None


def test_a_clean_up_that_was_killed_gives_its_lock_back_though_what_it_removed_is_needed_again(
    interrupted: Work, stands: World
) -> None:
    back = StartAt("batch", generation=1, batch=0)
    decided = generations.read(stands.home, 2)
    assert decided is not None
    third = generations.with_number(decided, stands.home, 3)
    generations.decide(stands.home, replace(third, start=back, previous=2))
    assert clean_up_steps.remove(interrupted)["left"] == {"clean_events": "generation 1 is in use again"}
    assert recovery_lock.holder(stands.home.storage, "events", "events") is None


def test_a_clean_up_that_was_killed_gives_its_lock_back_when_it_is_abandoned(
    interrupted: Work, stands: World
) -> None:
    engine.abandon(stands.settings, "events", "c1", "ada")
    assert recovery_lock.holder(stands.home.storage, "events", "events") is None
    holds.put(stands.home, holds.person("ada"), "x", "ada")
    shared_steps.release_all(interrupted)
    assert stands.home.owners() == [holds.person("ada")]
