"""The page of what there is (docs/reference/supported.md): it is made of its cells, each cell names
a test that is there, nothing that can be declared is left out, and what is not there is refused in the
same words.
"""

from __future__ import annotations

import ast
from typing import Any

import pytest

from streamkeeper.declare.model import FILE_SINKS, FOREACH_BATCH, FORMATS
from streamkeeper.declare.not_there import NAMES
from streamkeeper.declare.source_options import SINKS
from streamkeeper.errors import RequestError
from streamkeeper.recover.plans.kind import KINDS
from streamkeeper.settings import PROJECT
from tests.worlds.pipelines import HEAD, TAIL
from tests.worlds.recover.recoveries import planned
from tests.worlds.small_world import CHANGES, EVENTS, World, write_manifest
from tests.worlds.support import cells, page
from tests.worlds.support.cells import RECOVERIES, TARGETS

TABLE = 'dp.create_streaming_table("events")\n'
DECLARED = {
    cells.APPEND: EVENTS,
    cells.CDC: CHANGES % "",
    cells.UPDATE: EVENTS.replace('"events")', '"events", keys=["event_id"])', 1).replace("append", "update"),
    cells.COMPLETE: EVENTS.replace("append", "complete"),
    cells.EACH_BATCH: EVENTS.replace(
        TABLE, "@dp.foreach_batch_sink()\ndef events(batch, batch_id, transaction): ...\n"
    ),
    cells.KAFKA_SINK: EVENTS.replace(
        TABLE, 'dp.create_sink("events", "kafka", {"kafka.bootstrap.servers": "b:9092", "topic": "t"})\n'
    ),
    cells.FILES_SINK: EVENTS.replace(TABLE, 'dp.create_sink("events", "json", {"path": "{data}/out"})\n'),
}
"""A pipeline for each target of the page."""

FLOW, OF_TABLE = {"flow": "events.clean_events"}, {"table": "events.events"}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "rewind, target restored": ("rewind", {**FLOW, "batch": "0", "target": "restored"}),
    "full_refresh": ("full_refresh", OF_TABLE),
    "full_refresh_with_backup": ("full_refresh_with_backup", OF_TABLE),
    "rebuild_without_downtime": ("rebuild_without_downtime", OF_TABLE),
    "backup_table, restore_table": ("restore_table", {**OF_TABLE, "version": 1}),
    "backfill": ("backfill", FLOW),
    "rehearse": ("rehearse", FLOW),
}
"""What is asked for each recovery that some target refuses."""

REFUSED = [
    (recovery, target) for recovery, of in RECOVERIES.items() for target, cell in of.items() if cell.refused
]


@pytest.mark.parametrize(("recovery", "target"), REFUSED)
def test_a_recovery_that_a_target_has_not_is_refused_in_the_words_of_the_page(
    recovery: str, target: str, world: World
) -> None:
    world.declare(DECLARED[target])
    world.processed(2)
    of, values = ASKED[recovery]
    said = RECOVERIES[recovery][target].said.removeprefix("no: ")
    with pytest.raises(RequestError, match=said):
        planned(world, of, **values)


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_of_the_page_can_be_declared(target: str, world: World) -> None:
    world.declare(DECLARED[target])
    assert [flow.full_name for flow in write_manifest(world.settings).flows()] == ["events.clean_events"]


def test_every_target_has_a_cell_for_every_recovery_of_flows_and_tables() -> None:
    said = {name.strip() for row in RECOVERIES for name in row.partition(", target")[0].split(",")}
    of_no_target = {"clean_up", "tidy_tables"}
    assert said - {"kill", "restart"} == set(KINDS) - of_no_target
    assert all(set(row) == set(TARGETS) for row in RECOVERIES.values())


def test_every_format_of_a_source_has_a_row() -> None:
    rows = {name.strip() for row in cells.FORMATS.rows for name in row.split(",")}
    assert rows == set(FORMATS)


def test_every_sink_has_a_row() -> None:
    named = " ".join(TARGETS)
    assert [sink for sink in (*SINKS, FOREACH_BATCH) if sink not in named] == []
    assert set(FILE_SINKS) <= set(SINKS)


def test_a_source_without_history_is_said_to_have_none() -> None:
    without = {name for name, known in FORMATS.items() if not known.history}
    said = {
        row
        for row, found in cells.FORMATS.rows.items()
        if any(cell.refused and "no history" in cell.said for cell in found)
    }
    assert said == without


@pytest.mark.parametrize("name", NAMES)
def test_check_refuses_what_is_not_there_in_the_words_of_the_page(name: str, world: World) -> None:
    world.declare(f"{HEAD}dp.{name}\n{TAIL}", "p.py")
    (said,) = write_manifest(world.settings).errors.values()
    assert NAMES[name] in said
    assert f"| `{name}` | {NAMES[name]} |" in page.not_offered()


def test_each_cell_names_a_test_that_is_there() -> None:
    proofs = {cell.proof for cell in page.every_cell()}
    assert len(proofs) > 60
    missing = []
    for proof in proofs:
        file, _, name = proof.partition("::")
        tree = ast.parse((PROJECT / file).read_text())
        if name not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            missing.append(proof)
    assert missing == []
