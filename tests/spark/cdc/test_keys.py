"""AUTO CDC and the columns that rows are found by: what may be said of them, and values that would not be
found again.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    ShortType,
    StringType,
)
from streamkeeper_jobs.cdc import Step, apply_changes, events

from streamkeeper.declare.cdc_spec import CdcSpec
from streamkeeper.declare.model import Table
from streamkeeper.errors import ChangeRefused
from tests.worlds.tables.cdc_world import SPEC, TABLE, VERSIONS, WITHOUT_VECTORS, CdcBed, alone

_LONG = pytest.mark.long

BY_HAND = (
    "ALTER COLUMN id COMMENT 'of the customer'",
    "ALTER COLUMN id SET DEFAULT 7",
    "ALTER COLUMN __streamkeeper.sequence COMMENT 'of the change'",
    "ALTER COLUMN name COMMENT 'of the customer'",
)


@_LONG
@pytest.mark.parametrize("spec", [SPEC, VERSIONS], ids=["SCD type 1", "SCD type 2"])
def test_what_is_said_of_a_column_by_hand_keeps_no_flow_from_its_table(
    spec: CdcSpec, spark: SparkSession, tmp_path: Path
) -> None:
    bed = CdcBed(spark, tmp_path, spec).prepare(
        replace(TABLE, properties={"delta.feature.allowColumnDefaults": "supported"})
    )
    bed.apply((1, 1, "U", "a", "x"), (2, 1, "U", "b", "x"))
    for said in BY_HAND:
        spark.sql(f"ALTER TABLE delta.`{bed.path}` {said}")
    bed.prepare()
    bed.apply((1, 2, "U", "c", "x"), (2, 2, "D", None, None))
    bed.apply((2, 1, "U", "late", "x"))
    assert [row["name"] for row in bed.rows() if row.get("__END_AT") is None] == ["c"]


@pytest.mark.parametrize("keys", [("id",), pytest.param(("n", "id"), marks=_LONG)], ids=["first", "second"])
def test_a_text_key_that_is_not_utf_8_refuses_the_batch(
    keys: tuple[str, ...], spark: SparkSession, tmp_path: Path
) -> None:
    """Delta keeps the bounds of its files as JSON, which cannot hold such a text: the row would not be found
    again.
    """
    bed = CdcBed(
        spark, tmp_path, replace(SPEC, keys=keys), "id STRING, n INT, at BIGINT, op STRING, name STRING"
    ).prepare()
    bed.apply(("ü", 1, 1, "U", "a"), ("𝄞", 1, 1, "U", "a"))
    rows = bed.frame([("good", 1, 2, "U", "b"), ("C3", 1, 2, "U", "b")])
    broken = rows.withColumn("id", F.expr("IF(id = 'C3', CAST(X'C3' AS STRING), id)"))
    with pytest.raises(
        ChangeRefused,
        match=(
            r"1 row of the batch has a null key \(.*\), a key that is not valid UTF-8 \(id\), or a null"
            r" sequence"
        ),
    ):
        apply_changes(broken, bed.spec, bed.path, Step(bed.query_id, 1), alone)
    bed.apply(("ü", 1, 2, "U", "c"), ("𝄞", 1, 2, "D", None))
    assert [(row["id"], row["name"]) for row in bed.rows()] == [("ü", "c")]


@_LONG
def test_an_empty_text_in_a_key_that_the_table_is_partitioned_by_refuses_the_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Delta keeps it as null (delta-io/delta#2100), by which no row is found."""
    spec, schema = (
        replace(SPEC, keys=("region", "id")),
        "region STRING, id STRING, at BIGINT, op STRING, name STRING",
    )
    bed = CdcBed(spark, tmp_path, spec, schema).prepare(replace(TABLE, partition_cols=("region",)))
    with pytest.raises(
        ChangeRefused,
        match=r"1 row of the batch .* an empty text in a key .* as null \(region\), or a null sequence",
    ):
        bed.apply(("", "1", 1, "U", "a"), ("north", "", 1, "U", "a"), batch=0)
    bed.apply(("north", "", 1, "U", "a"), batch=0)
    bed.apply(("north", "", 2, "U", "b"))
    assert [row["name"] for row in bed.rows()] == ["b"]


@pytest.mark.long
def test_an_empty_text_in_a_column_that_the_table_is_partitioned_by_is_null_in_any_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    changes = ((1, 1, "U", "a", ""), (1, 2, "U", "a", None), (1, 3, "U", "a", ""))
    for number, batches in enumerate(([changes], [[one] for one in changes])):
        bed = CdcBed(spark, tmp_path / str(number), VERSIONS).prepare(
            replace(TABLE, partition_cols=("city",))
        )
        for batch in batches:
            bed.apply(*batch)
        assert bed.rows() == [{"id": 1, "name": "a", "city": None, "__START_AT": 1, "__END_AT": None}]


def _nan(bits: int) -> float:
    """Return the NaN of some bits, of which there are many."""
    return float(struct.unpack(">d", bits.to_bytes(8, "big"))[0])


ONE_KEY = {
    "zeros": (-0.0, 0.0),
    "zeros, the other way": (0.0, -0.0),
    "NaNs": (_nan(0xFFF8_0000_0000_0007), _nan(0x7FF8_0000_0000_0001)),
}
SPECS = [
    replace(spec, keys=keys, ignore_null_updates=ignores)
    for spec, keys, ignores in (
        (SPEC, ("id", "city"), False),
        (VERSIONS, ("id", "city"), False),
        (SPEC, ("id", "city"), True),
        (VERSIONS, ("id", "city"), True),
        (SPEC, ("city", "id"), False),
    )
]
TABLES = {
    "plain": TABLE,
    "partitioned": replace(TABLE, partition_cols=("id",)),
    "without vectors": WITHOUT_VECTORS,
    "by MERGE": replace(TABLE, properties={"delta.enableChangeDataFeed": "true"}),
}


VALUES = list(product(("DOUBLE", "FLOAT"), ONE_KEY))
FLOATING = [
    pytest.param(
        spec,
        *VALUES[(at + beside) % len(VALUES)],
        TABLES[table],
        marks=() if table == "plain" and not at else _LONG,
        id=f"{at}, {table}",
    )
    for (at, spec), (beside, table) in product(enumerate(SPECS), enumerate(TABLES))
]
"""Each declaration with each table, and with these in turn the types and the pairs of equal keys."""


@pytest.mark.parametrize(("spec", "dtype", "key", "table"), FLOATING)
def test_floating_point_keys_that_are_equal_are_one_key(  # noqa: PLR0917 - a table of cases
    spec: CdcSpec, dtype: str, key: str, table: Table, spark: SparkSession, tmp_path: Path
) -> None:
    """Parquet's filters tell the two zeros apart, so a file whose dictionary has one alone is left out."""
    stored, given = ONE_KEY[key]
    schema = f"id {dtype}, at BIGINT, op STRING, name STRING, city STRING"
    bed = CdcBed(spark, tmp_path, spec, schema).prepare(table)

    def apply(key: float, at: int, op: str, name: str | None) -> list[str]:
        """Apply a change to a row of each city, and return the names that the table shows now."""
        bed.apply(*((key, at, op, name, city) for city in "abcde"))
        return [row["name"] for row in bed.rows() if row.get("__END_AT") is None]

    apply(stored, 1, "U", "old")
    assert apply(given, 2, "U", "new") == ["new"] * 5, "the rows are found by an equal key"
    assert apply(stored, 4, "D", None) == [], "and by that of a delete"
    assert apply(given, 3, "U", "late") == [], "which is remembered for both"


@pytest.mark.parametrize("dtype", [ByteType(), ShortType(), IntegerType(), LongType()], ids=str)
def test_bounds_of_keys_are_rounded_outwards_and_stay_within_their_type(dtype: IntegralType) -> None:
    bits = {"byte": 8, "short": 16, "integer": 32, "long": 64}[dtype.typeName()]
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    for low, high in ((least, most), (most, most), (least, least), (-3, 100), (5, 5), (most - 9, most)):
        wide = events._widened(low, high, dtype)
        assert least <= wide[0] <= low and high <= wide[1] <= most
        assert wide[1] - wide[0] <= 1.5 * (high - low)
    assert events._widened(3, 117, dtype) == events._widened(9, 125, dtype), "as those of the next batch"
    assert events._widened("a", "z", StringType()) == ("a", "z")


@pytest.mark.parametrize("dtype", [DoubleType(), FloatType()], ids=str)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_bound_of_zero_includes_both_zeros(zero: float, dtype: DataType) -> None:
    for low, high in ((zero, zero), (zero, 1.0), (-1.0, zero)):
        least, most = events._widened(low, high, dtype)
        assert (least, most) == (low, high)
        assert low or math.copysign(1, least) == -1, "Parquet takes -0.0 for less than 0.0"
        assert high or math.copysign(1, most) == 1
