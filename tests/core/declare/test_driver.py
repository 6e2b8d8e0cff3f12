"""What a driver needs: declared of a pipeline or a flow, refused with its line, given to spark-submit."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from streamkeeper.declare.driver import CHECKPOINT_MANAGER, OURS, heap_note, needs_of, packages_note
from streamkeeper.declare.model import Pipeline
from streamkeeper.distribution import versions
from streamkeeper.drivers import submit
from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.import_file import fingerprint
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper.trial.differences import differences
from tests.worlds.pipelines import load

SOURCE = (
    'dp.create_source("raw", format="json", path="/x", schema="id INT")\n'
    'dp.create_streaming_table("t")\n'
    'dp.create_streaming_table("u")\n'
)
ALL = (
    'driver_memory="2g", driver_cores=2, num_executors=3, executor_memory="4g", executor_cores=2,'
    ' jars=["{here}/a.jar", "local:/opt/b.jar"], packages=["org.example:udfs_2.13:1.2.0"],'
    ' py_files=["{here}/lib.zip"], archives=["{here}/env.tar.gz#env"],'
    ' spark_conf={{"spark.speculation": True}}'
)
CONF = {
    "spark.driver.memory": "2g",
    "spark.driver.cores": "2",
    "spark.executor.instances": "3",
    "spark.executor.memory": "4g",
    "spark.executor.cores": "2",
    "spark.jars": "{here}/a.jar,local:/opt/b.jar",
    "spark.jars.packages": "org.example:udfs_2.13:1.2.0",
    "spark.submit.pyFiles": "{here}/lib.zip",
    "spark.archives": "{here}/env.tar.gz#env",
    "spark.speculation": "true",
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("a.jar", "lib.zip", "env.tar.gz"):
        (tmp_path / name).touch()
    return tmp_path


def flow(name: str = "f", more: str = "", target: str = "t") -> str:
    return f"dp.append_flow(name='{name}', target='{target}', sources=['raw']{more})(lambda raw: raw)\n"


def declared(folder: Path, body: str) -> Pipeline:
    return load(folder, SOURCE + body)


def one(folder: Path, needs: str) -> Flow:
    pipeline = declared(folder, flow(more=f", driver=dp.driver({needs})"))
    return Flow(pipeline, pipeline.flows[0], fingerprint(pipeline, pipeline.flows[0]))


def test_a_driver_is_declared_by_the_names_of_spark_submit_and_kept_as_sparks_settings(here: Path) -> None:
    found = one(here, ALL.format(here=here)).declaration.spark_conf
    assert found == {name: value.format(here=here) for name, value in CONF.items()}
    needs = needs_of(found)
    assert (needs["driver_memory"], needs["jars"]) == ("2g", [f"{here}/a.jar", "local:/opt/b.jar"])
    assert needs["spark.speculation"] == "true", "what has no other name has its own"


def test_data_in_a_path_stands_for_the_data_folder(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"'/data/jars/a.jar' in its jars, and there is no such file"):
        one(tmp_path, 'jars=["{data}/jars/a.jar"]')


def test_a_flow_has_what_its_pipeline_needs_but_for_what_it_declares_itself(here: Path) -> None:
    pipeline = declared(
        here,
        flow("f", ", driver=dp.driver(driver_memory='3g')")
        + flow("g", ", spark_conf={'spark.executor.memory': '1g'}", "u")
        + flow("h", target="u")
        + "dp.configure_pipeline(driver=dp.driver(driver_memory='2g', executor_memory='4g',"
        + f" jars=['{here}/a.jar']))\n",
    )
    jars = {"spark.jars": f"{here}/a.jar"}
    assert [dict(item.spark_conf) for item in pipeline.flows] == [
        {"spark.driver.memory": "3g", "spark.executor.memory": "4g", **jars},
        {"spark.driver.memory": "2g", "spark.executor.memory": "1g", **jars},
        {"spark.driver.memory": "2g", "spark.executor.memory": "4g", **jars},
    ]


BAD = {
    "memory in another spelling": (
        "driver_memory='2gb'",
        "has driver_memory '2gb', which is no memory of a JVM",
    ),
    "memory without a unit": ("executor_memory='512'", "has executor_memory '512', which is no memory"),
    "memory as a number": ("driver_memory=2", "has driver_memory 2, which is no memory of a JVM"),
    "no executors": ("num_executors=0", "has num_executors 0. Give a whole number from 1 on"),
    "true cores": ("executor_cores=True", "has executor_cores True. Give a whole number"),
    "a text for a list": ("jars='/x.jar'", r"has jars '/x.jar'. Give a list of one or more texts, such"),
    "an empty list": ("packages=[]", r"has packages \[\]. Give a list .*\['org.example:udfs:1.2.0'\]"),
    "a jar that is not there": (
        "jars=['/no/such.jar']",
        "has '/no/such.jar' in its jars, and there is no such file",
    ),
    "a jar by its URL that is not there": ("jars=['file:///no/a%20b.jar']", "there is no such file here"),
    "a jar beside the file": (
        "jars=['lib/a.jar']",
        "has the relative path 'lib/a.jar' in its jars. Start it with /",
    ),
    "a wheel": (
        "py_files=['/x.whl']",
        "has '/x.whl' in its py_files. Spark takes files that end in .py, .zip, .egg",
    ),
    "a folder": (
        "archives=['/opt/env']",
        "has '/opt/env' in its archives. Spark takes files that end in .zip",
    ),
    "an environment variable": (
        "jars=['{env:JARS}/a.jar']",
        "{env:NAME}, a comma or a secret cannot be in it",
    ),
    "a password": ("jars=['https://ada:s3cr3t-1234@host/a.jar']", "a comma or a secret cannot be in it"),
    "two in one": ("jars=['/a.jar,/b.jar']", "a comma or a secret cannot be in it"),
    "no coordinates": (
        "packages=['spark-avro']",
        "has 'spark-avro' in its packages. Give group:artifact:version",
    ),
    "any version": ("packages=['a:b:1.+']", "The version must be a fixed one"),
    "both ways": (
        "driver_memory='2g', spark_conf={'spark.driver.memory': '3g'}",
        "has driver_memory '2g' and sets spark.driver.memory to '3g', which driver_memory sets",
    ),
    "a secret": ("spark_conf={'spark.ssl.keyPassword': 'x'}", "the driver has a secret in its spark_conf"),
    "an unknown name": ("memory='2g'", "driver takes no memory: correct the name, or leave it out. It takes"),
    "ours": (
        "spark_conf={'spark.delta.logStore.class': 'x'}",
        "the driver sets spark.delta.logStore.class. Posit",
    ),
    "where it runs": (
        "spark_conf={'spark.master': 'yarn'}",
        "sets spark.master. Where drivers run is said by",
    ),
    "restarted by its cluster": (
        "spark_conf={'spark.driver.supervise': 'true'}",
        "sets spark.driver.supervise. Airflow starts the next driver, unless the flow is parked",
    ),
    "fast listing of Delta's log": (
        "spark_conf={'spark.hadoop.delta.enableFastS3AListFrom': 'true'}",
        "sets spark.hadoop.delta.enableFastS3AListFrom. Delta 4.4.0 also lists the files of nested folders",
    ),
}


@pytest.mark.parametrize(("needs", "message"), BAD.values(), ids=BAD.keys())
def test_what_a_driver_may_not_be_given_is_refused_with_its_line(
    needs: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DeclarationError, match=rf"^p\.py, line 5: .*{message}") as refused:
        one(tmp_path, needs)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    ("release", "is_refused"), [("4.4.0", True), ("4.4.1", False), ("4.10.0rc1", False), (None, True)]
)
def test_fast_listing_is_accepted_with_a_delta_that_lists_right(
    release: str | None, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(_: str) -> str:
        if release is None:
            raise PackageNotFoundError("delta-spark")
        return release

    monkeypatch.setattr(versions, "version", version)
    refusal = pytest.raises(DeclarationError, match=r"install Delta 4\.4\.1")
    outcome: AbstractContextManager[object] = refusal if is_refused else nullcontext()
    with outcome:
        one(tmp_path, "spark_conf={'spark.hadoop.delta.enableFastS3AListFrom': 'true'}")


@pytest.mark.parametrize(
    "name",
    [
        *OURS,
        CHECKPOINT_MANAGER,
        "spark.sql.streaming.checkpointLocation",
        "spark.databricks.delta.write.txnVersion",
        "spark.databricks.delta.properties.defaults.setTransactionRetentionDuration",
    ],
)
def test_a_flow_cannot_set_what_exactness_depends_on(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        DeclarationError,
        match=rf"^p\.py, line 5: the flow f sets {name}\. \w.*Leave it out of spark_conf",
    ):
        declared(tmp_path, flow(more=f", spark_conf={{'{name}': 'x'}}"))


def test_a_memory_among_sparks_settings_is_checked_too(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"the flow f has spark.executor.memory '3 GB', which is"):
        declared(tmp_path, flow(more=", spark_conf={'spark.executor.memory': '3 GB'}"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (", driver={'driver_memory': '2g'}", "driver is .*Give what a driver needs: dp.driver"),
        (
            ", spark_conf={'spark.driver.memory': '3g'}, driver=dp.driver(driver_memory='2g')",
            "the flow f sets spark.driver.memory in its spark_conf and by its driver. Leave one",
        ),
    ],
    ids=["a dict", "both ways"],
)
def test_a_flow_is_given_one_driver_and_each_setting_once(more: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=rf"^p\.py, line 5: {message}"):
        declared(tmp_path, flow(more=more))


def test_flows_of_a_shared_driver_agree_by_what_their_pipeline_declares(tmp_path: Path) -> None:
    shared = "dp.configure_pipeline(shared_driver=True, driver=dp.driver(driver_memory='2g'))\n"
    pipeline = declared(tmp_path, flow("f") + flow("g", target="u") + shared)
    assert submit.shared_settings(Settings.from_environment({}), pipeline)["spark.driver.memory"] == "2g"
    with pytest.raises(
        DeclarationError,
        match=r"line 6: the flow g has spark.driver.memory='3g', and the flow f .*declare it once for all",
    ):
        declared(tmp_path, flow("f") + flow("g", ", driver=dp.driver(driver_memory='3g')", "u") + shared)


@pytest.mark.parametrize(
    ("needs", "columns", "heap", "words"),
    [
        ("", 200, None, None),
        ("", 350, None, r"f keeps a table of 350 columns .* heap of 3 GB; the driver's has 1\.0 GB"),
        (", driver=dp.driver(driver_memory='2g')", 500, None, r"has 2\.0 GB. Declare .*driver_memory=\"4g\""),
        (", driver=dp.driver(driver_memory='4096m')", 500, None, None),
        ("", 500, 4 * 2**30, None),
    ],
    ids=["narrow", "wide", "too little", "enough", "by spark-defaults"],
)
def test_a_table_by_key_that_is_too_wide_for_the_heap_says_what_to_declare(
    needs: str, columns: int, heap: int | None, words: str | None, tmp_path: Path
) -> None:
    cdc = f"dp.create_auto_cdc_flow(name='f', target='t', source='raw', keys=['id'], sequence_by='id'{needs})"
    note = heap_note(declared(tmp_path, cdc).flows[0], columns, heap)
    assert (note is None) if words is None else re.search(words, str(note))
    assert heap_note(declared(tmp_path, flow()).flows[0], 5_000) is None, "an append needs no more"


def test_spark_submit_gets_what_a_driver_needs(here: Path) -> None:
    found = one(here, ALL.format(here=here))
    (here / "ours").mkdir()
    (here / "ours" / "delta.jar").touch()
    settings = replace(Settings.from_environment({}), jars=here / "ours")
    command = submit.driver(settings, [found]).command()
    for name, value in CONF.items():
        assert command[command.index(f"{name}={value.format(here=here)}") - 1] == "--conf"
    there = submit.driver(settings, [found], "spark://there:7077")
    assert there.conf["spark.jars"] == f"{here}/a.jar,local:/opt/b.jar,{here}/ours/delta.jar"
    assert there.conf["spark.cores.max"] == "6", "Spark's own masters count cores, and not executors"
    by_master = there.by_cluster("http://there:8080", settings)
    assert by_master.arguments[1] == f"{here}/lib.zip"
    assert by_master.conf["spark.files"] == f"{here}/lib.zip", "for the executors"
    assert by_master.conf["spark.driver.supervise"] == "false", "whatever spark-defaults.conf says"


def test_an_executor_of_a_standalone_cluster_has_one_core_unless_it_needs_more(tmp_path: Path) -> None:
    found = one(tmp_path, "num_executors=2")
    given = submit.driver(Settings.from_environment({}), [found], "spark://there:7077").conf
    assert (given["spark.executor.cores"], given["spark.cores.max"]) == ("1", "2")
    assert "spark.cores.max" not in submit.driver(Settings.from_environment({}), [found], "yarn").conf


def test_a_job_on_the_tables_of_several_flows_gets_the_most_memory_and_all_that_any_of_them_ships(
    here: Path,
) -> None:
    (here / "b.jar").touch()
    pipeline = declared(
        here,
        flow("f", f", driver=dp.driver(driver_memory='900m', jars=['{here}/a.jar'], num_executors=1)")
        + flow("g", f", driver=dp.driver(driver_memory='2g', jars=['{here}/b.jar', '{here}/a.jar'])", "u"),
    )
    given = submit.job_settings(Settings.from_environment({}), pipeline.flows)
    assert given["spark.driver.memory"] == "2g"
    assert given["spark.jars"] == f"{here}/a.jar,{here}/b.jar"
    assert given["spark.executor.instances"] == "1"


def test_a_changed_need_is_another_declaration_and_one_that_may_make_other_rows_is_noted(here: Path) -> None:
    before, larger = one(here, "driver_memory='1g'"), one(here, "driver_memory='2g'")
    assert before.fingerprint != larger.fingerprint
    assert list(differences(before, larger, ())) == []
    other = one(here, f"driver_memory='1g', jars=['{here}/a.jar']")
    assert list(differences(before, other, ())) == [
        "The setting spark.jars changed: rows and state so far are of the old one."
    ]


def test_packages_are_noted_since_the_first_start_on_a_host_downloads_them(tmp_path: Path) -> None:
    note = packages_note(one(tmp_path, "packages=['org.example:udfs:1.2.0']").declaration)
    assert note is not None
    assert note.startswith("p.py, line 5: the driver of the flow f needs packages of Maven (org.example:udfs")
    assert packages_note(one(tmp_path, "driver_memory='2g'").declaration) is None
