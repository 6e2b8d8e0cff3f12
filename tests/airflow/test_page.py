"""The application behind the page *Streams*, in Airflow's own API server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.app import create_app, get_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.team import Team
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy import Engine, event
from streamkeeper_airflow.page import app as page
from streamkeeper_airflow.page.app import TOKEN, LookCache, Looked
from streamkeeper_airflow.page.patience import NoAnswer, Patience

from streamkeeper import __version__
from streamkeeper.errors import StorageError
from streamkeeper.flows import generations, holds, ledger
from streamkeeper.flows.files import open_home
from streamkeeper.flows.generations import StartAt
from streamkeeper.health import metrics
from streamkeeper.history import rows
from streamkeeper.history.rows import Sample, Totals
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans.plan import FlowPlan, Plan, to_json
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.storage import LocalStorage, open_storage
from streamkeeper.watch.batch_numbers import Batch, keep
from tests.airflow.conftest import lay_out
from tools.waiting import wait_until

FLOWS, METRICS = "/streamkeeper/api/flows", "/streamkeeper/metrics"
FIRST = "/streamkeeper/api/dags/flow__first__first_flow"
STEPS = ("pin", "copy")
Get = Callable[..., Response]


@pytest.fixture(scope="module")
def get(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Get]:
    """Ask Airflow's API server, as a role, which may be in teams, or as nobody."""
    with pytest.MonkeyPatch.context() as patch:
        lay_out(tmp_path_factory.mktemp("page"), patch)
        patch.setattr(page, "KEPT_SECONDS", 0.0)
        patch.setattr(page, "ANSWER_SECONDS", 2.0)
        patch.setattr(page, "FLOW_SECONDS", 1.0)
        initdb()
        with TestClient(create_app(apps="core")) as client:

            def ask(
                path: str, role: str | None = None, teams: Sequence[str] = (), **headers: str
            ) -> Response:
                if role is not None:
                    user = SimpleAuthManagerUser(username=role, role=role, teams=list(teams))
                    headers["Authorization"] = f"Bearer {get_auth_manager().generate_jwt(user)}"
                as_bytes = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
                return client.get(path, headers=as_bytes)

            yield ask
        purge_cached_app()


ROUTES = {
    "/api/flows": ("/api/flows", 401, 200, 200, 200),
    "/api/dags/{dag_id}": ("/api/dags/flow__first__first_flow", 401, 200, 200, 200),
    "/api/dags/{dag_id}/history": (
        "/api/dags/flow__first__first_flow/history?flow=first.first_flow",
        401,
        200,
        200,
        200,
    ),
    "/api/dags/{dag_id}/runs/{run_id:path}": ("/api/dags/reset_checkpoint/runs/x", 401, 200, 200, 200),
    "/metrics": ("/metrics", 401, 401, 401, 401),
    "/static": ("/static/streams.js", 200, 200, 200, 200),
}
"""Every route of the application: one address of it, and its answers to nobody, a viewer, a user, an admin.
The metrics are for who has their token.
"""
ROLES = (None, "VIEWER", "USER", "ADMIN")


def test_every_route_answers_each_role_as_this_table_says(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "open sesame")
    assert {path for path in paths(page.create_app()) if path} == set(ROUTES)
    for path, *answers in ROUTES.values():
        assert [get(f"/streamkeeper{path}", role).status_code for role in ROLES] == answers, path
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert get(f"/streamkeeper{path}", "ADMIN").status_code == 404


def paths(app: Any) -> Iterator[str]:
    """Yield the paths of all routes, also of routers that are kept whole in it."""
    for route in app.routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route.path
        else:
            yield from (f"{route.include_context.prefix}{path}" for path in paths(inner))


@pytest.fixture
def first_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person may read one flow's DAG and those of recoveries, and no list of files that are broken."""
    manager = type(get_auth_manager())
    allowed = manager.is_authorized_dag

    def of_first(manager: Any, *, details: Any = None, **asked: Any) -> bool:
        second = details is not None and details.id == "flow__second__second_flow"
        return not second and bool(allowed(manager, details=details, **asked))

    monkeypatch.setattr(manager, "is_authorized_dag", of_first)
    monkeypatch.setattr(manager, "is_authorized_view", lambda *_, **__: False)


@pytest.mark.usefixtures("first_only")
@pytest.mark.parametrize("flows", [("second.second_flow",), ()], ids=["its flow", "its table alone"])
def test_a_flow_that_one_may_not_read_is_in_no_answer(get: Get, flows: tuple[str, ...]) -> None:
    settings = Settings.from_environment()
    (settings.pipelines / "secret.py").write_text("from streamkeeper import pipelines as dp\ndp.x()\n")
    try:
        told, broken = get(FLOWS, "VIEWER"), len(read_manifest(settings).errors)
    finally:
        (settings.pipelines / "secret.py").unlink()
    assert [row["flow"] for row in told.json()["flows"]] == ["first.first_flow"]
    assert sum(told.json()["counts"].values()) == 1
    assert (broken, told.json()["errors"], "second_flow" in told.text) == (1, {}, False)
    assert get("/streamkeeper/api/dags/flow__second__second_flow", "VIEWER").status_code == 403
    run = f"of {flows}"
    recovery = engine.recovery_id("reset_checkpoint", run)
    planned = tuple(
        FlowPlan(flow, "second_clean", None, 1, None, "f", StartAt("earliest"), "rebuilt") for flow in flows
    )
    request = {"flows": list(flows), "accept": [], "by": "ada"}
    made = Plan("reset_checkpoint", recovery, "second", ("second_clean",), request, planned, (), "now")
    engine.propose(settings, made)
    address = f"/streamkeeper/api/dags/reset_checkpoint/runs/{run}"
    refused = get(address, "VIEWER")
    assert (refused.status_code, "headline" in refused.text) == (403, False)


@contextmanager
def queries(told: Callable[[str], None]) -> Iterator[None]:
    """Call a function before each query of the database."""

    def listener(*given: Any) -> None:
        told(given[2])

    event.listen(Engine, "before_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", listener)


def test_a_token_may_have_letters_of_any_language(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "sésame Ж 開"
    monkeypatch.setenv(TOKEN, token)
    sent = f"Bearer {token}".encode().decode("latin-1")  # as clients that take bytes for a header
    assert get(METRICS, Authorization=sent).status_code == 200
    for wrong in ("Bearer sésame ? ?", sent[:-1]):
        assert get(METRICS, Authorization=wrong).status_code == 401


def test_the_database_is_asked_as_often_for_many_flows_as_for_one_and_never_for_metrics(
    get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "open sesame")
    asked = list[str]()
    with queries(asked.append):
        assert get(METRICS, Authorization="Bearer open sesame").status_code == 200
        assert asked == [], "metrics answer without a database"
        for multi_team in ("False", "True"):
            monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", multi_team)
            asked.clear()
            assert len(get(FLOWS, "VIEWER").json()["flows"]) == 2
            teams = sum("team" in one for one in asked)
            assert teams == (2 if multi_team == "True" else 0), asked


def test_page_and_metrics_answer_while_the_database_is_slow(
    get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "open sesame")
    slow, waited = 0.5, list[str]()

    def wait(query: str) -> None:
        waited.append(query)
        time.sleep(slow)

    with queries(wait):
        begun = time.monotonic()
        assert "streamkeeper_flow_state" in get(METRICS, Authorization="Bearer open sesame").text
        assert waited == []
        assert len(get(FLOWS, "VIEWER").json()["flows"]) == 2
        assert get(FIRST, "VIEWER").json()["row"]["flow"] == "first.first_flow"
        assert 0 < len(waited) <= 10, "few questions, each of which is slow"
        assert time.monotonic() - begun < slow * len(waited) + 5


@pytest.mark.long
def test_behind_a_path_of_the_base_url_page_script_and_links_have_it() -> None:
    script = """
from airflow.api_fastapi.app import create_app, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.utils.db import initdb
from fastapi.testclient import TestClient
from streamkeeper_airflow.operate.notify import page
initdb()
with TestClient(create_app(apps="core")) as client:
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="ada", role="VIEWER"))
    as_ada = {"Authorization": f"Bearer {token}"}
    plugins = client.get("/air/api/v2/plugins", headers={"Authorization": "Bearer " + get_auth_manager()
        .generate_jwt(SimpleAuthManagerUser(username="root", role="ADMIN"))}).json()["plugins"]
    app = next(found for found in plugins if found["name"] == "streamkeeper")["react_apps"][0]
    print("told", app["bundle_url"], client.get(app["bundle_url"]).status_code)
    flows = "/air/streamkeeper/api/flows"
    print("told", client.get(flows).status_code, client.get(flows, headers=as_ada).status_code)
    print("told", client.get("/air/streamkeeper/metrics").status_code, page("flow__a__b", "run 1"))
    print("told", '<base href="/air/"' in client.get("/air/", headers=as_ada).text)
"""
    environment = {**os.environ, "AIRFLOW__API__BASE_URL": "https://streams.example/air"}
    environment["PYTHONPATH"] = f"{PROJECT / 'plugins'}:{PROJECT}"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    told = [line.removeprefix("told ") for line in done.stdout.splitlines() if line.startswith("told ")]
    assert told == [
        "/air/streamkeeper/static/streams.js 200",
        "401 200",
        "404 https://streams.example/air/dags/flow__a__b/runs/run%201",
        "True",
    ]
    assert "new URL(path, document.baseURI)" in (Path(page.__file__).parent / "static/common.js").read_text()


def test_who_may_trigger_a_dag_is_offered_to_and_a_viewer_is_not(get: Get) -> None:
    viewer, admin = get(FLOWS, "VIEWER").json(), get(FLOWS, "ADMIN").json()
    assert [row["flow"] for row in viewer["flows"]] == ["first.first_flow", "second.second_flow"]
    assert (viewer["may"], list(admin["may"])) == ({}, list(page.STARTS))
    assert viewer["counts"] == {"declared": 2}
    assert viewer["version"] == __version__
    assert get(FLOWS, "VIEWER").headers["content-encoding"] == "gzip", "a long answer is packed"


@pytest.fixture
def teams_backup(get: Get, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The DAG backup_table is in a bundle of the team blue."""
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    bundle, dag = DagBundleModel(name="blues"), DagModel(dag_id="backup_table", bundle_name="blues")
    bundle.teams = [Team(name="blue")]
    with create_session() as session:
        for one in (bundle, dag):
            session.add(one)
            session.flush()
    yield
    with create_session() as session:
        for other in (dag, bundle, *bundle.teams):
            session.delete(other)
            session.flush()


@pytest.mark.usefixtures("teams_backup")
def test_a_recovery_of_a_team_is_offered_to_its_members_alone(get: Get) -> None:
    path = "/streamkeeper/api/dags/backup_table/runs/of-a-team"
    recovery = engine.recovery_id("backup_table", "of-a-team")
    plan = Plan("backup_table", recovery, "first", (), {"by": "ada"}, (), STEPS, "t")
    engine.propose(Settings.from_environment(), plan)
    others, member = get(FLOWS, "USER", ["red"]).json(), get(FLOWS, "USER", ["blue"]).json()
    assert set(member["may"]) - set(others["may"]) == {"backup_table"}
    assert "reset_checkpoint" in others["may"], "a DAG without a team is everybody's"
    assert get(path, "USER", ["blue"]).json()["may_answer"] is True
    assert get(path, "USER", ["red"]).status_code == 403


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


def test_the_history_is_columns_of_the_hours_asked_for(get: Get) -> None:
    home = open_home(Settings.from_environment(), "first.first_flow")
    now = time.time()
    for minute, batches in ((180, 2), (20, 3), (10, 9)):
        told = Totals(batches, 10 * batches, 0.5 * batches, phases={"addBatch": 0.4 * batches})
        seen = Sample(now - 60 * minute, 1, told, "running", 1, lag_seconds=7.0)
        rows.record(home, seen, lambda: now - 12000, lambda epoch: Totals())
    found = get(f"{FIRST}/history?flow=first.first_flow&hours=1", "VIEWER").json()
    assert (found["columns"]["batches"], found["columns"]["lag_seconds"]) == ([1, 6], [7.0, 7.0])
    assert found["phases"]["addBatch"] == pytest.approx([0.4, 2.4])
    assert len(get(f"{FIRST}/history?flow=first.first_flow", "VIEWER").json()["columns"]["at"]) == 3
    assert get(f"{FIRST}/history?flow=second.second_flow", "VIEWER").status_code == 404
    assert get(f"{FIRST}/history?flow=first.first_flow&hours=999", "VIEWER").status_code == 422
    assert get(f"{FIRST}/history?flow=first.first_flow").status_code == 401


def test_a_recovery_tells_its_steps_with_times_and_who_may_answer(get: Get) -> None:
    settings = Settings.from_environment()
    ids = [engine.recovery_id("backup_table", run) for run in ("before", "now")]
    tables = ("first_clean",)
    plans = [
        Plan("backup_table", one, "first", tables, {"by": "ada"}, (), STEPS, "t", details={"copied": []})
        for one in ids
    ]
    books = [ledger.open(open_storage(settings.state), "first", one.recovery_id) for one in plans]
    for plan, book in zip(plans, books, strict=True):
        book.record(ledger.PLANNED, to_json(plan))
        book.record("pin.started", {})
    books[0].record("pin.done", {})
    books[0].record(ledger.ENDED, {})
    books[1].record("pin.progress", {"chunk": 1, "of": 4})
    books[1].record("enter.started", {})
    path = "/streamkeeper/api/dags/backup_table/runs/now"
    found = get(path, "ADMIN").json()
    pin, copy = found["steps"]
    assert (pin["state"], pin["progress"], copy["state"]) == ("started", {"chunk": 1, "of": 4}, "to come")
    assert 0 <= pin["usual"] < 60 and pin["began"] is not None and copy["usual"] is None
    assert (found["may_answer"], found["may_resume"], found["over"]) == (True, True, None)
    assert found["may_abandon"] == page.ABANDON
    assert found["past_return"] is False, "its entry is not written"
    seen = get(path, "VIEWER").json()
    assert (seen["may_answer"], seen["may_resume"], seen["may_abandon"]) == (False, False, None)
    assert get(path.replace("now", "before"), "ADMIN").json()["over"] == "ended"
    assert get(path.replace("now", "never"), "ADMIN").json().get("recovery") is None


def test_a_torn_file_is_a_row_that_says_so_and_its_own_page_an_answer(
    get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = open_home(Settings.from_environment(), "second.second_flow")
    home.storage.overwrite(home.hold(holds.PARK), b"{")
    rows = {row["flow"]: row for row in get(FLOWS, "VIEWER").json()["flows"]}
    assert rows["second.second_flow"]["state"] == "unreadable"
    assert rows["first.first_flow"]["state"] != "unreadable"
    alone = get("/streamkeeper/api/dags/flow__second__second_flow", "VIEWER")
    assert (alone.status_code, "park.json" in alone.json()["detail"]) == (503, True)
    monkeypatch.setenv(TOKEN, "open sesame")
    told = get(METRICS, Authorization="Bearer open sesame").text
    flows = {name: f'{{pipeline="{name}",flow="{name}_flow"}}' for name in ("first", "second")}
    for name, torn in (("first", 0), ("second", 1)):
        assert f"streamkeeper_flow_unreadable{flows[name]} {torn}\n" in told
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
        return manifest, metrics.see(open_storage(settings.state), manifest)

    kept, found = LookCache(look, 60.0, Patience(30.0, 4)), list[Any]()
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

    def blocked(storage: LocalStorage, name: str, *most: int) -> bytes | None:
        assert answers.wait(60)
        return read(storage, name, *most)

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
    kept = LookCache(look, 0.0, patience)
    assert (kept.newest().observed, kept.newest().overdue is None) == (rows[0], False)
    stale = [kept.newest() for _ in range(50)]
    assert {(one.observed, one.at) for one in stale} == {(rows[0], stale[0].at)}
    assert all("has not answered for" in (one.overdue or "") for one in stale)
    assert len(begun) == 2, "one look is under way, however many ask"
    for number in range(2):
        with pytest.raises(NoAnswer):
            patience.ask(number, lambda: hang.wait(30))
    with pytest.raises(NoAnswer, match="3 reads are under way, and no more are begun"):
        patience.ask("one more", lambda: 1)
    hang.set()
    fresh = wait_until(lambda: one if (one := kept.newest()).overdue is None else None, 30, "a new look")
    assert fresh.observed == rows[1]
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


def test_one_flow_that_hangs_is_a_row_that_says_so_and_the_others_go_on(
    get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, read = threading.Event(), LocalStorage.read

    def blocked(storage: LocalStorage, name: str, *most: int) -> bytes | None:
        assert "second" not in name or answers.wait(60)
        return read(storage, name, *most)

    def states() -> dict[str, str]:
        told = get(FLOWS, "VIEWER").json()
        assert told["overdue"] is None, "it is a new look"
        return {row["flow"]: f"{row['state']} {row['detail']}" for row in told["flows"]}

    before = states()
    monkeypatch.setattr(LocalStorage, "read", blocked)
    try:
        hanging, threads = states(), threading.active_count()
        assert hanging["first.first_flow"] == before["first.first_flow"]
        assert "unreadable The state folder has not answered for" in hanging["second.second_flow"]
        again = [states() for _ in range(10)]
        assert {found["first.first_flow"] for found in again} == {before["first.first_flow"]}
        assert threading.active_count() <= threads, "the flow that hangs is not read once more"
    finally:
        answers.set()
    wait_until(lambda: states() == before or None, 30, "its row is back")
