"""Checkpoints of plain Spark jobs, which know nothing of Streamkeeper, become flows' first generations:
nothing is lost, nothing twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.cli.inspecting import inspect_place
from streamkeeper.delta import log as delta_log
from streamkeeper.errors import RecoveryError, StorageError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations
from streamkeeper.flows.files import query_id
from streamkeeper.flows.generations import ADOPTED
from streamkeeper.observe import past_positions
from streamkeeper.recover import engine
from streamkeeper.storage import LocalStorage
from streamkeeper.support.amounts import DUPLICATES, UNKNOWN_IMPACT
from tests.oracle import all_rows, first_per
from tests.worlds.checkpoint_samples import confs
from tests.worlds.flow_world import NAME, Flowbed, pipeline
from tests.worlds.recover.old_jobs import PLAIN, Query, deduped, files_of, run_old_job
from tests.worlds.sources.source_world import DEDUPE, UNION, DeltaBed
from tests.worlds.state_stores import PROVIDER, ROCKS
from tests.worlds.suites import long_after
from tests.worlds.tables.backup_world import Recoverer

Make = Callable[..., Flowbed]


def given(folder: Path, **values: Any) -> dict[str, Any]:
    return {"flow": NAME, "checkpoint": str(folder), "old_job_is_stopped": True, **values}


def adopt(bed: Flowbed, folder: Path, until: str = "release", **values: Any) -> dict[str, Any]:
    """Carry an adoption out as far as a step, and give the evidence of the rehearsal; the checkpoint must
    stay as it is, to the byte.
    """
    before, at_work = tree(folder), Recoverer.of(bed)
    assert at_work.plan("adopt", "r1", **given(folder, **values)).refusals == ()
    evidence = at_work.until("r1", until)
    assert tree(folder) == before
    assert bed.home.storage.names(f"{bed.home.root}/checkpoints") == [], "the rehearsal's copy is gone"
    return evidence.get("rehearse", {})


def tree(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file()
    }


def went_on(bed: Flowbed, folder: Path, batch: int, ruled_by: str = "checkpoint") -> None:
    """See that generation 1 began after a batch of the old query, which is shut out, under an id of its
    own.
    """
    start, old = bed.start(1), Checkpoint(LocalStorage(str(folder)), "").query_id()
    assert (start.seed_batch, start.evidence["ruled_by"]) == (batch, ruled_by)
    assert delta_log.last_transaction(str(bed.table), old).fenced
    assert bed.checkpoint(1).query_id() == query_id(NAME, 1) != old
    assert bed.checkpoint(1).problems() == ()
    newest = bed.checkpoint(1).offset_batches()[-1]
    assert (bed.checkpoint(1).offsets(newest).version, list(bed.checkpoint(1).offsets(newest).sources)) == (
        2,
        ["events_raw"],
    )


def first_of_each(bed: Flowbed) -> list[Any]:
    return first_per(bed.events, ["event_id"])


def forget_last_commit(folder: Path, batch: int) -> None:
    for name in (str(batch), f".{batch}.crc"):
        (folder / "commits" / name).unlink()


def forget_in_table(bed: Flowbed, version: int) -> None:
    """Take a table's newest commit away, as if the job had died before it."""
    for name in (
        f"{version:020d}.json",
        f".{version:020d}.json.crc",
        f"{version:020d}.crc",
        f".{version:020d}.crc.crc",
    ):
        (bed.table / "_delta_log" / name).unlink(missing_ok=True)


def test_jobs_of_two_pipelines_are_adopted_by_one_plan(make_bed: Make) -> None:
    bed = make_bed(pipeline(files=1))
    other = replace(bed, name="others.clean_others", target="others", events=[])
    other.declare(pipeline(view="", files=1).replace("events", "others"))
    (bed.root / "data" / "others").mkdir()
    for numbers in ((1, 2), (2, 3)):
        bed.arrive(*numbers)
        other.arrive(*numbers, folder="others")
    old_jobs = (run_old_job(bed), run_old_job(other, lambda rows: rows, data="others", place="others"))
    places = dict(zip((NAME, other.name), map(str, old_jobs), strict=True))
    bed.arrive(3, 4)
    other.arrive(3, 4, folder="others")
    values = {"checkpoints": places, "old_job_is_stopped": True}
    evidence = Recoverer.of(bed).run("adopt", "r1", killed=True, **values)
    assert evidence["rehearse"] == {"batches": dict.fromkeys(places.values(), 1), "operators": ["dedupe"]}
    for one in (bed, other):
        assert one.run() is Outcome.STOPPED
        assert one.home.generations() == [1]
    bed.holds(first_of_each(bed))
    other.holds(all_rows(other.events))


@pytest.mark.parametrize("store", long_after(1, [{}, {PROVIDER: ROCKS}]), ids=["HDFS-backed", "RocksDB"])
def test_a_job_that_keeps_state_goes_on_exactly(make_bed: Make, store: dict[str, str]) -> None:
    """Offset log v1, sources without names; the state knows what came before, and rows of before do not come
    again.
    """
    bed = make_bed(pipeline(files=1))
    for numbers in ((1, 2), (2, 3), (3, 4)):
        bed.arrive(*numbers)
    folder = run_old_job(bed, more=store)
    assert (folder / "offsets" / "2").read_text().startswith("v1\n")
    bed.arrive(1, 4, 5)
    assert adopt(bed, folder)["operators"] == ["dedupe"]
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_of_each(bed))
    went_on(bed, folder, batch=2)
    bed.arrive(5, 6)
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_of_each(bed))
    assert bed.home.generations() == [1]
    found = inspect_place(lambda: bed.settings, NAME, True)[1]
    assert f"adopted         {folder}, query" in found
    assert "start adopted; state copied" in found
    assert past_positions.at_batch(bed.home, str(bed.table), 1, 2).batch == 2, (
        "a rewind goes back to where it was adopted"
    )


def test_a_flow_that_starts_before_its_adoption_is_parked_and_is_then_adopted_exactly(make_bed: Make) -> None:
    bed = make_bed(pipeline(view="", files=1))
    bed.arrive(1)
    bed.arrive(2)
    folder = run_old_job(bed, lambda events: events)
    bed.arrive(3)
    version = delta_log.latest_version(str(bed.table))
    assert bed.run() is Outcome.PARKED
    assert bed.park().details["recovery"] == "adopt"
    query = Checkpoint(LocalStorage(str(folder)), "").query_id()
    assert f"2 commits of the query {query}" in bed.park().details["message"]
    assert (bed.home.generations(), delta_log.latest_version(str(bed.table))) == ([], version)
    adopt(bed, folder)
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)
    went_on(bed, folder, batch=1)


@pytest.mark.parametrize("in_table", long_after(1, [True, False]), ids=["in the table", "not in the table"])
@pytest.mark.parametrize(
    "query", long_after(1, [deduped, lambda events: events]), ids=["with state", "without state"]
)
def test_the_batch_in_flight_comes_once(make_bed: Make, query: Query, in_table: bool) -> None:
    stateless = query is not deduped
    bed = make_bed(pipeline(view="", files=1) if stateless else pipeline(files=1))
    for numbers in ((1, 2), (2, 3), (3, 4)):
        bed.arrive(*numbers)
    folder = run_old_job(bed, query, {"spark.sql.shuffle.partitions": "3"})
    forget_last_commit(folder, 2)
    if not in_table:
        newest = delta_log.latest_version(str(bed.table))
        assert newest is not None
        forget_in_table(bed, newest)
        bed.spark.sql("SELECT 1").collect()
        _forget_cached(bed)
    bed.arrive(1, 4, 5)
    adopt(bed, folder)
    assert bed.run() is Outcome.STOPPED
    bed.holds(all_rows(bed.events) if stateless else first_of_each(bed))
    went_on(bed, folder, batch=2 if in_table else 1, ruled_by="sink" if in_table else "checkpoint")


def _forget_cached(bed: Flowbed) -> None:
    """Let Delta read the table's log anew: it was changed behind its back."""
    jvm: Any = bed.spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.mark.long
def test_sources_of_two_kinds_get_the_flows_names(
    delta: Callable[..., DeltaBed],
) -> None:
    source = delta(**{**UNION, "flow": f"events.unionByName(files){DEDUPE}"})
    bed = source.bed
    source.arrive(1, 2)
    source.arrive(3)
    bed.arrive(3, 4, folder="files")
    (bed.root / "data" / "events").mkdir(exist_ok=True)

    def union(_: DataFrame) -> DataFrame:
        table = bed.spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(source.path)
        return deduped(files_of(bed, "files").unionByName(table))

    folder = run_old_job(bed, union)
    source.arrive(2, 5)
    bed.arrive(5, 6, folder="files")
    adopt(bed, folder, sources={"0": "files", "1": "raw"})
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_of_each(bed))
    assert set(bed.start(1).positions) == {"files", "raw"}


@pytest.mark.parametrize(
    ("query", "view", "said"),
    [
        (deduped, "", "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"),
        (lambda events: events, '.withColumn("more", events.n)', "has the columns more, which the table"),
    ],
    ids=["state removed", "another column"],
)
def test_a_declaration_that_does_not_fit_is_found_before_anything_is_changed(
    make_bed: Make, query: Query, view: str, said: str
) -> None:
    bed = make_bed(pipeline(view=view, files=1))
    bed.arrive(1, 2)
    folder = run_old_job(bed, query)
    version = delta_log.latest_version(str(bed.table))
    with pytest.raises(RecoveryError, match=said) as error:
        adopt(bed, folder)
    assert "Nothing was changed." in str(error.value)
    assert delta_log.latest_version(str(bed.table)) == version
    assert engine.give_up(bed.settings, "events", "r1", "it does not fit")
    assert (bed.home.generations(), bed.home.owners()) == ([], [])
    assert bed.home.storage.names(f"{bed.home.root}/checkpoints") == []


def test_a_job_that_still_runs_is_found_by_the_rehearsal(make_bed: Make) -> None:
    bed = make_bed(pipeline(view="", files=1))
    bed.arrive(1)
    folder = run_old_job(bed, lambda events: events)
    adopt(bed, folder, until="plan_again")
    bed.arrive(2)
    run_old_job(bed, lambda events: events)
    with pytest.raises(RecoveryError, match=r"went from batch 0 .* the old job still runs"):
        adopt(bed, folder, until="see_still")
    assert bed.home.generations() == []


@pytest.mark.long
def test_a_driver_that_failed_after_the_fence_is_followed_by_one_that_finds_the_same(make_bed: Make) -> None:
    """What the old job committed to its checkpoint after it was shut out is not in the table, and is read by
    the flow.
    """
    from streamkeeper_jobs.generation import begin

    bed = make_bed(pipeline(view="", files=1))
    bed.arrive(1)
    folder = run_old_job(bed, lambda events: events)
    adopt(bed, folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(begin, "copy_from", _fail)
        assert bed.run() is Outcome.FAILED
    bed.arrive(2)
    run_old_job(bed, lambda events: events)
    assert Checkpoint(LocalStorage(str(folder)), "").last_commit() == 1
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)
    went_on(bed, folder, batch=0)


def _fail(*_: Any) -> Any:
    raise StorageError("the disk is full")


@pytest.mark.long
def test_a_job_that_wrote_by_foreach_batch_goes_on_where_its_checkpoint_stands(
    bed: Flowbed, at_work: Recoverer
) -> None:
    bed.declare(pipeline(view="", files=1))
    bed.arrive(1)
    bed.arrive(2)
    folder = bed.root / "old job" / "checkpoint"
    with confs(bed.spark, PLAIN):
        writer = (
            files_of(bed).writeStream.option("checkpointLocation", str(folder)).trigger(availableNow=True)
        )
        writer.foreachBatch(
            lambda rows, _: rows.write.format("delta").mode("append").save(str(bed.table))
        ).start().awaitTermination()
    assert at_work.impacts("adopt", **given(folder)) == [UNKNOWN_IMPACT]
    forget_last_commit(folder, 1)
    assert at_work.impacts("adopt", **given(folder)) == [UNKNOWN_IMPACT, DUPLICATES]
    bed.arrive(3)
    adopt(bed, folder, accept=[UNKNOWN_IMPACT, DUPLICATES])
    assert bed.run() is Outcome.STOPPED
    bed.holds([bed.events[0], bed.events[1], bed.events[1], bed.events[2]])
    decided = generations.read(bed.home, 1)
    assert decided is not None and decided.start.mode == ADOPTED
