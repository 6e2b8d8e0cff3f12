"""Carrying out a reset: in its order, as approved, and nobody's hold or lock is left or lost. It is killed at
every change in test_killed_everywhere.py.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

import pytest

from streamkeeper.errors import LeaseHeld, PlanRefused, RecoveryError, RequestError
from streamkeeper.flows import generations, holds, leases, ledger
from streamkeeper.flows.generations import StartAt
from streamkeeper.recover import course, engine
from streamkeeper.recover.kinds.reset_checkpoint import KIND
from streamkeeper.recover.plans.kind import KINDS, StepKind, kind
from streamkeeper.recover.plans.plan import Plan, Refusal
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.support.amounts import DATA_LOSS, DUPLICATES
from streamkeeper.tables import recovery_lock
from tests.worlds.recover.recoveries import FLOW, approve, carry_out, drive, plan_reset, planned
from tests.worlds.small_world import CHANGES, EVENTS, World

STEPS = KIND.step_names
UNTIL_RELEASED = STEPS[: STEPS.index("release") + 1]


@pytest.fixture
def parked(stands: World) -> World:
    """The flow is parked, its driver gone."""
    stands.park()
    return stands


def plan(world: World, start: str = "after-last", recovery: str = "r1", **request: Any) -> Plan:
    return approve(world, plan_reset(world, start, recovery, **request))


def of_flow(evidence: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = evidence["flows"][FLOW]
    return found


def end_state(world: World) -> dict[str, Any]:
    """Everything that a recovery leaves behind, but moments and how often it had to try."""
    book = ledger.open(world.home.storage, "events", "r1")
    decided = generations.latest(world.home)
    assert decided is not None
    return {
        "generation": replace(decided, at=""),
        "generations": world.home.generations(),
        "holds": world.home.owners(),
        "lock": recovery_lock.holder(world.home.storage, "events", "events"),
        "events": sorted({event.event for event in book.events() if not event.event.endswith(".started")}),
        "open": engine.is_open(world.settings, "events", "r1"),
        "old checkpoint": {
            name: content for name, content in world.tree().items() if "/checkpoints/000001" in name
        },
    }


def test_nothing_is_carried_out_before_someone_approved(parked: World) -> None:
    made = plan_reset(parked)
    assert engine.propose(parked.settings, made) == made
    with pytest.raises(PlanRefused, match="of this recovery is not approved yet"):
        carry_out(parked, "hold")
    assert parked.home.owners() == ["park"]


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_asks_before_it_changes_anything_and_again_where_it_plans_again(name: str) -> None:
    stages = list(course.stages(kind(name)))
    names, first_change = [stage.name for stage in stages], kind(name).first_change
    approval = names.index("approve")
    assert all(isinstance(stage, StepKind) and stage.unasked for stage in stages[:approval])
    assert first_change is None or approval < names.index(first_change.name)
    worse = [names[at - 1] for at, stage in enumerate(names) if stage == "approve_again"]
    assert worse == [stage for stage in names if stage == "plan_again"]


def test_a_plan_that_nothing_makes_go_is_neither_tried_nor_begun_and_one_with_an_impact_waits_for_an_answer(
    parked: World,
) -> None:
    plan = planned(parked, "reset_checkpoint", flow=FLOW, rehearse=True)
    assert [step.name for step in course.trial(plan)] == ["rehearse"]
    costly = replace(plan, refusals=(Refusal(DATA_LOSS, "rows go"),))
    assert course.trial(costly) == course.trial(plan)
    course.check(costly, asks=True)
    with pytest.raises(PlanRefused, match="rows go"):
        course.check(costly, asks=False)
    impossible = replace(plan, refusals=(Refusal(None, "the topic is gone"),))
    assert course.trial(impossible) == ()
    with pytest.raises(PlanRefused, match="the topic is gone"):
        course.check(impossible, asks=True)


def test_the_plan_that_was_proposed_first_is_the_one_that_holds(parked: World) -> None:
    made = plan(parked)
    assert engine.propose(parked.settings, replace(made, at="later")) == made
    engine.approve(parked.settings, "events", "r1", "grace")
    assert engine.read_plan(parked.settings, "events", "r1") == made
    assert len(ledger.open(parked.home.storage, "events", "r1").events()) == 2


def test_a_reset_decides_the_next_generation_and_leaves_nothing_else_behind(parked: World) -> None:
    before = end_state(parked)["old checkpoint"]
    plan(parked)
    assert not engine.is_open(parked.settings, "events", "r1")
    carry_out(parked, "hold")
    assert engine.is_open(parked.settings, "events", "r1")
    assert parked.home.owners() == ["park", "recovery-r1"]
    carry_out(parked, *UNTIL_RELEASED[1:])
    drive(parked.home)
    evidence = of_flow(carry_out(parked, "verify_progress"))
    assert (evidence["batch"], evidence["triggers"]) == (1, 1)
    found = end_state(parked)
    assert (found["generations"], found["holds"], found["lock"], found["open"]) == ([1, 2], [], None, False)
    assert found["old checkpoint"] == before
    decided = found["generation"]
    assert (decided.previous, decided.start) == (1, StartAt("after-last"))
    assert (decided.recovery, decided.by) == ("r1", "ada")


def test_a_step_that_is_done_only_gives_its_evidence_again(parked: World) -> None:
    plan(parked)
    first = carry_out(parked, *UNTIL_RELEASED)
    before = parked.tree()
    assert carry_out(parked, *UNTIL_RELEASED) == first
    assert parked.tree() == before


@pytest.mark.parametrize("step", STEPS[1:])
def test_no_step_is_carried_out_before_its_turn(step: str, parked: World) -> None:
    plan(parked)
    before = parked.tree()
    with pytest.raises(RecoveryError, match=rf"The step {step} needs the step \w+, which is not done"):
        carry_out(parked, step)
    assert parked.tree() == before


@pytest.mark.parametrize(
    "done", [(), ("hold",), ("hold", "plan_again")], ids=["nothing", "hold", "plan_again"]
)
def test_a_recovery_given_up_before_it_decided_leaves_the_flow_as_it_was(
    done: tuple[str, ...], parked: World
) -> None:
    plan(parked)
    recovery_lock.take(parked.home.storage, "events", "events", "r1")  # whose the table is stays known
    recovery_lock.give_back(parked.home.storage, "events", "events", "r1")

    def flow() -> dict[str, str]:
        others = ("/ledger/", "/recovery_lock/")
        tree = parked.tree().items()
        return {name: content for name, content in tree if not any(one in name for one in others)}

    before = flow()
    carry_out(parked, *done)
    assert engine.give_up(parked.settings, "events", "r1", "rejected")
    assert flow() == before
    assert recovery_lock.holder(parked.home.storage, "events", "events") is None
    with pytest.raises(RecoveryError, match=r"The recovery r1 was given up \(rejected\). Plan a new one"):
        carry_out(parked, "hold")
    assert engine.give_up(parked.settings, "events", "r1", "again"), "giving up twice is giving up"


def test_a_recovery_that_decided_cannot_be_given_up_and_goes_on(parked: World) -> None:
    plan(parked)
    carry_out(parked, "hold", "plan_again", "decide")
    before = parked.tree()
    assert not engine.give_up(parked.settings, "events", "r1", "rejected")
    assert parked.tree() == before
    carry_out(parked, "verify_tables", "release")
    assert parked.home.owners() == []


def test_an_abandoned_recovery_loses_hold_and_lock_and_its_generation_stays(parked: World) -> None:
    plan(parked)
    carry_out(parked, "hold", "plan_again", "decide")
    engine.abandon(parked.settings, "events", "r1", "ada")
    assert (parked.home.owners(), parked.home.generations()) == (["park"], [1, 2])
    assert recovery_lock.holder(parked.home.storage, "events", "events") is None
    assert not engine.is_open(parked.settings, "events", "r1")


def test_a_generation_that_began_after_the_plan_is_where_the_next_one_starts(parked: World) -> None:
    plan(parked, recovery="r0")
    carry_out(parked, *UNTIL_RELEASED, recovery="r0")
    made = plan(parked)
    assert (made.flows[0].generation, made.flows[0].previous) == (2, 1)
    parked.begin([[file] for file in parked.files], 5, 5, number=2)
    carry_out(parked, "hold", "plan_again", "decide")
    decided = generations.latest(parked.home)
    assert decided is not None
    assert (decided.number, decided.previous) == (3, 2)


def test_a_changed_declaration_makes_the_plan_stale(parked: World) -> None:
    plan(parked)
    parked.declare(EVENTS.replace("return raw", "return raw.distinct()"))
    carry_out(parked, "hold")
    with pytest.raises(
        RecoveryError, match=r"The declaration of events.clean_events changed since the plan was made"
    ):
        carry_out(parked, "plan_again")
    assert parked.home.generations() == [1]


def test_a_flow_that_is_not_declared_any_more_can_still_be_given_up(parked: World) -> None:
    plan(parked)
    carry_out(parked, "hold")
    parked.declare("", "events.py")
    assert engine.give_up(parked.settings, "events", "r1", "gone")
    assert parked.home.owners() == ["park"]


def test_a_impact_that_nobody_accepted_is_refused(parked: World) -> None:
    made = plan_reset(parked, "earliest")
    with pytest.raises(
        PlanRefused, match=r"(?s)Nothing was changed:\n- .*twice.*6 rows.*accept `duplicates`"
    ):
        shared_steps.check_accepted(made)


def test_a_impact_that_nobody_accepted_is_never_decided_on(parked: World) -> None:
    plan(parked, "earliest")
    carry_out(parked, "hold", "plan_again")
    with pytest.raises(PlanRefused, match=r"accept `duplicates`"):
        carry_out(parked, "decide")
    assert parked.home.generations() == [1]


def test_a_impact_that_got_worse_under_the_hold_is_asked_for_again(parked: World) -> None:
    made = plan(parked, "latest", accept=(DATA_LOSS,))
    assert made.flows[0].impacts[0].lost.rows == 4
    parked.add_files(1)
    evidence = carry_out(parked, "hold", "plan_again")
    assert evidence["worse"]
    assert "data loss went from 2 files" in evidence["reasons"][0]
    with pytest.raises(
        PlanRefused,
        match=r"(?s)got worse since the plan was approved, and the new impact is not approved:.*data"
        r" loss went",
    ):
        carry_out(parked, "decide")
    assert parked.home.generations() == [1]
    assert not engine.was_approved(parked.settings, made, again=True)
    engine.approve(parked.settings, "events", "r1", "grace", again=True)
    assert engine.was_approved(parked.settings, made, again=True)
    carry_out(parked, "decide")
    assert parked.home.generations() == [1, 2]


def test_a_impact_that_was_approved_again_is_accepted_by_the_generation(parked: World) -> None:
    """Else its driver would refuse what somebody said yes to."""
    again = replace(
        plan(parked, accept=(DATA_LOSS,)),
        refusals=(Refusal(DUPLICATES, "rows come twice"), Refusal(DATA_LOSS, "rows are lost")),
    )
    assert shared_steps.generation_of(again, again.flows[0], parked.home).accepted == (DATA_LOSS, DUPLICATES)


def test_files_that_came_after_the_plan_do_not_make_a_reset_after_the_last_processed_worse(
    parked: World,
) -> None:
    plan(parked)
    parked.add_files(3)
    assert not carry_out(parked, "hold", "plan_again")["worse"]


def test_the_hold_waits_until_the_driver_has_left(parked: World) -> None:
    lease = leases.acquire(parked.home, 1, 1.0)
    plan(parked)

    def obey() -> None:
        while "recovery-r1" not in parked.home.owners():
            threading.Event().wait(0.01)
        leases.leave(parked.home, lease, "held")

    driver = threading.Thread(target=obey)
    driver.start()
    evidence = carry_out(parked, "hold")
    driver.join()
    assert f"pid {os.getpid()}" in evidence["drivers"][FLOW]


def test_a_driver_that_does_not_stop_is_told_and_the_step_can_be_run_again(parked: World) -> None:
    parked.more["STREAMKEEPER_STOP_TIMEOUT"] = "0.3"
    lease = leases.acquire(parked.home, 1, 1.0)
    plan(parked)
    with pytest.raises(LeaseHeld, match=r"is still there 0.3 s after it was asked to stop"):
        carry_out(parked, "hold")
    assert parked.home.owners() == ["park", "recovery-r1"]
    leases.leave(parked.home, lease, "held")
    carry_out(parked, *UNTIL_RELEASED)
    assert parked.home.generations() == [1, 2]


def test_a_table_that_was_replaced_meanwhile_keeps_the_flow_held(parked: World) -> None:
    plan(parked)
    carry_out(parked, "hold", "plan_again", "decide")
    table = parked.root / "warehouse" / "events"
    table.rename(parked.root / "aside")
    with pytest.raises(
        RecoveryError,
        match=r"The table events at .* is at version None; it was at version 3 when the hold was put",
    ):
        carry_out(parked, "verify_tables")
    assert "recovery-r1" in parked.home.owners()
    (parked.root / "aside").rename(table)
    assert carry_out(parked, "verify_tables")["tables"]["events"]["version"] == 3


def test_a_release_lifts_the_park_and_leaves_what_persons_hold(parked: World) -> None:
    holds.put(parked.home, holds.person("grace"), "maintenance", "grace")
    plan(parked)
    evidence = of_flow(carry_out(parked, *UNTIL_RELEASED))
    assert (evidence["park_lifted"], evidence["holds_left"]) == (True, ["person-grace"])
    assert of_flow(carry_out(parked, "verify_progress"))["held_by"] == ["person-grace"]


def test_a_park_of_a_later_generation_is_not_lifted(parked: World) -> None:
    plan(parked)
    parked.park(generation=2)
    assert not of_flow(carry_out(parked, *UNTIL_RELEASED))["park_lifted"]
    with pytest.raises(
        RecoveryError, match=r"Generation 2 of events.clean_events was parked before it made progress"
    ):
        carry_out(parked, "verify_progress")


def test_no_progress_is_an_error_that_says_where_to_look(
    parked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_steps, "PROGRESS_SECONDS", 0.1)
    plan(parked)
    carry_out(parked, *UNTIL_RELEASED)
    with pytest.raises(RecoveryError, match=r"made no progress in 0.1 s.*run this step again"):
        carry_out(parked, "verify_progress")
    drive(parked.home)
    assert of_flow(carry_out(parked, "verify_progress"))["batch"] == 1


def test_a_later_generation_ends_the_wait_for_progress(parked: World) -> None:
    plan(parked)
    carry_out(parked, *UNTIL_RELEASED)
    decided = generations.latest(parked.home)
    assert decided is not None
    generations.decide(parked.home, generations.with_number(replace(decided, recovery="r9"), parked.home, 3))
    assert of_flow(carry_out(parked, "verify_progress"))["superseded_by"] == 3


def test_the_ledger_keeps_the_plan_the_approval_and_each_steps_failure(parked: World) -> None:
    made = plan(parked, "earliest")
    carry_out(parked, "hold", "plan_again")
    with pytest.raises(PlanRefused):
        carry_out(parked, "decide")
    events = ledger.open(parked.home.storage, "events", "r1").events()
    done = [f"{step}.{what}" for step in ("hold", "plan_again") for what in ("started", "done")]
    told = ["planned", "approved", *done, "decide.started", "decide.failed"]
    assert [event.event for event in events] == told
    assert events[1].evidence == {"by": "ada"}
    assert events[-1].evidence["error"].startswith("PlanRefused: ")
    assert engine.read_plan(parked.settings, "events", "r1") == made


@pytest.mark.parametrize("name", ["r9", "../ledger/r1", "", "r1/../r1"])
def test_an_unknown_recovery_is_told_which_there_are(name: str, parked: World) -> None:
    plan(parked)
    with pytest.raises(RequestError, match=r"There is no recovery .* of events. The last ones are: r1"):
        engine.read_plan(parked.settings, "events", name)


def test_a_recoverys_id_is_the_same_for_the_same_run_and_can_hold() -> None:
    moments = ("manual__2026-11-21T10:00:00+00:00", "manual__2026-11-21T10:00:00.1+00:00")
    runs = [*moments, "x/../y", "ü", "", "a" * 300, "a" * 301]
    ids = [engine.recovery_id("reset_checkpoint", run) for run in runs]
    assert len(set(ids)) == len(runs)
    assert ids == [engine.recovery_id("reset_checkpoint", run) for run in runs]
    for made in ids:
        holds._check(holds.recovery(made))


def test_the_reset_of_a_once_flow_is_verified_by_its_being_done(world: World) -> None:
    world.declare(CHANGES % ", once=True")
    world.processed(1)
    generations.finish(world.home, 1, 0)
    plan(world)
    carry_out(world, *UNTIL_RELEASED)
    generations.finish(world.home, 2, 0)
    assert of_flow(carry_out(world, "verify_progress"))["done"]
