"""Streamkeeper by its entry points and by one's own DAG file, as an installation has it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from airflow.dag_processing.dagbag import DagBag
from streamkeeper_airflow import all_dags
from streamkeeper_airflow.bundle import StreamkeeperBundle

from streamkeeper.distribution.provider_info import get_provider_info
from streamkeeper.settings import PROJECT
from tests.worlds.suites import long_but

THREE_LINES = "from streamkeeper_airflow import all_dags\n\nglobals().update(all_dags())\n"
BUNDLES = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"
PLUGINS = """
from airflow import plugins_manager
plugins, errors = plugins_manager._get_plugins()
print("PLUGINS", [plugin.name for plugin in plugins], list(errors.values()))
"""


@pytest.fixture
def folder(project: Path) -> Path:
    """A DAGs folder with the file of three lines, and two pipelines."""
    folder = project / "dags"
    folder.mkdir()
    (folder / "sk.py").write_text(THREE_LINES)
    return folder


def test_a_file_of_three_lines_has_the_dags_of_the_bundle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = DagBag(str(folder))
    assert own.import_errors == {}
    bundle = StreamkeeperBundle(name="streamkeeper")
    assert set(own.dags) == set(DagBag(str(bundle.path)).dags)
    assert {"flow__first__first_flow", "flow__second__second_flow", "rewind"} <= set(own.dags)
    assert set(all_dags()) == set(own.dags), "also for whoever takes some of them"
    assert {Path(dag.fileloc).name for dag in own.dags.values()} == {"sk.py"}
    # What Airflow sets while it runs a task: only the DAGs beside the task's own are made.
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "clean_up_daily")
    assert {"clean_up", "clean_up_daily"} <= set(DagBag(str(folder)).dags)
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "rewind")
    assert set(DagBag(str(folder)).dags) == {"rewind"}


def test_the_dags_are_refused_a_second_time_beside_the_bundle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{StreamkeeperBundle.__module__}.{StreamkeeperBundle.__qualname__}"
    monkeypatch.setenv(BUNDLES, json.dumps([{"name": "sk", "classpath": place, "kwargs": {}}]))
    bag = DagBag(str(folder))
    (message,) = bag.import_errors.values()
    assert not bag.dags
    assert "The bundle 'sk' of Airflow's [dag_processor] dag_bundle_config_list gives all" in message
    assert "Delete this file, or take the bundle out of the list." in message


@pytest.mark.parametrize(
    ("theirs", "used", "way_out"),
    [
        ("DAG('streamkeeper__backfill')", "streamkeeper__backfill", "set STREAMKEEPER_DAG_PREFIX"),
        ("DAG(dag_id='flow__first__first_flow')", "flow__first__first_flow", "Rename that DAG, or the flow."),
    ],
    ids=["of a recovery", "of a flow"],
)
def test_an_id_that_a_dag_of_somebody_else_has_is_refused_with_its_place(
    theirs: str, used: str, way_out: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STREAMKEEPER_DAG_PREFIX")
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(folder))
    assert DagBag(str(folder)).import_errors == {}
    file = folder / "theirs.py"
    # A file that only triggers it, and one that cannot be read, define none.
    (folder / "other.py").write_text(f"TriggerDagRunOperator(trigger_dag_id={used!r})")
    (folder / "broken.py").write_text(f"with DAG({used!r}:")
    assert not DagBag(str(folder / "sk.py")).import_errors
    file.write_text(f"\nwith {theirs}:\n    pass\n")
    (message,) = DagBag(str(folder / "sk.py")).import_errors.values()
    assert f"{file}:2 defines a DAG with the id {used!r}" in message and way_out in message
    (shown,) = DagBag(str(PROJECT / "dags" / "pipeline_errors.py")).import_errors.values()
    assert f"{file}:2 defines a DAG" in shown, "the bundle's list of import errors has it, too"


def test_the_section_of_settings_fits_airflows_schema_of_providers() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


@pytest.mark.parametrize("place", long_but(["none", "checkout", "copy"], "copy"))
def test_airflow_has_one_plugin_and_a_copy_is_named_with_what_to_delete(
    place: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = PROJECT / "plugins" if place == "checkout" else project / "plugins"
    plugins.mkdir(exist_ok=True)
    if place == "copy":
        (plugins / "streamkeeper_page.py").write_text((PROJECT / "plugins/streamkeeper_page.py").read_text())
    monkeypatch.setenv("AIRFLOW__CORE__PLUGINS_FOLDER", str(plugins))
    command = [sys.executable, "-c", PLUGINS]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=project)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("PLUGINS")]
    if place != "copy":
        assert line == "PLUGINS ['streamkeeper'] []", done.stderr
    else:
        assert "PLUGINS ['streamkeeper'] [" in line
        assert f"Delete {plugins}/streamkeeper_page.py, and the folder" in line
