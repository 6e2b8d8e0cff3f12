"""Streamkeeper in an Airflow that is not ours, by the commands of the page alone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count, product
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from demo.airflow.service import Ports, living_drivers
from demo.tables import count_rows, read_rows
from streamkeeper.distribution.versions import VERSIONS
from streamkeeper.flows import holds
from streamkeeper.flows.files import FlowHome
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.storage import open_storage
from tests.installed.own_airflow import NEWEST, OwnAirflow, Versions
from tests.postgres import airflow_database
from tools.docs.markdown import FENCE
from tools.waiting import wait_until

PAGE = PROJECT / "docs" / "get-started" / "install.md"
PLUGIN = PROJECT / "plugins" / "streamkeeper_airflow"
MOST = 10
RESTART = "airflow dags reserialize"
"""Before this command all parts of Airflow are started again."""
RESET = "streamkeeper__reset_checkpoint"
SECONDS = 600.0
PYTHONS = os.environ.get("MATRIX", "").split()
"""Pythons that ``make test-matrix`` tries with each pair."""
TRIED = list(product(VERSIONS["airflow"]["tried"], VERSIONS["spark"]["tried"]))
PAIRS = [(NEWEST, NEWEST)] if os.environ.get("NEWEST") else TRIED
CELLS = [Versions(*pair, python) for pair in PAIRS for python in PYTHONS]
USUAL = Versions(*TRIED[0], sys.executable)
ACCOUNTS = """
from streamkeeper import pipelines as dp

dp.configure_pipeline(shared_driver=True)
dp.create_source(
    "changes", format="json", path="{data}/accounts", schema="id INT, city STRING, version BIGINT"
)
for table, key in (("accounts", "id"), ("cities", "city")):
    dp.create_streaming_table(table)
    dp.create_auto_cdc_flow(
        name=f"{table}_flow", target=table, source="changes", keys=[key], sequence_by="version",
        trigger="2 seconds",
    )
"""
"""Two flows of one driver: it looks for whole numbers by its index of keys, and for texts by Spark."""


@pytest.fixture(params=CELLS or [USUAL], ids=str)
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OwnAirflow]:
    """An Airflow that is not started yet, of one cell of the matrix."""
    streams = tmp_path / "streams"
    places = {name: str(streams / "var" / name.lower()) for name in ("STATE", "WAREHOUSE", "DATA", "JARS")}
    places["PIPELINES"] = str(streams / "pipelines")
    settings = Settings.from_environment({f"STREAMKEEPER_{name}": place for name, place in places.items()})
    with airflow_database() as database:
        service = OwnAirflow(
            tmp_path / "airflow", settings, Ports.free(), extra=database, versions=request.param
        )
        try:
            yield service
        finally:
            service.stop()


def arrive(own: OwnAirflow, folder: str, name: str, *rows: dict[str, Any]) -> None:
    into = Path(own.settings.data) / folder
    into.mkdir(parents=True, exist_ok=True)
    aside = into / f".{name}"
    aside.write_text("".join(json.dumps(row) + "\n" for row in rows))
    aside.rename(into / name)


def order(number: int) -> dict[str, Any]:
    return {"order_id": f"o{number}", "customer": "Ada", "amount": 1.0, "ordered_at": "2026-01-01T10:00:00Z"}


def change(number: int, city: str, version: int) -> dict[str, Any]:
    return {"id": number, "city": city, "version": version}


def commands() -> list[str]:
    block = next(text for language, text in FENCE.findall(PAGE.read_text()) if language == "bash")
    return block.strip().splitlines()


def await_rows(own: OwnAirflow, table: str, columns: str, *rows: object) -> None:
    """Wait until a table has exactly these rows, each once; a row is the values of some columns."""
    path, read = own.settings.table_path(table), itemgetter(*columns.split())

    def look() -> bool | None:
        present = [] if count_rows(path) is None else sorted(read(row) for row in read_rows(path))
        assert len(present) == len(set(present)), f"{table} has rows twice: {present}"
        return present == sorted(rows) or None

    wait_until(look, SECONDS, f"{table} has {rows}")


@pytest.mark.long
def test_ten_commands_of_the_page_bring_two_flows_into_an_airflow_that_is_not_ours(own: OwnAirflow) -> None:
    own.install()
    the_commands_of_the_page_run(own)
    both_flows_run(own)
    the_page_is_served(own)
    their_dag_of_a_like_name_is_theirs(own)
    a_reset_by_form_brings_it_back(own, a_break_parks_the_flow(own))
    the_wheel_is_removed_and_leaves_the_state_folder_whole(own)


def the_commands_of_the_page_run(own: OwnAirflow) -> None:
    assert len(commands()) <= MOST
    streams = own.home.parent / "streams"
    for line in commands():
        command = line.replace("/srv/streams", str(streams)).replace("http://localhost:8080", own.url)
        if line == RESTART:
            (streams / "pipelines" / "accounts.py").write_text(ACCOUNTS)
            (Path(own.settings.data) / "accounts").mkdir(parents=True)
            own.start()
        output = own.run(command.replace("CONSTRAINTS", str(own.versions.constraints)), f"{own.password}\n")
        print(f"$ {line}\n{output}")
    own.run("pip check")


def both_flows_run(own: OwnAirflow) -> None:
    arrive(own, "orders", "1.json", order(1), order(2), order(1))
    arrive(own, "accounts", "1.json", change(1, "Rome", 1))
    await_rows(own, "orders", "order_id", "o1", "o2")
    await_rows(own, "accounts", "id city", (1, "Rome"))
    await_rows(own, "cities", "id city", (1, "Rome"))
    arrive(own, "accounts", "2.json", change(1, "Bonn", 3), change(1, "Paris", 2), change(2, "Rome", 4))
    await_rows(own, "accounts", "id city", (1, "Bonn"), (2, "Rome"))
    await_rows(own, "cities", "id city", (1, "Bonn"), (1, "Paris"), (2, "Rome"))


def the_page_is_served(own: OwnAirflow) -> None:
    with urlopen(f"{own.url}/streamkeeper/static/streams.js") as answer:
        assert answer.read() == (PLUGIN / "page" / "static" / "streams.js").read_bytes()
    look = partial(own.api.page, "/streamkeeper/api/flows")
    text = json.dumps(wait_until(look, SECONDS, "the page has the flows"))
    assert "orders.orders_flow" in text and "accounts.accounts_flow" in text


def their_dag_of_a_like_name_is_theirs(own: OwnAirflow) -> None:
    own.run("airflow dags unpause backfill")
    run = own.api.trigger("backfill", {})
    assert own.api.wait_for_run("backfill", run, SECONDS) == "success"
    assert own.api.tasks("backfill", run).keys() == {"mine"}
    assert own.api.read("/importErrors")["total_entries"] == 0


def a_break_parks_the_flow(own: OwnAirflow) -> list[str]:
    """Remove the deduplication, and let orders arrive until the flow is parked; return these orders."""
    file = own.settings.pipelines / "orders.py"
    text = file.read_text()
    changed = text.replace('        .dropDuplicatesWithinWatermark(["order_id"])\n', "")
    assert changed != text
    aside = file.with_suffix(".new")
    aside.write_text(changed)
    aside.replace(file)
    home, numbers = FlowHome(open_storage(own.settings.state), "orders", "orders_flow"), count(10)
    arrived: list[str] = []

    def look() -> holds.Hold | None:
        park = holds.parked(home)
        if park is None:
            number = next(numbers)
            arrive(own, "orders", f"{number}.json", order(number))
            arrived.append(f"o{number}")
        return park

    park = wait_until(look, SECONDS, "the flow is parked", interval=10)
    assert park.details["sql_state"] == "42K03"
    return arrived


def a_reset_by_form_brings_it_back(own: OwnAirflow, meanwhile: list[str]) -> None:
    form = {name: field["value"] for name, field in own.api.read(f"/dags/{RESET}/details")["params"].items()}
    run = own.api.trigger(RESET, {**form, "flow": "orders.orders_flow", "reason": "orders come once now"})
    own.api.wait_for_task(RESET, run, "approve", ("awaiting_input",), SECONDS)
    assert "generation 1 → 2" in own.api.question(RESET, run, "approve")["body"]
    assert own.api.answer(RESET, run, "approve", "Approve", SECONDS) == "success"
    arrive(own, "orders", "3.json", order(4))
    assert own.api.wait_for_run(RESET, run, SECONDS) == "success"
    await_rows(own, "orders", "order_id", "o1", "o2", "o4", *meanwhile)


def the_wheel_is_removed_and_leaves_the_state_folder_whole(own: OwnAirflow) -> None:
    own.stop()
    assert list(living_drivers(own.settings)) == []
    state = Path(own.settings.state)
    files = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
    own.run("pip uninstall streamkeeper-airflow")
    assert not (own.venv / "bin" / "streamkeeper").exists()
    assert files and files == {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
    assert FlowHome(open_storage(own.settings.state), "orders", "orders_flow").generations() == [1, 2]
