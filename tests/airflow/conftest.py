"""A quiet Airflow configuration for tests that only parse: a database in a temporary folder, the project's
plugins on the path.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from streamkeeper.drivers import submit
from streamkeeper.settings import PROJECT
from tests.recorder import Recorder

# Airflow reads these when it is first imported, so they are set when this file is, and not in a fixture.
_HOME = tempfile.TemporaryDirectory(prefix="streamkeeper-airflow-")
os.environ |= {
    "AIRFLOW_HOME": _HOME.name,
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
    "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
    "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
}
sys.path.insert(0, str(PROJECT / "plugins"))

PIPELINE = """
from streamkeeper import pipelines as dp

dp.create_source("raw", format="json", path="{data}/raw", schema="id INT")
dp.create_streaming_table("%(name)s_clean")

@dp.append_flow(name="%(name)s_flow", target="%(name)s_clean", sources=["raw"])
def flow(raw):
    return raw
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with two pipelines, ``first`` and ``second``, that the settings of the environment
    point to.
    """
    for name in ("pipelines", "data"):
        (tmp_path / name).mkdir()
    for name in ("first", "second"):
        (tmp_path / "pipelines" / f"{name}.py").write_text(PIPELINE % {"name": name})
    for name in ("pipelines", "state", "warehouse", "data", "jars"):
        monkeypatch.setenv(f"STREAMKEEPER_{name.upper()}", str(tmp_path / name))
    return tmp_path


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A program in place of ``spark-submit``."""
    made = Recorder(tmp_path / "spark-submit")
    monkeypatch.setattr(submit, "spark_submit", lambda: str(made.program))
    return made
