"""The server that the tests' Airflow keeps its records in."""

from __future__ import annotations

from pathlib import Path

import psycopg2
import pytest

from tests.postgres import DATABASE, SETTINGS, USER, airflow_database


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
