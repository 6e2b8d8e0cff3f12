"""A slow, busy or absent Airflow is waited for until the deadline: by a server that answers as a busy
machine's does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from demo.airflow.api import COMPONENTS, AirflowApi, ApiError, NoAnswer, ServerError
from demo.airflow.service import USER, AirflowService, Ports, ServiceError
from demo.seeing import RunView, StoryFailed, wait
from streamkeeper.settings import Settings
from tools.waiting import NeverCame, NotYet, wait_until

HEALTHY = {part: {"status": "healthy"} for part in COMPONENTS}
SILENCE, BROKEN = 0, -1
"""Instead of a status: no answer for as long as the server lives, and a connection that is closed."""


class SlowAirflow:
    """A server whose first answers are those that were asked for; after them it answers well.

    :param statuses: by the end of a path.
    """

    def __init__(self, **statuses: list[int]) -> None:
        self.asked: list[tuple[str, object]] = []
        self.body: dict[str, object] = HEALTHY
        over, this = threading.Event(), self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                name = self.path.partition("?")[0].rpartition("/")[2]
                this.asked.append((f"{self.command} {name}", json.loads(content) if content else None))
                left = statuses.get(name)
                status = left.pop(0) if left else 200
                if status == SILENCE:
                    over.wait()
                if status <= 0:
                    self.close_connection = True
                    return
                body = json.dumps({"access_token": "t", **this.body}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server, self._over = ThreadingHTTPServer(("127.0.0.1", 0), Handler), over
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def api(self) -> AirflowApi:
        return AirflowApi(f"http://127.0.0.1:{self.port}", USER, "secret", request_seconds=0.2)

    def __enter__(self) -> SlowAirflow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class StartedElsewhere(AirflowService):
    """A service whose Airflow is a server of the test's."""

    def _launch_all(self) -> None:
        pass


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment(
        {f"STREAMKEEPER_{name}": str(tmp_path / name) for name in ("STATE", "WAREHOUSE", "DATA")}
    )


@pytest.fixture
def late() -> Iterator[SlowAirflow]:
    """Listens, and answers nobody until it is entered."""
    server = SlowAirflow()
    yield server
    server._server.server_close()


SLOW_STARTS = {
    "no answer": {"health": [SILENCE, SILENCE], "pools": [SILENCE], "token": [SILENCE]},
    "a broken connection": {"health": [BROKEN], "pools": [BROKEN], "token": [BROKEN]},
    "a busy database": {"health": [500], "pools": [503, 500], "token": [500]},
    "a pool that was made before its answer was lost": {"pools": [SILENCE, 409]},
}


@pytest.mark.parametrize("statuses", SLOW_STARTS.values(), ids=SLOW_STARTS)
def test_a_start_asks_again_until_it_has_every_answer(
    statuses: dict[str, list[int]], settings: Settings, tmp_path: Path
) -> None:
    with SlowAirflow(**{name: list(found) for name, found in statuses.items()}) as slow:
        StartedElsewhere(tmp_path, settings, Ports(slow.port, 1, 2), request_seconds=0.2).start()
    assert slow.asked[-1][0] == "POST pools"
    for name, found in statuses.items():
        assert sum(asked.endswith(f" {name}") for asked, _ in slow.asked) >= len(found)


def test_a_start_that_never_comes_says_what_was_waited_for_and_seen(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("demo.airflow.service.HEALTHY_SECONDS", 0.3)
    with SlowAirflow() as slow:
        service = StartedElsewhere(tmp_path, settings, Ports(slow.port, 1, 2))
        slow.body = {**HEALTHY, "scheduler": {"status": "unhealthy"}, "triggerer": None}  # type: ignore[dict-item]
        with pytest.raises(
            ServiceError, match=r"until Airflow is healthy.*scheduler is unhealthy, triggerer is not there"
        ):
            service.start()
    silent = AirflowApi(service.url, USER, "secret", request_seconds=0.1)
    with pytest.raises(NeverCame, match=r"until it answers; .* GET http.*health was not answered: .*refused"):
        wait_until(silent.health, 0.2, "it answers")


def test_a_long_wait_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.waiting.TELL_SECONDS", 0.02)
    said: list[str] = []

    def look() -> bool:
        if len(said) < 2:
            raise NotYet("the scheduler is unhealthy")
        return True

    assert wait_until(look, 60, "Airflow is healthy", interval=0.01, tell=said.append)
    assert said[0].startswith(
        "Waiting until Airflow is healthy, for 0 of at most 60 s. Seen instead: the scheduler is unhealthy"
    )


def test_one_who_does_not_answer_yet_is_asked_again_and_one_who_says_no_is_not(late: SlowAirflow) -> None:
    with pytest.raises(NoAnswer, match=r"GET .*/health was not answered within 0.2 s"):
        late.api.health()
    with late:
        assert wait_until(late.api.health, 60, "it answers") == {"access_token": "t", **HEALTHY}
    with SlowAirflow(health=[500, 404]) as slow:
        with pytest.raises(ServerError):
            slow.api.health()
        with pytest.raises(ApiError, match="404"):
            wait_until(slow.api.health, 60, "it answers")


def test_the_story_reads_on_while_airflow_is_slow() -> None:
    with SlowAirflow(r1=[SILENCE, 500, BROKEN], taskInstances=[SILENCE]) as slow:
        slow.body = {"state": "success", "task_instances": []}
        assert wait("the run succeeds", RunView(slow.api, "reset_checkpoint", "r1").succeeded) == "success"


def test_the_story_says_what_it_saw_last() -> None:
    with pytest.raises(
        StoryFailed,
        match=r"Waited 0\.1 s until the flow is parked; it did not come\. Seen instead: it is running",
    ):
        wait("the flow is parked", lambda: (None, "it is running"), 0.1)


def test_a_run_whose_answer_was_lost_is_triggered_once() -> None:
    with SlowAirflow(dagRuns=[SILENCE, 409]) as slow:
        run = slow.api.trigger("reset_checkpoint", {"flow": "a.b"})
    triggered = [body for asked, body in slow.asked if asked == "POST dagRuns"]
    assert triggered == [{"dag_run_id": run, "logical_date": None, "conf": {"flow": "a.b"}}] * 2
