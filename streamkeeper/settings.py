"""Settings, read from the environment, else from the section ``[streamkeeper]`` of Airflow's configuration.

A checkout has defaults of folders, which suit the demo; an installation has none.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from streamkeeper.errors import RequestError, SettingsError, StreamkeeperError

PROJECT = Path(__file__).resolve().parent.parent
"""Folder of the package, the DAGs and the jobs."""

CHECKOUT = (PROJECT / "jars.lock").is_file()
"""Whether this is a checkout, or an image made of one; else it was installed from a wheel."""

FILL_JARS = "make setup" if CHECKOUT else "streamkeeper jars"
"""Command that fills the folder of jars."""
FILL_S3_JARS = "make s3-jars" if CHECKOUT else "streamkeeper jars --s3"
"""Command that fills it with those for S3, too."""

SECTION = "streamkeeper"
"""Section of Airflow's configuration whose options are the settings, named like the fields."""

BACKUPS = "__backups"
"""Folder of backups in the warehouse; no declared table may have such a name."""

DEFAULT_MASTER = "local[2]"
"""Spark's default master."""

PIPELINE_ENV = "STREAMKEEPER_PIPELINE_ENV"
DAG_PREFIX = "STREAMKEEPER_DAG_PREFIX"
"""Setting that names the environment variables which pipelines may see."""

ENVIRONMENTS = "STREAMKEEPER_ENVIRONMENTS"
"""Setting of the folder with a file of settings for each environment, such as ``stage.env``."""

UNTESTED = "STREAMKEEPER_UNTESTED_STORAGE"
"""Setting that allows URLs and network file systems that Streamkeeper was not tried on."""

SLOT, DEFERRED = "slot", "deferred"
"""Values of ``supervision``."""

_TRIED = ("s3", "s3a")
"""Schemes of URLs that Streamkeeper was tried on."""
STORES = (
    *_TRIED,
    *("gs", "gcs", "abfs", "abfss", "az", "wasb", "wasbs", "adl", "hdfs", "webhdfs", "viewfs", "oss", "cosn"),
)
"""Schemes of the stores that may be asked at all: those that Spark reads, too."""
_PLAIN = ("file", "memory")
"""Schemes by which no other host is asked."""
_KERNEL = ("/proc", "/sys", "/dev")
"""Folders whose files are a view of processes and devices, with the environment of each."""
_PATTERN = re.compile(r"[*?{\[]")
MOUNTS = Path("/proc/self/mountinfo")
"""Linux's table of the mounts that this process sees (proc_pid_mountinfo(5)); other systems have none."""
_NETWORK = re.compile(
    "9p|afs|beegfs|ceph|cifs|coda|gfs2|glusterfs|gpfs|lustre|nfs4?|ocfs2|pvfs2|smb3|smbfs|wekafs"
    r"|fuse\.(blobfuse2?|ceph(-fuse)?|davfs2?|gcsfuse|glusterfs|goofys|juicefs|mount-s3|rclone|s3fs|sshfs)"
)
"""File systems whose disk is another host's, or is another host's as well."""
_NESTED = {
    "same": "they are the same folder.",
    "inside": "the first is inside the second.",
    "around": "the second is inside the first.",
}
_BACKUPS_IN = (
    " Backups may lie in the warehouse below a name that begins with an underscore, such as __backups."
)
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{0,50}")
_TABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:\.[A-Za-z][A-Za-z0-9_]*)?")
AIRFLOW_NAME = re.compile(r"[A-Za-z0-9_. -]{1,100}")
"""An owner, a tag, a queue, a pool or a connection of Airflow's."""
_PAGE = re.compile(r"https?://[^\s/@]+(?:/[^\s@]*)?")
_USER = re.compile(r"[^\s,\x00-\x1f]{1,256}")
_VARIABLES = re.compile(r"[A-Za-z_*][A-Za-z0-9_*]*")
_ENVIRONMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_LINE = re.compile(r"(?:export )?((?:STREAMKEEPER|AIRFLOW_CONN_STREAMKEEPER)_[A-Z0-9_]+)=(.*)")
_SHORTEST_LOOK = 2.0
"""Seconds between two looks at holds that no longer heartbeat interval shortens."""
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{0,12})?(?:e\+?[0-9])?", re.ASCII)
_LEAST, _MOST = 0.01, 1_000_000_000
"""Seconds that a time may have."""
_FEW = 5
"""Heartbeats that a supervisor may always miss before its driver stops."""


@dataclass(frozen=True)
class Settings:
    """Places and times. Each field comes from the environment variable ``STREAMKEEPER_<FIELD>``, else from
    the option ``<field>`` of :data:`SECTION`.

    ``state`` and ``warehouse`` may be URLs (``s3://bucket/prefix``); ``pipelines`` and ``jars`` are local
    folders.
    """

    pipelines: Path
    """Local folder of the pipeline files."""
    state: str
    """Folder or URL of what Streamkeeper keeps of each flow: checkpoints, leases, holds, plans, history."""
    warehouse: str
    """Folder or URL of the tables: ``t`` is written to ``{warehouse}/t``, ``s.t`` to ``{warehouse}/s/t``."""
    data: str
    """Folder or URL that ``{data}`` in a pipeline file's paths stands for."""
    jars: Path
    """Local folder of the jars that Spark lacks; `streamkeeper jars` fills it."""
    lease_term: float = 60.0
    """Seconds without a heartbeat before a lease may be taken over whose holder cannot be proven dead; at
    least twice the heartbeat interval.
    """
    heartbeat_interval: float = 12.0
    """Seconds between two heartbeats of a driver that commits nothing. It checks for holds every third part
    of that, and where that is less than 2, every 2 seconds or with each heartbeat.
    """
    supervisor_timeout: float = 600.0
    """Seconds without a beat of its supervising task after which a supervised driver stops by itself. At
    least the lease term, five heartbeats, and 270 s more than Airflow's ``task_instance_heartbeat_timeout``.
    """
    executors_timeout: float = 300.0
    """Seconds that a batch may wait on a cluster without an executor before its driver ends and is started
    again.
    """
    log_retention: float = 30 * 86400.0
    """Seconds that a driver's log is kept after its last write. The log of a living driver is always kept."""
    stop_timeout: float = 300.0
    """Seconds that one try of a recovery waits for drivers to finish their batch; Airflow makes six tries."""
    backups: str = ""
    """Folder or URL of the backups of tables; empty means a folder in the warehouse."""
    untested_storage: bool = False
    """Whether URLs other than ``s3://`` and ``s3a://``, and folders on NFS, SMB and other network file
    systems may be set, on which Streamkeeper was not tested.
    """
    table_paths: tuple[str, ...] = ()
    """Tables that lie elsewhere than in the warehouse, with commas between them, such as those of an adopted
    job: ``orders=/lake/tables/orders``.
    """
    environment: str = ""
    """Name of the environment, such as ``stage``, for people: evidence names it."""
    read_at_most: int = 0
    """Files, or records of Kafka, that a batch reads of each source, if that is less than declared; 0 for no
    such bound. Rehearsals set it.
    """
    register_tables: bool = True
    """Whether drivers give tables their names in the session catalog (``registered_as``). Rehearsals do
    not, and an installation that shares a catalog with another one must not.
    """
    allowed_roots: tuple[str, ...] = ()
    """Folders or URLs, with commas between them, that a backfill and an adoption may read, a rehearsal may
    take pipelines from, and a sink of files may write, besides warehouse, data and backups; empty means any
    but ``/proc``, ``/sys`` and ``/dev``.
    """
    approvers: tuple[str, ...] = ()
    """Users, by the names with which they log in to Airflow, who alone may approve a recovery, with commas;
    none means whoever may answer in Airflow.
    """
    approval_always: bool = False
    """Whether a recovery that a person asks for needs an approval, whatever the form says; schedules may do
    without.
    """
    approver_differs: bool = False
    """Whether a recovery is approved by another person than the one who asked for it."""
    spark_ui: bool = False
    """Whether drivers serve Spark's own UI, on a port that Spark chooses."""
    event_log: str = ""
    """Folder or URL of Spark's event logs, for its history server; empty means none."""
    dag_prefix: str = "streamkeeper__"
    """What the ids of the DAGs begin with that are named after what they do, such as ``backfill``; may be
    empty.
    """
    dag_owner: str = ""
    """Owner of all tasks, as Airflow shows it; empty means Airflow's own default."""
    dag_tags: tuple[str, ...] = ()
    """Tags of all DAGs, besides ``streamkeeper``, with commas."""
    dag_queue: str = ""
    """Queue of all tasks, whose workers have what drivers need; empty means Airflow's own default."""
    dag_priority: int = 1
    """Priority weight of all tasks, above 0."""
    pool: str = "streaming_flows"
    """Airflow's pool of the drivers' tasks: one slot a running driver, or, with ``supervision=deferred``, one
    that starts or is judged.
    """
    supervision: str = SLOT
    """Who watches a running driver: ``slot``, its task, in a slot of the pool; or ``deferred``, Airflow's
    triggerer, while the task takes neither a slot nor a process.
    """
    connection: str = "streamkeeper_spark"
    """Airflow's connection to Spark's master, such as ``spark_default``."""
    cluster_pages: tuple[str, ...] = ()
    """Addresses of the pages of clusters that run drivers, with commas, which the command line and the page
    may ask; Airflow's tasks may ask those of their connection, too.
    """
    history_server: str = ""
    """Address of Spark's history server, for links; empty means none."""
    pipeline_env: tuple[str, ...] = (
        "FRUIT_COUNTS",
        "ORDERS_BROKERS",
        "ORDER_TOTALS",
        "SHIPMENTS_BROKERS",
        "WORDS_HOST",
        "WORDS_PORT",
    )
    """Environment variables, or patterns of their names, for user code and for ``{env:NAME}``, with commas;
    ``AWS_*`` where the login of S3 stands in the environment. By default those of the shipped pipelines.
    """
    pipeline_connections: tuple[str, ...] = ()
    """Airflow's connections, or patterns of their names, whose values ``{conn:NAME.FIELD}`` may take and that
    ``connection=`` of a pipeline may name, with commas; empty means all. Those of Streamkeeper's own tasks,
    ``streamkeeper_*``, are never among them.
    """

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from ``environment`` (``os.environ`` by default).

        :raises SettingsError: a folder is not set, a time is not a positive number of seconds, ``lease_term``
            or ``supervisor_timeout`` is too short, a path is relative, a folder that must be local is a URL,
            a URL is of no store or of one that was not tried, two folders are equal or inside one another,
            or a name in ``pipeline_env`` is not one of an environment variable.
        :raises SettingsError: a choice is neither true nor false, or an address is none.
        """
        env = with_airflows(os.environ if environment is None else environment)
        _check_set(env)
        values: dict[str, Any] = {}
        for field in fields(cls):
            name, default = variable(field.name), _FOLDERS.get(field.name, field.default)
            values[field.name] = _READERS.get(field.name, _seconds)(name, env.get(name), default)
        settings = cls(**values)
        settings._check_folders()
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

    @property
    def look_interval(self) -> float:
        """Seconds between two looks at a flow's holds, by its driver or by the gate of a held flow."""
        return look_interval(self.heartbeat_interval)

    def as_environment(self) -> dict[str, str]:
        """Return environment variables from which another process reads the same settings."""
        return {variable(field.name): _as_text(getattr(self, field.name)) for field in fields(self)}

    def _check_folders(self) -> None:
        """Check that each folder is on a store that was tried, and outside of the others.

        Backups may lie in the warehouse where no table can: the name of no table begins with ``_`` or ``.``.
        """
        named = {
            "STREAMKEEPER_STATE": self.state,
            "STREAMKEEPER_WAREHOUSE": self.warehouse,
            **({"STREAMKEEPER_DATA": self.data} if self.data else {}),
            **({"STREAMKEEPER_BACKUPS": self.backups} if self.backups else {}),
            **({"STREAMKEEPER_EVENT_LOG": self.event_log} if self.event_log else {}),
            **{f"{variable('table_paths')} of {name}": place for name, place in self._elsewhere().items()},
        }
        for name, place in self._elsewhere().items():
            if is_s3(place) != is_s3(self.warehouse):
                raise SettingsError(
                    f"STREAMKEEPER_TABLE_PATHS has {name} at {place}, and the warehouse is {self.warehouse}."
                    " Both must be on S3, or both in folders."
                )
        for name, place in named.items():
            if name != "STREAMKEEPER_EVENT_LOG":  # Spark alone writes it
                _check_store(name, place, self.untested_storage)
        for (one, of_one), (other, of_other) in combinations(named.items(), 2):
            relation = _nested(of_one, of_other)
            aside = other == "STREAMKEEPER_BACKUPS" and one == "STREAMKEEPER_WAREHOUSE"
            if relation is None or (aside and relation == "around" and _is_no_table(of_one, of_other)):
                continue
            raise SettingsError(
                f"{one} is {of_one} and {other} {of_other}: {_NESTED[relation]} Each keeps files of its own,"
                " and removes what it does not know. Give each a folder of its own, such as /srv/sk/state and"
                f" /srv/sk/warehouse.{_BACKUPS_IN if aside else ''}"
            )

        for field in ("pipelines", "jars"):
            folder = getattr(self, field)
            for name, place in named.items():
                relation = _nested(str(folder), place)
                if name != "STREAMKEEPER_DATA" and relation in ("same", "inside"):
                    raise SettingsError(
                        f"{variable(field)} is {folder} and {name} {place}: {_NESTED[relation]} Streamkeeper"
                        " writes and removes files in the second. Give each a folder of its own, such as"
                        f" {_EXAMPLES[field]}."
                    )

    def table_path(self, table: str) -> str:
        """Return a table's place: of :attr:`table_paths`, else ``{warehouse}/t`` or ``{warehouse}/s/t``."""
        return self._elsewhere().get(table) or "/".join([self.warehouse.rstrip("/"), *table.split(".")])

    def _elsewhere(self) -> dict[str, str]:
        """Return the places of the tables that are not in the warehouse, by name."""
        return {name: place for name, _, place in (entry.partition("=") for entry in self.table_paths)}

    def why_outside(self, place: str) -> str | None:
        """Return why a recovery or a sink may not use a folder or URL, in words; None if it may.

        Links are followed. A pattern such as ``/old/2025-*`` counts as the folder that it is in.
        """
        if (refused := why_refused_place(place)) is not None:
            return refused
        fixed = _PATTERN.split(place, maxsplit=1)[0]
        folder = _real(place if fixed == place else fixed.rpartition("/")[0] or "/")
        if folder == "/" or any(_nested(folder, kernel) in ("same", "inside") for kernel in _KERNEL):
            return f"{place} is, or may be, a view of processes or devices. Name a folder with data."
        if not self.allowed_roots:
            return None
        own = tuple(root for root in (self.warehouse, self.data, self.backups) if root)
        roots = (*self.allowed_roots, *own)
        climbs = ".." in place.split("/") and ("://" in place or fixed != place)
        if not climbs and any(_nested(folder, _real(root)) in ("same", "inside") for root in roots):
            return None
        return (
            f"{place} lies in none of the folders that may be used: {', '.join(roots)}. Name one in them, or"
            " add its folder to STREAMKEEPER_ALLOWED_ROOTS."
        )

    @property
    def backups_path(self) -> str:
        """Folder or URL of all backups, outside of every table's folder: dropping a table keeps them."""
        return (self.backups or f"{self.warehouse.rstrip('/')}/{BACKUPS}").rstrip("/")


def of_environment(name: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of an environment: the lines ``NAME=value`` of its file, and its name.

    The file is ``<name>.env`` in the folder that ``STREAMKEEPER_ENVIRONMENTS`` names, else in
    ``environments`` beside the package.

    :raises SettingsError: there is no such file, or a line of it is no variable of Streamkeeper's.
    """
    env = os.environ if environment is None else environment
    if not env.get(ENVIRONMENTS) and not CHECKOUT:
        raise SettingsError(
            f"There is no environment {name!r}: set {ENVIRONMENTS} to a folder with {name}.env."
        )
    folder = _absolute(ENVIRONMENTS, env.get(ENVIRONMENTS) or str(PROJECT / "environments"))
    file = folder / f"{name}.env"
    if not _ENVIRONMENT.fullmatch(name) or not file.is_file():
        names = ", ".join(sorted(path.stem for path in folder.glob("*.env"))) or "none"
        raise SettingsError(
            f"There is no environment {name!r} in {folder}. There are: {names}. Write {folder}/stage.env with"
            f" lines such as STREAMKEEPER_STATE=/srv/stage/state, or set {ENVIRONMENTS} to another folder."
        )
    variables = {}
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {error}. Write lines of NAME=value in UTF-8.") from error
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None or "\0" in text:
            raise SettingsError(
                f"{file}:{number}: {text.partition('=')[0]!r} is no setting. A line is NAME=value with a name"
                " that begins with STREAMKEEPER_ or AIRFLOW_CONN_STREAMKEEPER_, or begins with #."
            )
        variables[match[1]] = match[2].strip().strip("\"'")
    return {**variables, "STREAMKEEPER_ENV": name}


def airflow_configuration(environment: Mapping[str, str]) -> Path | None:
    """Return Airflow's configuration file, as Airflow finds it; None if there is none."""
    env = environment
    home = env.get("AIRFLOW_HOME") or (f"{env['HOME']}/airflow" if env.get("HOME") else None)
    place = env.get("AIRFLOW_CONFIG") or (f"{home}/airflow.cfg" if home else None)
    file = Path(place).expanduser() if place else None
    return file if file is not None and file.is_file() else None


def with_airflows(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return an environment, and in it the settings that only Airflow's configuration has.

    Airflow's own variables (``AIRFLOW__STREAMKEEPER__STATE``) come before its file, as in Airflow. An option
    that is empty counts as unset.

    :raises SettingsError: the file cannot be read.
    """
    file, names = airflow_configuration(environment), {field.name for field in fields(Settings)}
    options = {} if file is None else _options(str(file), file.stat().st_mtime_ns)
    of_file = {variable(name): text for name, text in options.items() if name in names}
    prefix = f"AIRFLOW__{SECTION.upper()}__"
    of_variables = {variable(name): environment.get(f"{prefix}{name.upper()}", "") for name in names}
    return {**of_file, **{name: text for name, text in of_variables.items() if text}, **environment}


@lru_cache(maxsize=4)
def _options(file: str, changed_ns: int) -> Mapping[str, str]:
    """Return the options of :data:`SECTION` in a file of that time of change, without empty ones."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(Path(file).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise SettingsError(
            f"Airflow's configuration {file} cannot be read, which may have Streamkeeper's settings: {error}."
            " Correct it, or name another one in AIRFLOW_CONFIG."
        ) from error
    return {name: text for name, text in parser[SECTION].items() if text} if SECTION in parser else {}


def _check_set(environment: Mapping[str, str]) -> None:
    missing = [name for name in _NEEDED if name not in _FOLDERS and not environment.get(variable(name))]
    if not missing:
        return
    file = airflow_configuration(environment)
    configuration = (
        f"Airflow's configuration {file}" if file else "Airflow's configuration, of which there is no file"
    )
    first = missing[0]
    raise SettingsError(
        f"The environment does not set {', '.join(variable(name) for name in missing)}, nor does the section"
        f" [{SECTION}] of {configuration}. An installation has no defaults of folders."
        f" Set {variable(first)}={_EXAMPLES[first]}, or the option {first} there; other parts of Airflow, its"
        " workers and the command line need the same."
    )


def dag_id(name: str) -> str:
    """Return the id of a DAG of Streamkeeper's own, such as that of a recovery, by its name.

    Flows' and schedules' DAGs have ids by other names (``flow__…``), which nobody else's DAG has by accident.
    """
    return f"{_dag_prefix()}{name}"


def dag_name(dag_id: str) -> str:
    """Return the name of a DAG of Streamkeeper's own by its id; another DAG's id stays."""
    return dag_id.removeprefix(_dag_prefix())


def _dag_prefix() -> str:
    return _prefix(DAG_PREFIX, with_airflows(os.environ).get(DAG_PREFIX), Settings.dag_prefix)


def why_refused_place(place: str) -> str | None:
    """Return why a path or URL is not asked for anything, in words; None if it may be.

    Before a file system is opened, everybody who is handed a place asks this: fsspec and Hadoop know schemes
    that fetch pages (``http://``), unpack files (``zip://a::file:///b``) or ask other services
    (``github://``).
    """
    scheme, is_url, rest = place.partition("://")
    if "\0" in place:
        return f"{place!r} has a zero byte. Correct it."
    if not is_url:
        return None
    if scheme not in (*STORES, *_PLAIN) or "::" in place:
        return (
            f"{place!r} is neither a path nor the URL of a store. Allowed are absolute paths, file:///, and"
            f" {', '.join(f'{store}://' for store in STORES)}."
        )
    if scheme == "file":
        return None if rest.startswith("/") else f"{place!r} is a relative path. Write file:///folder."
    return None if rest.strip("/") else f"{place!r} names no bucket. Write a URL such as s3://bucket/folder."


def _real(place: str) -> str:
    """Return a place without links, ``..`` and ``file:``, as it is listed; a URL of a store as it is."""
    if "://" in place and not place.startswith("file:"):
        return place
    return os.path.realpath(unquote(place.removeprefix("file://")) if place.startswith("file:") else place)


def is_s3(location: str) -> bool:
    """Return whether a path or URL is on S3."""
    return location.startswith(("s3://", "s3a://"))


def file_system(path: str) -> str:
    """Return the file system, such as ``ext4``, of an absolute path without links; empty if unknown."""
    try:
        lines = MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    nearest = kind = ""
    for line in lines:
        before, _, after = line.partition(" - ")
        place = before.split(" ")[4]
        if "\\" in place:
            place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), place)
        # Of two mounts at one place the later one hides the other.
        if len(place) >= len(nearest) and f"{path}/".startswith(f"{place.rstrip('/')}/"):
            nearest, kind = place, after.split(" ")[0]
    return kind


def pipeline_env(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the environment variables, or patterns of their names, that pipelines may see. An empty text
    names none.

    :raises SettingsError: a name is not one of an environment variable.
    """
    value = with_airflows(os.environ if environment is None else environment).get(PIPELINE_ENV)
    if value is None:
        return Settings.pipeline_env
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    wrong = [part for part in names if not _VARIABLES.fullmatch(part)]
    if wrong:
        raise SettingsError(
            f"{PIPELINE_ENV} has {wrong[0]!r}, which names no environment variable. Give names with commas"
            " between them; * stands for any letters, such as in ORDERS_*."
        )
    return names


def cluster_pages() -> tuple[str, ...]:
    """Return the addresses of the clusters' pages that the environment's setting names.

    :raises SettingsError: one is no address.
    """
    name = variable("cluster_pages")
    return _pages(name, with_airflows(os.environ).get(name), ())


def pipeline_connections() -> tuple[str, ...]:
    """Return the connections, or patterns of their names, that the environment lets pipelines use.

    :raises SettingsError: a name is not one of a connection.
    """
    name = variable("pipeline_connections")
    return _connections(name, with_airflows(os.environ).get(name), ())


def _connections(name: str, text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    wrong = [part for part in names if not re.fullmatch(r"[A-Za-z0-9_.*-]{1,250}", part)]
    if wrong:
        raise SettingsError(
            f"{name} has {wrong[0][:99]!r}, which names no connection. Give names with commas between them; *"
            " stands for any letters, such as in orders_*."
        )
    return names or default


def _supervision(name: str, value: str | None, default: str) -> str:
    if (value or default) not in (SLOT, DEFERRED):
        raise SettingsError(f"{name} is {value!r}. It must be {SLOT} or {DEFERRED}.")
    return value or default


def _location(name: str, value: str | None, default: Path | str) -> str:
    if not value:
        return str(default)
    if value.startswith("file:"):
        path = value.removeprefix("file:")
        value = path.removeprefix("//")
        if not value.startswith("/"):
            raise SettingsError(
                f"{name} is 'file:{path}', a relative path, which means another folder in every process."
                " Write file:///folder, with three slashes, or just /folder."
            )
    if "://" not in value:
        return str(_absolute(name, value))
    if (refused := why_refused_place(value)) is not None:
        raise SettingsError(f"{name}: {refused}")
    return value


def _locations(name: str, text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_location(name, part.strip(), "") for part in (text or "").split(",") if part.strip())


def _table_paths(name: str, text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    places: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        table, is_pair, place = part.partition("=")
        if not is_pair or not _TABLE.fullmatch(table) or not place or table in places:
            raise SettingsError(
                f"{name} has {part!r}. Allowed is TABLE=PLACE, once a table, with commas between them, such"
                " as orders=/lake/tables/orders. Correct it, or unset it."
            )
        places[table] = _location(name, place, "").rstrip("/")
    return tuple(f"{table}={place}" for table, place in places.items())


def _untried(name: str, place: str) -> str:
    """Return what a location is on that Streamkeeper was not tried on; empty if it was."""
    scheme, is_url, _ = place.partition("://")
    if is_url:
        return "" if scheme in _TRIED else f"{scheme}://"
    # What {data} stands for is read by Spark, and holds neither leases nor a log of Delta's.
    kind = "" if name == "STREAMKEEPER_DATA" else file_system(place)
    return f"{kind} over a network" if _NETWORK.fullmatch(kind) else ""


def _check_store(name: str, place: str, untested: bool) -> None:
    untried = _untried(name, place)
    in_memory = untried == "memory://"
    if untried and (in_memory or not untested):
        way_out = (
            "Its files are gone with each process."
            if in_memory
            else f"To try it, set {UNTESTED}=true. The danger is two drivers of one flow, and lost commits of"
            " Delta."
        )
        raise SettingsError(
            f"{name} is {place}; Streamkeeper was tried on local disks and on S3 (s3:// and s3a://), not on"
            f" {untried}. {way_out}"
        )


def _nested(one: str, other: str) -> str | None:
    """Return how a folder lies to another one: ``same``, ``inside`` it or ``around`` it; None if apart."""
    parts, others = _parts(one), _parts(other)
    shorter = min(len(parts), len(others))
    if parts[:shorter] != others[:shorter]:
        return None
    return "same" if len(parts) == len(others) else "inside" if len(parts) > len(others) else "around"


def _parts(place: str) -> list[str]:
    scheme, is_url, path = place.partition("://")
    if not is_url:
        return ["", *Path(place).parts[1:]]
    return [scheme.replace("s3a", "s3"), *(part for part in path.split("/") if part)]


def _is_no_table(warehouse: str, place: str) -> bool:
    return _parts(place)[len(_parts(warehouse))].startswith(("_", "."))


def _yes(name: str, text: str | None, default: bool) -> bool:
    answer = (text or str(default)).lower()
    if answer not in ("true", "false"):
        raise SettingsError(f"{name} is {text!r}; it must be true or false. Correct it, or unset it.")
    return answer == "true"


def _page(name: str, text: str | None, default: str) -> str:
    if text and not _PAGE.fullmatch(text):
        raise SettingsError(
            f"{name} is {text!r}; it must be an address such as http://history:18080,"
            " without a login. Correct it, or unset it."
        )
    return (text or default).rstrip("/")


def _pages(name: str, text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    pages = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    return tuple(_page(name, part, "") for part in pages) or default


def _prefix(name: str, text: str | None, default: str) -> str:
    if text is not None and not _PREFIX.fullmatch(text):
        raise SettingsError(
            f"{name} is {text!r}; ids of DAGs begin with it: at most 50 letters, digits and _ . -, or"
            " nothing. Correct it, or unset it."
        )
    return default if text is None else text


def _name(name: str, text: str | None, default: str) -> str:
    if text and not AIRFLOW_NAME.fullmatch(text):
        raise SettingsError(
            f"{name} is {text!r}. Allowed are 1 to 100 letters, digits, blanks and _ . -, with commas between"
            " several tags. Correct it, or unset it."
        )
    return text or default


def _weight(name: str, text: str | None, default: int) -> int:
    if text and not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise SettingsError(
            f"{name} is {text!r}; it must be a whole number above 0. Correct it, or unset it."
        )
    return int(text) if text else default


def _names(name: str, text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    return tuple(_name(name, part, "") for part in names) or default


def _users(name: str, text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    users = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    wrong = [user for user in users if not _USER.fullmatch(user)]
    if wrong or (text and not users):
        raise SettingsError(
            f"{name} is {text!r}. Allowed are names of users as Airflow has them, with commas between them,"
            " such as ada,grace@example.org. Correct it, or unset it."
        )
    return users or default


def _local(name: str, value: str | None, default: Path) -> Path:
    if value and "://" in value:
        raise SettingsError(
            f"{name} is {value!r}, a URL; it must be a local folder. Set it to a path on this machine."
        )
    return _absolute(name, value) if value else default


def _absolute(name: str, value: str) -> Path:
    # A relative path would differ by process: Airflow, its workers and the command line start in different
    # folders.
    path = typed_path(name, value, SettingsError)
    if not path.is_absolute():
        raise SettingsError(
            f"{name} is {value!r}, a relative path, which means another folder in every process. Start it"
            " with / or ~."
        )
    return path.resolve()


def typed_path(name: str, value: str, refusal: type[StreamkeeperError] = RequestError) -> Path:
    """Return a path that a person typed, with ``~`` expanded; whether it is there is not asked.

    :raises StreamkeeperError: as the given class: no file can have it (nobody's home, a NUL, a name that is
        too long for the system).
    """
    try:
        path = Path(value).expanduser()
        path.exists()
    except PermissionError:
        return path
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise refusal(
            f"{name} is {value[:99]!r}, which can be no path here: {reason}. Give the path of a folder."
        ) from None
    return path


def _seconds(name: str, text: str | None, default: float) -> float:
    if not text:
        return default
    if not _NUMBER.fullmatch(text) or not _LEAST <= float(text) <= _MOST:
        raise SettingsError(
            f"{name} is {text[:99]!r}; it must be a number of seconds above 0: from {_LEAST:g} to {_MOST:,}."
            f" Correct it, or unset it for {default:g}."
        )
    return float(text)


def look_interval(heartbeat_interval: float) -> float:
    """Return the seconds between two looks at a flow's holds, of which each costs a request to the store."""
    return min(heartbeat_interval, max(_SHORTEST_LOOK, heartbeat_interval / 3))


def variable(field: str) -> str:
    """Return the environment variable of a field of :class:`Settings`."""
    return f"STREAMKEEPER_{'ENV' if field == 'environment' else field.upper()}"


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value or "")


_DEMO = PROJECT / ".demo"
_FOLDERS: Mapping[str, Path | str] = (
    {
        "pipelines": PROJECT / "spark_jobs" / "pipelines",
        "state": _DEMO / "state",
        "warehouse": _DEMO / "warehouse",
        "data": _DEMO / "data",
        "jars": PROJECT / ".cache" / "jars",
    }
    if CHECKOUT
    else {"data": ""}
)
"""Defaults of folders."""
_EXAMPLES = {name: f"/srv/streamkeeper/{name}" for name in ("pipelines", "state", "warehouse", "jars")}
_NEEDED = tuple(_EXAMPLES)
"""Fields that every command needs."""
_READERS: Mapping[str, Callable[[str, str | None, Any], Any]] = {
    **dict.fromkeys(("pipelines", "jars"), _local),
    **dict.fromkeys(("state", "warehouse", "data", "backups", "event_log"), _location),
    **dict.fromkeys(
        ("untested_storage", "spark_ui", "register_tables", "approval_always", "approver_differs"), _yes
    ),
    "approvers": _users,
    "allowed_roots": _locations,
    "environment": lambda _, text, default: text or default,
    "history_server": _page,
    "cluster_pages": _pages,
    "pipeline_connections": _connections,
    "dag_prefix": _prefix,
    "dag_tags": _names,
    "table_paths": _table_paths,
    "supervision": _supervision,
    **dict.fromkeys(("dag_owner", "dag_queue", "pool", "connection"), _name),
    "dag_priority": _weight,
    "read_at_most": lambda name, text, default: int(_seconds(name, None if text == "0" else text, default)),
    "pipeline_env": lambda name, text, _: pipeline_env({} if text is None else {name: text}),
}
"""How a field is read, from its variable's name and text, and its default; all others are seconds."""
