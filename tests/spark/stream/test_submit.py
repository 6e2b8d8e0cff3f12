"""The command and the settings that a driver is submitted with."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from streamkeeper.declare.driver import CHECKPOINT_MANAGER, OURS
from streamkeeper.declare.model import AppendFlow, Location, Pipeline, Source
from streamkeeper.drivers import submit
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings

RAW = Source("raw", "rate", None, None, {}, Location("events.py", 3))
FLOW = AppendFlow("clean_events", "events", ("raw",), "code", "1 second", {}, Location("events.py", 12))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for name in ("b.jar", "a.jar"):
        (tmp_path / name).touch()
    return replace(Settings.from_environment({}), jars=tmp_path)


def test_the_command_is_spark_submit_with_the_job_last(settings: Settings) -> None:
    flow = Flow(Pipeline("events", "events.py", "", (RAW,)), FLOW, "fingerprint")
    command = submit.driver(settings, [flow], available_now=True).command()
    assert command[0].endswith("spark-submit")
    assert command[1:5] == ["--master", "local[2]", "--name", "events.clean_events"]
    assert command[-4:] == [str(submit.JOB), "--flow", "events.clean_events", "--available-now"]
    assert "spark.sql.streaming.offsetLog.formatVersion=2" in command
    assert submit.JOB.is_file()


def test_jars_are_on_the_class_path_of_one_machine_and_shipped_to_a_cluster(settings: Settings) -> None:
    here = submit.spark_settings(settings, FLOW)
    assert here["spark.driver.extraClassPath"] == f"{settings.jars}/*"
    assert here["spark.sql.shuffle.partitions"] == "2"
    there = submit.spark_settings(settings, FLOW, "spark://master:7077")
    assert there["spark.jars"] == f"{settings.jars}/a.jar,{settings.jars}/b.jar"
    assert "spark.sql.shuffle.partitions" not in there


def test_what_a_flow_declares_comes_after_the_defaults_and_beside_what_is_needed(settings: Settings) -> None:
    declared = {
        "spark.ui.enabled": "true",
        "spark.sql.extensions": "com.example.More",
        "spark.driver.extraClassPath": "/more.jar",
    }
    given = submit.spark_settings(settings, replace(FLOW, spark_conf=declared))
    assert given["spark.ui.enabled"] == "true"
    assert given["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,com.example.More"
    assert given["spark.driver.extraClassPath"] == f"/more.jar:{settings.jars}/*"


def test_the_environment_makes_the_driver_use_this_python_and_these_settings(settings: Settings) -> None:
    given = submit.environment(settings, {"PATH": "/usr/bin", "PYTHONPATH": "/mine"})
    assert Settings.from_environment(given) == settings
    assert given["PYSPARK_PYTHON"] == sys.executable
    assert given["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/usr/bin"
    assert given["PYTHONPATH"].endswith(f"{os.pathsep}/mine")


def step_of(*confs: dict[str, str], master: str, settings: Settings) -> dict[str, str]:
    flows = [replace(FLOW, name=f"f{number}", spark_conf=conf) for number, conf in enumerate(confs)]
    return submit.job_settings(settings, flows, master)


def test_a_job_on_the_tables_of_several_flows_has_of_each_what_it_may_have_without_changing_the_others(
    settings: Settings,
) -> None:
    first = {
        "spark.executor.memory": "3g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.caseSensitive": "true",
    }
    second = {
        "spark.executor.memory": "1g",
        "spark.hadoop.fs.s3a.endpoint": "http://s3",
        "spark.sql.caseSensitive": "true",
    }
    given = step_of(first, second, master="yarn", settings=settings)
    assert given["spark.executor.memory"] == "3g", "the first flow's"
    assert given["spark.hadoop.fs.s3a.endpoint"] == "http://s3", "of any flow, where it is the application's"
    assert given["spark.sql.caseSensitive"] == "true", "of a session, where all agree"
    assert "spark.sql.session.timeZone" not in given
    assert "spark.driver.host" not in step_of(master="yarn", settings=settings), (
        "a table that no flow writes any more"
    )


def test_what_streamkeeper_must_set_wins_over_what_a_flow_declares(settings: Settings) -> None:
    job = step_of({"spark.sql.catalog.spark_catalog": "x"}, master="local[2]", settings=settings)
    assert job["spark.sql.catalog.spark_catalog"] == OURS["spark.sql.catalog.spark_catalog"]


@pytest.mark.parametrize(
    ("declared", "master", "number", "stateful", "said"),
    [
        (
            {"spark.sql.shuffle.partitions": "8"},
            "yarn",
            "8",
            True,
            "8 partitions (spark.sql.shuffle.partitions), as declared. ",
        ),
        (
            {},
            "local[2]",
            "2",
            True,
            (
                "as many as the master local[2] has cores. The checkpoint keeps that number on any other"
                " master too"
            ),
        ),
        ({}, "local", "1", True, "as many as the master local has cores"),
        ({}, "local[*]", str(os.cpu_count()), True, "as many as the master local[*] has cores"),
        ({}, "spark://there:7077", "200", True, "as Spark is set up for the master spark://there:7077"),
        (
            {},
            "local-cluster[2,1,1024]",
            "200",
            False,
            "Each start may have another number: declare it in spark_conf.",
        ),
    ],
)
def test_who_chose_the_number_of_partitions_is_said(
    *, declared: dict[str, str], master: str, number: str, stateful: bool, said: str, settings: Settings
) -> None:
    flow = replace(FLOW, spark_conf=declared)
    assert said in submit.why_partitions(flow, master, number, stateful)
    assert submit.spark_settings(settings, flow, master).get("spark.sql.shuffle.partitions", "200") == number


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_checkpoints_on_s3_and_the_logs_of_both_schemes_are_written_by_classes_of_our_own(
    settings: Settings, scheme: str
) -> None:
    there = submit.spark_settings(replace(settings, state=f"{scheme}://bucket/state"), FLOW)
    assert there[CHECKPOINT_MANAGER] == "streamkeeper.storage.S3CheckpointFileManager"
    assert there[f"spark.delta.logStore.{scheme}.impl"] == "streamkeeper.storage.S3LogStore"
    assert CHECKPOINT_MANAGER not in submit.spark_settings(settings, FLOW), "state on a local disk"


def test_spark_s_ui_of_a_local_master_listens_on_the_loopback_and_kills_no_jobs(settings: Settings) -> None:
    assert submit.environment_of(settings, "local[2]")["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert submit.job_settings(settings, [], "local[2]")["spark.ui.killEnabled"] == "false"
