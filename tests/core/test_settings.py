"""Settings from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamkeeper.errors import SettingsError
from streamkeeper.settings import ENVIRONMENTS, PROJECT, Settings, of_environment


def test_an_empty_environment_gives_the_demos_folders() -> None:
    settings = Settings.from_environment({})
    assert settings.pipelines == PROJECT / "spark_jobs" / "pipelines"
    assert settings.jars == PROJECT / ".cache" / "jars"
    assert {settings.state, settings.warehouse, settings.data} == {
        str(PROJECT / ".demo" / name) for name in ("state", "warehouse", "data")
    }


def test_an_empty_value_counts_as_unset() -> None:
    unset = dict.fromkeys(("STREAMKEEPER_STATE", "STREAMKEEPER_JARS", "STREAMKEEPER_LEASE_TERM"), "")
    assert Settings.from_environment(unset) == Settings.from_environment({})


def test_settings_survive_the_way_through_another_process_environment() -> None:
    first = Settings.from_environment(
        {
            "STREAMKEEPER_STATE": "s3://bucket/state",
            "STREAMKEEPER_DATA": "/some/data",
            "STREAMKEEPER_LEASE_TERM": "7.5",
            "STREAMKEEPER_READ_AT_MOST": "3",
            "STREAMKEEPER_ENV": "stage",
            "STREAMKEEPER_SPARK_UI": "true",
            "STREAMKEEPER_EVENT_LOG": "s3://bucket/events",
            "STREAMKEEPER_HISTORY_SERVER": "http://history:18080/",
        }
    )
    assert (first.spark_ui, first.history_server) == (True, "http://history:18080")
    assert (first.read_at_most, first.environment) == (3, "stage")
    assert Settings.from_environment(first.as_environment()) == first


def test_a_home_folder_is_filled_in_and_urls_stay() -> None:
    settings = Settings.from_environment(
        {"STREAMKEEPER_STATE": "~/state", "STREAMKEEPER_WAREHOUSE": "s3://bucket/w"}
    )
    assert (settings.state, settings.warehouse) == (str((Path.home() / "state").resolve()), "s3://bucket/w")


@pytest.mark.parametrize(
    ("warehouse", "table", "path"),
    [("/w", "t", "/w/t"), ("/w", "s.t", "/w/s/t"), ("s3://bucket/w/", "s.t", "s3://bucket/w/s/t")],
    ids=["table", "schema and table", "url with a slash"],
)
def test_a_table_lives_below_the_warehouse(warehouse: str, table: str, path: str) -> None:
    assert Settings.from_environment({"STREAMKEEPER_WAREHOUSE": warehouse}).table_path(table) == path


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "STREAMKEEPER_PIPELINES",
            "s3://bucket/pipelines",
            "STREAMKEEPER_PIPELINES is 's3://bucket/pipelines', a URL; it must be a local folder",
        ),
        ("STREAMKEEPER_JARS", "https://host/jars", "STREAMKEEPER_JARS .* must be a local folder"),
        ("STREAMKEEPER_STATE", "state", "STREAMKEEPER_STATE is 'state', a relative path"),
        ("STREAMKEEPER_PIPELINES", "./pipelines", "a relative path, .* Start it with / or ~"),
        (
            "STREAMKEEPER_LEASE_TERM",
            "soon",
            "STREAMKEEPER_LEASE_TERM is 'soon'; it must be a number of seconds above 0",
        ),
        ("STREAMKEEPER_LEASE_TERM", "0", "above 0"),
        ("STREAMKEEPER_HEARTBEAT_INTERVAL", "-1", "STREAMKEEPER_HEARTBEAT_INTERVAL is '-1'"),
        ("STREAMKEEPER_HEARTBEAT_INTERVAL", "inf", "above 0"),
        ("STREAMKEEPER_HEARTBEAT_INTERVAL", "nan", "above 0"),
        ("STREAMKEEPER_SPARK_UI", "maybe", "is 'maybe'; it must be true or false"),
        ("STREAMKEEPER_HISTORY_SERVER", "history:18080", "must be an address such as http"),
        (
            "STREAMKEEPER_LEASE_TERM",
            "2",
            "STREAMKEEPER_LEASE_TERM is 2 .* at least twice STREAMKEEPER_HEARTBEAT_INTERVAL",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.from_environment({name: value})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"STATE": "/w", "WAREHOUSE": "/w"}, "STATE is /w and STREAMKEEPER_WAREHOUSE /w: they are the same"),
        ({"STATE": "/w/state/", "WAREHOUSE": "/w"}, "the first is inside the second"),
        ({"STATE": "s3://b/a", "WAREHOUSE": "s3a://b//a/w"}, "the second is inside the first"),
        ({"STATE": "file:///w", "DATA": "/w/data"}, "the second is inside the first"),
        ({"STATE": "s3://b/x", "BACKUPS": "s3://b/x"}, "STREAMKEEPER_BACKUPS s3://b/x: they are the same"),
        ({"WAREHOUSE": "/w", "BACKUPS": "/w/customers"}, "name that begins with an underscore"),
        ({"WAREHOUSE": "/b/w", "BACKUPS": "/b"}, "the first is inside the second"),
        ({"STATE": "file://srv/state"}, "a relative path, .* three slashes"),
        ({"STATE": "gs://b/state"}, "not on gs://. To try it, set STREAMKEEPER_UNTESTED_STORAGE=true"),
        ({"STATE": "memory://s", "UNTESTED_STORAGE": "true"}, "gone with each process"),
        ({"UNTESTED_STORAGE": "yes"}, "must be true or false"),
    ],
)
def test_folders_that_would_destroy_each_other_are_refused(value: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.from_environment({f"STREAMKEEPER_{name}": place for name, place in value.items()})


@pytest.mark.parametrize(
    "value",
    [
        {"STATE": "/w/state", "WAREHOUSE": "/w/states", "DATA": "/w/data", "BACKUPS": "/w/backups"},
        {"WAREHOUSE": "s3://b/w", "BACKUPS": "s3://b/w/__backups"},
        {"STATE": "s3://b", "WAREHOUSE": "/b"},
        {"STATE": "gs://b/state", "UNTESTED_STORAGE": "true"},
    ],
)
def test_folders_beside_each_other_are_taken(value: dict[str, str]) -> None:
    settings = Settings.from_environment({f"STREAMKEEPER_{name}": place for name, place in value.items()})
    assert Settings.from_environment(settings.as_environment()) == settings


def test_an_environment_is_a_file_of_settings(tmp_path: Path) -> None:
    (tmp_path / "stage.env").write_text(
        "# of the stage\n\nSTREAMKEEPER_STATE=/srv/stage/state\nexport STREAMKEEPER_WAREHOUSE='/srv/w'\n"
    )
    (tmp_path / "wrong.env").write_text("PATH=/somewhere\n")
    folder = {ENVIRONMENTS: str(tmp_path)}
    assert of_environment("stage", folder) == {
        "STREAMKEEPER_STATE": "/srv/stage/state",
        "STREAMKEEPER_WAREHOUSE": "/srv/w",
        "STREAMKEEPER_ENV": "stage",
    }
    with pytest.raises(SettingsError, match=r"no environment 'prod' in .*There are: stage, wrong. Write"):
        of_environment("prod", folder)
    with pytest.raises(SettingsError, match=r"no environment '../stage'"):
        of_environment("../stage", folder)
    with pytest.raises(SettingsError, match=r"wrong.env:1: 'PATH' is no setting. A line is NAME=value"):
        of_environment("wrong", folder)
