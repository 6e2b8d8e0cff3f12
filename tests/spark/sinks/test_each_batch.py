"""Sinks whose function gets each batch: by ``transaction``, what it writes is there once."""

from __future__ import annotations

import re
from contextlib import closing

import psycopg2
import pytest
from streamkeeper_jobs.sinks import each_batch

from streamkeeper.delta import log as delta_log
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import leases
from streamkeeper.flows.files import query_id
from streamkeeper.settings import PROJECT
from streamkeeper.support.amounts import DUPLICATES
from tests.oracle import counted
from tests.postgres import airflow_database
from tests.worlds.drivers import cut_off
from tests.worlds.flow_world import COLUMNS, NAME, Flowbed
from tests.worlds.flows.sinks import in_copies, into_function
from tests.worlds.suites import long_after
from tests.worlds.tables.backup_world import Recoverer


def is_exact(bed: Flowbed) -> None:
    assert counted(in_copies(bed), COLUMNS) == counted(bed.events, COLUMNS)


@pytest.mark.parametrize("after", long_after(1, [False, True]), ids=["before the note", "after the note"])
def test_a_batch_that_is_given_again_is_written_once_and_a_reset_counts_it(
    bed: Flowbed, at_work: Recoverer, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    bed.declare(into_function(bed))
    bed.arrive(1, 2)
    bed.arrive(3)
    with monkeypatch.context() as patch:
        cut_off(each_batch, "_note", 2, patch, after=after)
        assert bed.run() is Outcome.FAILED
    assert at_work.impacts("reset_checkpoint", flow=NAME) == ([] if after else [DUPLICATES])
    bed.arrive(4)
    assert bed.run() is Outcome.STOPPED
    is_exact(bed)
    assert at_work.impacts("reset_checkpoint", flow=NAME) == []
    bed.reset()
    bed.arrive(5)
    assert bed.run() is Outcome.STOPPED
    is_exact(bed)
    assert delta_log.last_transaction(str(bed.table), query_id(NAME, 1)).fenced
    assert bed.rows() == [], "the sink's own table has a log, and no rows"


def test_an_error_of_the_function_is_a_failure_of_the_flow_whose_lease_is_left(
    bed: Flowbed, capsys: pytest.CaptureFixture[str]
) -> None:
    refusing = '    raise ConnectionRefusedError("no database")\n'
    bed.declare(into_function(bed).replace("    assert batch_id", refusing + "    assert batch_id"))
    bed.arrive(1)
    assert bed.run() is Outcome.FAILED
    log = capsys.readouterr().out
    assert "Spark says ConnectionRefusedError: no database\n" in log
    assert re.search(r"events\.py, line 10, in events\nIt is tried again\.", log)
    lease = leases.current(bed.home)
    assert lease is not None and leases.life(bed.home, lease) is leases.Life.LEFT


def test_the_example_of_the_page_counts_each_batch_once_in_a_database(
    bed: Flowbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (PROJECT / "docs" / "how-to" / "targets" / "foreach-batch.md").read_text()
    (example,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.S) if "psycopg2" in text]
    bed.declare(example.replace('n INT")', 'n INT", options={"maxFilesPerTrigger": 1})'))
    with airflow_database() as server:
        url = server["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("+psycopg2", "")
        monkeypatch.setenv("TOTALS_DSN", url)
        with closing(psycopg2.connect(url)) as database, database.cursor() as cursor:
            database.autocommit = True
            cursor.execute("CREATE TABLE batches (app_id text, version int, PRIMARY KEY (app_id, version))")
            cursor.execute("CREATE TABLE totals (user_id int PRIMARY KEY, total bigint)")
            bed.arrive(1, 2, 8)
            bed.arrive(1, 9)
            with monkeypatch.context() as patch:
                cut_off(each_batch, "_note", 2, patch, after=False)
                assert bed.run() is Outcome.FAILED
            assert bed.run() is Outcome.STOPPED
            cursor.execute("SELECT * FROM totals ORDER BY user_id")
            assert cursor.fetchall() == [(1, 1 + 8 + 1), (2, 2 + 9)]
