"""A rebuild without downtime, on real tables: readers see the old table or the new one, whole; killed
anywhere, the end is the oracle's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.recover import rebuild_without_downtime, side_table
from streamkeeper_jobs.spark.row_checksums import checksum

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.delta import log as delta_log
from streamkeeper.drivers import submit
from streamkeeper.errors import RecoveryError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, ledger, side_flow
from streamkeeper.recover import engine
from streamkeeper.recover.moves import side_table as planned_side_table
from streamkeeper.recover.steps import submission
from streamkeeper.tables import recovery_lock
from tests.killing import Killed, dying
from tests.worlds.flow_world import Flowbed, pipeline
from tests.worlds.tables.backup_world import Recoverer
from tests.worlds.tables.customers_world import INCREMENTAL, SNAPSHOT, CustomersBed, delete, truncate, upsert
from tests.worlds.tables.rebuild import DONE, KIND, NAME, after_round, distinct, steps

FILTERED = pipeline(view='.dropDuplicates(["event_id"]).where("n > 1")')


def tables(root: Path) -> list[str]:
    return sorted(folder.name for folder in (root / "warehouse").iterdir())


@contextmanager
def polled(spark: SparkSession, path: str) -> Iterator[list[tuple[int, str]]]:
    """Read a table again and again in a thread of its own; give what was seen: rows and their checksum, each
    time.
    """
    seen: list[tuple[int, str]] = []
    over, broken = threading.Event(), []

    def poll() -> None:
        try:
            while not over.is_set():
                found = checksum(spark.read.format("delta").load(path))
                seen.append((found.rows, found.sum))
        except Exception as error:  # noqa: BLE001 - told in the test's own thread
            broken.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
    assert not broken, broken


def test_a_reader_sees_the_old_table_or_the_new_one_and_the_flow_goes_on_before_and_after(
    bed: Flowbed, at_work: Recoverer, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The declaration changed, so the table that is built has other rows; keys that were seen beside stay
    seen afterwards.
    """
    bed.arrive(1, 2, 3)
    bed.arrive(3, 4)
    assert bed.run() is Outcome.STOPPED
    old = [bed.rows()]
    bed.declare(FILTERED)
    at_work.plan(KIND, NAME, table="events.events")
    monkeypatch.setattr(planned_side_table, "BEHIND", 0)

    def goes_on() -> None:
        bed.arrive(4, 5, 6)
        assert bed.run() is Outcome.STOPPED  # the old flow, in the old table, all the while
        old.append(bed.rows())
        bed.arrive(6, 7)

    with polled(spark, str(bed.table)) as seen:
        with monkeypatch.context() as patch:
            after_round(1, goes_on, patch)
            told = steps(at_work, "lock", "build")["build"]
        assert len(old[1]) == 6, "the old flow has written what came"
        assert (told["rounds"], told["left_in_last_round"]) == (3, 0)
        bed.arrive(8, 8, 1)  # is read under the hold
        steps(at_work, "hold", "plan_again")
        at_work.step_killed_at_its_end(NAME, "put_in_place")
        steps(at_work, *DONE)
        now = len(seen)
        while len(seen) < now + 2:
            threading.Event().wait(0.01)
    bed.holds(distinct(bed, above=1))
    assert {rows for rows, _ in seen} <= {len(old[0]), len(old[1]), 7}
    assert seen[-1][0] == 7, "2 to 8"
    assert len(set(seen)) <= 3, "each of the three states by one checksum: none is half"
    bed.arrive(8, 9)
    bed.arrive(2, 10)
    assert bed.run() is Outcome.STOPPED
    bed.holds(distinct(bed, above=1))
    assert bed.start(2).checkpoint.startswith("events/clean_events/checkpoints/rebuild-00000001-")
    assert recovery_lock.holder(bed.home.storage, "events", "events") is None
    assert tables(bed.root) == ["events"]
    assert bed.home.storage.names("events") == ["clean_events", "ledger", "tables"]


PARTS = [
    ("read_what_is_there", 1, True),
    ("stop_for_good", 1, False),
    ("_bring", 1, True),
    ("fence_flows", 1, True),
    ("_begin", 1, True),
    ("_begin", 2, True),
    ("_replace", 1, True),
]
"""What is killed in ``put_in_place``: a function of the job, at which call, and whether after or before
it.
"""


@pytest.mark.long
def test_both_flows_of_a_table_by_key_killed_in_the_middle_of_every_part(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = CustomersBed.make(tmp_path / "a bed", spark)
    at_work = Recoverer.of(bed.of())
    bed.take_snapshot(1, 2, 3, 4)
    bed.change(upsert(1, 5), delete(2, 6), upsert(5, 7))
    assert (bed.run(INCREMENTAL), bed.run(SNAPSHOT)) == (Outcome.STOPPED, Outcome.DONE)
    spark.sql(f"DELETE FROM delta.`{bed.table}` WHERE customer_id = 3")  # what a refresh is to put right
    made = at_work.plan(KIND, NAME, table="customers.customers")
    monkeypatch.setattr(planned_side_table, "BEHIND", 0)
    at_work.step(NAME, "lock")
    real, drives = side_table.drive_derived_flow, iter(range(1, 100))

    def killed_before_the_second(*arguments: Any, **named: Any) -> Any:
        if next(drives) == 2:
            raise Killed
        return real(*arguments, **named)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(side_table, "drive_derived_flow", killed_before_the_second)
        at_work.step(NAME, "build")
    with monkeypatch.context() as patch:
        after_round(1, lambda: (bed.change(delete(1, 9), upsert(2, 4)), bed.run()), patch)
        at_work.step(NAME, "build")
    bed.change(upsert(6, 10), truncate(3))
    steps(at_work, "hold", "plan_again")
    for name, at, after in PARTS:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            dying(rebuild_without_downtime, name, at, patch, after=after)
            at_work.step(NAME, "put_in_place")
        if name in ("_begin", "_replace"):
            assert not engine.give_up(bed.settings, "customers", NAME, "too late"), name
    before = delta_log.latest_version(bed.table)
    steps(at_work, "put_in_place", *DONE)
    assert delta_log.latest_version(bed.table) == before, "nothing is replaced twice"
    bed.is_exact()
    assert generations.finished(bed.home(SNAPSHOT)) == 2, "it ran once more, beside, and is done"
    assert sorted(flow.next_generation or 0 for flow in made.flows) == [2, 2]
    bed.change(upsert(2, 5), upsert(7, 1), upsert(1, 8))  # older than the delete of 1, which was read beside
    assert (bed.run(INCREMENTAL), bed.run(SNAPSHOT)) == (Outcome.STOPPED, Outcome.DONE)
    bed.is_exact()
    assert tables(bed.root) == ["customers"]


@pytest.mark.long
def test_the_job_is_killed_while_it_builds_and_what_is_given_up_leaves_nothing(
    bed: Flowbed, at_work: Recoverer
) -> None:
    for number in range(0, 60, 2):
        bed.arrive(number, number + 1, 0)
    assert bed.run() is Outcome.STOPPED
    at_work.plan(KIND, NAME, table="events.events")
    at_work.step(NAME, "lock")
    side = side_flow.side_home(bed.home, NAME)
    command = submission.recovery_step(bed.settings, "events", NAME, "build").command()
    with (bed.root / "job.log").open("wb") as log:
        job = subprocess.Popen(
            command,
            env={**os.environ, **submit.environment(bed.settings)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 240
            while (last_batch(side) or 0) < 2:
                assert time.monotonic() < deadline and job.poll() is None, (bed.root / "job.log").read_text()[
                    -4000:
                ]
                time.sleep(0.02)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    assert ledger.open(bed.home.storage, "events", NAME).find("build.done") is None
    told = at_work.step(NAME, "build")
    assert told["batches"] < 15, "it went on, and did not begin again"
    found = bed.spark.read.format("delta").load(bed.settings.table_path(side_flow.name_of("events", NAME)))
    assert (found.count(), found.select("event_id").distinct().count()) == (60, 60)
    assert engine.give_up(bed.settings, "events", NAME, "rejected")
    assert tables(bed.root) == ["events"]
    assert [
        name for name in bed.home.storage.names("events/clean_events/checkpoints") if "rebuild" in name
    ] == []
    bed.arrive(60, 0)
    assert bed.run() is Outcome.STOPPED
    bed.holds(distinct(bed, above=-1))
    assert bed.home.generations() == [1], "the flow has noticed nothing"


def last_batch(side: side_flow.SideHome) -> int | None:
    start = generations.read_start(side, 1)
    return Checkpoint(side.storage, start.checkpoint).last_commit() if start is not None else None


@pytest.mark.long
def test_what_was_set_by_hand_stays_and_abandoned_before_the_commit_the_flow_is_parked(
    bed: Flowbed, at_work: Recoverer, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    table = f"delta.`{bed.table}`"
    spark.sql(
        f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'owner.team' ="
        " 'sales')"
    )
    spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT few CHECK (n < 1000)")
    at_work.plan(KIND, NAME, table="events.events")
    steps(at_work, "lock", "build", "hold", "plan_again")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('owner.team' = 'shop')")
    with pytest.raises(
        RecoveryError, match=r"were changed while the side table was built.*Nothing was changed"
    ):
        at_work.step(NAME, "put_in_place")
    assert engine.give_up(bed.settings, "events", NAME, "changed")
    again = "r-00000002"
    at_work.plan(KIND, again, table="events.events")
    for step in ("lock", "build", "hold", "plan_again", "put_in_place", *DONE):
        at_work.step(again, step)
    properties = spark.sql(f"DESCRIBE DETAIL {table}").first()["properties"]  # type: ignore[index]
    assert (properties["owner.team"], properties["delta.constraints.few"]) == ("shop", "n < 1000")
    version = delta_log.latest_version(str(bed.table))
    feed = (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", version or 0)
        .load(str(bed.table))
    )
    assert sorted(row["_change_type"] for row in feed.collect()) == ["delete", "delete", "insert", "insert"]
    bed.arrive(2, 3)
    assert bed.run() is Outcome.STOPPED
    bed.holds(distinct(bed))

    third = "r-00000003"
    at_work.plan(KIND, third, table="events.events")
    for step in ("lock", "build", "hold", "plan_again"):
        at_work.step(third, step)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        dying(rebuild_without_downtime, "_replace", 1, patch, after=False)
        at_work.step(third, "put_in_place")
    engine.abandon(bed.settings, "events", third, "ada")
    before = delta_log.latest_version(str(bed.table))
    assert bed.run() is Outcome.PARKED
    assert "checkpoint and its table contradict each other" in bed.park().reason
    assert delta_log.latest_version(str(bed.table)) == before
    # Generation 3 may have brought rows, as far as the plan knows: it has begun.
    back = {"start": "generation", "generation": 2, "accept": ["unknown-impact"]}
    at_work.run("reset_checkpoint", "back", flow="events.clean_events", **back)
    bed.arrive(3, 4)
    assert bed.run() is Outcome.STOPPED
    bed.holds(distinct(bed))
