"""The wheel: whole, and of use where nothing else is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from streamkeeper.jars.folder import built_jar
from streamkeeper.settings import PROJECT

FOLDERS = ("streamkeeper", "plugins", "spark_jobs", "dags", "tools")
FILES = ("jars.lock", "pyproject.toml", "setup.py", "README.md")
DRIVER = """
import importlib.util, pathlib, sys
import streamkeeper.pipelines, streamkeeper.drivers.submit, streamkeeper.clusters.packed_code
import streamkeeper_jobs.driver.application, streamkeeper_jobs.steps
from streamkeeper.drivers.submit import JOB, PREFLIGHT_JOB, RECOVERY_JOB
from streamkeeper.jars.folder import AVRO_LOCK, LOCK, S3_LOCK, JarsError, built_jar, jar_paths
from streamkeeper.settings import CHECKOUT
assert not CHECKOUT
assert all(file.is_file() for file in (JOB, PREFLIGHT_JOB, RECOVERY_JOB, LOCK, S3_LOCK, AVRO_LOCK))
assert importlib.util.find_spec("airflow") is None
try:
    jar_paths(pathlib.Path("nowhere"))
except JarsError as error:
    assert str(error).endswith("Run `streamkeeper jars`."), error
else:
    raise AssertionError("a folder without jars is complete")
print("JAR", built_jar(), {name.partition(".")[0] for name in sys.modules} & {"airflow", "typer"})
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of a copy of the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(PROJECT / name, copy / name, ignore=ignored)
    for name in FILES:
        shutil.copy2(PROJECT / name, copy)
    (copy / ".cache" / "jars").mkdir(parents=True)
    shutil.copy2(PROJECT / ".cache" / "jars" / built_jar(), copy / ".cache" / "jars")
    command = [sys.executable, "-m", "uv", "build", "--wheel", "--out-dir", "dist", "."]
    done = subprocess.run(command, cwd=copy, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [built] = (copy / "dist").glob("*.whl")
    return built


def files(folder: Path, pattern: str) -> set[str]:
    return {
        file.relative_to(folder).as_posix()
        for file in folder.rglob(pattern)
        if file.is_file() and "__pycache__" not in file.parts and "pipelines" not in file.parts[:-1]
    }


def test_the_wheel_has_the_code_of_all_folders_and_nothing_of_the_demo(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        entry_points = archive.read("streamkeeper_airflow-0.1.0.dist-info/entry_points.txt").decode()
    jobs = files(PROJECT / "spark_jobs", "*.py")
    assert names == {
        *(
            f"streamkeeper/{name}"
            for name in [*files(PROJECT / "streamkeeper", "*.py"), "distribution/versions.toml"]
        ),
        *(name if "/" in name else f"streamkeeper_jobs/run/{name}" for name in jobs),
        *(name for pattern in ("*.py", "*.js") for name in files(PROJECT / "plugins", pattern)),
        *(f"streamkeeper_airflow/dags/{name}" for name in files(PROJECT / "dags", "*.py")),
        *(f"streamkeeper/jars/{name}" for name in ("jars.lock", "s3.lock", "avro.lock", built_jar())),
    }
    assert {"streamkeeper_page.py", "streamkeeper_airflow/dags/recover/rewind.py"} <= names
    for line in ("[airflow.plugins]", "[apache_airflow_provider]", "[console_scripts]"):
        assert line in entry_points


def test_a_driver_needs_nothing_but_the_wheel_and_spark(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    python = str(venv / "bin" / "python")
    uv = [sys.executable, "-m", "uv"]
    for command in (
        ["venv", "--python", sys.executable, str(venv)],
        ["pip", "install", "--python", python, str(wheel)],
    ):
        done = subprocess.run([*uv, *command], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    spark = tmp_path / "spark"
    spark.mkdir()
    for name in ("pyspark", "py4j", "delta"):
        package = find_spec(name)
        assert package is not None and package.origin is not None
        (spark / name).symlink_to(Path(package.origin).parent)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(spark), "HOME": str(tmp_path)}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path
        )

    assert run(str(venv / "bin" / "streamkeeper"), "--version").stdout == "streamkeeper 0.1.0\n"
    driver = run(python, "-c", DRIVER)
    assert driver.stdout == f"JAR {built_jar()} set()\n", driver.stderr
    flows = run(str(venv / "bin" / "streamkeeper"), "flows")
    assert flows.returncode == 2 and "does not set STREAMKEEPER_PIPELINES" in flows.stderr
