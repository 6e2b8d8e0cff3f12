"""``streamkeeper doctor``: what is wrong with an installation is a row with what to do, never a traceback."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from streamkeeper.cli.commands import app
from streamkeeper.clusters import host as host_checks
from streamkeeper.errors import StorageError
from streamkeeper.install import airflow_side, doctor
from streamkeeper.install.probes import Row, run_all
from streamkeeper.jars import folder
from streamkeeper.storage import LocalStorage
from tests.worlds.clusters.pages import Page, Pages
from tests.worlds.small_world import World


@pytest.fixture
def host(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A host of drivers, without Airflow, whose jars are those of a lock of this test."""
    world.enter(monkeypatch)
    monkeypatch.setattr(airflow_side, "find_spec", lambda name: None)
    monkeypatch.setattr(folder, "LOCK", world.root / "jars.lock")
    monkeypatch.setattr(
        folder, "built_jar", lambda: next(world.settings.jars.glob("streamkeeper-jvm-*")).name
    )
    (world.root / "pipelines").mkdir(exist_ok=True)
    jar(world, "io.delta:delta-spark_4.2_2.13:4.4.0")
    return world


def jar(world: World, name: str, content: bytes = b"classes") -> Path:
    """Put a jar into the folder of jars and into the lock."""
    _, artifact, number = name.split(":")
    for other in world.settings.jars.glob("delta-spark_*"):
        other.unlink()
    with (world.root / "jars.lock").open("a") as lock:
        lock.write(f"{hashlib.sha256(content).hexdigest()} {name}\n")
    file = world.settings.jars / f"{artifact}-{number}.jar"
    file.write_bytes(content)
    return file


def rows(name: str) -> list[Row]:
    return [row for row in doctor.examine(60.0) if row.name == name]


def test_a_host_without_airflow_is_looked_at_to_the_end_and_ends_with_0(host: World) -> None:
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    said = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines()[1:]}
    assert said.pop("airflow") == "warn" and said.pop("memory") in ("ok", "warn")
    assert said.pop("disk") in ("ok", "warn") and "fail" not in said.values()
    assert {"settings", "packages", "java", "spark", "jars", "delta", "state", "clock", "warehouse"} == {
        *said
    }
    assert not list((host.root / "state").iterdir()), "the file of the proof is gone"


def test_a_changed_and_a_missing_jar_are_named(host: World) -> None:
    jar(host, "org.apache.kafka:kafka-clients:3.9.2").unlink()
    jar(host, "io.delta:delta-spark_4.2_2.13:4.4.0").write_bytes(b"damaged")
    (row,) = rows("jars")
    assert row.state == "fail" and row.advice
    assert "kafka-clients-3.9.2.jar is missing; delta-spark_4.2_2.13-4.4.0.jar has sha256" in row.detail


def test_a_delta_for_another_spark_is_no_pair(host: World) -> None:
    jar(host, "io.delta:delta-spark_4.1_2.13:4.2.0")
    (row,) = rows("delta")
    assert (row.state, "4.2.0.jar is not made for Spark 4.2" in row.detail) == ("fail", True)


@pytest.mark.parametrize(("client", "state"), [("4.2.0", "ok"), ("4.2.1", "fail"), (None, "ok")])
def test_pyspark_and_its_client_are_of_one_version(
    client: str | None, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"pyspark": "4.2.0", "pyspark-client": client}
    monkeypatch.setattr(host_checks, "_version", found.get)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert [row.state for row in doctor.packages()] == [state]


def test_a_state_folder_that_takes_two_creates_of_one_file_fails(
    host: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        LocalStorage, "create", lambda self, name, content: self.overwrite(name, content) or True
    )
    (row,) = rows("state")
    assert row.state == "fail" and "the second of two creates of one file was accepted" in row.detail


def test_clocks_that_differ_are_a_warning(host: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "time", SimpleNamespace(time=lambda: 1_000_000_000.0))
    (row,) = rows("clock")
    assert (row.state, "s apart" in row.detail) == ("warn", True)


def test_each_table_that_lies_elsewhere_is_looked_at(host: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (host.root / "lake").write_text("a file")
    places = f"a={host.root}/lakes/a,b={host.root}/lake/b"
    monkeypatch.setenv("STREAMKEEPER_TABLE_PATHS", places)
    assert [row.state for row in rows("warehouse")] == ["ok", "ok", "fail"]
    assert rows("warehouse")[2].detail.startswith(
        f"{host.root}/lake/b cannot be written: {host.root}/lake is"
    )


def test_a_full_disk_fails(host: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: SimpleNamespace(free=2**20))
    assert {row.state for row in rows("disk")} == {"fail"}


def test_a_setting_that_cannot_work_is_a_row_and_the_others_are_there(
    host: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMKEEPER_STATE", "state")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1 and "a relative path" in done.stdout and "packages" in done.stdout


def test_what_raises_and_what_hangs_are_rows_beside_what_answers() -> None:
    release = threading.Event()

    def known() -> list[Row]:
        raise StorageError("There is no bucket.")

    def unknown() -> list[Row]:
        raise ZeroDivisionError("by nothing")

    def hangs() -> list[Row]:
        release.wait()
        return []

    probes = {"a": known, "b": unknown, "c": hangs, "d": lambda: [Row("d", "ok", "well")]}
    answers = run_all(probes, 0.2)
    release.set()
    assert [(row.name, row.state) for row in answers] == [
        ("a", "fail"),
        ("b", "fail"),
        ("c", "fail"),
        ("d", "ok"),
    ]
    details = [row.detail for row in answers]
    assert details[:2] == ["There is no bucket.", "ZeroDivisionError: by nothing"]
    assert "no answer within 0.2 s" in details[2]


@pytest.mark.parametrize(
    ("answer", "state", "detail"),
    [
        (b"// The page Streams\n", "ok", "is served by http://127.0.0.1:"),
        (b"\n<!doctype html>", "fail", "has not loaded the plugin, so there is no page Streams"),
        (None, "warn", "does not answer: "),
    ],
    ids=["the script", "Airflow's own page", "no server"],
)
def test_an_api_server_that_was_started_before_the_installation_is_told(
    answer: bytes | None, state: str, detail: str
) -> None:
    class Server(Page):
        def do_GET(self) -> None:
            self.say(200 if self.path == "/streamkeeper/static/streams.js" else 404, answer or b"")

    pages = Pages(Server)
    if answer is None:
        pages.close()
    row = airflow_side.page(f"http://{pages.place}")
    if answer is not None:
        pages.close()
    assert (row.name, row.state) == ("page", state) and detail in row.detail


def test_an_airflow_that_cannot_start_is_a_row_with_its_last_words(
    host: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_side, "find_spec", lambda name: object())
    monkeypatch.setattr(airflow_side, "MODULE", "streamkeeper_airflow.not_there")
    (row,) = airflow_side.look()
    assert row.state == "fail" and "streamkeeper_airflow.not_there" in row.detail
