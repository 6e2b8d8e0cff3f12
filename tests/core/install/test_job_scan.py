"""``streamkeeper adopt --scan`` and ``--write``: jobs are read from their text, and nothing of it is run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamkeeper.cli.commands import app
from streamkeeper.install.job_scan import definitions, scan
from streamkeeper.manifest.manifest import make_manifest
from streamkeeper.settings import PROJECT
from tests.worlds.small_world import World
from tools.docs.markdown import FENCE

CHECKPOINTS = Path(__file__).parents[1] / "checkpoint" / "recorded"
DAGS = """
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, dag

raise RuntimeError("nothing of this file may be run")
BASE = "{root}/jobs"
with DAG("shop", schedule=None) as shop:
    SparkSubmitOperator(
        task_id="events", application=f"{{BASE}}/events.py",
        application_args=["s3://lake/raw", "--checkpoint", "{checkpoint}"],
    )
    SparkSubmitOperator(task_id="accounts", application=BASE + "/accounts.py")
    SparkSubmitOperator(task_id="report", application=BASE + "/report.py")
    SparkSubmitOperator(task_id="scala", application="/opt/jobs/stream.jar")
    SparkSubmitOperator(task_id="late", application="{{{{ params.file }}}}")

@dag()
def other():
    SparkSubmitOperator(task_id="gone", application="/not/here.py")
"""
OTHER_WORDS = """
from airflow import models
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator as Submit

with first() as pool, models.DAG(dag_id="second") as shop:
    Submit.partial(task_id="a", application="a.jar").expand(conf=[])
third: models.DAG = models.DAG("third")
Submit(task_id="b", application="b.jar", dag=third)
"""
EVENTS = """
import argparse, sys
raise RuntimeError("nothing of this file may be run")
args = argparse.ArgumentParser().parse_args()
reader = spark.readStream.format("json").schema("event_id STRING")
raw = reader.option("maxFilesPerTrigger", 5).load(sys.argv[1])
deduped = raw.dropDuplicates(["event_id"])
writer = deduped.writeStream.format("delta").option("checkpointLocation", args.checkpoint)
query = writer.trigger(processingTime="30 seconds").start("/lake/events")
query.awaitTermination()
"""
ACCOUNTS = """
CHECKPOINTS = "s3://lake/checkpoints"

def upsert(batch, number):
    (DeltaTable.forPath(spark, "/lake/accounts").alias("t")
     .merge(batch.alias("s"), "t.account_id = s.account_id AND t.region = s.region")
     .whenMatchedUpdateAll().whenNotMatchedInsertAll().execute())

changes = spark.readStream.format("kafka").options(
    **{}).option("subscribe", "accounts").option("kafka.bootstrap.servers", "kafka:9092") \\
    .option("kafka.sasl.jaas.config", "password='s3cr3t'").option("startingOffsets", "earliest").load()
writer = changes.writeStream.foreachBatch(upsert)
writer.option("checkpointLocation", f"{CHECKPOINTS}/accounts").start().awaitTermination()
"""
REPORT = "spark.read.parquet('/lake/events').groupBy('day').count().write.parquet('/lake/report')\n"


@pytest.fixture
def dags(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    world.enter(monkeypatch)
    (world.root / "jobs").mkdir()
    for name, text in {"events": EVENTS, "accounts": ACCOUNTS, "report": REPORT}.items():
        (world.root / "jobs" / f"{name}.py").write_text(text)
    folder = world.root / "their dags"
    folder.mkdir()
    checkpoint = CHECKPOINTS / "files_dedup"
    (folder / "jobs.py").write_text(DAGS.format(root=world.root, checkpoint=checkpoint))
    (folder / "broken.py").write_text("SparkSubmitOperator(")
    (folder / "long.py").write_text("# SparkSubmitOperator, shop\nsql = " + " + ".join(['"a"'] * 1500))
    (folder / "deep.py").write_text("# SparkSubmitOperator, shop\nx = " + "-" * 100_000 + "1")
    (folder / "folder.py").mkdir()
    os.mkfifo(folder / "pipe.py")
    return folder


def adopt(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["adopt", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_each_job_has_its_checkpoint_what_it_could_become_and_what_hinders(dags: Path) -> None:
    found = adopt("--scan", str(dags))
    jobs = {job["job"]: job for job in found["jobs"]}
    assert {name: job["becomes"] for name, job in jobs.items()} == {
        "shop.events": "append flow",
        "shop.accounts": "AUTO CDC flow",
        "shop.report": "stays a job",
        "shop.scala": "to be looked at",
        "shop.late": "to be looked at",
        "other.gone": "to be looked at",
    }
    events, accounts = jobs["shop.events"], jobs["shop.accounts"]
    assert (events["hinders"], events["query"]["checkpoint"]) == ([], str(CHECKPOINTS / "files_dedup"))
    assert events["readings"][0]["path"] == "s3://lake/raw" and events["query"]["target"] == "/lake/events"
    assert accounts["query"]["checkpoint"] == "s3://lake/checkpoints/accounts"
    assert accounts["query"]["keys"] == ["account_id", "region"]
    assert "known only while the DAG runs" in jobs["shop.late"]["hinders"][0]
    assert "/not/here.py is not on this host" in jobs["other.gone"]["hinders"]
    unread = ["broken.py", "deep.py", "folder.py", "long.py", "pipe.py"]
    assert [Path(file).name for file in found["unread"]] == unread


def test_whose_dag_has_an_id_is_found_beside_files_that_nobody_can_read(dags: Path) -> None:
    assert definitions(dags, {"shop", "flow__a__b"}).keys() == {"shop"}


def test_the_drafts_pass_check_and_hold_until_the_query_is_brought_over(
    dags: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMKEEPER_PIPELINE_ENV", "KAFKA_*")
    monkeypatch.setenv("KAFKA_SASL_JAAS_CONFIG", "x")
    drafts = adopt("--scan", str(dags), "--write", str(world.root / "drafts"))["drafts"]
    events, accounts = (Path(drafts[f"shop.{name}"]).read_text() for name in ("events", "accounts"))
    assert f"Checkpoint {CHECKPOINTS / 'files_dedup'}: query " in events and "Source " in events
    assert (
        "State: dedupe" in events
        and "trigger='30 seconds'" in events
        and "hold PIPELINE.events_flow" in events
    )
    assert "s3cr3t" not in accounts and "startingOffsets" not in accounts
    assert "keys=['account_id', 'region']" in accounts and "once=True" in accounts
    checkpoints = json.loads((world.root / "drafts" / "checkpoints.json").read_text())
    assert checkpoints.keys() == {"events.events_flow", "accounts.accounts_flow"}
    assert checkpoints["events.events_flow"] == str(CHECKPOINTS / "files_dedup")
    settings = type(world.settings).from_environment(
        {
            **world.environment,
            "STREAMKEEPER_PIPELINES": str(world.root / "drafts"),
            "STREAMKEEPER_PIPELINE_ENV": "KAFKA_*",
        }
    )
    written = make_manifest(settings)
    assert dict(written.errors) == {}
    assert {flow.full_name for flow in written.flows()} == {
        "events.events_flow",
        "accounts.accounts_flow",
        "accounts.accounts_old_rows_flow",
    }


def test_a_dag_and_an_operator_are_known_by_whatever_name_they_are_imported(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(OTHER_WORDS)
    assert {job.name for job in scan(tmp_path).jobs} == {"second.a", "third.b"}
    places = {
        id: place.rpartition(":")[2] for id, place in definitions(tmp_path, ["second", "third"]).items()
    }
    assert places == {"second": "5", "third": "7"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--job", "shop.report"], "shop.report is no job with a known query"),
        (["--checkpoint", "/x"], "2 are drafted"),
        ([], "events.py is there already"),
        (["--scan", "x" * 300], "--scan is 'xxx"),
        (["--write", "~nobody-here/drafts"], "which can be no path here: Could not determine home"),
        (["--write", "/dev/null/drafts"], "The files cannot be written"),
    ],
)
def test_what_cannot_be_drafted_is_said_and_nothing_is_written(
    arguments: list[str], words: str, dags: Path, world: World
) -> None:
    (world.root / "drafts").mkdir()
    (world.root / "drafts" / "events.py").write_text("mine")
    line = ["adopt", "--scan", str(dags), "--write", str(world.root / "drafts"), *arguments]
    done = CliRunner().invoke(app, line)
    assert done.exit_code != 0 and words in str(done.exception)
    assert [file.read_text() for file in (world.root / "drafts").iterdir()] == ["mine"]


def test_the_page_of_the_migration_shows_what_the_scan_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    page = (PROJECT / "docs/get-started/migrate.md").read_text()
    shown, dag, job = [code for language, code in FENCE.findall(page) if language in ("text", "python")][:3]
    (tmp_path / "orders_stream.py").write_text(job)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "orders_stream.py").write_text(dag.replace("/srv/jobs", str(tmp_path)))
    done = CliRunner().invoke(app, ["adopt", "--scan", str(tmp_path / "dags")])
    printed = done.output.replace(str(tmp_path), "/srv/jobs").strip().splitlines()
    assert [line.split() for line in printed] == [line.split() for line in shown.splitlines()]
