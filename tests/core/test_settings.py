"""Settings from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamkeeper.errors import SettingsError
from streamkeeper.settings import PROJECT, Settings


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
        }
    )
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
