"""Planning an adoption: what is found in somebody else's checkpoint and in the table, its impact, what is
refused; nothing is touched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamkeeper.checkpoint import (
    Checkpoint,
)
from streamkeeper.checkpoint.log_entries import PROVIDER, WATERMARK_POLICY
from streamkeeper.cli import recovery_session, running
from streamkeeper.cli.commands import app
from streamkeeper.declare.model import Location, Source
from streamkeeper.delta.log import FENCE
from streamkeeper.drivers import submit
from streamkeeper.errors import CheckpointError, NewerCheckpoint, PlanRefused, RecoveryError, RequestError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, holds, ledger
from streamkeeper.flows.files import query_id
from streamkeeper.flows.generations import ADOPTED, COPIED, StartAt
from streamkeeper.observe import adopted_checkpoint
from streamkeeper.recover import engine
from streamkeeper.recover.moves import adopted_sources
from streamkeeper.recover.plans import explain
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.storage import LocalStorage
from streamkeeper.support.amounts import DATA_LOSS, DUPLICATES, UNKNOWN_IMPACT
from streamkeeper.tables import recovery_lock
from tests.recorder import Recorder
from tests.worlds.pipelines import HUNGRY
from tests.worlds.recover import recoveries
from tests.worlds.recover.old_checkpoints import OLD_ID, old_job, write_old
from tests.worlds.recover.recoveries import FLOW, Submits, approve, impact, notes, planned, refused
from tests.worlds.small_world import CHANGES, EVENTS, World, write_manifest
from tests.worlds.sources.source_impacts import KAFKA

RECORDED = Path(__file__).parents[1] / "checkpoint" / "recorded"
OTHERS = KAFKA.replace("orders", "others")
TWO = """
from streamkeeper import pipelines as dp

dp.create_source("shop", format="json", path="{data}/shop", schema="event_id STRING")
dp.create_source("web", format="json", path="{data}/web", schema="event_id STRING")
dp.create_streaming_table("events")

@dp.append_flow(name="clean_events", target="events", sources=["shop", "web"])
def clean_events(shop, web):
    return shop.union(web)
"""


def plan(world: World, folder: Path | str, recovery: str = "r1", **values: Any) -> Plan:
    """Plan an adoption of a job that is stopped."""
    given = {"flow": FLOW, "checkpoint": str(folder), "old_job_is_stopped": True, **values}
    return planned(world, "adopt", recovery, **given)


def test_of_what_a_job_gave_to_a_sink_no_log_tells(world: World) -> None:
    sink = "@dp.foreach_batch_sink()\ndef events(batch, number, transaction): ...\n"
    world.declare(EVENTS.replace('dp.create_streaming_table("events")\n', sink))
    folder = old_job(world, transactions=0)
    assert refused(plan(world, folder)) == [UNKNOWN_IMPACT]
    assert refused(plan(world, folder, accept=[UNKNOWN_IMPACT])) == []


# --- where it stands


def test_a_job_that_ended_in_good_order_is_adopted_at_no_impact(world: World) -> None:
    folder = old_job(world)
    world.add_files(2)
    found = plan(world, folder)
    (flow,) = found.flows
    assert refused(found) == []
    assert (flow.generation, flow.next_generation, flow.previous, flow.state) == (None, 1, None, COPIED)
    sources = {"0": "events_raw"}
    assert flow.start == StartAt(ADOPTED, checkpoint=str(folder), query_id=OLD_ID, sources=sources)
    stood, cost = flow.position, impact(found)
    assert (stood["batch"], stood["ruled_by"], stood["planned"]) == (2, "checkpoint", 2)
    assert stood["offsets"] == {"events_raw": {"logOffset": 2}}
    assert (cost.now, cost.then) == ("files log 2", "after batch 2 of the old job: files log 2")
    assert cost.lost.nothing and cost.repeated.nothing
    assert "2 unread files will be read" in cost.notes
    assert "Checkpoint and table agree: batch 2 is the last." in flow.notes
    assert "0 is events_raw" in " ".join(flow.notes)
    assert (found.copies[0].source, found.copies[0].files) == (str(folder), 10)
    assert found.steps[:5] == ("rehearse", "hold", "plan_again", "see_still", "decide")
    assert "generation none yet → 1, start adopted" in explain.as_text(found)


def test_a_batch_that_only_the_table_has_is_not_read_again(world: World) -> None:
    found = plan(world, old_job(world, batches=3, committed=2, transactions=3))
    assert (found.flows[0].position["batch"], found.flows[0].position["ruled_by"]) == (2, "sink")
    assert refused(found) == []
    assert "the table's log counts, so that batch 2 is not written twice" in explain.as_text(found)


def test_a_batch_that_was_planned_and_is_not_in_the_table_is_read_anew(world: World) -> None:
    found = plan(world, old_job(world, batches=3, committed=2))
    assert (found.flows[0].position["batch"], found.flows[0].position["planned"]) == (1, 2)
    assert refused(found) == []
    assert "Batch 2 was planned and is not in the table: its input is read again." in found.flows[0].notes
    assert "1 unread files will be read" in impact(found).notes


def test_a_pattern_that_only_java_understands_speaks_against_no_topic(world: World) -> None:
    def misfit(pattern: str, topic: str) -> str | None:
        source = Source(
            "orders", "kafka", None, None, {"subscribePattern": pattern}, Location("events.py", 1)
        )
        read = Checkpoint(LocalStorage(str(world.root)), "")
        return adopted_sources._misfit(read, "0", {topic: {"0": 5}}, source)

    assert misfit(r"orders\p{Alnum}+", "orders1") is None
    said = "0 has read the topics clicks; orders does not read clicks"
    assert misfit("orders[0-9]+", "clicks") == said


def test_a_fence_is_no_batch_and_is_told(world: World) -> None:
    folder = old_job(world)
    world.commit({"txn": {"appId": OLD_ID, "version": FENCE}})
    found = plan(world, folder)
    assert found.flows[0].position["batch"] == 2
    assert "The query is already fenced in the table." in found.flows[0].notes


# --- what it costs where the table cannot tell


def test_without_a_table_what_the_old_job_read_counts_as_lost(world: World) -> None:
    folder = old_job(world, transactions=0)
    found = plan(world, folder)
    assert refused(found) == [DATA_LOSS]
    assert "rows that the old job read up to batch 2 are not in it" in found.refusals[0].message
    assert refused(plan(world, folder, accept=[DATA_LOSS])) == []


def test_a_table_that_does_not_know_the_query_leaves_the_last_batch_unknown(world: World) -> None:
    folder = old_job(world, transactions=0)
    world.write_table("another query", 1)
    assert refused(plan(world, folder)) == [UNKNOWN_IMPACT]
    shutil.rmtree(folder)
    folder = old_job(world, batches=3, committed=2, transactions=0)
    found = plan(world, folder)
    assert refused(found) == [UNKNOWN_IMPACT, DUPLICATES]
    assert "batch 2, which was planned and not committed, may be in the table" in found.refusals[1].message
    assert refused(plan(world, folder, accept=[UNKNOWN_IMPACT, DUPLICATES])) == []


def test_a_table_kept_by_key_and_sequence_is_not_harmed_by_a_batch_that_comes_again(world: World) -> None:
    world.declare(CHANGES % "")
    folder = old_job(world, batches=3, committed=2, transactions=0)
    world.write_table("another query", 1)
    assert refused(plan(world, folder)) == [UNKNOWN_IMPACT]


def test_a_log_that_does_not_reach_back_leaves_the_answer_to_the_driver(world: World) -> None:
    folder = old_job(world, transactions=0)
    world.write_table("another query", 1)
    world.version(0).unlink()
    found = plan(world, folder)
    assert refused(found) == []
    assert "The driver reads it with Spark, and the later of both counts" in explain.as_text(found)


# --- what stands in the way


def test_nothing_is_carried_out_until_someone_says_that_the_old_job_is_stopped(world: World) -> None:
    found = plan(world, old_job(world), old_job_is_stopped=False)
    assert refused(found) == [None]
    with pytest.raises(PlanRefused, match="Stop it for good, and set old_job_is_stopped"):
        shared_steps.check_accepted(found)


OBSTACLES: dict[str, tuple[Callable[[World, Path], object], str]] = {
    "lacks a batch": (lambda _, job: (job / "offsets/1").unlink(), "the checkpoint is damaged"),
    "is ahead of the table": (
        lambda world, _: [world.version(number).unlink() for number in (2, 3)],
        "has committed batches 1 to 2, which the table lacks",
    ),
    "has a log of schemas": (
        lambda _, job: (job / "sources/0/_schema_log_1").mkdir(),
        "a log of a Delta source's schemas",
    ),
    "has state without metadata": (
        lambda _, job: (job / "state/0/0").mkdir(parents=True),
        "how many partitions it has is not known",
    ),
}


@pytest.mark.parametrize(("spoil", "said"), OBSTACLES.values(), ids=OBSTACLES)
def test_an_obstacle_is_refused_whatever_is_accepted(
    world: World, spoil: Callable[[World, Path], object], said: str
) -> None:
    folder = old_job(world)
    spoil(world, folder)
    found = plan(world, folder, accept=[DATA_LOSS, DUPLICATES, UNKNOWN_IMPACT])
    assert None in refused(found)
    assert said in " ".join(item.message for item in found.refusals)


def test_an_older_copy_is_refused(world: World) -> None:
    folder = old_job(world)
    world.write_table(OLD_ID, 7)
    with pytest.raises(
        CheckpointError, match=r"has batch 6 of the query .* never planned: the checkpoint is an older copy"
    ):
        plan(world, folder)


def test_a_flow_that_has_begun_adopts_nothing(world: World) -> None:
    folder = old_job(world)
    world.processed(1)
    with pytest.raises(RequestError, match="has run already: it is on generation 1"):
        plan(world, folder)


def test_a_flow_that_was_decided_and_never_began_may_adopt(world: World) -> None:
    folder = old_job(world)
    generations.decide(world.home, generations.first(world.home, "f"))
    found = plan(world, folder)
    assert (found.flows[0].generation, found.flows[0].next_generation) == (1, 2)


def test_what_is_no_checkpoint_is_said_with_what_is_there(world: World) -> None:
    old_job(world)
    with pytest.raises(CheckpointError, match="There is nothing at"):
        plan(world, world.root / "nowhere")
    with pytest.raises(CheckpointError, match="is a Delta table"):
        plan(world, world.root / "warehouse" / "events")
    with pytest.raises(CheckpointError, match="seems to be a part of a checkpoint"):
        plan(world, world.root / "old job" / "offsets")


def test_a_checkpoint_without_a_batch_is_nothing_to_go_on_after(world: World) -> None:
    folder = old_job(world, batches=1, committed=0)
    with pytest.raises(RequestError, match="has no committed batch"):
        plan(world, folder)


def test_a_checkpoint_of_an_unknown_format_is_refused(world: World) -> None:
    folder = old_job(world)
    (folder / "offsets" / "2").write_text("v3\n{}\n{}")
    said = (
        r"is of version v3, and Spark \S+ reads v1 and v2: a newer Spark wrote it\. Nothing was changed\. Use"
    )
    with pytest.raises(NewerCheckpoint, match=said):
        plan(world, folder)


def test_a_state_with_settings_of_a_newer_spark_is_told(world: World) -> None:
    folder = old_job(world, conf={"spark.sql.of.tomorrow": "true"})
    shutil.copytree(RECORDED / "files_dedup" / "state", folder / "state")
    said = notes(plan(world, folder))
    assert "The checkpoint pins spark.sql.of.tomorrow, which Spark 4.2 does not know: a newer Spark" in said


def test_a_checkpoint_elsewhere_than_in_the_allowed_roots_is_not_opened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = old_job(world)
    monkeypatch.setattr(World, "settings", replace(world.settings, allowed_roots=("/srv/old",)))
    with pytest.raises(RequestError, match="in none of the folders that may be used: /srv/old"):
        plan(world, folder)
    with pytest.raises(RequestError, match="neither a path nor the URL of a store"):
        plan(world, Path("x"), checkpoint="http://127.0.0.1:9/c")


def test_what_is_streamkeepers_own_is_not_adopted(world: World) -> None:
    start = world.processed(2)
    mine = world.root / "state" / start.checkpoint
    away = world.root / "away"
    shutil.copytree(mine, away)
    shutil.rmtree(world.root / "state" / "events" / "clean_events")
    other = World(world.root, name="other_events")
    world.declare(
        EVENTS + EVENTS.split("dp\n")[1].replace("events", "aside").replace("clean_aside", "aside_events"),
        "more.py",
    )
    assert other.home.generations() == []
    with pytest.raises(RequestError, match="the state folder of Streamkeeper"):
        plan(world, world.root / "state" / "somewhere")
    generations.decide(world.home, generations.first(world.home, "f"))
    assert generations.latest(world.home) is not None
    with pytest.raises(RequestError, match=r"is a copy of generation 1 of events\.clean_events"):
        plan(world, away)


def test_a_query_is_adopted_once(world: World) -> None:
    folder = old_job(world)
    found = plan(world, folder)
    second = EVENTS.replace('"events"', '"others"').replace("clean_events", "other_events")
    world.declare(EVENTS + "".join(second.partition("dp.create_streaming_table")[1:]))
    generations.decide(world.home, shared_steps.generation_of(found, found.flows[0], world.home))
    assert plan(world, folder, "r2").flows[0].next_generation == 2, "what never began may be decided again"
    with pytest.raises(
        RequestError,
        match=r"to be adopted by events\.clean_events, whose generation 1 starts from it.*duplicate them",
    ):
        plan(world, folder, "r3", flow="events.other_events")
    generations.begin(
        world.home, generations.Start(1, "c", 2, {}, {}, (), None, 1, "2026-11-21T10:00:00+00:00")
    )
    with pytest.raises(RequestError, match=r"was adopted already, as generation 1 of events\.clean_events"):
        plan(world, folder, flow="events.other_events")


# --- its sources


def two_sources(world: World, first: str, second: str) -> Path:
    """A checkpoint whose first source read one folder, and its second another."""
    world.declare(TWO)
    folder = world.root / "old job"
    files = {}
    for key, name in (("0", first), ("1", second)):
        file = world.root / "data" / name / "a.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"event_id": "a"}\n')
        files[key] = [[file]]
    write_old(world, folder, files, 1)
    world.write_table(OLD_ID, 1)
    return folder


def names_of(found: Plan) -> dict[str, str] | None:
    return found.flows[0].start.sources


def test_several_sources_without_names_must_be_named(world: World) -> None:
    folder = two_sources(world, "web", "shop")
    with pytest.raises(RequestError, match=r"cannot match them\. Nothing was changed\. Set `sources`"):
        plan(world, folder)
    assert names_of(plan(world, folder, sources={"0": "web", "1": "shop"})) == {"0": "web", "1": "shop"}
    with pytest.raises(RequestError, match=r"They do not fit: 0 has read .*/web/a\.json, and shop reads"):
        plan(world, folder, sources={"0": "shop", "1": "web"})
    with pytest.raises(RequestError, match="`sources` must name each of 0, 1; it names a, b"):
        plan(world, folder, sources={"a": "web", "b": "shop"})
    with pytest.raises(
        RequestError, match=r"Each source of events\.clean_events must be named once: shop, web"
    ):
        plan(world, folder, sources={"0": "web", "1": "web"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            EVENTS.replace("{data}/events", "{data}/elsewhere"),
            r"has read .*/data/events/f000\.json, and events_raw reads .*/elsewhere",
        ),
        (OTHERS, "is an offset of a files source; a kafka source has"),
        (TWO, "Their numbers differ"),
    ],
    ids=["another folder", "another kind", "another number"],
)
def test_sources_that_are_not_the_checkpoints_are_refused(world: World, text: str, said: str) -> None:
    folder = old_job(world)
    world.declare(text)
    with pytest.raises(RequestError, match=said):
        plan(world, folder)


def test_topics_that_the_flow_does_not_read_are_refused(world: World) -> None:
    world.declare(OTHERS)
    with pytest.raises(RequestError, match="0 has read the topics orders; events_raw does not read orders"):
        plan(world, RECORDED / "kafka")


# --- what it says


def test_pinned_settings_are_told_where_the_flow_would_use_others(world: World) -> None:
    folder = old_job(world, conf={PROVIDER: "RocksDB", WATERMARK_POLICY: "max"})
    own = f'sources=["events_raw"], spark_conf={{"{WATERMARK_POLICY}": "min"}}'
    world.declare(EVENTS.replace('sources=["events_raw"]', own))
    said = notes(plan(world, folder))
    assert f"pins {PROVIDER} to RocksDB" in said
    assert f"pins {WATERMARK_POLICY} to max; min of the flow has no effect on it" in said


def test_a_plan_names_its_table_what_to_hold_first_and_what_to_unpause_afterwards(world: World) -> None:
    text = notes(plan(world, old_job(world)))
    assert f"The table that it looked at, and continues, is {world.settings.table_path('events')}." in text
    before = text.index("streamkeeper hold events.clean_events --reason adopt")
    after = text.index("airflow dags unpause flow__events__clean_events")
    assert before < after and "release events.clean_events" in text


def test_state_with_ids_must_be_declared(world: World) -> None:
    folder = world.root / "old job"
    shutil.copytree(RECORDED / "rocksdb_dedup", folder)
    for file in folder.glob("sources/0/[0-9]*"):
        file.write_text(file.read_text().replace("/data/rocksdb_dedup/in", f"{world.root}/data/events"))
    found = plan(world, folder, accept=[DATA_LOSS])
    assert found.flows[0].operators_before == ("dedupe",)
    (message,) = [item.message for item in found.refusals]
    setting = "spark.sql.streaming.stateStore.checkpointFormatVersion"
    assert f"Declare it in the flow's spark_conf: {setting}=2" in message
    ids = f'spark_conf={{"{setting}": "2"}}'
    world.declare(EVENTS.replace('sources=["events_raw"]', f'sources=["events_raw"], {ids}'))
    assert refused(plan(world, folder, accept=[DATA_LOSS])) == []


# --- the form


def test_a_checkpoint_is_given_by_an_absolute_path_or_a_url(world: World) -> None:
    with pytest.raises(RequestError, match=r"checkpoint is 'relative/folder'\. Allowed is an absolute path"):
        recoveries.asked(world, "adopt", flow=FLOW, checkpoint="relative/folder")
    for values, missing in (({"flow": FLOW}, "checkpoint"), ({}, "flow and checkpoint")):
        with pytest.raises(
            RequestError, match=f"- {missing}: nothing is given. .* an absolute path or a URL"
        ):
            recoveries.asked(world, "adopt", **values)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("s3a://bucket/jobs/orders/", "s3://bucket/jobs/orders"),
        ("file:///srv/jobs/orders", "/srv/jobs/orders"),
        ("file:/srv/jobs/orders", "/srv/jobs/orders"),
        ("/srv/jobs/../orders/", "/srv/orders"),
    ],
)
def test_a_place_is_kept_in_one_spelling(world: World, given: str, kept: str) -> None:
    assert recoveries.asked(world, "adopt", flow=FLOW, checkpoint=given).checkpoints == {FLOW: kept}


# --- reading it as the flow's own


def test_a_checkpoint_without_names_reads_as_one_with_the_flows_names() -> None:
    start = StartAt(ADOPTED, checkpoint=str(RECORDED / "union_positional"), sources={"0": "web", "1": "shop"})
    raw = json.loads((RECORDED / "union_positional" / "metadata").read_text())["id"]
    found = adopted_checkpoint.open_adopted(StartAt(**{**start.__dict__, "query_id": raw}))
    entry = found.offsets(1)
    assert (entry.version, entry.sources) == (2, {"web": {"logOffset": 1}})
    assert entry.header == {"sourceMetadataInfo": {}}
    assert entry.conf["spark.sql.streaming.queryEvolution.enableSourceEvolution"] == "true"
    assert "spark.sql.shuffle.partitions" not in entry.conf
    assert found.sources() == ("web",)
    assert [entry.batch for entry in found.files_log("web").entries(1)] == [0, 1]
    assert found.names("sources/web") == [".0.crc", ".1.crc", "0", "1"]
    assert found.problems() == ()
    with pytest.raises(CheckpointError, match=r"is of the query .* now; it was of another"):
        adopted_checkpoint.open_adopted(StartAt(**{**start.__dict__, "query_id": "another"}))


def test_named_sources_keep_their_names() -> None:
    folder = RECORDED / "union_named"
    raw = json.loads((folder / "metadata").read_text())["id"]
    found = adopted_checkpoint.open_adopted(
        StartAt(ADOPTED, checkpoint=str(folder), query_id=raw, sources={})
    )
    assert found.offsets(1).sources == {"web_events": {"logOffset": 1}, "shop_events": {"logOffset": 0}}
    assert found.sources() == ("shop_events", "web_events")


# --- carrying it out


def carry_out(world: World, *steps: str) -> dict[str, Any]:
    return recoveries.carry_out(world, *steps, in_spark=lambda act, work: {"rehearsed": act})


def old_files(world: World) -> dict[str, str]:
    return {name: content for name, content in world.tree().items() if name.startswith("old job")}


def test_adopting_decides_the_first_generation_under_the_flows_own_query_id(world: World) -> None:
    folder = old_job(world)
    before = old_files(world)
    engine.propose(world.settings, plan(world, folder))
    assert carry_out(world, "rehearse") == {"rehearsed": "streamkeeper_jobs.recover.adopt:act"}, (
        "before anybody is asked"
    )
    assert (world.home.owners(), recovery_lock.holder(world.home.storage, "events", "events")) == ([], None)
    with pytest.raises(PlanRefused, match="of this recovery is not approved yet"):
        carry_out(world, "hold")
    engine.approve(world.settings, "events", "r1", "ada")
    assert carry_out(world, "hold", "plan_again", "see_still") == {"batches": {str(folder): 2}}
    assert world.home.generations() == []
    carry_out(world, "decide", "verify_tables", "release")
    decided = generations.latest(world.home)
    assert decided is not None
    assert (decided.number, decided.previous, decided.state) == (1, None, COPIED)
    assert (decided.recovery, decided.by) == ("r1", "ada")
    assert (decided.start.mode, decided.start.query_id) == (ADOPTED, OLD_ID)
    assert decided.query_id == query_id(FLOW, 1)
    assert world.home.owners() == [] and recovery_lock.holder(world.home.storage, "events", "events") is None
    assert old_files(world) == before
    for recovery, values in (("full_refresh", {}), ("restore_table", {"version": 1})):
        with pytest.raises(RequestError, match=r"has adopted .*old job and has not started yet"):
            planned(world, recovery, "r2", table="events", **values)


def test_a_checkpoint_that_may_not_be_read_any_more_is_not_adopted(world: World) -> None:
    approve(world, plan(world, old_job(world)))
    carry_out(world, "rehearse", "hold", "plan_again")
    world.more["STREAMKEEPER_ALLOWED_ROOTS"] = "/elsewhere"
    with pytest.raises(CheckpointError, match="none of the folders that may be used"):
        carry_out(world, "see_still")


def test_before_the_decision_an_adoption_is_given_up_and_leaves_nothing(world: World) -> None:
    approve(world, plan(world, old_job(world)))
    carry_out(world, "rehearse", "hold", "plan_again", "see_still")
    world.home.storage.create(f"{world.home.trials}/r1/001/metadata", b"{}")
    world.home.storage.create(f"{world.home.trials}/r2/001/metadata", b"{}")
    assert engine.give_up(world.settings, "events", "r1", "it does not fit")
    assert (world.home.generations(), world.home.owners()) == ([], [])
    assert world.home.storage.names(world.home.trials) == ["r2"], (
        "what a killed rehearsal left is gone, that of another recovery is not"
    )


def test_a_job_that_goes_on_after_the_rehearsal_is_found_before_anything_is_decided(world: World) -> None:
    folder = old_job(world)
    engine.propose(world.settings, plan(world, folder))
    carry_out(world, "rehearse")
    engine.approve(world.settings, "events", "r1", "ada")
    shutil.rmtree(folder)
    old_job(world, batches=4)
    with pytest.raises(
        RecoveryError, match=r"went from batch 2 \(planned: 2\) to 3 \(planned: 3\) .* the old job still runs"
    ):
        carry_out(world, "hold", "plan_again", "see_still")
    assert engine.give_up(world.settings, "events", "r1", "it still runs")
    assert (world.home.generations(), world.home.owners()) == ([], [])


@pytest.fixture
def asked(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options of the command line that ask for an adoption in this world."""
    world.enter(monkeypatch)
    folder = old_job(world)
    write_manifest(world.settings)
    return ["adopt", "--flow", FLOW, "--checkpoint", str(folder), "--old-job-is-stopped"]


def test_what_a_plan_tries_in_spark_is_tried_on_its_master_with_what_the_flow_declares(
    asked: list[str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(world.root / "spark-submit", code=3)
    monkeypatch.setattr(submit, "spark_submit", lambda: str(recorder.program))
    world.declare(HUNGRY)
    failed = CliRunner().invoke(app, ["plan", *asked, "--master", "spark://there:7077"])
    assert "ended with exit code 3 (Java ran out of memory: declare more" in str(failed.exception)
    [call] = recorder.calls
    assert (call.option("--master"), call.arguments[-1]) == ("spark://there:7077", "rehearse")
    assert call.conf["spark.executor.memory"] == "3g"
    assert "spark.driver.host" not in call.conf


def test_planning_on_the_command_line_says_whether_the_declaration_fits_and_leaves_nothing(
    asked: list[str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    submits = Submits(world, {"operators": ["dedupe"]}, 1, "it does not fit")
    monkeypatch.setattr(recovery_session.subprocess, "run", submits)
    failed = CliRunner().invoke(app, ["plan", *asked])
    said = "The step rehearse ended with exit code 1: RecoveryError: it does not fit."
    assert said in str(failed.exception)
    assert "resume" not in str(failed.exception), "a plan is not continued with"
    assert "1. rehearse: before the approval" in failed.output
    done = CliRunner().invoke(app, ["plan", *asked, "--json"])
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert (value["evidence"], value["recovery"]) == ({"rehearse": {"operators": ["dedupe"]}}, "adopt")
    assert submits.acts == ["streamkeeper_jobs.recover.adopt:act"] * 2
    assert (world.home.generations(), world.home.owners()) == ([], [])
    assert ledger.open_recoveries(world.home.storage) == {}


def test_what_cannot_be_carried_out_is_not_rehearsed(
    asked: list[str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    submits = Submits(world, {})
    monkeypatch.setattr(recovery_session.subprocess, "run", submits)
    (world.root / "old job" / "offsets" / "1").unlink()
    done = CliRunner().invoke(app, ["plan", *asked])
    assert (done.exit_code, submits.commands) == (1, [])
    assert "It cannot be carried out: " in done.output and "the checkpoint is damaged" in done.output


@pytest.mark.parametrize(
    ("said", "told"), [("n\n", "no"), ("", "no"), ("y\n", "yes")], ids=["no", "nobody answers", "yes"]
)
def test_recovering_on_the_command_line_asks_after_the_rehearsal(
    said: str, told: str, asked: list[str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    submits = Submits(world, {})
    monkeypatch.setattr(recovery_session.subprocess, "run", submits)
    hold = partial(holds.put, world.home, holds.person("ada"), "later", "ada")
    monkeypatch.setattr(running, "drive", lambda *_: hold() and Outcome.STOPPED)
    done = CliRunner().invoke(app, ["recover", *asked], input=said)
    assert done.output.index("rehearse: done") < done.output.index("Carry this out?")
    assert [command[-1] for command in submits.commands] == ["rehearse"]
    assert ledger.open_recoveries(world.home.storage) == {}
    if told == "no":
        assert "The plan was not approved. Nothing was changed." in str(done.exception)
        assert (world.home.generations(), world.home.owners()) == ([], [])
    else:
        assert (done.exit_code, world.home.generations(), world.home.owners()) == (0, [1], ["person-ada"])


def test_a_dry_run_ends_with_the_rehearsal(world: World) -> None:
    engine.propose(world.settings, plan(world, old_job(world)))
    carry_out(world, "rehearse")
    engine.end_dry_run(world.settings, "events", "r1")
    engine.end_dry_run(world.settings, "events", "a run that tried nothing")
    with pytest.raises(RecoveryError, match=r"was given up \(it was a dry run\)"):
        carry_out(world, "hold")
    assert not engine.is_open(world.settings, "events", "r1")


def test_what_the_old_query_had_committed_is_written_once(world: World) -> None:
    assert generations.end_adopted(world.home, 1, 4) == 4
    assert generations.end_adopted(world.home, 1, 9) == 4, (
        "what it committed after it was shut out is not in the table"
    )
    assert world.home.generations() == []
