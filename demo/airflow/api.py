"""A small client of Airflow's REST API: what its UI calls, with nothing but the standard library."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from tools.waiting import NotYet, wait_until

JsonObject = dict[str, Any]
FINAL = ("success", "failed")
COMPONENTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")
REQUEST_SECONDS = 60.0
"""How long one request waits for its answer, which a busy machine may need half of."""
PATIENCE = 300.0
"""How long a question that may be asked twice is asked again, where it was not answered."""
ANSWER_SECONDS = 3.0
"""Seconds between a question and its answer; doubled, tripled, … where the answer before was lost."""


class ApiError(Exception):
    """Airflow said no: ``status`` is the HTTP status, ``detail`` what it said about it."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"Airflow answered {status}: {detail}")
        self.status, self.detail = status, detail


class ServerError(ApiError, NotYet):
    """Airflow could not answer, as where its database is locked: the status is 500 or above."""


class NoAnswer(NotYet, OSError):
    """Airflow refused the connection, broke it, or did not answer in time."""


@dataclass
class AirflowApi:
    """Airflow at ``base_url``, as one user. The token is fetched when first needed.

    Reading waits on where Airflow does not answer, for :data:`PATIENCE` at most; so does :meth:`insist`.

    :param request_seconds: how long one request waits for its answer.
    """

    base_url: str
    user: str
    password: str
    request_seconds: float = REQUEST_SECONDS
    _token: str | None = None

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> JsonObject:
        """Call ``/api/v2{path}`` once and give the JSON that comes back, or ``{}``.

        :raises ApiError: the answer's status is 400 or above; a :class:`ServerError` from 500 on.
        :raises NoAnswer: there is none.
        """
        return self._send_as_user(method, f"/api/v2{path}", body)

    def page(self, path: str) -> JsonObject:
        """Ask a plugin's page at a path once and give the JSON that comes back; it raises as :meth:`call`."""
        return self._send_as_user("GET", path, None)

    def read(self, path: str) -> JsonObject:
        """Read what is at a path.

        :raises ApiError: Airflow says no.
        :raises NeverCame: it did not answer for :data:`PATIENCE`.
        """
        return wait_until(lambda: self.call("GET", path), PATIENCE, f"Airflow answers GET {path}")

    def insist(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout: float = PATIENCE
    ) -> None:
        """Ask for what may be asked for twice, until Airflow took it; 409 says that it had before."""

        def ask() -> bool:
            try:
                self.call(method, path, body)
            except ApiError as error:
                if error.status != 409:
                    raise
            return True

        wait_until(ask, timeout, f"Airflow takes {method} {path}")

    def health(self) -> JsonObject:
        """Return the state of every component; asks once, and needs no login."""
        return self._send("GET", f"{self.base_url}/api/v2/monitor/health", None, None)

    def healthy(self) -> bool:
        """Return True where every component is healthy; asks once.

        :raises NotYet: one is not; it says which.
        """
        health = self.health()
        states = {part: (health.get(part) or {}).get("status") for part in COMPONENTS}
        ill = [f"{part} is {state or 'not there'}" for part, state in states.items() if state != "healthy"]
        if ill:
            raise NotYet(", ".join(ill))
        return True

    def trigger(self, dag_id: str, conf: Mapping[str, Any]) -> str:
        """Trigger a run as the form's button does; give its id. It has one before, so that a lost answer
        brings no second run.
        """
        run_id = f"manual__{uuid.uuid4().hex}"
        self.insist(
            "POST",
            f"/dags/{dag_id}/dagRuns",
            {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf)},
        )
        return run_id

    def run(self, dag_id: str, run_id: str) -> JsonObject:
        """Return a DAG run: ``state``, ``note``, ``conf`` and more."""
        return self.read(f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}")

    def runs(self, dag_id: str, limit: int = 20) -> list[JsonObject]:
        """Return the newest runs of a DAG, newest first."""
        return list(self.read(f"/dags/{dag_id}/dagRuns?order_by=-run_after&limit={limit}")["dag_runs"])

    def tasks(self, dag_id: str, run_id: str) -> dict[str, JsonObject]:
        """Return the task instances of a run, by task id."""
        instances = self.read(f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}/taskInstances")["task_instances"]
        return {item["task_id"]: item for item in instances}

    def log(self, dag_id: str, run_id: str, task_id: str, attempt: int = 1) -> str:
        """Return a task's log as text, one event a line, with what was raised."""
        logs = f"{_task(dag_id, run_id, task_id)}/logs/{attempt}"
        content = self.read(f"{logs}?full_content=true").get("content", [])
        return "\n".join(_event(item) if isinstance(item, dict) else str(item) for item in content)

    def xcom(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """Return what a task handed on."""
        entry = f"{_task(dag_id, run_id, task_id)}/xcomEntries/return_value"
        value = self.read(f"{entry}?deserialize=false")["value"]
        return json.loads(value) if isinstance(value, str) else value

    def question(self, dag_id: str, run_id: str, task_id: str) -> JsonObject:
        """Return what a task asks a person: ``subject``, ``body``, ``options``."""
        return self.read(f"{_task(dag_id, run_id, task_id)}/-1/hitlDetails")

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str, timeout: float = 300) -> str:
        """Answer a task's question, ``Approve`` or ``Reject``, and wait until the task took it; give the
        task's state.

        An answer in the first second after the question is lost in Airflow 3.3.2: its scheduler takes the end
        of the asking process for the end of the resumed one ("finished with state success, but the task
        instance's state attribute is queued"), tries the task again, and that asks again. So this answers
        again as well, each time a little later after the question, as a busy machine needs. A person is never
        that fast.
        """
        body = {"chosen_options": [option], "params_input": {}}
        question_times: dict[int, float] = {}

        def take() -> str | None:
            task = self.tasks(dag_id, run_id)[task_id]
            state = task["state"]
            if state == "awaiting_input" and not self.question(dag_id, run_id, task_id)["response_received"]:
                since = question_times.setdefault(int(task["try_number"]), time.monotonic())
                if time.monotonic() - since >= ANSWER_SECONDS * len(question_times):
                    self.call("PATCH", f"{_task(dag_id, run_id, task_id)}/-1/hitlDetails", body)
            return str(state) if state in (*FINAL, "skipped") else None

        return wait_until(take, timeout, f"task {task_id} of {dag_id} took the answer {option}")

    def parse_again(self) -> None:
        """Ask for every DAG file to be parsed soon, as the UI's button does. Where one is being parsed
        already, Airflow forgets it.
        """
        for token in {str(dag["file_token"]) for dag in self.read("/dags?limit=100")["dags"]}:
            self.insist("PUT", f"/parseDagFile/{token}")

    def clear(self, dag_id: str, run_id: str, task_id: str) -> list[str]:
        """Clear a task of a run and all that comes after it, as the UI's button does; give which."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [task_id],
            "include_downstream": True,
            "only_failed": False,
        }
        cleared = self.call("POST", f"/dags/{dag_id}/clearTaskInstances", {**body, "reset_dag_runs": True})[
            "task_instances"
        ]
        return [str(item["task_id"]) for item in cleared]

    def wait_for_run(self, dag_id: str, run_id: str, timeout: float) -> str:
        """Wait until a run is over; give its state."""

        def look() -> str | None:
            state = str(self.run(dag_id, run_id)["state"])
            return state if state in FINAL else None

        return wait_until(look, timeout, f"run {run_id} of {dag_id} is over")

    def wait_for_task(
        self, dag_id: str, run_id: str, task_id: str, states: tuple[str, ...], timeout: float
    ) -> str:
        """Wait until a task has one of the states; give it."""

        def look() -> str | None:
            task = self.tasks(dag_id, run_id).get(task_id, {})
            return str(task["state"]) if task.get("state") in states else None

        return wait_until(look, timeout, f"task {task_id} of {dag_id} is {' or '.join(states)}")

    def _send_as_user(self, method: str, path: str, body: Mapping[str, Any] | None) -> JsonObject:
        if self._token is None:
            login = {"username": self.user, "password": self.password}
            self._token = str(self._send("POST", f"{self.base_url}/auth/token", login, None)["access_token"])
        return self._send(method, f"{self.base_url}{path}", body, self._token)

    def _send(self, method: str, url: str, body: Mapping[str, Any] | None, token: str | None) -> JsonObject:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(url, data, headers, method=method), timeout=self.request_seconds) as answer:
                content = answer.read()
        except HTTPError as error:
            kind = ServerError if error.code >= 500 else ApiError
            with error:
                raise kind(error.code, error.read().decode(errors="replace")) from error
        except TimeoutError as error:
            raise NoAnswer(f"{method} {url} was not answered within {self.request_seconds:g} s") from error
        except (OSError, HTTPException) as error:
            raise NoAnswer(
                f"{method} {url} was not answered: {str(error) or type(error).__name__}"
            ) from error
        value: JsonObject = json.loads(content) if content else {}
        return value


def _event(item: JsonObject) -> str:
    raised = [
        f"{error.get('exc_type')}: {error.get('exc_value')}" for error in item.get("error_detail") or ()
    ]
    return "\n".join([str(item.get("event", item)), *raised])


def _task(dag_id: str, run_id: str, task_id: str) -> str:
    return f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}/taskInstances/{task_id}"


def _quoted(run_id: str) -> str:
    return quote(run_id, safe="")
