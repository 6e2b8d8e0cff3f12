"""The application behind the page *Streams*: it only reads, and only what a person may see."""

from __future__ import annotations

import hmac
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, get_user
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query
from fastapi.responses import PlainTextResponse
from fastapi.staticfiles import StaticFiles

from streamkeeper import __version__
from streamkeeper.errors import StreamkeeperError
from streamkeeper.health import flows as health
from streamkeeper.health import metrics
from streamkeeper.health.flows import FlowHealth
from streamkeeper.health.metrics import Snapshot
from streamkeeper.manifest.manifest import Flow, Manifest, read_manifest
from streamkeeper.recover.plans.kind import KINDS
from streamkeeper.settings import Settings, dag_name
from streamkeeper.settings import dag_id as id_of_dag
from streamkeeper.storage import open_storage
from streamkeeper_airflow.page import details
from streamkeeper_airflow.page.patience import NoAnswer, Patience

T = TypeVar("T")
Looked = tuple[Manifest, Snapshot]
"""One look: what is declared, and what was seen."""
TOKEN = "STREAMKEEPER_METRICS_TOKEN"
"""Variable with the token that a scraper sends; where it is not set, there are no metrics."""
KEPT_SECONDS = 3.0
"""Seconds for which one look serves all who ask."""
ANSWER_SECONDS = 5.0
"""Seconds that a read is waited for; then the last answer serves, or there is none."""
Hours = Annotated[float, Query(gt=0, le=48)]
"""Hours of history that a chart shows."""
FLOW_SECONDS = 4.0
"""Seconds that one flow's files are waited for in a look at all; then its row says so."""
MOST_READS = 16
"""Reads that may be under way at once, of single flows in a look and of all else: a store that hangs takes so
many threads of each, and no more.
"""
ABANDON = "abandon_recovery"
STARTS = (
    "reset_checkpoint",
    "full_refresh",
    "backup_table",
    "rewind",
    "backfill",
    "hold_flows",
    "release_flows",
    ABANDON,
)
"""DAGs that the page offers to whoever may trigger them."""


def script_url(prefix: str) -> str:
    """Return where the script is served, below the path of the API server."""
    base = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{base}{prefix}/static/streams.js"


@dataclass(frozen=True)
class Look:
    """A look at all flows: what is declared, and what was seen. ``at`` is when it was taken, in seconds
    since 1970; ``overdue`` is why there is no newer one, None if it is the newest.
    """

    observed: Looked
    at: float
    overdue: str | None = None

    def rows_of(self, dag_id: str) -> list[FlowHealth]:
        """Return the rows of a DAG's flows: several, if they share a driver; none if it runs no flow."""
        return [row for row in self.observed[1].rows if row.dag_id == dag_id]


class LookCache:
    """The newest look at all flows, which is taken anew when somebody asks and it is older than some seconds.

    If a new one does not come in time, the last one serves, with its age.

    :param look: returns what is declared, and what is seen.
    """

    def __init__(self, look: Callable[[], Looked], seconds: float, patience: Patience) -> None:
        self._look, self._seconds, self._patience = look, seconds, patience
        self._cached: tuple[float, Look] | None = None

    def newest(self) -> Look:
        """Return the look; whoever asks while one is taken waits for it.

        :raises StreamkeeperError: the state folder or the pipelines cannot be read at all.
        :raises NoAnswer: the first look has not ended in time.
        """
        cached = self._cached
        if cached is not None and time.monotonic() - cached[0] <= self._seconds:
            return cached[1]
        try:
            return self._patience.ask("flows", self._take)
        except NoAnswer as error:
            if cached is None:
                raise
            return replace(cached[1], overdue=str(error))

    def _take(self) -> Look:
        """Take a look, and keep it, also where nobody waits for it any more."""
        begun, at = time.monotonic(), time.time()
        look = Look(self._look(), at)
        self._cached = (begun, look)
        return look


def look_patiently(patience: Patience) -> Looked:
    """Return what is declared and a row for each flow; one that hangs is a row that says so.

    :raises NoAnswer: all of them hang, so there is nothing to show.
    """
    silent = list[NoAnswer]()

    def ask(flow: str, read: Callable[[], FlowHealth]) -> FlowHealth:
        try:
            return patience.ask(flow, read)
        except NoAnswer as error:
            silent.append(error)
            raise

    settings = Settings.from_environment()
    manifest = read_manifest(settings)
    observation = metrics.see(open_storage(settings.state), manifest, ask)
    if silent and len(silent) == len(observation.rows):
        raise silent[0]
    return manifest, observation


def create_app() -> FastAPI:
    """Return the application. All routes but the metrics and the script need a login."""
    look = partial(look_patiently, Patience(FLOW_SECONDS, MOST_READS))
    app = FastAPI(title="Streamkeeper", docs_url=None, redoc_url=None, openapi_url=None)
    patience = Patience(ANSWER_SECONDS, MOST_READS)
    cache = LookCache(look, KEPT_SECONDS, patience)
    app.include_router(_router(cache, patience), prefix="/api")

    @app.get("/metrics", response_class=PlainTextResponse)
    def of_all(authorization: Annotated[str, Header()] = "") -> PlainTextResponse:
        _check_token(authorization)
        look = _read_or_unavailable(cache.newest)
        measurements = metrics.measure(replace(look.observed[1], at=look.at))
        return PlainTextResponse(metrics.text(measurements), media_type=metrics.CONTENT_TYPE)

    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    return app


def _router(cache: LookCache, patience: Patience) -> APIRouter:
    router = APIRouter(dependencies=[Depends(get_user)])

    @router.get("/flows")
    def flows(user: GetUserDep) -> dict[str, Any]:
        return _flows_for(user, _read_or_unavailable(cache.newest))

    @router.get("/dags/{dag_id}")
    def dag(dag_id: str, user: GetUserDep, flow: str = "") -> dict[str, Any]:
        _check_may_read(user, dag_id)
        look = _read_or_unavailable(cache.newest)
        rows = look.rows_of(dag_id)
        if not rows:
            return {"recovery": dag_name(dag_id) in KINDS}
        row = next((row for row in rows if row.flow == flow), rows[0])
        read = partial(details.of_flow, Settings.from_environment(), look.observed[0].find(row.flow), row)
        content = dict(_read_or_unavailable(patience.ask, row.flow, read))
        if not _may(user, "GET", DagAccessEntity.TASK_LOGS, dag_id):
            content["log"] = {"location": None, "lines": []}
        beside = [{"flow": one.flow, "state": one.state} for one in rows]
        common = {"beside": beside, "at": look.at, "overdue": look.overdue}
        return {**content, **common, "may": _may_start(user, *STARTS)}

    @router.get("/dags/{dag_id}/history")
    def history(dag_id: str, user: GetUserDep, flow: str, hours: Hours = 6.0) -> dict[str, Any]:
        _check_may_read(user, dag_id)
        declared = _flow_of(_read_or_unavailable(cache.newest), dag_id, flow)
        read = partial(details.of_history, declared, hours)
        return _read_or_unavailable(patience.ask, ("history", flow, hours), read)

    @router.get("/dags/{dag_id}/runs/{run_id:path}")
    def run(dag_id: str, run_id: str, user: GetUserDep) -> dict[str, Any]:
        _check_may_read(user, dag_id)
        if dag_name(dag_id) not in KINDS:
            return {"recovery": None}
        rows = _read_or_unavailable(cache.newest).observed[1].rows
        read = partial(details.of_recovery, dag_id, run_id, rows)
        content = dict(_read_or_unavailable(patience.ask, (dag_id, run_id), read))
        for other in content.pop("read_by", ()):
            _check_may_read(user, other)
        dags = {row.flow: row.dag_id for row in rows}
        return {
            **content,
            "dags": {flow: dags[flow] for flow in content.get("flows", ()) if flow in dags},
            "may_answer": bool(_may(user, "PUT", DagAccessEntity.HITL_DETAIL, dag_id)),
            "may_resume": bool(_may(user, "PUT", DagAccessEntity.TASK_INSTANCE, dag_id)),
            "may_abandon": _may_start(user, ABANDON).get(ABANDON),
        }

    return router


def _flows_for(user: Any, look: Look) -> dict[str, Any]:
    """Return all flows that a user may read, and what of a look belongs to all of them."""
    manifest, observation = look.observed
    readable = _readable(user, {row.dag_id for row in observation.rows})
    rows = tuple(row for row in observation.rows if row.dag_id in readable)
    return {
        "at": look.at,
        "overdue": look.overdue,
        "counts": dict(health.counts(rows)),
        "flows": [row.to_json() for row in rows],
        "errors": manifest.errors if _may_read_errors(user) else {},
        "may": _may_start(user, *STARTS),
        "version": __version__,
    }


def _read_or_unavailable(read: Callable[..., T], *arguments: Any) -> T:
    """Return what a function reads; what it cannot read is an answer that says why."""
    try:
        return read(*arguments)
    except StreamkeeperError as error:
        raise HTTPException(503, str(error)) from error


def _teams(dag_ids: list[str]) -> Mapping[str, str | None]:
    """Return the team of each DAG that has one; the database is asked only where there are teams."""
    in_teams = conf.getboolean("core", "multi_team", fallback=False)
    return DagModel.get_dag_id_to_team_name_mapping(dag_ids) if in_teams else {}


def _readable(user: Any, dag_ids: Iterable[str]) -> set[str]:
    """Return those of some DAGs that a user may read; Airflow is asked once for all of a team."""
    ids = list(dag_ids)
    teams, by_team = _teams(ids), defaultdict[str | None, set[str]](set)
    for dag_id in ids:
        by_team[teams.get(dag_id)].add(dag_id)
    filtered = get_auth_manager().filter_authorized_dag_ids
    return set().union(*(filtered(dag_ids=some, user=user, team_name=team) for team, some in by_team.items()))


def _may_start(user: Any, *names: str) -> dict[str, str]:
    """Return which of Streamkeeper's own DAGs a user may start: their ids by their names."""
    return {dag_name(dag): dag for dag in _may(user, "POST", DagAccessEntity.RUN, *map(id_of_dag, names))}


def _may(user: Any, method: ResourceMethod, entity: DagAccessEntity, *dag_ids: str) -> list[str]:
    """Return those of some DAGs with which a user may do something."""
    teams, authorized = _teams(list(dag_ids)), get_auth_manager().is_authorized_dag
    details_by_id = {dag_id: DagDetails(id=dag_id, team_name=teams.get(dag_id)) for dag_id in dag_ids}
    return [
        dag_id
        for dag_id, details in details_by_id.items()
        if authorized(method=method, access_entity=entity, details=details, user=user)
    ]


def _flow_of(look: Look, dag_id: str, flow: str) -> Flow:
    """Return a flow of a DAG that a person may read."""
    if flow not in [row.flow for row in look.rows_of(dag_id)]:
        raise HTTPException(404, f"The DAG {dag_id} runs no flow {flow!r}.")
    return look.observed[0].find(flow)


def _check_may_read(user: Any, dag_id: str) -> None:
    if not _readable(user, [dag_id]):
        raise HTTPException(403, f"You may not read the DAG {dag_id}.")


def _may_read_errors(user: Any) -> bool:
    """Return whether a user may read why a file cannot be imported, as in Airflow's own list of that."""
    return get_auth_manager().is_authorized_view(access_view=AccessView.IMPORT_ERRORS, user=user)


def _check_token(authorization: str) -> None:
    token = os.environ.get(TOKEN, "")
    if not token:
        raise HTTPException(404, f"There are no metrics: {TOKEN} is not set for the API server.")
    # Headers come as bytes, which the server reads as Latin-1.
    if not hmac.compare_digest(authorization.encode("latin-1", "replace"), f"Bearer {token}".encode()):
        raise HTTPException(401, "The metrics need the header Authorization: Bearer, with the token.")
