"""A flow runs, stops, fails and is parked, by a driver in this process."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery
from streamkeeper_jobs.driver import driver
from streamkeeper_jobs.stream.query import StillRunning

from streamkeeper.errors import StorageError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.watch import batch_numbers
from tests.oracle import first_per
from tests.worlds.drivers import batch_of
from tests.worlds.flow_world import Flowbed, heartbeat, pipeline, wait_until
from tests.worlds.suites import long_after

BROKEN = "import streamkeeper\nraise RuntimeError('half saved')\n"
Make = Callable[..., Flowbed]
TABLE = 'create_streaming_table("events"'
PARTITIONED = pipeline().replace(TABLE, f'{TABLE}, partition_cols=["day"]')


def test_the_table_equals_the_oracle_after_a_normal_run_and_the_next(
    bed: Flowbed, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.arrive(1, 2, 3)
    bed.arrive(3, 4)
    bed.arrive(5)
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_per(bed.events, ["event_id"]))
    chosen = (
        "Shuffles and state have 2 partitions (spark.sql.shuffle.partitions), as many as the master local[2]"
        " has cores. The checkpoint"
    )
    assert chosen in capsys.readouterr().out, "the checkpoint pins it, so it is said where it is chosen"
    bed.arrive(1, 6)
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_per(bed.events, ["event_id"]))
    assert "partitions" not in capsys.readouterr().out


def test_the_numbers_of_batches_are_those_of_what_arrived_and_outlive_the_driver(bed: Flowbed) -> None:
    bed.arrive(1, 2, 3)
    bed.arrive(3, 4)
    assert bed.run() is Outcome.STOPPED
    first = batch_numbers.recent(bed.home)
    assert (sum(one.rows for one in first), first[-1].state_rows) == (5, 4)
    bed.arrive(1, 6)
    assert bed.run() is Outcome.STOPPED
    found = batch_numbers.recent(bed.home)
    told = batch_numbers.told_by(heartbeat(bed))
    assert found[: len(first)] == first
    assert (sum(one.rows for one in found), found[-1].state_rows, told.batch) == (7, 5, found[-1])
    assert (told.totals.rows, told.totals.batches) == (2, len(found) - len(first))
    assert all(one.seconds >= one.phases["addBatch"] > 0 for one in found)
    assert [one.number for one in found] == list(range(len(found)))
    ran_on = batch_numbers.machinery(bed.home)
    assert ran_on is not None
    (operator,) = ran_on.operators
    assert (ran_on.batch, ran_on.cores, ran_on.executors, ran_on.rocksdb) == (found[-1].number, 2, 1, False)
    assert (operator["numRowsTotal"], operator["numShufflePartitions"]) == (5, 2)
    assert all(earlier.at + earlier.seconds <= later.at + 0.001 for earlier, later in pairwise(found))


def test_removing_the_deduplication_parks_the_flow_and_a_reset_goes_on_exactly(bed: Flowbed) -> None:
    bed.arrive(1, 2, 3)
    bed.arrive(3, 4)
    assert bed.run() is Outcome.STOPPED
    bed.declare(pipeline(view=""))
    bed.arrive(4, 5)
    assert bed.run() is Outcome.PARKED
    park = bed.park()
    assert park.details["condition"] == "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
    assert park.details["sql_state"] == "42K03"
    assert (park.details["recovery"], park.details["stateful"], park.details["generation"]) == (
        "reset_checkpoint",
        False,
        1,
    )
    assert bed.run() is Outcome.HELD
    before = first_per(bed.events[:5], ["event_id"])
    bed.holds(before)
    bed.reset()
    bed.arrive(5, 6)
    assert bed.run() is Outcome.STOPPED
    bed.holds([*before, *bed.events[5:]])


def test_a_hold_lets_the_batch_end_and_stops_the_driver(bed: Flowbed) -> None:
    bed.arrive(1, 2)
    with bed.running() as ended:
        wait_until(lambda: batch_of(bed) == 0)
        bed.arrive(2, 3)
        wait_until(lambda: batch_of(bed) == 1)
        holds.put(bed.home, holds.person("ann"), "the disk is changed", "ann")
        assert ended.result(60) is Outcome.STOPPED
    lease = leases.current(bed.home)
    assert lease is not None
    assert leases.life(bed.home, lease) is leases.Life.LEFT
    assert bed.checkpoint(1).last_commit() == bed.checkpoint(1).offset_batches()[-1], (
        "the batch was not cut off"
    )
    bed.holds(first_per(bed.events, ["event_id"]))
    assert bed.run() is Outcome.HELD


def test_a_driver_that_cannot_write_its_heartbeat_has_ended_its_query_when_it_leaves(
    bed: Flowbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes next takes the table at once: in a shared driver the process lives on, and a query that ran
    on would write beside it.
    """
    queries: list[StreamingQuery] = []
    left: list[tuple[str, list[bool]]] = []
    real_leave, real_follow = leases.leave, driver.follow

    def follow(query: StreamingQuery, *watch: Any) -> None:
        queries.append(query)
        real_follow(query, *watch)

    def leave(home: FlowHome, lease: leases.Lease, how: str) -> None:
        left.append((how, [query.isActive for query in queries]))
        real_leave(home, lease, how)

    def full(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(driver, "follow", follow)
    monkeypatch.setattr(leases, "leave", leave)
    bed.arrive(1, 2)
    with bed.running() as ended:
        wait_until(lambda: batch_of(bed) == 0)
        monkeypatch.setattr(leases, "beat", full)
        assert ended.result(60) is Outcome.FAILED
    assert left == [("failed", [False])]


@pytest.mark.long
def test_a_lease_is_not_left_where_the_query_could_not_be_stopped(
    bed: Flowbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(query: StreamingQuery) -> None:
        raise StillRunning(
            f"The query {query.name} could not be stopped (a timeout), so whether it still writes is not"
            " known."
        )

    bed.arrive(1, 2)
    monkeypatch.setattr("streamkeeper_jobs.stream.query.stop", stop)
    assert bed.run() is Outcome.FAILED
    lease = leases.current(bed.home)
    assert lease is not None
    assert leases.life(bed.home, lease) is not leases.Life.LEFT


def test_the_driver_goes_on_while_its_file_raises_and_stops_when_the_flow_changed(bed: Flowbed) -> None:
    bed.arrive(1)
    with bed.running() as ended:
        wait_until(lambda: batch_of(bed) == 0)
        bed.declare(BROKEN)
        before = heartbeat(bed)
        wait_until(lambda: heartbeat(bed).count > before.count + 20)
        bed.declare(pipeline() + "# only a comment\n")
        bed.arrive(2)
        wait_until(lambda: batch_of(bed) == 1)
        assert not ended.done()
        bed.declare(pipeline(view='.dropDuplicates(["event_id"]).where("n > 0")'))
        assert ended.result(60) is Outcome.STOPPED
    assert bed.run() is Outcome.STOPPED, "the next start runs what was declared last"
    bed.holds(bed.events)


def test_a_driver_makes_way_for_a_newer_generation(bed: Flowbed) -> None:
    bed.arrive(1)
    with bed.running() as ended:
        wait_until(lambda: batch_of(bed) == 0)
        bed.reset()
        assert ended.result(60) is Outcome.STOPPED


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("events.no_such_flow", "declares no flow 'no_such_flow'. It declares: clean_events"),
        ("nothing.clean_events", "There is no pipeline 'nothing'"),
        ("clean_events", "it must be PIPELINE.FLOW"),
        ("../events.clean_events", "it must be PIPELINE.FLOW"),
    ],
)
def test_a_flow_that_is_not_there_is_refused_and_nothing_is_written(
    bed: Flowbed, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    assert bed.run(name) is Outcome.USAGE
    assert said in capsys.readouterr().err
    assert not Path(bed.settings.state).exists()
    assert not bed.table.exists()


def test_a_file_that_raises_parks_its_flow_until_it_can_be_read_and_others_go_on(bed: Flowbed) -> None:
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    (bed.settings.pipelines / "other.py").write_text(
        pipeline().replace('"events"', '"others"').replace("clean_events", "clean_others")
    )
    bed.declare(BROKEN)
    assert bed.run() is Outcome.PARKED
    assert "RuntimeError: half saved" in bed.park().details["message"]
    assert bed.park().details["classed"] == "needs correction"
    assert bed.run("other.clean_others") is Outcome.STOPPED
    bed.declare(pipeline())
    bed.arrive(2)
    assert bed.run() is Outcome.STOPPED
    assert holds.parked(bed.home) is None
    bed.holds(first_per(bed.events, ["event_id"]))


@pytest.mark.parametrize(
    ("text", "said"),
    long_after(
        3,
        [
            (pipeline(view='.where(F.col("no_such_column") > 1)'), "no_such_column"),
            (pipeline(flow="None"), "must return a DataFrame"),
            (pipeline(flow='events.groupBy("user_id").count()'), "aggregation"),
            (pipeline(flow="events.sparkSession.range(1)"), "does not stream"),
            (PARTITIONED, "partitioned by day"),
        ],
    ),
    ids=["unknown column", "no frame", "append of an aggregation", "not streaming", "partition column"],
)
def test_what_cannot_run_as_declared_is_parked_for_correction(make_bed: Make, text: str, said: str) -> None:
    bed = make_bed(text)
    bed.arrive(1)
    assert bed.run() is Outcome.PARKED
    park = bed.park()
    assert park.details["classed"] == "needs correction"
    assert said in park.details["message"]
    assert bed.run() is Outcome.HELD
    bed.declare(pipeline())
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_per(bed.events, ["event_id"]))


def test_a_declaration_that_is_put_back_lifts_its_park_and_runs_on_the_old_checkpoint(bed: Flowbed) -> None:
    bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    bed.declare(pipeline(view=""))
    bed.arrive(2, 3)
    assert bed.run() is Outcome.PARKED
    bed.declare(pipeline())
    assert bed.run() is Outcome.STOPPED
    assert bed.home.generations() == [1]
    bed.holds(first_per(bed.events, ["event_id"]))


@pytest.mark.long
def test_a_schema_is_inferred_from_the_first_file_and_kept(make_bed: Make) -> None:
    bed = make_bed(pipeline(schema=None))
    assert bed.run() is Outcome.STOPPED, "nothing there yet, and it was not to wait"
    assert generations.read_start(bed.home, 1) is None
    with bed.running() as ended:
        wait_until(lambda: (found := heartbeat(bed)) is not None and found.count > 5)
        assert heartbeat(bed).phase == "starting"
        assert not ended.done()
        bed.arrive(1, 2)
        wait_until(lambda: batch_of(bed) == 0)
    assert bed.start(1).schemas == {"events_raw": "event_id STRING,event_time STRING,n BIGINT,user_id BIGINT"}
    bed.holds(first_per(bed.events, ["event_id"]))


@pytest.mark.long
def test_a_stop_is_obeyed_while_the_driver_waits_for_a_first_file(make_bed: Make) -> None:
    bed = make_bed(pipeline(schema=None))
    with bed.running() as ended:
        wait_until(lambda: heartbeat(bed) is not None)
        holds.put(bed.home, holds.person("ann"), "not yet", "ann")
        assert ended.result(60) is Outcome.STOPPED
