"""Initial states in a pipeline file: what may be declared, and what is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamkeeper.declare.model import pipeline_from_json, pipeline_to_json
from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.import_file import fingerprint
from streamkeeper.manifest.manifest import Flow
from streamkeeper.support.ddl import Column, columns_of
from streamkeeper.trial.differences import differences
from tests.worlds.pipelines import load

ROWS = 'rows=[{"fruit": "apple", "pieces": 3}], schema="fruit STRING, pieces BIGINT"'
FILE = """
from datetime import date
dp.create_source("raw", format="json", path="{{data}}/raw", schema="fruit STRING")
dp.create_initial_state("stock", {declared})
dp.create_streaming_table("t")

@dp.append_flow(target="t", sources=["raw"], {taken})
def f({parameters}):
    return raw
"""


def file(declared: str = ROWS, taken: str = 'initial_state="stock"', parameters: str = "raw, stock") -> str:
    return FILE.format(declared=declared, taken=taken, parameters=parameters)


def test_a_flow_takes_rows_that_the_manifest_keeps(tmp_path: Path) -> None:
    pipeline = load(tmp_path, file())
    given = pipeline.flows[0].initial_state
    assert given is not None
    assert (given.rows, given.schema) == (
        ({"fruit": "apple", "pieces": 3},),
        "fruit STRING, pieces BIGINT",
    )
    assert (str(given), str(given.location)) == ("stock, 1 row", "p.py, line 5")
    plain = json.loads(json.dumps(pipeline_to_json(pipeline)))
    assert pipeline_from_json(plain) == pipeline


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ('{"day": date(2026, 1, 31), "price": "1.50", "open": None}', ["2026-01-31", "1.50", None]),
        ('{"day": "2026-01-31", "price": 2, "open": True}', ["2026-01-31", 2, True]),
    ],
)
def test_values_are_kept_as_json_has_them(tmp_path: Path, values: str, kept: list[object]) -> None:
    schema = 'schema="day DATE, price DECIMAL(5,2), open BOOLEAN"'
    given = load(tmp_path, file(f"rows=[{values}], {schema}")).flows[0].initial_state
    assert given is not None
    assert list(given.rows[0].values()) == kept


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("", "the initial state stock has neither rows nor a table"),
        (f'{ROWS}, table="stock"', "has both rows and a table"),
        ("rows=[]", "has rows and no schema"),
        ('rows=[], schema="fruit"', "'fruit' is no column with a name and a type"),
        ('rows=[], schema="fruit TEXT"', "TEXT is no type of Spark"),
        ('rows=[], schema="fruit STRING, Fruit INT"', "the column fruit is there twice"),
        ('rows=[("apple", 3)], schema="fruit STRING, n INT"', "for each column of the schema: fruit, n"),
        ('rows=[{"fruit": "apple"}], schema="fruit STRING, n INT"', "row 1 of the initial state stock is {"),
        ('rows=[{"n": 3}, {"n": "4"}], schema="n INT"', "row 2 of the initial state stock has n '4'"),
        ('rows=[{"n": 300}], schema="n TINYINT"', "Give a whole number of 8 bits"),
        ('rows=[{"n": None}], schema="n INT NOT NULL"', "Give a value: it is NOT NULL"),
        ('rows=[{"n": 1.555}], schema="n DECIMAL(5,2)"', "no more digits than the type has"),
        ('rows=[{"n": "soon"}], schema="n TIMESTAMP"', "Give a time, such as"),
        ('rows=[{"n": {1}}], schema="n ARRAY<INT>"', "{1} is of the type set"),
        ('rows=[{"n": 1}] * 1001, schema="n INT"', "has as rows 1,001 rows. Allowed is a list"),
        ('table="a.b.c"', "has more than one dot"),
        ('path="{data}/x"', "create_initial_state takes no path"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_line(tmp_path: Path, declared: str, said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        load(tmp_path, file(declared))
    assert said in str(refused.value)
    assert str(refused.value).startswith("p.py, line 5: ")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"taken": 'initial_state="stok"'}, "has the initial_state 'stok'. Declared above it are stock"),
        ({"parameters": "raw"}, "has 1 sources (raw) and the initial state stock but its function"),
        ({"taken": ""}, "has 1 sources (raw) but its function takes (raw, stock)"),
    ],
)  # fmt: skip
def test_a_flow_names_one_that_is_declared_and_has_a_parameter_for_it(
    tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    with pytest.raises(DeclarationError) as refused:
        load(tmp_path, file(**changed))
    assert said in str(refused.value)


def test_another_initial_state_is_another_fingerprint_and_another_line_is_not(tmp_path: Path) -> None:
    def mark(text: str) -> str:
        pipeline = load(tmp_path, text)
        return fingerprint(pipeline, pipeline.flows[0])

    assert mark(file()) == mark(f"\n\n{file()}")
    assert len({mark(file()), mark(file(ROWS.replace("3", "4"))), mark(file('table="stock"'))}) == 3
    assert mark(file(taken="", parameters="raw")) == mark(file('table="x"', taken="", parameters="raw"))


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (file(ROWS.replace("3", "4")), "has the initial state stock, 1 row, and had stock, 1 row:"),
        (file('table="counted"'), "has the initial state stock, the table counted, and had stock, 1 row:"),
        (file(taken="", parameters="raw"), "has the initial state none, and had stock, 1 row:"),
        (f"\n{file()}", ""),
    ],
)
def test_a_running_state_keeps_what_it_was_given(tmp_path: Path, now: str, said: str) -> None:
    flows = []
    for text in (file(), now):
        pipeline = load(tmp_path, text)
        flows.append(Flow(pipeline, pipeline.flows[0], ""))
    found = list(differences(*flows, pinned=()))
    assert len(found) == bool(said)
    assert all(said in line for line in found)


def test_columns_are_read_as_spark_reads_them() -> None:
    nested, number = columns_of(
        "`a b` ARRAY<STRUCT<x: INT, y: MAP<STRING, INT>>>, c decimal(3, 1) not null COMMENT 'a, b'"
    )
    assert (nested.name, nested.misfit([{"x": 1}])) == ("a b", None)
    assert number == Column("c", "DECIMAL(3, 1)", nullable=False)
    assert number.misfit("12.5") is None
    assert number.misfit("112.5") is not None
