"""What happens behind a flow's back: late drivers, state folders put back or removed, tables replaced,
sources renamed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamkeeper.errors import CheckpointError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import holds, leases
from streamkeeper.flows import rename as renaming
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import OFFSETS, StartAt
from tests.oracle import all_rows, first_per
from tests.worlds.drivers import run_late
from tests.worlds.flow_world import NAME, SCHEMA, Flowbed, event, pipeline
from tests.worlds.state_stores import CHANGELOG, PROVIDER, ROCKS
from tests.worlds.suites import long_after

Make = Callable[..., Flowbed]
STATELESS = pipeline(view="")


def test_what_a_late_driver_commits_after_the_fence_and_before_the_next_begins_is_still_read(
    make_bed: Make,
) -> None:
    """The sink skips the late batch in silence and the old checkpoint commits it: that commit is no proof
    that its rows were written.
    """
    bed = make_bed(STATELESS)
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    bed.reset(StartAt(OFFSETS, offsets={"events_raw": {"logOffset": 7}}))
    assert bed.run() is Outcome.PARKED, "it fenced generation 1, and could not begin"
    bed.arrive(2)
    run_late(bed)
    assert bed.checkpoint(1).last_commit() == 1
    bed.reset(previous=1)
    bed.arrive(3)
    assert bed.run() is Outcome.STOPPED
    bed.holds(all_rows(bed.events))
    assert bed.start(3).evidence["last_commit"] == 0


def remove_the_state(bed: Flowbed) -> None:
    shutil.rmtree(bed.settings.state)


def put_back_the_state_of_before_the_second_batch(bed: Flowbed) -> None:
    shutil.rmtree(bed.settings.state)
    (bed.root / "copy").rename(bed.settings.state)


def put_back_the_state_of_before_a_reset(bed: Flowbed) -> None:
    bed.reset()
    assert bed.run() is Outcome.STOPPED
    put_back_the_state_of_before_the_second_batch(bed)


def remove_the_table(bed: Flowbed) -> None:
    shutil.rmtree(bed.table)


@pytest.mark.parametrize(
    ("harm", "said"),
    long_after(
        1,
        [
            (remove_the_state, "has planned none after its start"),
            (put_back_the_state_of_before_the_second_batch, "has planned none after 0"),
            (put_back_the_state_of_before_a_reset, "fenced by a later generation"),
            (remove_the_table, "has none of generation 1"),
        ],
    ),
)
def test_a_checkpoint_and_a_table_that_disagree_park_the_flow_before_it_reads_a_row(
    make_bed: Make, harm: Callable[[Flowbed], None], said: str
) -> None:
    bed = make_bed(STATELESS)
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    shutil.copytree(bed.settings.state, bed.root / "copy")
    bed.arrive(2)
    assert bed.run() is Outcome.STOPPED
    harm(bed)
    bed.arrive(3)
    assert bed.run() is Outcome.PARKED
    assert said in bed.park().details["message"]
    assert bed.park().reason.startswith("its checkpoint and its table contradict each other: ")
    assert 2 not in bed.checkpoint(1).offset_batches()


def test_a_file_that_goes_before_its_planned_batch_read_it_parks_the_flow(make_bed: Make) -> None:
    bed = make_bed()
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    gone = bed.arrive(2)
    assert bed.run() is Outcome.STOPPED
    bed.forget_commit()
    text = gone.read_text()
    gone.unlink()
    assert bed.run() is Outcome.PARKED
    assert f"no longer exist, such as {gone}" in bed.park().details["message"]
    gone.write_text(text)
    holds.release(bed.home, holds.PARK)
    bed.arrive(2)
    assert bed.run() is Outcome.STOPPED
    bed.holds([event(1), event(2)])


REMOVES = """
@F.udf("int")
def removing(n):
    import os
    if n == 0:
        os.remove({path!r})
    return n
"""


def test_a_file_that_goes_while_a_driver_runs_fails_its_batch_and_parks_the_next_driver(
    make_bed: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was listed together with the file before it, whose batch removes it."""
    bed = make_bed(STATELESS)
    bed.arrive(0)
    gone = bed.arrive(10)
    bed.arrive(20)
    removes = REMOVES.format(path=str(gone))
    bed.declare(pipeline(view='.withColumn("n", removing("n"))', more=removes, files=1))
    text = gone.read_text()
    assert bed.run() is Outcome.FAILED
    output = capsys.readouterr().out
    assert str(gone) in output and "removed before it was read" in output
    assert bed.run() is Outcome.PARKED
    assert f"no longer exist, such as {gone}" in bed.park().details["message"]
    bed.holds([event(0)])
    gone.write_text(text)
    holds.release(bed.home, holds.PARK)
    assert bed.run() is Outcome.STOPPED
    bed.holds(bed.events)


SECOND = f'dp.create_source("second", format="json", path="{{data}}/second", schema="{SCHEMA}")'


def test_a_source_that_is_read_again_after_a_time_goes_on_where_it_stood(make_bed: Make) -> None:
    both = {"sources": ["distinct_events", "second"], "parameters": "events, second"}
    bed = make_bed(STATELESS)
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    bed.arrive(10, folder="second")
    bed.declare(pipeline(view="", more=SECOND, sources=["second"]))
    bed.reset()
    assert bed.run() is Outcome.STOPPED
    bed.declare(pipeline(view="", more=SECOND, flow="events.unionByName(second)", **both))
    bed.arrive(2)
    assert bed.run() is Outcome.PARKED
    assert "events_raw was read by generation 1" in bed.park().details["message"]
    bed.reset()
    assert bed.run() is Outcome.STOPPED
    bed.holds(all_rows(bed.events))
    assert bed.start(3).evidence["notes"] == ["source events_raw goes on after generation 1"]


@pytest.mark.long
def test_a_source_under_another_name_parks_the_flow_before_it_is_read_from_its_beginning(
    make_bed: Make,
) -> None:
    bed = make_bed(STATELESS)
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    bed.declare(STATELESS.replace("events_raw", "raw_events"))
    bed.arrive(2)
    assert bed.run() is Outcome.PARKED
    assert "declares no events_raw any more, and raw_events instead" in bed.park().details["message"]
    bed.holds(bed.events[:1])
    bed.declare(STATELESS)
    assert bed.run() is Outcome.STOPPED
    bed.holds(all_rows(bed.events))


@pytest.mark.long
def test_a_source_that_became_another_kind_under_its_old_name_parks_the_flow_before_a_row_is_read(
    make_bed: Make,
) -> None:
    bed = make_bed(STATELESS)
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    told = bed.root / "told"
    bed.spark.sql(f"CREATE TABLE delta.`{told}` ({SCHEMA}) USING delta")
    source = f'dp.create_source("events_raw", format="delta", path="{told}")'
    bed.declare(re.sub(r"dp\.create_source\(.*\)", source, STATELESS))
    assert bed.run() is Outcome.PARKED
    message = bed.park().details["message"]
    assert f"The source events_raw of {NAME} was another kind of source up to batch 0" in message
    assert "reset_checkpoint from earliest, latest, a timestamp or explicit offsets" in message
    assert bed.park().details["recovery"] == "reset_checkpoint"
    bed.declare(STATELESS)
    bed.arrive(2)
    assert bed.run() is Outcome.STOPPED
    bed.holds(all_rows(bed.events))


def test_a_copy_of_a_pipeline_file_is_parked_before_it_reads_a_row(make_bed: Make) -> None:
    bed = make_bed(STATELESS)
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    for known in ("by its log alone", "by the state folder"):
        (bed.settings.pipelines / "a_copy.py").write_text(STATELESS)
        if known == "by its log alone":
            shutil.rmtree(Path(bed.settings.state) / "tables")
        assert bed.run("a_copy.clean_events") is Outcome.PARKED, known
        park = holds.parked(FlowHome(bed.home.storage, "a_copy", "clean_events"))
        assert park is not None
        assert "the table events belongs to the pipeline events already" in park.details["message"]
        holds.release(FlowHome(bed.home.storage, "a_copy", "clean_events"), holds.PARK)
        bed.arrive(2)
        assert bed.run() is Outcome.STOPPED
        bed.holds(all_rows(bed.events))


def test_a_renamed_pipeline_goes_on_where_it_stood(make_bed: Make) -> None:
    bed = make_bed(STATELESS)
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    before = bed.checkpoint(1).query_id()
    (bed.settings.pipelines / "events.py").rename(bed.settings.pipelines / "visits.py")
    renaming.rename(bed.settings, "events", "visits", "ada")
    bed.arrive(2)
    assert bed.run("visits.clean_events") is Outcome.STOPPED
    bed.holds(all_rows(bed.events))
    assert bed.checkpoint(1).query_id() == before
    assert bed.home.generations() == [1]


@pytest.mark.long
def test_a_driver_that_lost_its_lease_parks_nothing_when_it_fails(bed: Flowbed) -> None:
    from streamkeeper_jobs.driver.driver import _fail

    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    lost = leases.current(bed.home)
    assert lost is not None
    beat = leases.read_heartbeat(bed.home, lost.epoch)
    assert beat is not None
    leases.acquire(bed.home, 1, bed.settings.lease_term)
    error = CheckpointError("offsets/3 is missing")
    assert _fail(bed.home, bed.flow(), lost, error, beat, bed.settings) is Outcome.LEASE_LOST
    assert bed.home.owners() == []


def test_a_snapshot_of_the_state_that_is_an_older_one_parks_the_flow(make_bed: Make) -> None:
    """Spark believes it: what it has forgotten would come twice."""
    bed = make_bed(pipeline())
    for name, value in {PROVIDER: ROCKS, CHANGELOG: "false"}.items():
        bed.spark.conf.set(name, value)
    for numbers in ((1, 2), (2, 3), (3, 4)):
        bed.arrive(*numbers)
        assert bed.run() is Outcome.STOPPED
    for part in Path(bed.checkpoint(1).path("state/0")).glob("[0-9]*"):
        shutil.copyfile(part / "1.zip", part / "3.zip")
        (part / ".3.zip.crc").write_bytes((part / ".1.zip.crc").read_bytes())
    bed.arrive(3, 5)
    assert bed.run() is Outcome.PARKED
    assert "3.zip is the file of version 1 again" in bed.park().reason
    assert any("version 1 again" in problem.description for problem in bed.checkpoint(1).problems())
    bed.reset()
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_per(bed.events, ["event_id"]))
