"""The server that the tests' Airflow keeps its records in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg2
import pytest

from streamkeeper.settings import PROJECT
from tests.postgres import DATABASE, SETTINGS, USER, airflow_database

CHECK = """
from streamkeeper_airflow.flow.airflow_settings import check_database
check_database()
print("holds")
"""


def test_a_server_comes_from_the_locked_packages_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with airflow_database() as environment:
        [address] = environment.values()
        folder = Path(address.partition("host=")[2])
        with (
            psycopg2.connect(host=str(folder), user=USER, dbname=DATABASE) as session,
            session.cursor() as cursor,
        ):
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            assert cursor.fetchone() == (SETTINGS["idle_in_transaction_session_timeout"],)
            cursor.execute("CREATE TABLE kept AS SELECT 'ä' AS letter")
            cursor.execute("SELECT letter FROM kept")
            assert cursor.fetchone() == ("ä",)
        session.close()
    assert not folder.exists()
    with pytest.raises(psycopg2.OperationalError):
        psycopg2.connect(host=str(folder), user=USER, dbname=DATABASE)


@pytest.mark.long
def test_a_role_whose_transactions_may_be_idle_for_ever_is_refused_with_the_statement_that_helps(
    tmp_path: Path,
) -> None:
    with airflow_database() as environment:
        [address] = environment.values()
        session = psycopg2.connect(host=address.partition("host=")[2], user=USER, dbname=DATABASE)
        session.autocommit = True
        with session.cursor() as cursor:
            cursor.execute(f"ALTER ROLE {USER} SET idle_in_transaction_session_timeout = 0")
            refused = checked(tmp_path, environment)
            statement = refused[refused.index("ALTER ROLE") :].partition(", and start")[0]
            cursor.execute(statement)
        session.close()
        assert checked(tmp_path, environment) == "holds"
        assert checked(tmp_path, {"AIRFLOW__CORE__EXECUTOR": "LocalExecutor"}) == "holds", "SQLite has none"


def checked(home: Path, environment: dict[str, str]) -> str:
    """Return the last line that a check of Airflow's database says."""
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        env={
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "PYTHONPATH": f"{PROJECT / 'plugins'}:{PROJECT}",
            **environment,
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1]
