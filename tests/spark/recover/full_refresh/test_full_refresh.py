"""A full refresh on real tables, and the job that carries out a recovery's steps in Spark: killed anywhere,
the end is the oracle's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from streamkeeper_jobs.recover import full_refresh as emptying
from streamkeeper_jobs.recover.rewind import put_remembered_back
from streamkeeper_jobs.spark.delta_commit import carrying
from streamkeeper_jobs.steps import perform

from streamkeeper.delta import log as delta_log
from streamkeeper.drivers import submit
from streamkeeper.errors import RecoveryError, RequestError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, ledger
from streamkeeper.flows.generations import BATCH, StartAt
from streamkeeper.flows.ledger import Ledger
from streamkeeper.recover import engine
from streamkeeper.recover.kinds import full_refresh
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps import submission
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.tables import past_versions
from tests.killing import Killed, dying
from tests.oracle import first_per
from tests.worlds.flow_world import Flowbed, pipeline
from tests.worlds.tables.backup_world import Recoverer
from tests.worlds.tables.customers_world import INCREMENTAL, SNAPSHOT, CustomersBed, delete, upsert


def rows_of(spark: SparkSession, path: str) -> int:
    return int(spark.read.format("delta").load(path).count())


def test_a_refreshed_table_is_what_the_new_declaration_makes_of_all_events(
    bed: Flowbed, at_work: Recoverer
) -> None:
    bed.arrive(1, 2, 3)
    bed.arrive(3, 4)
    assert bed.run() is Outcome.STOPPED
    bed.declare(pipeline(view='.dropDuplicates(["event_id"]).where("n > 1")'))
    bed.arrive(4, 5)
    at_work.plan("full_refresh", "r1", table="events.events")
    before = delta_log.latest_version(str(bed.table))
    emptied_table = at_work.until("r1", "empty_tables")["empty_tables"]
    assert emptied_table["version_before"] == before, "before the fences, too"
    assert rows_of(bed.spark, str(bed.table)) == 0
    at_work.until("r1", "release")
    assert bed.run() is Outcome.STOPPED
    bed.holds([event for event in first_per(bed.events, ["event_id"]) if event["n"] > 1])
    assert bed.start(2).seed_batch is None
    assert before is not None
    for version in (before, before + 1):  # the newest of generation 1, and its fence
        [flow] = back_to(at_work, "events.events", version).flows
        assert flow.start == StartAt(BATCH, generation=1, batch=bed.checkpoint(1).last_commit())
    bed.arrive(5, 6)
    assert bed.run() is Outcome.STOPPED
    bed.holds([event for event in first_per(bed.events, ["event_id"]) if event["n"] > 1])


def back_to(at_work: Recoverer, table: str, version: int) -> Plan:
    """Plan to put a version of a table back, which loses nothing of anybody's."""
    found = at_work.draft("restore_table", "r2", table=table, version=version)
    assert found.refusals == ()
    return found


@pytest.mark.long
def test_both_flows_of_a_table_by_key_are_refreshed_together_killed_in_the_middle_of_every_part(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The once flow runs again, and what a delete of before kept away is kept away again, though its
    tombstone went.
    """
    bed = CustomersBed.make(tmp_path / "a bed", spark)
    bed.take_snapshot(1, 2, 3)
    bed.change(upsert(1, 5), delete(2, 6), upsert(5, 7))
    assert (bed.run(INCREMENTAL), bed.run(SNAPSHOT)) == (Outcome.STOPPED, Outcome.DONE)
    at_work = Recoverer.of(bed.of())
    at_work.plan("full_refresh", "r1", table="customers.customers")
    at_work.until("r1", "plan_again")
    table = bed.table
    deleted, filled = bed.remembered().count(), delta_log.latest_version(table)
    assert deleted > 0 and filled is not None
    parts = [
        (emptying, "_check_may_be_emptied", 1, False),
        (emptying, "fence_flows", 1, True),
        (emptying, "_empty", 1, True),
        (Ledger, "record", 2, True),  # started, progress
        (emptying, "_bind", 1, True),
    ]
    for target, name, at, after in parts:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            dying(target, name, at, patch, after=after)
            at_work.step("r1", "empty_tables")
    given_up = engine.give_up(bed.settings, "customers", "r1", "rejected")
    assert not given_up, "it is emptied"
    before = delta_log.latest_version(table)
    at_work.step("r1", "empty_tables")
    assert delta_log.latest_version(table) == before, "nothing is emptied twice"
    assert (rows_of(spark, table), bed.remembered().count()) == (0, 0)
    at_work.until("r1", "release")
    bed.change(upsert(3, 9))
    assert (bed.run(SNAPSHOT), bed.run(INCREMENTAL)) == (Outcome.DONE, Outcome.STOPPED)
    bed.is_exact()
    assert generations.finished(bed.home(SNAPSHOT)) == 2
    then = back_to(at_work, "customers.customers", filled).details["table"]
    put_remembered_back(spark, table, then["from_version"])
    assert bed.remembered().count() == deleted


@pytest.mark.long
def test_a_table_that_takes_appends_only_or_got_rows_since_the_plan_is_refused_before_anything_is_changed(
    bed: Flowbed, at_work: Recoverer
) -> None:
    bed.arrive(1)
    assert bed.run() is Outcome.STOPPED
    at_work.plan("full_refresh", "r1", table="events.events")
    at_work.until("r1", "plan_again")
    bed.spark.sql(f"ALTER TABLE delta.`{bed.table}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    with pytest.raises(RecoveryError, match=r"has the property delta.appendOnly.*Nothing was changed"):
        at_work.step("r1", "empty_tables")
    bed.spark.sql(f"ALTER TABLE delta.`{bed.table}` UNSET TBLPROPERTIES ('delta.appendOnly')")
    bed.spark.sql(f"INSERT INTO delta.`{bed.table}` SELECT * FROM delta.`{bed.table}`")
    with pytest.raises(
        RecoveryError, match=r"written to after .*: version \d \(WRITE\)\. .*Nothing was changed"
    ):
        at_work.step("r1", "empty_tables")
    assert engine.give_up(bed.settings, "events", "r1", "rejected")
    bed.arrive(2)
    assert bed.run() is Outcome.STOPPED
    bed.holds([bed.events[0], *bed.events])


def test_a_late_commit_under_the_same_mark_is_skipped_by_delta(bed: Flowbed) -> None:
    bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    emptying._empty(bed.spark, str(bed.table), "r1", None)
    bed.spark.read.json(
        str(bed.root / "data" / "events"), schema="event_id STRING, user_id INT, n INT, event_time TIMESTAMP"
    ).write.format("delta").mode("append").save(str(bed.table))
    with carrying(bed.spark, past_versions.app_id("r1", past_versions.EMPTIED), 0):
        bed.spark.sql(f"DELETE FROM delta.`{bed.table}`")
    bed.holds(bed.events)


@pytest.mark.parametrize(
    "act",
    ["os:getcwd", "streamkeeper_jobs.recover.full_refresh:nothing", "streamkeeper_jobs.recover.full_refresh"],
)
def test_a_step_that_names_no_function_of_a_job_is_refused(
    act: str, spark: SparkSession, tmp_path: Path
) -> None:
    book = ledger.open(open_storage(str(tmp_path)), "events", "r1")
    plan = engine.Plan("full_refresh", "r1", "events", (), {}, (), full_refresh.KIND.step_names, "now")
    with pytest.raises(RequestError, match=r"which is no function of streamkeeper_jobs"):
        perform(
            spark,
            act,
            Work(
                Settings.from_environment({"STREAMKEEPER_STATE": str(tmp_path)}), plan, book, "empty_tables"
            ),
        )


@pytest.mark.long
def test_the_job_of_a_step_says_by_its_exit_code_how_it_ended_and_finds_what_is_done(
    bed: Flowbed, at_work: Recoverer
) -> None:
    bed.arrive(1, 2)
    assert bed.run() is Outcome.STOPPED
    at_work.plan("full_refresh", "r1", table="events.events")
    at_work.until("r1", "plan_again")
    command = submission.recovery_step(bed.settings, "events", "r1", "empty_tables").command()
    environment = {**os.environ, **submit.environment(bed.settings)}
    book = ledger.open(bed.home.storage, "events", "r1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert rows_of(bed.spark, str(bed.table)) == 0
    ends = {
        "empty_tables": (0, "empty_tables: {'path'"),
        "verify_progress": (1, "needs the step release"),
        "nothing": (2, "no step"),
    }
    for step, (code, said) in ends.items():
        job = [
            sys.executable,
            str(submit.RECOVERY_JOB),
            *submission.recovery_step(bed.settings, "events", "r1", step).arguments,
        ]
        done = subprocess.run(job, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert [event.event for event in book.events()].count("empty_tables.started") == 1, (
        "what is done is not started again"
    )
