"""An installation without a checkout: its settings, Airflow's section for them, and the versions named."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from streamkeeper import OLDEST_PYTHON
from streamkeeper import settings as module
from streamkeeper.cli import output
from streamkeeper.declare.checks import filled_path
from streamkeeper.declare.model import Location
from streamkeeper.declare.registry import Registry
from streamkeeper.distribution.provider_info import get_provider_info, options
from streamkeeper.distribution.versions import VERSIONS
from streamkeeper.errors import DeclarationError, SettingsError
from streamkeeper.exit_codes import Outcome
from streamkeeper.settings import PROJECT, SECTION, Settings, dag_id

FOLDERS = ("pipelines", "state", "warehouse", "jars")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FOLDERS", {"data": ""})


def configuration(home: Path, lines: str) -> dict[str, str]:
    """Return an environment whose Airflow has these lines in its section of the configuration file."""
    (home / "airflow.cfg").write_text(f"[core]\nfernet_key = 100%=\n[{SECTION}]\n{lines}\n")
    return {"AIRFLOW_HOME": str(home)}


@pytest.mark.usefixtures("installed")
def test_an_installation_has_no_folders_by_default_and_tells_which_are_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="of which there is no file") as refused:
        Settings.from_environment({"STREAMKEEPER_JARS": "/srv/jars"})
    text = str(refused.value)
    assert "does not set STREAMKEEPER_PIPELINES, STREAMKEEPER_STATE, STREAMKEEPER_WAREHOUSE, nor" in text
    assert "Set STREAMKEEPER_PIPELINES=/srv/streamkeeper/pipelines" in text
    places = {f"STREAMKEEPER_{name.upper()}": str(tmp_path / name) for name in FOLDERS}
    settings = Settings.from_environment(places)
    assert (settings.state, settings.data) == (str(tmp_path / "state"), "")
    assert Settings.from_environment(settings.as_environment()) == settings
    where = Location("shop.py", 1)
    with pytest.raises(DeclarationError, match="Set STREAMKEEPER_DATA"):
        filled_path("{data}/orders", "the source orders", Registry("shop", "shop.py", settings.data), where)


def test_settings_are_read_where_airflow_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = f"state = {tmp_path}/of_file\nlease_term = 90\ndag_prefix = sk_\nbackups =\n"
    env = configuration(tmp_path, lines)
    settings = Settings.from_environment(env)
    assert (settings.state, settings.lease_term) == (f"{tmp_path}/of_file", 90.0)
    env["AIRFLOW__STREAMKEEPER__STATE"] = f"{tmp_path}/of_airflows_variable"
    assert Settings.from_environment(env).state == f"{tmp_path}/of_airflows_variable"
    env["STREAMKEEPER_STATE"] = f"{tmp_path}/of_variable"
    assert Settings.from_environment(env).state == f"{tmp_path}/of_variable"
    for name in ("STREAMKEEPER_DAG_PREFIX", "AIRFLOW_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    assert dag_id("backfill") == "sk_backfill"
    (tmp_path / "airflow.cfg").write_text("state = without a section\n")
    with pytest.raises(SettingsError, match=r"airflow\.cfg cannot be read"):
        Settings.from_environment(env)


def test_airflow_is_offered_each_setting_with_its_default_and_its_variable(tmp_path: Path) -> None:
    found = options()
    assert found.keys() == Settings.__dataclass_fields__.keys()
    variables = {name: option["description"].rpartition("\n")[2] for name, option in found.items()}
    assert (variables["state"], variables["environment"]) == (
        "Variable: STREAMKEEPER_STATE.",
        "Variable: STREAMKEEPER_ENV.",
    )
    assert [name for name, option in found.items() if len(option["description"]) < 60] == []
    # Airflow writes the defaults into the file that it makes.
    lines = "\n".join(f"{name} = {option['default']}" for name, option in found.items() if option["default"])
    assert Settings.from_environment(configuration(tmp_path, lines)) == Settings.from_environment({})
    info, project = get_provider_info(), tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert info["package-name"] == project["name"]
    assert info["versions"] == [project["version"]]


def test_a_person_at_a_terminal_is_told_the_state_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("STREAMKEEPER_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "argv", ["streamkeeper", "flows"])
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert output.settings_in_use() == output.settings_in_use()
    assert terminal.getvalue() == f"state folder: {tmp_path}/state\n"
    monkeypatch.setenv("STREAMKEEPER_STATE", str(tmp_path / "other"))
    monkeypatch.setattr(sys, "argv", ["streamkeeper", "flows", "--json"])
    output.settings_in_use()
    assert "other" not in terminal.getvalue()


def test_all_places_that_name_versions_agree() -> None:
    def text(name: str) -> str:
        return (PROJECT / name).read_text()

    airflow, spark, delta = VERSIONS["airflow"], VERSIONS["spark"], VERSIONS["delta"]
    oldest, newest = VERSIONS["python"]["oldest"], VERSIONS["python"]["newest"]
    java = " or ".join(map(str, VERSIONS["java"]["supported"]))
    project = tomllib.loads(text("pyproject.toml"))
    extras = project["project"]["optional-dependencies"]
    assert project["project"]["requires-python"] == f">={oldest}"
    assert ".".join(map(str, OLDEST_PYTHON)) == oldest
    assert f"apache-airflow>={airflow['oldest']},<{airflow['below']}" in extras["airflow"]
    assert {f"pyspark=={spark['tested'][0]}", f"delta-spark=={delta['tested'][0]}"} <= {*extras["spark"]}
    pins = [line.removesuffix(" \\") for line in text("requirements.txt").splitlines()]
    assert f"apache-airflow=={airflow['tested'][0]}" in pins
    assert {f"pyspark=={spark['tested'][0]}", f"delta-spark=={delta['tested'][0]}"} <= {*pins}
    assert f"delta-spark_{spark['release']}_2.13:{delta['tested'][0]}" in text("jars.lock")
    assert project["tool"]["mypy"]["python_version"] == oldest
    minor = int(newest.partition(".")[2])
    allowed = f"(3, {oldest.partition('.')[2]}) <= sys.version_info[:2] < (3, {minor + 1})"
    assert allowed in text("tools/needs.sh")
    for page in ("README.md", "docs/get-started/install.md"):
        words = re.sub(r"\s+", " ", text(page))
        assert f"Python {oldest} to {newest}" in words, page
        assert f"Java {java}" in words, page
        assert f"Airflow {airflow['oldest']} or later" in words and f"Spark {spark['release']}" in words, page
    assert f"| Airflow {airflow['oldest']} or later |" in text("docs/get-started/install.md")
    assert f"| Spark {spark['release']} in the Python" in text("docs/get-started/install.md")


@pytest.mark.parametrize("job", ["run_flow", "run_recovery"])
def test_a_job_on_an_older_python_ends_at_once_with_what_it_needs(job: str) -> None:
    code = f"import sys; sys.version_info = (3, 10, 12); import {job}"
    places = f"{PROJECT}:{PROJECT / 'spark_jobs'}"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env={"PYTHONPATH": places}
    )
    assert done.returncode == Outcome.USAGE
    (line,) = done.stderr.splitlines()
    assert line.startswith("Streamkeeper needs Python 3.11 or later; ") and " is Python 3.10.12. " in line


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-cluster.txt"])
def test_each_locked_package_is_one_of_known_files(name: str) -> None:
    pins = re.findall(r"^[\w.-]+==.*(?:\n .*)*", (PROJECT / name).read_text(), re.MULTILINE)
    assert len(pins) > 100
    assert [pin for pin in pins if "--hash=sha256:" not in pin] == []
