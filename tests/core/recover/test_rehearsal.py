"""Rehearsals without Spark: what is asked for, what is refused, what is shown."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.declare.model import REHEARSABLE
from streamkeeper.errors import PlanRefused, RequestError
from streamkeeper.flows import ledger
from streamkeeper.manifest.environment import opened
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import KINDS, kind
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.plans.rehearsal import DriverEvidence, Evidence, StepTime, TableEvidence
from streamkeeper.recover.steps.rehearse import REHEARSE, Rehearsed, copy_settings, folder, rehearsed
from streamkeeper.support.amounts import DUPLICATES
from tests.worlds.recover import recoveries
from tests.worlds.recover.recoveries import FLOW
from tests.worlds.small_world import EVENTS, World, write_manifest

DEMANDED = EVENTS + 'dp.configure_pipeline(rehearse=["reset_checkpoint"])\n'


def planned(world: World, recovery: str = "r1", **values: Any) -> Plan:
    return recoveries.planned(world, "reset_checkpoint", recovery, flow=FLOW, **values)


def evidence_of(plan: Plan | None) -> Evidence:
    driver = DriverEvidence(FLOW, "at its bounds", False, 2, 50, 5, 10.0, 3.25, 4096)
    table = TableEvidence(
        "events", 6, 5, 2, 1, "00aa", "00bb", ('{"event_id":"`a`"}',), ('{"event_id":"b"}',)
    )
    return Evidence(
        plan, "/srv/branch", 61.5, 12, 10_000, (StepTime("hold", 0.2),), (driver,), (table,), "stage"
    )


def test_every_kind_that_a_pipeline_may_demand_has_the_step_and_no_other_has() -> None:
    assert {name for name in KINDS if kind(name).rehearsal is not None} == set(REHEARSABLE)


def test_a_plan_has_the_step_where_it_is_asked_for_before_all_others_and_before_approval(
    stands: World,
) -> None:
    assert REHEARSE not in planned(stands).steps
    plan = planned(stands, rehearse=True)
    assert plan.steps == (REHEARSE, *planned(stands).steps)
    engine.propose(stands.settings, plan)
    assert [step.name for step in engine.unasked_steps(plan)] == [REHEARSE]
    with pytest.raises(PlanRefused, match="is not approved yet"):
        engine.carry_out(stands.settings, "events", "r1", "hold")
    assert engine.without_spark(stands.settings, "events", "r1", REHEARSE) is None, "it needs Spark"


def test_nothing_is_rehearsed_where_a_rehearsal_would_write(stands: World) -> None:
    sink = 'dp.create_sink("events", "kafka", {"kafka.bootstrap.servers": "b:1", "topic": "t"})'
    stands.declare(EVENTS.replace('dp.create_streaming_table("events")', sink))
    found = recoveries.planned(stands, "backfill", flow=FLOW, rehearse=True, accept=[DUPLICATES])
    [refusal] = found.refusals
    assert "writes the sink events, and a rehearsal would write there, too" in refusal.message
    with pytest.raises(RequestError, match="writes the sink events, and a rehearsal would"):
        recoveries.planned(stands, REHEARSE, flow=FLOW)


def test_a_step_that_is_not_in_the_plan_starts_no_spark(stands: World) -> None:
    engine.propose(stands.settings, planned(stands))
    assert engine.without_spark(stands.settings, "events", "r1", REHEARSE) == {
        "left_out": "the plan of r1 has no step rehearse"
    }


def test_a_pipeline_demands_a_rehearsal_and_one_that_is_named_must_have_come_to_an_end(stands: World) -> None:
    stands.declare(DEMANDED)
    [refusal] = planned(stands).refusals
    assert (refusal.impact, "demands that a reset_checkpoint is rehearsed" in refusal.message) == (None, True)
    assert planned(stands, rehearse=True).refusals == ()
    with pytest.raises(RequestError, match=r"rehearsal is 'r0', and the ledger of events has no rehearsal"):
        planned(stands, rehearsal="r0")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"recovery": "rewind"}, "it was a rewind, and this is a reset_checkpoint"),
        ({"generation": 7}, "was on generation 7, and is on 1"),
        ({"fingerprint": "0" * 16}, "the declaration of events.clean_events was 0000000000000000, and is"),
    ],
)
def test_a_rehearsal_of_something_else_does_not_count(
    changed: dict[str, Any], said: str, stands: World
) -> None:
    stands.declare(DEMANDED)
    plan = planned(stands, recovery="r2", rehearse=True)
    of_flow = {name: value for name, value in changed.items() if name != "recovery"}
    other = replace(
        plan,
        recovery=changed.get("recovery", plan.recovery),
        flows=tuple(replace(flow, **of_flow) for flow in plan.flows),
    )
    for name, tried in (("same", plan), ("other", other)):
        book = ledger.open(stands.home.storage, "events", name)
        book.record(f"{REHEARSE}.done", {"rehearsed": asdict(evidence_of(tried))})
    named = planned(stands, rehearsal="same")
    assert named.refusals == () and "Rehearsed by same" in "\n".join(named.notes)
    [refusal] = planned(stands, rehearsal="other").refusals
    assert refusal.impact is None and said in refusal.message


def test_the_evidence_is_told_in_words_and_as_a_table_without_markup_of_users() -> None:
    text, page = evidence_of(None).as_text(), evidence_of(None).as_markdown()
    assert "50 rows in 5 batches and 10 s (5 rows a second, longest batch 3.2 s)" in text
    assert "with the declarations in /srv/branch, in the environment stage." in text
    assert "table events: 6 rows before, 5 after, other rows; 2 gone, 1 new" in text
    assert "| events | 6 | 5 | 2 | 1 | 00aa | 00bb |" in page
    assert """- only before: `{"event_id":"'a'"}`""" in page


def test_all_that_a_rehearsal_writes_lies_in_a_folder_of_its_try(stands: World) -> None:
    plan = engine.propose(stands.settings, planned(stands, rehearse=True))
    work = engine._work(stands.settings, plan, REHEARSE)
    work.book.record(f"{REHEARSE}.started", {})
    copy = copy_settings(work, Rehearsed(None, pipelines="/srv/branch", files=3))
    root = f"{folder(stands.settings, 'r1')}/001/"
    assert all(place.startswith(root) for place in (copy.state, copy.warehouse, copy.backups))
    assert (copy.pipelines, copy.data, copy.read_at_most) == (Path("/srv/branch"), stands.settings.data, 3)
    assert (copy.register_tables, stands.settings.register_tables) == (False, True)
    assert rehearsed(plan).request["rehearse"] is False


@pytest.mark.parametrize(
    ("declared", "most", "found"),
    [
        ("{}", 3, "3"),
        ('{"maxFilesPerTrigger": 9}', 3, "3"),
        ('{"MAXfilespertrigger": 2}', 3, "2"),
        ("{}", 0, ""),
    ],
)
def test_a_bound_counts_where_it_is_less_than_declared(
    declared: str, most: int, found: str, world: World
) -> None:
    world.declare(EVENTS.replace("options={}", f"options={declared}"))
    write_manifest(world.settings)
    [source] = read_manifest(world.settings).find(FLOW).pipeline.sources
    bounded = opened(source, replace(world.settings, read_at_most=most))
    assert bounded.option("maxFilesPerTrigger") == found
    assert len([name for name in bounded.options if name.lower() == "maxfilespertrigger"]) == bool(found)


def test_a_folder_below_a_person_s_home_is_the_one_that_is_rehearsed(
    stands: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(stands.root))
    (stands.root / "branch").mkdir()
    planned = recoveries.planned(stands, REHEARSE, flow=FLOW, pipelines="~/branch")
    assert rehearsed(planned).pipelines == f"{stands.root}/branch" == planned.request["pipelines"]


def test_a_rehearsal_plans_the_recovery_that_it_tries(stands: World) -> None:
    def plan(**values: Any) -> Plan:
        return recoveries.planned(stands, REHEARSE, flow=FLOW, **values)

    alone = plan()
    assert (alone.steps, rehearsed(alone).recovery) == ((REHEARSE,), None)
    refresh = plan(recovery="full_refresh", minutes=2, files=5)
    assert (refresh.recovery, refresh.tables) == (REHEARSE, ("events",))
    tried = rehearsed(refresh)
    assert (tried.recovery, tried.minutes, tried.files) == ("full_refresh", 2.0, 5)
    assert tried.request["table"] == "events.events"
    with pytest.raises(RequestError, match=r"start is 'never'"):
        plan(recovery="reset_checkpoint", request={"start": "never"})
    with pytest.raises(RequestError, match=r"pipelines is '/nowhere', and there is no such folder"):
        plan(pipelines="/nowhere")
    with pytest.raises(RequestError, match=r"request has values, and recovery is none"):
        plan(request={"start": "earliest"})
    stands.more["STREAMKEEPER_ALLOWED_ROOTS"] = "/srv/branches"
    with pytest.raises(RequestError, match=r"pipelines: /nowhere lies in none of the folders that may be"):
        plan(pipelines="/nowhere")
