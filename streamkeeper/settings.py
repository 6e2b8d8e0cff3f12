"""Settings, read from the environment, with defaults that suit the demo."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streamkeeper.errors import SettingsError

PROJECT = Path(__file__).resolve().parent.parent
"""Folder of the package, the DAGs and the jobs."""

TOMBSTONES = "__tombstones"
"""Suffix of the name of a table in which an earlier release kept deletes; no declared table may have it."""
BACKUPS = "__backups"
"""Folder of backups in the warehouse; no declared table may have such a name."""

DEFAULT_MASTER = "local[2]"
"""Spark's default master."""

PIPELINE_ENV = "STREAMKEEPER_PIPELINE_ENV"
"""Setting that names the environment variables which pipelines may see."""

_VARIABLES = re.compile(r"[A-Za-z_*][A-Za-z0-9_*]*")
_FEW = 5
"""Heartbeats that a supervisor may always miss before its driver stops."""


@dataclass(frozen=True)
class Settings:
    """Places and times. Each field comes from the environment variable ``STREAMKEEPER_<FIELD>``.

    ``state`` and ``warehouse`` may be URLs (``s3://bucket/prefix``); ``pipelines`` and ``jars`` are local
    folders.
    """

    pipelines: Path
    state: str
    warehouse: str
    data: str
    jars: Path
    lease_term: float = 60.0
    """Seconds without a heartbeat before a lease may be taken over whose holder cannot be proven dead."""
    heartbeat_interval: float = 2.0
    """Seconds between two heartbeats of a driver, and between its checks for holds."""
    supervisor_timeout: float = 600.0
    """Seconds without a beat of its supervising task after which a supervised driver stops by itself."""
    log_retention: float = 30 * 86400.0
    """Seconds that a driver's log is kept after its last write. The log of a living driver is always kept."""
    stop_timeout: float = 300.0
    """Seconds that one try of a recovery waits for drivers to finish their batch; Airflow makes three
    tries.
    """
    backups: str = ""
    """Folder or URL of the backups of tables; empty means a folder in the warehouse."""
    pipeline_env: tuple[str, ...] = ("ORDERS_BROKERS",)
    """Environment variables, or patterns of their names, for user code and for ``{env:NAME}``."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from ``environment`` (``os.environ`` by default).

        :raises SettingsError: a time is not a positive number of seconds, ``lease_term`` or
            ``supervisor_timeout`` is too short, a path is relative, a folder that must be local is a URL, or
            a name in ``pipeline_env`` is not one of an environment variable.
        """
        env = os.environ if environment is None else environment
        home = PROJECT / ".demo"
        settings = cls(
            pipelines=_local(
                "STREAMKEEPER_PIPELINES",
                env.get("STREAMKEEPER_PIPELINES"),
                PROJECT / "spark_jobs" / "pipelines",
            ),
            state=_location("STREAMKEEPER_STATE", env.get("STREAMKEEPER_STATE"), home / "state"),
            warehouse=_location(
                "STREAMKEEPER_WAREHOUSE", env.get("STREAMKEEPER_WAREHOUSE"), home / "warehouse"
            ),
            data=_location("STREAMKEEPER_DATA", env.get("STREAMKEEPER_DATA"), home / "data"),
            jars=_local("STREAMKEEPER_JARS", env.get("STREAMKEEPER_JARS"), PROJECT / ".cache" / "jars"),
            lease_term=_seconds("STREAMKEEPER_LEASE_TERM", env, cls.lease_term),
            heartbeat_interval=_seconds("STREAMKEEPER_HEARTBEAT_INTERVAL", env, cls.heartbeat_interval),
            supervisor_timeout=_seconds("STREAMKEEPER_SUPERVISOR_TIMEOUT", env, cls.supervisor_timeout),
            log_retention=_seconds("STREAMKEEPER_LOG_RETENTION", env, cls.log_retention),
            stop_timeout=_seconds("STREAMKEEPER_STOP_TIMEOUT", env, cls.stop_timeout),
            backups=_location("STREAMKEEPER_BACKUPS", env.get("STREAMKEEPER_BACKUPS"), ""),
            pipeline_env=pipeline_env(env),
        )
        if settings.lease_term < 2 * settings.heartbeat_interval:
            raise SettingsError(
                f"STREAMKEEPER_LEASE_TERM is {settings.lease_term:g} s and STREAMKEEPER_HEARTBEAT_INTERVAL"
                f" {settings.heartbeat_interval:g} s. The term must be at least twice"
                " STREAMKEEPER_HEARTBEAT_INTERVAL, or a driver that is alive loses its lease."
            )
        least = max(settings.lease_term, _FEW * settings.heartbeat_interval)
        if settings.supervisor_timeout < least:
            raise SettingsError(
                f"STREAMKEEPER_SUPERVISOR_TIMEOUT is {settings.supervisor_timeout:g} s. It must be at least"
                f" STREAMKEEPER_LEASE_TERM and {_FEW} times STREAMKEEPER_HEARTBEAT_INTERVAL, here {least:g}"
                " s, or a driver stops while its task is only restarting."
            )
        return settings

    def as_environment(self) -> dict[str, str]:
        """Return environment variables from which another process reads the same settings."""
        return {
            "STREAMKEEPER_PIPELINES": str(self.pipelines),
            "STREAMKEEPER_STATE": self.state,
            "STREAMKEEPER_WAREHOUSE": self.warehouse,
            "STREAMKEEPER_DATA": self.data,
            "STREAMKEEPER_JARS": str(self.jars),
            "STREAMKEEPER_LEASE_TERM": str(self.lease_term),
            "STREAMKEEPER_HEARTBEAT_INTERVAL": str(self.heartbeat_interval),
            "STREAMKEEPER_SUPERVISOR_TIMEOUT": str(self.supervisor_timeout),
            "STREAMKEEPER_LOG_RETENTION": str(self.log_retention),
            "STREAMKEEPER_STOP_TIMEOUT": str(self.stop_timeout),
            "STREAMKEEPER_BACKUPS": self.backups,
            PIPELINE_ENV: ",".join(self.pipeline_env),
        }

    def table_path(self, table: str) -> str:
        """Return the folder or URL of a table: ``{warehouse}/t`` for ``t``, ``{warehouse}/s/t`` for
        ``s.t``.
        """
        return "/".join([self.warehouse.rstrip("/"), *table.split(".")])

    @property
    def backups_path(self) -> str:
        """Folder or URL of the backups of all tables, outside of every table's folder: dropping a table keeps
        them.
        """
        return (self.backups or f"{self.warehouse.rstrip('/')}/{BACKUPS}").rstrip("/")

    def tombstones_path(self, table: str) -> str:
        """Return where an earlier release kept an AUTO CDC table's deletes and truncates: a table of their
        own, which is taken over.
        """
        return f"{self.table_path(table)}{TOMBSTONES}"


def pipeline_env(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the environment variables, or patterns of their names, that pipelines may see. An empty text
    names none.

    :raises SettingsError: a name is not one of an environment variable.
    """
    value = (os.environ if environment is None else environment).get(PIPELINE_ENV)
    if value is None:
        return Settings.pipeline_env
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    wrong = [part for part in found if not _VARIABLES.fullmatch(part)]
    if wrong:
        raise SettingsError(
            f"{PIPELINE_ENV} has {wrong[0]!r}, which names no environment variable. Give names with commas"
            " between them; * stands for any letters, such as in ORDERS_*."
        )
    return found


def _location(name: str, value: str | None, default: Path | str) -> str:
    if not value:
        return str(default)
    return value if "://" in value else str(_absolute(name, value))


def _local(name: str, value: str | None, default: Path) -> Path:
    if value and "://" in value:
        raise SettingsError(
            f"{name} is {value!r}, a URL; it must be a local folder. Set it to a path on this machine."
        )
    return _absolute(name, value) if value else default


def _absolute(name: str, value: str) -> Path:
    # A relative path would differ by process: Airflow, its workers and the command line start in different
    # folders.
    path = Path(value).expanduser()
    if not path.is_absolute():
        raise SettingsError(
            f"{name} is {value!r}, a relative path, which means another folder in every process. Start it"
            " with / or ~."
        )
    return path.resolve()


def _seconds(name: str, env: Mapping[str, str], default: float) -> float:
    text = env.get(name)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise SettingsError(
            f"{name} is {text!r}; it must be a number of seconds above 0. Correct it, or unset it for"
            f" {default:g}."
        )
    return seconds
