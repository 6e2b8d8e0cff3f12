"""Planning a rebuild without downtime, and what of it stays and goes: planning changes nothing, and what was
built is found and removed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.flows import generations, leases, ledger, side_flow
from streamkeeper.flows.generations import SIDE_TABLE, StartAt
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.manifest.manifest import Flow
from streamkeeper.recover import engine
from streamkeeper.recover.kinds.rebuild_without_downtime import KIND
from streamkeeper.recover.moves import side_table
from streamkeeper.recover.plans import plan as plans
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.requests.full_refresh import RebuildRequest
from streamkeeper.recover.steps import clean_up as clean_up_steps
from streamkeeper.storage import LocalStorage
from streamkeeper.support.amounts import DATA_LOSS, DOWNSTREAM
from tests.worlds.pipelines import LATE, READER, SEVERAL
from tests.worlds.recover import recoveries
from tests.worlds.recover.recoveries import approve, impact, of, planned, refused
from tests.worlds.small_world import CHANGES, EVENTS, World

RECOVERY = "rebuild_without_downtime-x-0badcafe"
MARK = "0badcafe"


def plan(world: World, *accept: str, **asked: Any) -> Plan:
    return planned(world, KIND.name, RECOVERY, table="events", accept=accept, **asked)


def carry_out(world: World, *steps: str) -> dict[str, Any]:
    return recoveries.carry_out(world, *steps, recovery=RECOVERY, in_spark=lambda act, work: {"act": act})


def test_the_plan_says_where_the_table_is_built_and_what_that_takes(stands: World) -> None:
    stands.summarize()
    found = plan(stands)
    (flow,) = found.flows
    assert (flow.start.mode, flow.generation, flow.next_generation) == ("earliest", 1, 2)
    [copy] = found.copies
    path = stands.settings.table_path("events")
    assert (copy.source, copy.destination) == (path, f"{path}__rebuild_{MARK}")
    assert (copy.bytes, copy.files) == (4096, 3)
    assert found.steps.index("build") < found.steps.index("hold") < found.steps.index("put_in_place")
    assert "is rebuilt in a side table" in found.notes[0]
    assert KIND.read_request(found.request) == RebuildRequest("events.events", by="ada")


def test_a_table_by_key_is_built_as_one_table(world: World) -> None:
    world.declare(CHANGES % ", once=True")
    world.processed(2)
    found = plan(world)
    assert found.details["side"] == world.settings.table_path(f"events__rebuild_{MARK}")
    assert [copy.label for copy in found.copies] == ["target"]
    assert found.flows[0].once


def test_every_flow_gets_a_generation_one_that_never_ran_too(stands: World) -> None:
    stands.declare(SEVERAL)
    of(stands, "more_events").begin([[file] for file in stands.files], 3, 3)
    stands.declare(SEVERAL + LATE)
    found = {flow.flow: (flow.generation, flow.next_generation) for flow in plan(stands).flows}
    assert found == {
        "events.clean_events": (1, 2),
        "events.more_events": (1, 2),
        "events.late_events": (None, 1),
    }


def test_streams_that_read_the_table_and_lost_history_are_impacts_as_of_any_full_refresh(
    stands: World,
) -> None:
    stands.declare(READER % "", "after.py")
    stands.files[0].unlink()
    assert {*refused(plan(stands))} == {DOWNSTREAM, DATA_LOSS}
    assert plan(stands, DOWNSTREAM, DATA_LOSS).refusals == ()


CLEANS = EVENTS.replace("options={}", 'options={"cleanSource": "Delete"}')


def test_what_the_running_flow_removes_while_the_table_is_built_is_an_unknown_loss(stands: World) -> None:
    stands.declare(CLEANS)
    found = plan(stands)
    [refusal] = found.refusals
    assert refusal.impact == DATA_LOSS
    assert "keeps removing files that it has read while the table is built, by cleanSource" in refusal.message
    assert "Choose full_refresh, which holds the flow" in refusal.message
    assert "keeps removing files" in str(impact(found).lost.rows_unknown)
    stands.files[0].unlink()
    said = "1 file, rows unknown: the files no longer exist"
    assert str(impact(plan(stands)).lost.rows_unknown).startswith(said)
    assert plan(stands, DATA_LOSS).refusals == ()
    stands.declare(EVENTS.replace("options={}", 'options={"cleanSource": "off"}'))
    assert refused(plan(stands)) == [DATA_LOSS], "the file that is gone, alone"
    assert impact(plan(stands)).lost.files == 1


def test_a_once_flow_that_is_done_removes_nothing_more_and_one_that_never_ran_may(world: World) -> None:
    cleans = CHANGES.replace("options={}", 'options={"cleanSource": "archive", "sourceArchiveDir": "/a"}')
    text = cleans % ", once=True"
    world.declare(text)
    world.processed(2)
    assert refused(plan(world)) == [DATA_LOSS]
    generations.finish(world.home, 1, 1)
    assert plan(world).refusals == ()
    (world.root / "data" / "more").mkdir()
    world.declare(
        text
        + '\ndp.create_source("more", format="json", path="{data}/more", schema="event_id STRING, n INT",'
        ' options={"cleanSource": "delete"})'
        '\ndp.create_auto_cdc_flow(name="late", target="events", source="more", keys=["event_id"],'
        ' sequence_by="n")\n'
    )
    [refusal] = plan(world).refusals
    assert (refusal.impact, refusal.flow) == (DATA_LOSS, "events.late")


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "an identity column": (
        {"schema": '{"fields":[{"name":"n","metadata":{"delta.identity.step":1}}]}'},
        r"has an identity column.*Nothing was changed. Choose full_refresh",
    ),
    "appends only": (
        {"delta.appendOnly": "true"},
        r"has the property delta.appendOnly.*Nothing was changed. Unset the property",
    ),
}


@pytest.mark.parametrize(("properties", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_table_that_cannot_be_replaced_is_refused_in_the_plan(
    properties: dict[str, str], message: str, stands: World
) -> None:
    stands.summarize(**properties)
    with pytest.raises(RequestError, match=message):
        plan(stands)


def test_the_flows_that_build_are_the_declared_ones_under_other_names_and_remove_nothing_from_their_sources(
    world: World,
) -> None:
    def derived(text: str) -> list[Flow]:
        world.declare(text)
        pipeline = load_pipeline(world.settings.pipelines / "events.py", world.settings.data)
        return side_flow.derive(world.settings, pipeline, "events", RECOVERY)

    flows = derived(SEVERAL)
    assert [(flow.name, flow.declaration.target) for flow in flows] == [
        (f"clean_events__rebuild_{MARK}", f"events__rebuild_{MARK}"),
        (f"more_events__rebuild_{MARK}", f"events__rebuild_{MARK}"),
    ]
    assert flows[0].fingerprint != flows[1].fingerprint
    takes = 'options={"cleanSource": "delete", "sourceArchiveDir": "/a", "maxFilesPerTrigger": 3}'
    [flow] = derived(EVENTS.replace("options={}", takes))
    [source] = flow.pipeline.sources_of(flow.declaration)
    assert (source.options, source.start) == ({"maxFilesPerTrigger": "3"}, "earliest")


def test_under_the_hold_impacts_stay_and_a_driver_that_took_over_meanwhile_is_followed(stands: World) -> None:
    approve(stands, plan(stands))
    carry_out(stands, "lock", "build")
    stands.files[0].unlink()  # it was read by then
    taken = generations.after_takeover(
        stands.home, generations.first(stands.home, stands.flow.fingerprint), stands.flow.fingerprint, "x"
    )
    generations.decide(stands.home, taken)
    found = carry_out(stands, "hold", "plan_again")
    again = plans.from_json(found["plan"])
    assert (found["worse"], again.flows[0].generation, again.flows[0].next_generation) == (False, 2, 3)


def test_another_declaration_is_refused_under_the_hold_and_leaves_nothing_behind(stands: World) -> None:
    approve(stands, plan(stands))
    carry_out(stands, "lock", "build")
    stands.declare(EVENTS.replace("return raw", 'return raw.where("true")'))
    with pytest.raises(
        RecoveryError, match=r"What is declared of events.clean_events changed.*Nothing was changed"
    ):
        carry_out(stands, "hold", "plan_again")
    built(stands)
    assert engine.give_up(stands.settings, "events", RECOVERY, "rejected")
    assert remains(stands) == []


def built(world: World) -> None:
    """Leave behind what a build has made: a table, and a flow with a checkpoint and a lease that it has
    left.
    """
    replace(world, table=f"events__rebuild_{MARK}").write_table("q", 0)
    side = side_flow.side_home(world.home, RECOVERY)
    world.home.storage.overwrite(f"{side.checkpoint(1, 1)}/metadata", b"{}")
    generations.decide(side, generations.first(side, "f"))
    leases.leave(side, leases.acquire(side, 1, 0.6), "done")
    world.home.storage.overwrite(f"events/tables/events__rebuild_{MARK}/write_lock/000001.json", b"{}")


def remains(world: World) -> list[str]:
    return [name for name in world.tree() if "rebuild" in name and "/ledger/" not in name]


def test_clean_up_finds_what_a_recovery_that_is_over_has_left_and_touches_none_that_is_not(
    stands: World,
) -> None:
    approve(stands, plan(stands))
    built(stands)

    def left() -> Plan:
        return planned(stands, "clean_up", "c1", pipeline="events")

    assert left().details["side_tables"] == [], "it is not over"
    assert not [note for note in left().notes if "no longer declared" in note]
    ledger.open(stands.home.storage, "events", RECOVERY).record("given_up", {"why": "x"})
    found = left()
    assert found.details["side_tables"] == [RECOVERY]
    assert f"The table that {RECOVERY} built" in " ".join(found.notes)
    clean_up_steps.remove_side_table(
        Work(stands.settings, found, ledger.open(stands.home.storage, "events", "c1"), "remove_side_table")
    )
    assert remains(stands) == []
    engine.propose(stands.settings, found)
    ledger.open(stands.home.storage, "events", "c1").record("ended", {})
    assert left().details["side_tables"] == [], "nor is a clean-up that is over taken for one"


def test_checkpoints_that_a_flow_goes_on_with_stay_and_a_living_driver_loses_nothing(stands: World) -> None:
    made = approve(stands, plan(stands))
    built(stands)
    side = side_flow.side_home(stands.home, RECOVERY)
    stands.home.storage.overwrite(f"{side.checkpoint(2, 2)}/metadata", b"{}")
    lease = leases.acquire(side, 1, 0.6)
    before = stands.tree()
    assert "may still be driven" in side_table.remove(stands.settings, made)["left"]
    assert stands.tree() == before
    leases.leave(side, lease, "done")
    began = generations.read_start(stands.home, 1)
    first = generations.read(stands.home, 1)
    assert began is not None and first is not None
    decided = replace(first, number=2, start=StartAt(SIDE_TABLE), recovery=RECOVERY)
    generations.decide(stands.home, decided)
    generations.begin(stands.home, replace(began, number=2, checkpoint=side.checkpoint(1, 1)))
    side_table.remove(stands.settings, made)
    assert remains(stands) == [f"state/{side.checkpoint(1, 1)}/metadata"]
    assert generations.read(stands.home, 2) == decided


def test_a_file_that_is_shared_stays_when_its_first_name_goes(tmp_path: Path) -> None:
    one, other = LocalStorage(str(tmp_path / "one")), LocalStorage(str(tmp_path / "other"))
    one.overwrite("a/part", b"rows")
    for _ in range(2):
        other.share(one, "a/part", "a/part")
    assert (tmp_path / "other" / "a" / "part").samefile(tmp_path / "one" / "a" / "part")
    one.remove("a")
    assert other.read("a/part") == b"rows"
    assert [file.name for file in (tmp_path / "other" / "a").iterdir()] == ["part"]
