"""The application behind the page *Streams*: it only reads, and only what a person may see."""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, get_user
from airflow.configuration import conf
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException
from fastapi.responses import PlainTextResponse
from fastapi.staticfiles import StaticFiles

from streamkeeper.errors import StreamkeeperError
from streamkeeper.health import flows as health
from streamkeeper.health import metrics, one_flow
from streamkeeper.health.flows import Looked
from streamkeeper.recover.plans.kind import KINDS
from streamkeeper.settings import Settings
from streamkeeper_airflow.page import details
from streamkeeper_airflow.page.patience import NoAnswer, Patience

T = TypeVar("T")
TOKEN = "STREAMKEEPER_METRICS_TOKEN"
"""Variable with the token that a scraper sends; where it is not set, there are no metrics."""
KEPT_SECONDS = 3.0
"""Seconds for which one look serves all who ask."""
ANSWER_SECONDS = 5.0
"""Seconds that a read is waited for; then the last answer serves, or there is none."""
MOST_READS = 16
"""Reads that may be under way at once: a store that hangs takes so many threads, and no more."""
STARTS = (
    "reset_checkpoint",
    "full_refresh",
    "backup_table",
    "rewind",
    "backfill",
    "hold_flows",
    "release_flows",
)
"""DAGs that the page offers to whoever may trigger them."""


def script_url(prefix: str) -> str:
    """Return where the script is served, below the path of the API server."""
    base = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{base}{prefix}/static/streams.js"


@dataclass(frozen=True)
class Look:
    """A look at all flows: what is declared, and a row for each flow. ``at`` is when it was taken, in seconds
    since 1970; ``overdue`` is why there is no newer one, None if it is the newest.
    """

    found: Looked
    at: float
    overdue: str | None = None


class Kept:
    """The newest look at all flows, which is taken anew when somebody asks and it is older than some seconds.

    If a new one does not come in time, the last one serves, with its age.

    :param look: returns manifest and rows.
    """

    def __init__(self, look: Callable[[], Looked], seconds: float, patience: Patience) -> None:
        self._look, self._seconds, self._patience = look, seconds, patience
        self._kept: tuple[float, Look] | None = None

    def newest(self) -> Look:
        """Return the look; whoever asks while one is taken waits for it.

        :raises StreamkeeperError: the state folder or the pipelines cannot be read at all.
        :raises NoAnswer: the first look has not ended in time.
        """
        kept = self._kept
        if kept is not None and time.monotonic() - kept[0] <= self._seconds:
            return kept[1]
        try:
            return self._patience.ask("flows", self._take)
        except NoAnswer as error:
            if kept is None:
                raise
            return replace(kept[1], overdue=str(error))

    def _take(self) -> Look:
        """Take a look, and keep it, also where nobody waits for it any more."""
        begun, at = time.monotonic(), time.time()
        look = Look(self._look(), at)
        self._kept = (begun, look)
        return look


def _look() -> Looked:
    return health.look_now(Settings.from_environment())


def create_app(look: Callable[[], Looked] = _look) -> FastAPI:
    """Return the application. All routes but the metrics and the script need a login."""
    app = FastAPI(title="Streamkeeper", docs_url=None, redoc_url=None, openapi_url=None)
    patience = Patience(ANSWER_SECONDS, MOST_READS)
    kept = Kept(look, KEPT_SECONDS, patience)
    app.include_router(_router(kept, patience), prefix="/api")

    @app.get("/metrics", response_class=PlainTextResponse)
    def of_all(authorization: Annotated[str, Header()] = "") -> PlainTextResponse:
        _check_token(authorization)
        look = _told(kept.newest)
        return PlainTextResponse(metrics.text(look.found[1], look.at), media_type=metrics.CONTENT_TYPE)

    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    return app


def _router(kept: Kept, patience: Patience) -> APIRouter:
    router = APIRouter(dependencies=[Depends(get_user)])

    @router.get("/flows")
    def flows(user: GetUserDep) -> dict[str, Any]:
        look = _told(kept.newest)
        manifest, rows = look.found
        seen = tuple(row for row in rows if _may(user, row.dag_id))
        return {
            "at": look.at,
            "overdue": look.overdue,
            "counts": dict(health.counts(seen)),
            "flows": [row.to_json() for row in seen],
            "errors": manifest.errors,
            "may": _may_start(user),
        }

    @router.get("/dags/{dag_id}")
    def dag(dag_id: str, user: GetUserDep) -> dict[str, Any]:
        _check_may_read(user, dag_id)
        look = _told(kept.newest)
        manifest, rows = look.found
        row = next((row for row in rows if row.dag_id == dag_id), None)
        if row is None:
            return {"recovery": dag_id in KINDS}
        read = partial(one_flow.look, Settings.from_environment(), manifest.find(row.flow), row)
        found = dict(_told(patience.ask, dag_id, read))
        if not _may(user, dag_id, DagAccessEntity.TASK_LOGS):
            found["log"] = {"where": None, "lines": []}
        return {**found, "at": look.at, "overdue": look.overdue, "may": _may_start(user)}

    @router.get("/dags/{dag_id}/runs/{run_id:path}")
    def run(dag_id: str, run_id: str, user: GetUserDep) -> dict[str, Any]:
        _check_may_read(user, dag_id)
        return _told(patience.ask, (dag_id, run_id), partial(details.of_recovery, dag_id, run_id))

    return router


def _told(read: Callable[..., T], *arguments: Any) -> T:
    """Return what a function reads; what it cannot read is an answer that says why."""
    try:
        return read(*arguments)
    except StreamkeeperError as error:
        raise HTTPException(503, str(error)) from error


def _may(user: Any, dag_id: str, what: DagAccessEntity | None = None) -> bool:
    return get_auth_manager().is_authorized_dag(
        method="GET", access_entity=what, details=DagDetails(id=dag_id), user=user
    )


def _check_may_read(user: Any, dag_id: str) -> None:
    if not _may(user, dag_id):
        raise HTTPException(403, f"You may not read the DAG {dag_id}.")


def _may_start(user: Any) -> list[str]:
    manager = get_auth_manager()
    return [
        dag
        for dag in STARTS
        if manager.is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=DagDetails(id=dag), user=user
        )
    ]


def _check_token(authorization: str) -> None:
    token = os.environ.get(TOKEN, "")
    if not token:
        raise HTTPException(404, f"There are no metrics: {TOKEN} is not set for the API server.")
    if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
        raise HTTPException(401, "The metrics need the header Authorization: Bearer, with the token.")
