"""Settings of Airflow that the supervision of drivers depends on, checked before a driver is started."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow.listeners import hookimpl
from airflow.sdk import conf

from streamkeeper.errors import SettingsError
from streamkeeper.manifest.import_all import BUILD_SECONDS
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import DEFERRED, Settings
from streamkeeper.web import ask
from streamkeeper_airflow.flow.retries import LONGEST_DELAY, LOST_DELAY, WrongSettings

log = logging.getLogger(__name__)

SPARE = timedelta(seconds=30)
"""Time that Airflow may need beyond its timeouts to see a lost task and to start the next try.

It looks for lost tasks every 10 s.
"""
HEARTBEAT_TIMEOUT = "task_instance_heartbeat_timeout"
FOR_MONTHS = timedelta(days=365)
"""The shortest time after which a broker may hand on a task that is not done."""
_BROKER = "celery_broker_transport_options"
_REDELIVERING = ("redis", "sentinel", "sqs")
"""Brokers, by the beginning of their address, that have a visibility timeout; others notice a lost worker."""
TRIGGERER_SECONDS = 60.0
"""Seconds that a task waits for a triggerer: all of Airflow may have been started just now."""
_LASTING = ("LocalExecutor", "CeleryExecutor", "EdgeExecutor")
"""Executors whose workers, and with them the drivers of client mode, live on when a task is deferred."""
_IDLE = "idle_in_transaction_session_timeout"


def check_supervisor_timeout(settings: Settings) -> None:
    """Check that a driver outlives the time in which its task has no running try.

    Airflow's timeout is read from this process's configuration; a scheduler on another machine must have the
    same.

    :raises WrongSettings: the timeouts do not fit together.
    """
    lost = timedelta(seconds=conf.getint("scheduler", HEARTBEAT_TIMEOUT))
    needed = (lost + max(LONGEST_DELAY, LOST_DELAY) + SPARE).total_seconds()
    if settings.supervisor_timeout >= needed:
        return
    most = settings.supervisor_timeout - needed + lost.total_seconds()
    lower = f", or lower [scheduler] {HEARTBEAT_TIMEOUT} to {most:.0f} s" if most > 0 else ""
    raise WrongSettings(
        f"STREAMKEEPER_SUPERVISOR_TIMEOUT is {settings.supervisor_timeout:g} s, but a driver may go unwatched"
        f" for {needed:.0f} s: Airflow's [scheduler] {HEARTBEAT_TIMEOUT} ({lost.total_seconds():.0f} s), then"
        f" up to {LONGEST_DELAY.total_seconds():.0f} s until the next try, and {SPARE.total_seconds():.0f} s"
        " to start it. The driver would stop before the next try attaches to it, so none is started. Set"
        f" STREAMKEEPER_SUPERVISOR_TIMEOUT to {needed:.0f} or more{lower}, and start Airflow again."
    )


def check_redelivery() -> None:
    """Check that Celery's broker does not hand a flow's task, which runs for months, to a second worker.

    Redis and SQS do after their visibility timeout, which Airflow sets to a day unless told. The second task
    attaches to the driver, but it takes a slot, and Airflow hears of two ends.

    :raises WrongSettings: the timeout is below :data:`FOR_MONTHS`.
    """
    broker = conf.get("celery", "broker_url", fallback="") if _celery() else ""
    timeout = conf.getint(_BROKER, "visibility_timeout", fallback=86_400)
    if not broker.startswith(_REDELIVERING) or timeout >= FOR_MONTHS.total_seconds():
        return
    raise WrongSettings(
        f"Airflow's [{_BROKER}] visibility_timeout is {timeout} s: after that time Celery's broker hands a"
        f" task that still runs to another worker, and a flow's task runs for months. Set it to"
        f" {FOR_MONTHS.total_seconds():.0f} or more"
        " (AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT), and start Airflow again."
    )


def _celery() -> bool:
    return "celery" in conf.get("core", "executor", fallback="").lower()


def check_token() -> None:
    """Check that a task's token is renewed before it ends.

    The API server sends a new one with the answer to a heartbeat, once at most a fifth of the token's time or
    30 s is left (Airflow's ``JWTReissueMiddleware``). A task with a token that ended is refused, and ends.

    :raises WrongSettings: heartbeats are too rare for that.
    """
    lives = conf.getint("execution_api", "jwt_expiration_time")
    every = conf.getint("workers", "min_heartbeat_interval")
    renewed = min(lives, max(lives // 5, 30))
    if every < renewed:
        return
    raise WrongSettings(
        f"Airflow's [workers] min_heartbeat_interval is {every} s, but a task's token ([execution_api]"
        f" jwt_expiration_time, {lives} s) is renewed by a heartbeat in its last {renewed} s alone: it may"
        " end before, and the task of a flow, which runs for months, with it. Set min_heartbeat_interval"
        f" below {renewed}, or jwt_expiration_time above {5 * every}, and start Airflow again."
    )


def check_parsing() -> None:
    """Check that pipeline files may take the time to import that Streamkeeper gives them.

    Streamkeeper's own error names the file and the line; Airflow's, which would come first, does not.

    :raises WrongSettings: a process that parses is ended before.
    """
    parsing = conf.getfloat("core", "dagbag_import_timeout")
    process = conf.getfloat("dag_processor", "dag_file_processor_timeout")
    if 0 < parsing <= BUILD_SECONDS:
        raise WrongSettings(
            f"Airflow's [core] dagbag_import_timeout is {parsing:g} s, but pipeline files may take"
            f" {BUILD_SECONDS:g} s to import: Airflow would give up first, and not say which file is slow."
            f" Set it to {BUILD_SECONDS + 5:g} or more, or to 0 for no limit, and start Airflow again."
        )
    longest = max(parsing, BUILD_SECONDS)
    if process < longest:
        raise WrongSettings(
            f"Airflow's [dag_processor] dag_file_processor_timeout is {process:g} s, shorter than the"
            f" {longest:g} s that parsing may take: the process would be killed, its DAGs"
            " would be missing, and nothing would say why. Set it to"
            f" {longest + 20:g} or more, and start Airflow again."
        )


def check_triggerer(settings: Settings) -> None:
    """Check that one triggerer can watch every flow, and that another one takes over before drivers stop.

    :raises WrongSettings: the triggerer's capacity, or its times, do not fit.
    """
    if settings.supervision != DEFERRED:
        return
    capacity = conf.getint("triggerer", "capacity")
    drivers = len({flow.dag_id for flow in read_manifest(settings).flows()})
    if capacity < drivers:
        raise WrongSettings(
            f"Airflow's [triggerer] capacity is {capacity}, but {drivers} drivers are declared, each of which"
            " it watches by a trigger (STREAMKEEPER_SUPERVISION=deferred): the others would stop, since"
            f" nobody watched them. Set it to {drivers} or more, as one triggerer must do for all while"
            " another is away, or set STREAMKEEPER_SUPERVISION=slot, and start Airflow again."
        )
    lost = timedelta(seconds=conf.getint("triggerer", "triggerer_health_check_threshold"))
    needed = (lost + SPARE).total_seconds()
    if settings.supervisor_timeout < needed:
        raise WrongSettings(
            f"STREAMKEEPER_SUPERVISOR_TIMEOUT is {settings.supervisor_timeout:g} s, but a triggerer that is"
            f" lost is replaced after {needed:.0f} s: Airflow's [triggerer] triggerer_health_check_threshold"
            f" ({lost.total_seconds():.0f} s), and {SPARE.total_seconds():.0f} s to start its triggers"
            f" elsewhere. Set STREAMKEEPER_SUPERVISOR_TIMEOUT to {needed:.0f} or more, and start Airflow"
            " again."
        )


def check_triggerer_lives(settings: Settings) -> None:
    """Check that a triggerer is there to watch the driver that is to be started; wait a minute for it.

    Where the API server cannot be asked, that is logged, and nothing is refused.

    :raises WrongSettings: there is none.
    """
    if settings.supervision != DEFERRED:
        return
    until = time.monotonic() + TRIGGERER_SECONDS
    while True:
        try:
            triggerer = _health().get("triggerer") or {}
        except (OSError, ValueError, AttributeError) as error:
            log.warning("Whether a triggerer is alive is unknown: %s does not tell (%s).", _api(), error)
            return
        if triggerer.get("status") == "healthy":
            return
        if time.monotonic() >= until:
            break
        time.sleep(2)
    last = triggerer.get("latest_triggerer_heartbeat") or "never"
    raise WrongSettings(
        f"No triggerer of Airflow's is alive (last heartbeat: {last}), which would watch the driver"
        " (STREAMKEEPER_SUPERVISION=deferred): it would stop after"
        f" {settings.supervisor_timeout:g} s, so none is started. Start `airflow triggerer`, or set"
        " STREAMKEEPER_SUPERVISION=slot and start Airflow again."
    )


def check_worker_lasts(settings: Settings) -> None:
    """Check that a driver of client mode, which runs beside its task, outlives the task's deferral.

    :raises WrongSettings: the executor gives each task a machine or container that ends with it.
    """
    executor = conf.get("core", "executor").split(",")[0].strip().rpartition(":")[2].rpartition(".")[2]
    if settings.supervision != DEFERRED or executor in _LASTING:
        return
    raise WrongSettings(
        f"Airflow's [core] executor is {executor}, whose workers may end with their task, and with them a"
        " driver in client mode once its task is deferred. Use deploy mode cluster, one of"
        f" {', '.join(_LASTING)}, or STREAMKEEPER_SUPERVISION=slot, and start Airflow again."
    )


def _api() -> str:
    """Return the address of the API server, as tasks know it."""
    own = conf.get("core", "execution_api_server_url", fallback="") or ""
    return own.partition("/execution")[0] or conf.get("api", "base_url", fallback="http://localhost:8080")


def _health() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(ask(f"{_api().rstrip('/')}/api/v2/monitor/health", seconds=10))
    return value


def check_airflow(settings: Settings) -> None:
    """Check the settings of Airflow that a driver's supervision depends on.

    :raises WrongSettings: one does not hold; the message says which, why, and what to set.
    """
    check_supervisor_timeout(settings)
    check_triggerer(settings)
    check_redelivery()
    check_token()
    check_parsing()


def check_database() -> None:
    """Check that PostgreSQL ends a transaction that a killed scheduler left open.

    It stays open in the LocalExecutor's workers, which the scheduler forked, and the next scheduler starts no
    task until they are gone (decision 0027). Tasks cannot reach the database, so Airflow's own parts ask.

    :raises WrongSettings: transactions of Airflow's user may be idle for ever.
    """
    if "LocalExecutor" not in conf.get("core", "executor", fallback=""):
        return
    from airflow.utils.session import create_session

    with create_session() as session:
        if session.get_bind().dialect.name != "postgresql":
            return
        query = f"SELECT current_user, current_setting('{_IDLE}')"
        user, limit = session.connection().exec_driver_sql(query).one()
    if limit == "0":
        raise WrongSettings(
            f"PostgreSQL's {_IDLE} is 0 (none) for Airflow's user {user}: the transaction of a scheduler that"
            " was killed may stay open, and the next one would start no task. Run"
            f" ALTER ROLE \"{user}\" SET {_IDLE} = '30s', and start Airflow again."
        )


@hookimpl
def on_starting(component: object) -> None:
    """Log the settings that do not hold when a part of Airflow starts: scheduler, triggerer, DAG processor. A
    task's process, which starts too, refuses them by itself.
    """
    if type(component).__name__ != "Job":
        return
    checks: tuple[Callable[[], None], ...] = (
        lambda: check_airflow(Settings.from_environment()),
        check_database,
    )
    for check in checks:
        try:
            check()
        except (WrongSettings, SettingsError) as error:
            log.error("%s", error)
        except Exception:
            log.exception("Streamkeeper could not check Airflow's settings; the part starts all the same.")
