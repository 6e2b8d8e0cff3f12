"""The logs of drivers: which are removed, and which stay."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import cast

import pytest
from airflow.sdk import Context
from streamkeeper_airflow.operate.driver_logs import RemoveDriverLogs

from streamkeeper.errors import StorageError
from streamkeeper.flows import leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.leases import process_started
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings
from streamkeeper.storage import LocalStorage

DAY = 86400
LONG = 31 * DAY


@pytest.fixture
def logs(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(project / "logs"))
    folder = project / "logs" / "drivers" / "first.first_flow"
    folder.mkdir(parents=True)
    return folder


def write(log: Path, age: float, note: object = None) -> Path:
    log.write_text("a line\n")
    os.utime(log, (time.time() - age,) * 2)
    if note is not None:
        log.with_name(f"{log.name}.pid").write_text(json.dumps(note))
    return log


def remove() -> dict[str, int]:
    return cast("dict[str, int]", RemoveDriverLogs(task_id="remove").execute(cast("Context", {})))


MINE = {"pid": os.getpid(), "started": process_started(os.getpid())}


@pytest.mark.parametrize(
    ("age", "note", "stays"),
    [
        pytest.param(29 * DAY, None, True, id="young"),
        pytest.param(LONG, None, False, id="old"),
        pytest.param(LONG, MINE, True, id="old, its process lives"),
        pytest.param(LONG, {**MINE, "started": 1}, False, id="old, its pid has another owner now"),
        pytest.param(LONG, {"pid": 2**22 + 1, "started": 1}, False, id="old, its process is gone"),
        pytest.param(LONG, "garbage", True, id="old, and nobody can tell whose it is"),
    ],
)
def test_only_old_logs_that_no_process_writes_are_removed(
    age: float, note: object, stays: bool, logs: Path
) -> None:
    log = write(logs / "20261001T000000-try1.log", age, note)
    assert remove() == {"removed": int(not stays), "bytes": 0 if stays else 7, "left": int(stays)}
    assert sorted(file.name for file in logs.iterdir()) == sorted(
        [log.name, f"{log.name}.pid"][: 1 + (note is not None)] if stays else []
    )


def test_the_log_that_a_living_driver_s_lease_names_stays_and_goes_when_the_driver_left(
    logs: Path, home: FlowHome
) -> None:
    log = write(logs / "20261001T000000-try1.log", LONG)
    lease = leases.acquire(home, 1, 1.0, str(log))
    assert remove()["left"] == 1
    leases.leave(home, lease, "test")
    assert remove()["removed"] == 1


def test_a_host_whose_clock_is_ahead_of_the_storages_removes_no_log(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(logs / "20261001T000000-try1.log", DAY)
    moment = time.time() + LONG
    monkeypatch.setattr(time, "time", lambda: moment)
    assert remove() == {"removed": 0, "bytes": 0, "left": 1}


@pytest.mark.parametrize("age", [DAY, LONG])
def test_a_full_disk_loses_its_old_logs(age: float, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StorageError("no space left on device")

    write(logs / "20261001T000000-try1.log", age)
    read_manifest(Settings.from_environment())
    monkeypatch.setattr(LocalStorage, "overwrite", fail)
    assert remove()["removed"] == int(age == LONG)


def test_the_retention_is_a_setting(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(logs / "20261001T000000-try1.log", 2 * DAY)
    monkeypatch.setenv("STREAMKEEPER_LOG_RETENTION", str(DAY))
    assert remove()["removed"] == 1


def test_no_folder_of_logs_is_nothing_to_remove(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(project / "none"))
    assert remove() == {"removed": 0, "bytes": 0, "left": 0}
