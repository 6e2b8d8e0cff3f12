"""A format of source is one class: a new one is added without a change elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamkeeper.declare import model
from streamkeeper.declare.offsets import check_fits
from streamkeeper.errors import RequestError
from streamkeeper.flows.generations import StartAt
from streamkeeper.observe.observed import Observed
from streamkeeper.settings import PROJECT
from streamkeeper.sources.formats import FORMATS
from streamkeeper.sources.starts import STARTS
from streamkeeper.support.amounts import DATA_LOSS, DUPLICATES
from streamkeeper.watch.pending_input import what_waits
from tests.worlds.recover.recoveries import impact, refused
from tests.worlds.recover.recoveries import plan_reset as plan
from tests.worlds.small_world import EVENTS, World
from tests.worlds.sources import toy_source
from tests.worlds.sources.source_impacts import FILES, begun

TOY = EVENTS.replace(FILES, 'format="rate-micro-batch", options={"rowsPerBatch": 20}')
STOOD = {"offset": 40, "timestamp": 1000}

ROOMS = ("streamkeeper", "spark_jobs/streamkeeper_jobs", "plugins", "dags")
OWN = ("streamkeeper/sources/", "spark_jobs/streamkeeper_jobs/sources/")
NAMES = {"KAFKA", "DELTA", "RATE", "SOCKET", "FILE_FORMATS"}
"""Names of the formats, in :mod:`streamkeeper.declare.model`."""


def at(row: int) -> StartAt:
    return StartAt("offsets", offsets={"events_raw": {"offset": row, "timestamp": 1000}})


def test_every_format_that_can_be_declared_has_its_class() -> None:
    assert FORMATS.keys() == STARTS.keys() == model.FORMATS.keys()


def test_plan_and_driver_resolve_a_start_by_the_same_code() -> None:
    for name, starts in STARTS.items():
        assert isinstance(FORMATS[name], type(starts))
        for method in ("resolve", "after", "beginning", "declared", "end", "moment", "at"):
            assert getattr(type(FORMATS[name]), method) is getattr(type(starts), method)


@pytest.mark.parametrize(
    ("start", "lost", "repeated", "impacts"),
    [
        pytest.param("after-last", 0, 0, [], id="after the last"),
        pytest.param("earliest", 0, 40, [DUPLICATES], id="earliest"),
        pytest.param(at(15), 0, 25, [DUPLICATES], id="an earlier row"),
        pytest.param(at(60), 20, 0, [DATA_LOSS], id="a later row"),
    ],
)
def test_a_plan_impacts_a_format_that_was_added(
    start: StartAt | str,
    lost: int,
    repeated: int,
    *,
    impacts: list[str],
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    toy_source.register(monkeypatch)
    found = plan(begun(world, TOY, STOOD), start)
    assert (impact(found).lost.rows, impact(found).repeated.rows) == (lost, repeated)
    assert (impact(found).now, refused(found)) == ("row 40", impacts)


def test_an_offset_and_pending_input_are_the_formats_own_to_judge(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_source.register(monkeypatch)
    begun(world, TOY, STOOD)
    assert "rows always wait in events_raw" in what_waits(Observed(world.home), world.flow).description
    said = check_fits(toy_source.NAME, {"logOffset": 3})
    assert said is not None
    assert "is an offset of a files source; a rate-micro-batch source has" in said


def test_a_format_that_was_not_added_cannot_be_declared(world: World) -> None:
    with pytest.raises(RequestError, match=r"has format 'rate-micro-batch'. Allowed are"):
        begun(world, TOY, STOOD)


def comparisons(source: str) -> Iterator[int]:
    """Yield the line of each comparison of a format with the name of one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            compared = any(ast.unparse(side).endswith("format") for side in sides)
            if compared and any(_is_a_format(side) for side in sides):
                yield node.lineno
        elif isinstance(node, ast.Match) and ast.unparse(node.subject).endswith("format"):
            yield node.lineno


def _is_a_format(side: ast.expr) -> bool:
    return any(
        (isinstance(node, ast.Name) and node.id in NAMES)
        or (isinstance(node, ast.Attribute) and node.attr in NAMES)
        or (isinstance(node, ast.Constant) and node.value in model.FORMATS)
        for node in ast.walk(side)
    )


def test_no_module_but_the_sources_own_asks_which_format_a_source_has() -> None:
    files = [file for room in ROOMS for file in sorted((PROJECT / room).rglob("*.py"))]
    assert len(files) > 200, "the product is there"
    assert [found for file in files for found in _asking(file)] == []


def _asking(file: Path) -> list[str]:
    name = str(file.relative_to(PROJECT))
    return [] if name.startswith(OWN) else [f"{name}:{line}" for line in comparisons(file.read_text())]


@pytest.mark.parametrize(
    "planted",
    [
        "if source.format == KAFKA: pass",
        "if source.format not in (model.DELTA, 'rate'): pass",
        "found = 'json' == source_format",
        "match source.format:\n    case 'kafka':\n        pass",
    ],
)
def test_a_planted_question_for_the_format_is_found(planted: str) -> None:
    assert list(comparisons(planted)) == [1]
