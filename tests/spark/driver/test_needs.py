"""A driver as a process has what its flow needs: memory, a jar, Python modules; another need is a restart."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from streamkeeper.drivers import submit
from streamkeeper.exit_codes import Outcome
from streamkeeper.jars.ivy import pyspark_jars
from streamkeeper.jars.java import find_javac
from tests.worlds.clusters.standalone import standalone
from tests.worlds.drivers import batch_of
from tests.worlds.flow_world import Flowbed, pipeline, running_driver

JAVA = """package org.example;

public class Twice implements org.apache.spark.sql.api.java.UDF1<Integer, Integer> {
  public Integer call(Integer n) {
    return 2 * n;
  }
}
"""
NEEDS = """
import labels
dp.configure_pipeline(driver=dp.driver(driver_memory="{memory}", jars=["{here}/twice.jar"]))
"""
FLOW = """with_all(events)

def with_all(events):
    spark = events.sparkSession
    spark.udf.registerJavaFunction("twice", "org.example.Twice", "int")
    heap = spark._jvm.java.lang.Runtime.getRuntime().maxMemory()
    label = F.udf(lambda n: labels.of(n) + "/" + __import__("packed").NAME)
    twice = F.expr("twice(n)").alias("twice")
    return events.select("n", twice, label("n").alias("label"), F.lit(heap).alias("heap"))
"""


def make_jar(folder: Path) -> None:
    source = folder / "Twice.java"
    source.write_text(JAVA)
    command = [str(find_javac()), "-d", str(folder), "-cp", f"{pyspark_jars()}/*", str(source)]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(folder / "twice.jar", "w") as jar:
        jar.write(folder / "org" / "example" / "Twice.class", "org/example/Twice.class")


@pytest.fixture
def needy(bed: Flowbed, tmp_path: Path) -> Flowbed:
    """A flow with a module beside its file, a jar, a zip of modules, and a memory of 600 MiB."""
    make_jar(tmp_path)
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
        packed.writestr("packed.py", "NAME = 'from a zip'\n")
    (bed.settings.pipelines / "labels.py").write_text("def of(n):\n    return f'n{n}'\n")
    bed.declare(text("600m", tmp_path))
    bed.arrive(1, 2)
    return bed


def text(memory: str, here: Path) -> str:
    made = pipeline(more=NEEDS.format(memory=memory, here=here), flow=FLOW)
    more = f'trigger="200 milliseconds", driver=dp.driver(py_files=["{here}/packed.zip"])'
    return made.replace('trigger="200 milliseconds"', more)


def rows(bed: Flowbed) -> set[tuple[int, int, str]]:
    return {(row["n"], row["twice"], row["label"]) for row in bed.rows()}


def heaps(bed: Flowbed) -> dict[int, int]:
    """Return the heap of the JVM that wrote each row, in MiB: some collectors show a part of it."""
    return {row["n"]: row["heap"] >> 20 for row in bed.rows()}


@pytest.mark.long
def test_a_driver_has_the_memory_the_jar_and_the_modules_that_its_flow_needs(needy: Flowbed) -> None:
    with needy.driver("--available-now") as driver:
        assert driver.wait() == Outcome.STOPPED, driver.said()[-3000:]
    assert rows(needy) == {(1, 2, "n1/from a zip"), (2, 4, "n2/from a zip")}
    assert all(500 < heap <= 600 for heap in heaps(needy).values()), heaps(needy)


@pytest.mark.long
def test_another_need_ends_the_driver_after_its_batch_and_the_next_one_has_it(
    needy: Flowbed, tmp_path: Path
) -> None:
    with needy.driver() as driver:
        driver.until(lambda: batch_of(needy) == 0)
        needy.declare(text("900m", tmp_path))
        assert driver.wait() == Outcome.STOPPED, driver.said()[-3000:]
    needy.arrive(3)
    with needy.driver("--available-now") as driver:
        assert driver.wait() == Outcome.STOPPED, driver.said()[-3000:]
    found = heaps(needy)
    assert found[1] <= 600, found
    assert 700 < found[3] <= 900, found


@pytest.mark.long
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_executors_of_a_cluster_are_as_many_as_declared_and_have_jar_modules_and_archive(
    mode: str, needy: Flowbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with zipfile.ZipFile(tmp_path / "words.zip", "w") as archive:
        archive.writestr("name", " of an archive")
    more = f"num_executors=1, executor_memory='512m', archives=['{tmp_path}/words.zip#words'], py_files"
    declared = needy.file.read_text().replace(".NAME)", ".NAME + open('words/name').read())")
    needy.declare(declared.replace("dp.driver(py_files", f"dp.driver({more}"))
    with standalone(tmp_path) as cluster:
        job = submit.driver(needy.settings, [needy.flow()], cluster.master, available_now=True)
        how: list[str] = []
        if mode == "cluster":
            job = job.by_cluster(cluster.page, needy.settings, wait=True)
            how = ["--deploy-mode", "cluster", "--class", str(job.java_class)]
        command = [job.command()[0], *how, *job.command()[1:]]
        with running_driver(needy.settings, command, tmp_path / "driver.log") as driver:
            assert driver.wait(300) == Outcome.STOPPED, driver.said()[-3000:]
        (application,) = cluster.state()["completedapps"]
    assert application["cores"] == 1, "the worker has two"
    assert rows(needy) == {(n, 2 * n, f"n{n}/from a zip of an archive") for n in (1, 2)}
    assert all(500 < heap <= 600 for heap in heaps(needy).values()), heaps(needy)
