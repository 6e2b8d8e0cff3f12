"""Sets the note of a DAG run through Airflow's own REST API.

A task can neither read nor set its run's note: the task SDK and the execution API of 3.3 have no call for it.
So this needs a connection with a login for the REST API. Without one only the note is missing, and the log
says what to add.
"""

from __future__ import annotations

import json
import logging
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

from streamkeeper.redaction import redact_text
from streamkeeper.support.markdown import plain_lines
from streamkeeper.web import ask

CONNECTION = "streamkeeper_airflow"
NOTE_LIMIT = 1000
"""Characters that Airflow keeps of a note."""

_log = logging.getLogger(__name__)


def set_run_note(dag_id: str, run_id: str, note: str) -> None:
    """Set the note of a DAG run, without secrets, and as text where Airflow shows Markdown; the log says why,
    if it could not be set.

    The connection ``streamkeeper_airflow`` (type ``http``: host, port, login, password, schema http or https)
    names the API server.
    """
    try:
        connection = BaseHook.get_connection(CONNECTION)
    except (AirflowNotFoundException, AirflowRuntimeError):
        _log.warning(
            "There is no connection %r, so the run has no note. Add one of type http with the API server's"
            " host, port, login and password.",
            CONNECTION,
        )
        return
    base = address(connection)
    path = f"/api/v2/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"
    note = plain_lines(redact_text(note))
    shortened = note if len(note) <= NOTE_LIMIT else note[: NOTE_LIMIT - 1] + "…"
    try:
        token = _call("POST", f"{base}/auth/token", _login(connection))["access_token"]
        _call("PATCH", f"{base}{path}?update_mask=note", {"note": shortened}, token)
    # What answers may be no Airflow: a proxy's page is no JSON, and another's JSON has no token.
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = "The note of the run could not be set through %s: %s. Check the connection %r."
        _log.warning(message, base, error, CONNECTION)


def address(connection: Any) -> str:
    """Return the address of the API server that a connection names."""
    port = f":{connection.port}" if connection.port else ""
    return f"{connection.schema or 'http'}://{connection.host}{port}"


def _login(connection: Connection) -> dict[str, Any]:
    return {"username": connection.login, "password": connection.password}


def _call(method: str, url: str, body: dict[str, Any], token: str | None = None) -> dict[str, Any]:
    """Send JSON and return the JSON of the answer. No proxy sees it: it carries a login.

    :raises OSError: no answer, or an error status (urllib's errors are OSErrors).
    """
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    answer = ask(url, json.dumps(body).encode(), headers, method=method, seconds=20, by_proxy=False)
    value: dict[str, Any] = json.loads(answer)
    return value
