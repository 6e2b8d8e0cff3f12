"""The application behind the page *Streams*, in Airflow's own API server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.app import create_app, get_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.utils.db import initdb
from fastapi.testclient import TestClient
from httpx import Response
from streamkeeper_airflow.page import app as page
from streamkeeper_airflow.page.app import TOKEN, Kept, Looked
from streamkeeper_airflow.page.patience import NoAnswer, Patience

from streamkeeper.drivers.batch_numbers import Batch, keep
from streamkeeper.errors import StorageError
from streamkeeper.flows import generations, holds
from streamkeeper.flows.files import open_home
from streamkeeper.health.flows import look_at_all
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings
from streamkeeper.storage import LocalStorage, open_storage
from tests.airflow.conftest import PIPELINE
from tools.waiting import wait_until

FLOWS, METRICS = "/streamkeeper/api/flows", "/streamkeeper/metrics"
FIRST = "/streamkeeper/api/dags/flow__first__first_flow"
Get = Callable[..., Response]


@pytest.fixture(scope="module")
def get(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Get]:
    """Ask Airflow's API server, as a role or as nobody."""
    root = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("pipelines", "state", "warehouse", "data", "jars"):
            (root / name).mkdir()
            patch.setenv(f"STREAMKEEPER_{name.upper()}", str(root / name))
        for name in ("first", "second"):
            (root / "pipelines" / f"{name}.py").write_text(PIPELINE % {"name": name})
        patch.setattr(page, "KEPT_SECONDS", 0.0)
        patch.setattr(page, "ANSWER_SECONDS", 2.0)
        initdb()
        with TestClient(create_app(apps="core")) as client:

            def ask(path: str, role: str | None = None, **headers: str) -> Response:
                if role is not None:
                    user = SimpleAuthManagerUser(username=role, role=role)
                    headers["Authorization"] = f"Bearer {get_auth_manager().generate_jwt(user)}"
                return client.get(path, headers=headers)

            yield ask
        purge_cached_app()


@pytest.mark.parametrize("path", [FLOWS, FIRST, "/streamkeeper/api/dags/reset_checkpoint/runs/x"])
def test_nobody_sees_anything_without_a_login(get: Get, path: str) -> None:
    assert get(path).status_code == 401
    assert get(path, "VIEWER").status_code == 200


def test_who_may_trigger_a_dag_is_offered_to_and_a_viewer_is_not(get: Get) -> None:
    viewer, admin = get(FLOWS, "VIEWER").json(), get(FLOWS, "ADMIN").json()
    assert [row["flow"] for row in viewer["flows"]] == ["first.first_flow", "second.second_flow"]
    assert (viewer["may"], admin["may"]) == ([], list(page.STARTS))
    assert viewer["counts"] == {"declared": 2}


def test_metrics_need_the_token_of_the_server_and_are_not_there_without_one(
    get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert get(METRICS).status_code == 404
    monkeypatch.setenv(TOKEN, "open sesame")
    assert get(METRICS).status_code == get(METRICS, Authorization="Bearer open").status_code == 401
    found = get(METRICS, Authorization="Bearer open sesame")
    assert found.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'streamkeeper_flow_state{pipeline="first",flow="first_flow",state="declared"} 1\n' in found.text


def test_a_flow_is_shown_with_its_generations_holds_and_batches_and_other_dags_have_none(get: Get) -> None:
    home = open_home(Settings.from_environment(), "first.first_flow")
    generations.decide(home, generations.first(home, "a fingerprint"))
    holds.put(home, holds.person("ada"), "<b>the disk</b>", "ada")
    keep(home, [Batch(1, 0.0, 2.0, 10)])
    found = get(FIRST, "VIEWER").json()
    holds.release(home, holds.person("ada"))
    assert found["row"]["state"] == "held"
    assert [one["number"] for one in found["generations"]] == [1]
    assert [one["reason"] for one in found["holds"]] == ["<b>the disk</b>"]
    assert [one["rows"] for one in found["batches"]] == [10]
    assert get("/streamkeeper/api/dags/reset_checkpoint", "VIEWER").json() == {"recovery": True}
    assert get("/streamkeeper/api/dags/monitor_flows", "VIEWER").json() == {"recovery": False}


def test_a_torn_file_is_a_row_that_says_so_and_its_own_page_an_answer(get: Get) -> None:
    home = open_home(Settings.from_environment(), "second.second_flow")
    home.storage.overwrite(home.hold(holds.PARK), b"{")
    rows = {row["flow"]: row for row in get(FLOWS, "VIEWER").json()["flows"]}
    assert rows["second.second_flow"]["state"] == "unreadable"
    assert rows["first.first_flow"]["state"] != "unreadable"
    alone = get("/streamkeeper/api/dags/flow__second__second_flow", "VIEWER")
    assert (alone.status_code, "park.json" in alone.json()["detail"]) == (503, True)
    holds.release(home, holds.PARK)


def test_the_script_is_served_and_airflow_knows_where_it_is_shown(get: Get) -> None:
    apps = next(
        found["react_apps"]
        for found in get("/api/v2/plugins", "ADMIN").json()["plugins"]
        if found["name"] == "streamkeeper"
    )
    assert {(app["destination"], app["name"]) for app in apps} == {
        ("nav", "Streams"),
        ("dag", "Stream"),
        ("dag_run", "Stream of the run"),
    }
    script = get(apps[0]["bundle_url"])
    assert script.status_code == 200 and "javascript" in script.headers["content-type"]
    for app in apps:
        assert f'"{app["name"]}"' in script.text, "the script gives each app its name"


def test_one_look_serves_all_who_ask_at_once(project: Path) -> None:
    looks = []
    settings = Settings.from_environment()

    def look() -> Looked:
        looks.append(1)
        manifest = read_manifest(settings)
        return manifest, look_at_all(open_storage(settings.state), manifest)

    kept, found = Kept(look, 60.0, Patience(30.0, 4)), list[Any]()
    asking = [threading.Thread(target=lambda: found.append(kept.newest())) for _ in range(20)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert (len(looks), len(found), len({id(one) for one in found})) == (1, 20, 1)


@pytest.fixture
def hanging(get: Get, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Let every read of a file hang, as on a store that does not answer, until the test's end or a call."""
    assert get(FLOWS, "VIEWER").status_code == 200
    answers, read = threading.Event(), LocalStorage.read

    def blocked(storage: LocalStorage, name: str) -> bytes | None:
        assert answers.wait(60)
        return read(storage, name)

    monkeypatch.setattr(LocalStorage, "read", blocked)
    yield answers.set
    answers.set()


def test_a_store_that_hangs_costs_some_threads_and_the_last_answer_serves() -> None:
    hang, begun = threading.Event(), list[str]()
    rows: list[Any] = [("manifest", ("a row",)), ("manifest", ("a newer row",))]

    def look() -> Looked:
        begun.append("look")
        if len(begun) == 2:
            assert hang.wait(30)
        found: Looked = rows[min(len(begun), 2) - 1]
        return found

    patience = Patience(0.1, 3)
    kept = Kept(look, 0.0, patience)
    assert (kept.newest().found, kept.newest().overdue is None) == (rows[0], False)
    stale = [kept.newest() for _ in range(50)]
    assert {(one.found, one.at) for one in stale} == {(rows[0], stale[0].at)}
    assert all("has not answered for" in (one.overdue or "") for one in stale)
    assert len(begun) == 2, "one look is under way, however many ask"
    for number in range(2):
        with pytest.raises(NoAnswer):
            patience.ask(number, lambda: hang.wait(30))
    with pytest.raises(NoAnswer, match="3 reads are under way, and no more are begun"):
        patience.ask("one more", lambda: 1)
    hang.set()
    fresh = wait_until(lambda: one if (one := kept.newest()).overdue is None else None, 30, "a new look")
    assert fresh.found == rows[1]
    assert patience.ask("one more", lambda: 1) == 1


def test_what_a_read_raises_is_raised_where_it_is_asked_for() -> None:
    patience = Patience(30.0, 1)
    for error in (StorageError("torn"), TimeoutError("its own")):
        with pytest.raises(type(error), match=str(error)):
            patience.ask("x", lambda error=error: (_ for _ in ()).throw(error))


def test_page_metrics_and_airflow_itself_answer_while_the_state_folder_hangs(
    get: Get, hanging: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "open sesame")
    threads = threading.active_count()
    answers = [get(FLOWS, "VIEWER").json() for _ in range(5)]
    assert all("has not answered" in one["overdue"] for one in answers)
    assert {row["flow"] for row in answers[0]["flows"]} == {"first.first_flow", "second.second_flow"}
    assert len({one["at"] for one in answers}) == 1, "it is the last good look, with its time"
    found = get(METRICS, Authorization="Bearer open sesame")
    assert f"streamkeeper_last_look_timestamp_seconds {answers[0]['at']!r}\n" in found.text
    alone = get(FIRST, "VIEWER")
    assert (alone.status_code, "has not answered for" in alone.json()["detail"]) == (503, True)
    assert get("/api/v2/monitor/health").status_code == 200
    assert threading.active_count() <= threads + page.MOST_READS + 32
    hanging()
    fresh = wait_until(
        lambda: one if (one := get(FLOWS, "VIEWER").json())["overdue"] is None else None, 30, "a new look"
    )
    assert fresh["at"] > answers[0]["at"]
