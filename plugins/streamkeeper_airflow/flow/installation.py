"""What of Streamkeeper an Airflow has and lacks, and making what it lacks: pool, connections, unpaused DAGs.

A program of its own, ``python -m streamkeeper_airflow.flow.installation``: it reads a request as JSON from
its standard input, works where ``airflow`` commands do (with Airflow's configuration and database), and
prints rows.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import airflow
from airflow import plugins_manager
from airflow.jobs.job import most_recent_job
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from airflow.models.errors import ParseImportError
from airflow.models.pool import Pool
from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from streamkeeper.declare.model import Pipeline
from streamkeeper.install.airflow_side import MARK, page
from streamkeeper.install.probes import FAIL, OK, WARN, Row, run_all
from streamkeeper.manifest.manifest import read_manifest, settings_of
from streamkeeper.settings import DEFERRED, Settings
from streamkeeper_airflow.dag_options import TAG
from streamkeeper_airflow.flow.airflow_settings import check_airflow, check_database
from streamkeeper_airflow.flow.retries import WrongSettings
from streamkeeper_airflow.operate.run_note import CONNECTION as OWN_CONNECTION
from streamkeeper_airflow.operate.run_note import address

SECONDS = 120.0
OF_FLOW = "flow"
"""Tag of the DAGs that run flows."""
PARTS = {
    "SchedulerJob": "airflow scheduler",
    "TriggererJob": "airflow triggerer",
    "DagProcessorJob": "airflow dag-processor",
}
SLOTS = 16
"""Slots of a new pool, unless more flows are declared."""


def look() -> list[Row]:
    """Return a row for each thing that Streamkeeper needs of Airflow; nothing is changed."""
    database = _answer("airflow database", _database)
    more = {"airflow parts": _parts, "pool": _pool, "connections": _connections, "dags": _dags}
    rows = run_all({"airflow": _version, "airflow settings": _settings, "plugin": _plugin}, SECONDS)
    if any(row.state == FAIL for row in database):
        return [*rows, *database]
    return [*rows, *database, *(row for name, probe in more.items() for row in _answer(name, probe))]


def _answer(name: str, probe: Callable[[], Iterable[Row]]) -> list[Row]:
    return run_all({name: probe}, SECONDS)


def _version() -> Iterator[Row]:
    yield Row("airflow", OK, f"{airflow.__version__}, {conf.get('core', 'executor')}")


def _settings() -> Iterator[Row]:
    try:
        check_airflow(Settings.from_environment())
    except WrongSettings as error:
        yield Row("airflow settings", FAIL, str(error))
    else:
        yield Row("airflow settings", OK, "fit the supervision of drivers")


def _database() -> Iterator[Row]:
    try:
        with create_session() as session:
            dialect = session.get_bind().dialect.name
            session.scalar(select(DagModel.dag_id).limit(1))
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        advice = "`airflow db check` tells whether it is reached; `airflow db migrate` makes its tables."
        yield Row("airflow database", FAIL, f"does not answer: {reason}", advice)
        return
    try:
        check_database()
    except WrongSettings as error:
        yield Row("airflow database", WARN, str(error))
        return
    if dialect == "sqlite":
        advice = "Use PostgreSQL for anything but a try."
        yield Row("airflow database", WARN, "is SQLite, where one process writes at a time", advice)
    else:
        yield Row("airflow database", OK, f"{dialect} answers")


def _parts() -> Iterator[Row]:
    silent = []
    for job_type in PARTS:
        job = most_recent_job(job_type)
        if job is None or not job.is_alive():
            silent.append(job_type)
    if silent:
        detail = f"no heartbeat of {', '.join(silent)}"
        yield Row("airflow parts", WARN, detail, f"Start {', '.join(PARTS[name] for name in silent)}.")
    else:
        yield Row("airflow parts", OK, "scheduler, triggerer and DAG processor are alive")


def _plugin() -> Iterator[Row]:
    plugins, errors = plugins_manager._get_plugins()
    ours = [plugin for plugin in plugins if plugin.name == TAG]
    broken = {place: error for place, error in errors.items() if TAG in f"{place} {error}".lower()}
    if broken:
        place, error = next(iter(broken.items()))
        yield Row("plugin", FAIL, f"{place} cannot be loaded: {error}", "`airflow plugins` says more.")
    elif not ours:
        advice = (
            "Without it there is no page. Install the package, or put the plugin into the plugins folder."
        )
        yield Row(
            "plugin", FAIL, f"is not loaded, from {conf.get('core', 'plugins_folder')} or a package", advice
        )
    else:
        yield Row("plugin", OK, f"is loaded, from {ours[0].source}")


def _pool() -> Iterator[Row]:
    for name, drivers in _pools().items():
        yield _pool_row(name, drivers)


def _pool_row(name: str, drivers: int) -> Row:
    pool = Pool.get_pool(name)
    if pool is None:
        detail = f"There is no pool {name!r}, so no task of a flow in it is ever started."
        return Row("pool", FAIL, detail, "Run `streamkeeper setup`.")
    if Settings.from_environment().supervision == DEFERRED and not pool.include_deferred:
        return Row("pool", OK, f"{name} has {pool.slots} slots, and {drivers} drivers that work take none")
    if pool.slots < drivers:
        detail = f"{name} has {pool.slots} slots for {drivers} drivers; the last ones wait for ever"
        return Row("pool", WARN, detail, f"Give it more: `airflow pools set {name} {drivers + 2} ''`.")
    return Row("pool", OK, f"{name} has {pool.slots} slots for {drivers} drivers")


def _connections() -> Iterator[Row]:
    name = Settings.from_environment().connection
    if (connection := _connection(name)) is None:
        detail = f"There is no connection {name!r}, so no driver starts."
        yield Row("connections", FAIL, detail, "Run `streamkeeper setup --master MASTER`, such as local[2].")
    else:
        yield Row("connections", OK, f"{name} leads to {connection.host}")
    yield from _pipelines_connections()
    if (connection := _connection(OWN_CONNECTION)) is None:
        detail = f"There is no connection {OWN_CONNECTION!r}, so parked runs have no note."
        advice = "Run `streamkeeper setup --airflow-url URL --login NAME`."
        yield Row("connections", WARN, detail, advice)
    else:
        yield Row("connections", OK, f"{OWN_CONNECTION} leads to {connection.host}")
        yield page(address(connection))


def _pipelines_connections() -> Iterator[Row]:
    """Yield a row for each connection that pipelines name. None is made: each may lead elsewhere."""
    named = {pipeline.connection: pipeline.name for pipeline in _pipelines() if pipeline.connection}
    for name, pipeline in named.items():
        if (connection := _connection(name)) is None:
            detail = f"There is no connection {name!r}, which {pipeline} names, so no driver of it starts."
            advice = f"Run `airflow connections add {name} --conn-type spark --conn-host MASTER`."
            yield Row("connections", FAIL, detail, advice)
        else:
            yield Row("connections", OK, f"{name} leads to {connection.host}")


def _dags() -> Iterator[Row]:
    with create_session() as session:
        errors = session.scalars(select(ParseImportError)).all()
        ours = [error for error in errors if TAG in f"{error.filename} {error.stacktrace}".lower()]
        for error in ours:
            last = next(iter(reversed((error.stacktrace or "").strip().splitlines())), "")
            yield Row("dags", FAIL, f"{error.filename} has an import error: {last.strip()}", "Mend it first.")
    dags = _our_dags()
    if not dags and not ours:
        advice = (
            "Put the file that `streamkeeper init` writes into the DAGs folder, and wait for its parsing."
        )
        yield Row("dags", FAIL, "Airflow knows no DAG of Streamkeeper's.", advice)
        return
    paused = [name for name, (of_flow, is_paused) in dags.items() if is_paused and not of_flow]
    waiting = [name for name, (of_flow, is_paused) in dags.items() if is_paused and of_flow]
    yield Row("dags", OK, f"{len(dags)} of Streamkeeper's are loaded")
    if paused:
        detail = f"paused, so a recovery, an alert or a hold asked of them waits for ever: {_some(paused)}"
        yield Row("dags", WARN, detail, "Run `streamkeeper setup`, which unpauses them.")
    if waiting:
        detail = f"flows whose DAG is paused, so nothing starts them: {_some(waiting)}"
        yield Row("dags", WARN, detail, f"When they may run: `airflow dags unpause {waiting[0]}`.")


def set_up(request: Mapping[str, Any]) -> Iterator[Row]:
    """Make what is lacking, and leave what is there as it is; the rows say which.

    :param request: ``master``, ``slots``, ``url``, ``login``, ``password``, ``flows``; each may lack.
    """
    yield from _answer("pool", lambda: _make_pools(request.get("slots")))
    yield from _answer("connections", lambda: [_make_spark(request.get("master"))])
    yield from _answer("connections", _pipelines_connections)
    yield from _answer("connections", lambda: [_make_own(request)])
    yield from _answer("dags", lambda: _unpause(bool(request.get("flows"))))


def _make_pools(slots: int | None) -> Iterator[Row]:
    for name, drivers in _pools().items():
        yield _make_pool(name, drivers, slots if name == Settings.from_environment().pool else None)


def _make_pool(name: str, drivers: int, slots: int | None) -> Row:
    pool = Pool.get_pool(name)
    if pool is not None:
        changed = (
            f"; it stays so: `airflow pools set {name} {slots} ''`" if slots not in (None, pool.slots) else ""
        )
        return Row("pool", OK, f"{name} was there already, with {pool.slots} slots{changed}")
    slots = slots or max(SLOTS, drivers + 4)
    Pool.create_or_update_pool(name, slots, "One slot a running streaming flow", include_deferred=False)
    return Row("pool", OK, f"{name} is made, with {slots} slots")


def _make_spark(master: str | None) -> Row:
    name = Settings.from_environment().connection
    connection = _connection(name)
    if connection is not None:
        return Row("connections", OK, f"{name} was there already, and leads to {connection.host}")
    if master is None:
        advice = "Give --master, such as local[2] or spark://HOST:7077."
        return Row("connections", FAIL, f"{name} is lacking, and no master was given", advice)
    host, _, port = master.rpartition(":")
    whole = not (host and port.isdigit())
    _add(
        Connection(
            conn_id=name, conn_type="spark", host=master if whole else host, port=None if whole else int(port)
        )
    )
    return Row("connections", OK, f"{name} is made, and leads to {master}")


def _make_own(request: Mapping[str, Any]) -> Row:
    name, url = OWN_CONNECTION, str(request.get("url") or "")
    connection = _connection(name)
    if connection is not None:
        return Row("connections", OK, f"{name} was there already, and leads to {connection.host}")
    if not url:
        advice = "For the notes on parked runs give --airflow-url and --login."
        return Row("connections", WARN, f"{name} is lacking, and no address was given", advice)
    scheme, _, netloc = url.rstrip("/").partition("://")
    host, _, port = netloc.partition(":")
    made = Connection(
        conn_id=name, conn_type="http", host=host, port=int(port) if port else None, schema=scheme
    )
    made.login, made.password = request.get("login"), request.get("password")
    _add(made)
    return Row("connections", OK, f"{name} is made, and leads to {url}")


def _unpause(flows: bool) -> Iterator[Row]:
    dags = _our_dags()
    if not dags:
        advice = (
            "Put the DAG file into the DAGs folder, wait until Airflow has parsed it, and run setup again."
        )
        yield Row("dags", WARN, "Airflow knows no DAG of Streamkeeper's yet, so none was unpaused", advice)
        return
    names = [name for name, (of_flow, is_paused) in dags.items() if is_paused and (flows or not of_flow)]
    with create_session() as session:
        for name in names:
            model = session.get(DagModel, name)
            assert model is not None, "it was listed just now"
            model.is_paused = False
    yield Row("dags", OK, f"unpaused {_some(names)}" if names else "none that must run was paused")
    waiting = [name for name, (of_flow, is_paused) in dags.items() if is_paused and of_flow and not flows]
    if waiting:
        detail = f"flows stay paused until you unpause them: {_some(waiting)}"
        yield Row(
            "dags", OK, detail, f"`airflow dags unpause {waiting[0]}`, or `streamkeeper setup --flows`."
        )


def _our_dags() -> dict[str, tuple[bool, bool]]:
    """Return by its id of each of Streamkeeper's DAGs whether it runs flows, and whether it is paused."""
    with create_session() as session:
        models = session.scalars(select(DagModel).where(DagModel.is_stale.is_(False))).unique().all()
        tags = {model.dag_id: {tag.name for tag in model.tags} for model in models}
        return {
            model.dag_id: (OF_FLOW in tags[model.dag_id], bool(model.is_paused))
            for model in sorted(models, key=lambda model: model.dag_id)
            if TAG in tags[model.dag_id]
        }


def _pools() -> dict[str, int]:
    """Return how many drivers each pool has by the declared flows; that of the settings may have none."""
    settings = Settings.from_environment()
    flows = read_manifest(settings).flows()
    drivers = {flow.dag_id: settings_of(settings, [flow.pipeline]).pool for flow in flows}
    return {settings.pool: 0, **Counter(drivers.values())}


def _pipelines() -> tuple[Pipeline, ...]:
    return read_manifest(Settings.from_environment()).pipelines


def _connection(name: str) -> Connection | None:
    try:
        return Connection.get_connection_from_secrets(name)
    except AirflowNotFoundException:
        return None


def _add(connection: Connection) -> None:
    with create_session() as session:
        session.add(connection)


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def main() -> None:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.read())
    rows = look() if request["act"] == "look" else list(set_up(request))
    print(f"\n{MARK}{json.dumps([asdict(row) for row in rows])}")


if __name__ == "__main__":
    main()
