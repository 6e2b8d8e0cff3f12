"""A flow ordered by a literal beside flows ordered by columns: of what type the sequences are, whichever of
them makes the table.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType
from streamkeeper_jobs.cdc import check_target, prepare
from streamkeeper_jobs.cdc.columns import sequence_type
from streamkeeper_jobs.cdc.expressions import whole_number, whole_numbers

from streamkeeper.declare.cdc_spec import CdcSpec
from streamkeeper.errors import DeclarationError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations
from tests.worlds.pipelines import edited
from tests.worlds.suites import long_after
from tests.worlds.tables.cdc_world import SPEC, TABLE, CdcBed, alone
from tests.worlds.tables.customers_world import INCREMENTAL, PIPELINE, SNAPSHOT, CustomersBed, delete, upsert

LITERAL = CdcSpec(("id",), (), 0)
BY_TIME = edited(
    PIPELINE,
    (
        '.where("operation IS NOT NULL")',
        '.where("operation IS NOT NULL").selectExpr("* EXCEPT (sequenceNum)",'
        ' "timestamp_seconds(sequenceNum) AS sequenceNum")',
    ),
)
INFERRED = edited(
    BY_TIME,
    ("operation STRING, sequenceNum BIGINT", ""),
    ('    schema="customer_id INT, name STRING, email STRING, city STRING, ",\n', ""),
    ("customer_id INT", "customer_id BIGINT"),
)


@pytest.fixture
def customers(tmp_path: Path, spark: SparkSession) -> CustomersBed:
    return CustomersBed.make(tmp_path / "a bed", spark, BY_TIME)


def test_a_snapshot_that_comes_first_makes_the_table_as_the_changes_are_ordered(
    customers: CustomersBed,
) -> None:
    customers.take_snapshot(1, 2, 3)
    assert customers.run(SNAPSHOT) is Outcome.DONE
    customers.change(upsert(1, 5), delete(2, 6))
    assert customers.run(INCREMENTAL) is Outcome.STOPPED
    customers.is_exact()


@pytest.mark.long
def test_a_snapshot_waits_while_nobody_can_say_how_the_changes_are_ordered(
    customers: CustomersBed, capsys: pytest.CaptureFixture[str]
) -> None:
    customers.declare(INFERRED)
    customers.take_snapshot(1, 2, 3)
    assert customers.run(SNAPSHOT) is Outcome.STOPPED
    said = (
        f"which cannot be told: {INCREMENTAL} has nothing to read in {customers.root}/data/customers/cdc."
        " Waiting until"
    )
    assert said in capsys.readouterr().out
    assert not Path(customers.table).exists()
    assert generations.finished(customers.home(SNAPSHOT)) is None
    customers.change(upsert(1, 5), delete(2, 6))
    assert customers.run(SNAPSHOT) is Outcome.DONE
    assert customers.run(INCREMENTAL) is Outcome.STOPPED
    customers.is_exact()


@pytest.mark.long
def test_a_snapshot_says_that_it_waits_for_changes_whose_flow_cannot_run(
    customers: CustomersBed, capsys: pytest.CaptureFixture[str]
) -> None:
    customers.declare(BY_TIME.replace('sequence_by="sequenceNum"', 'sequence_by="seq"'))
    customers.take_snapshot(1)
    assert customers.run(SNAPSHOT) is Outcome.STOPPED
    assert (
        f"{INCREMENTAL} cannot run (sequence_by names the column seq, which is not there"
        in capsys.readouterr().out
    )
    assert not Path(customers.table).exists()


ORDERS = {
    "a timestamp": "at TIMESTAMP",
    "a timestamp without a time zone": "at TIMESTAMP_NTZ",
    "a date": "at DATE",
    "text": "at STRING",
    "a decimal": "at DECIMAL(10, 2)",
    "a double": "at DOUBLE",
    "a small number": "at SMALLINT",
    "a number": "at INT",
    "several columns": "at TIMESTAMP, n INT",
}


@pytest.mark.parametrize("columns", long_after(3, ORDERS.values()), ids=ORDERS)
def test_any_literal_that_is_allowed_fits_the_type_and_no_other_is_allowed(
    columns: str, spark: SparkSession, tmp_path: Path
) -> None:
    schema = StructType.fromDDL(f"id INT, {columns}")
    spec = CdcSpec(("id",), tuple(schema.fieldNames()[1:]))
    order = sequence_type(schema, spec)
    bed = CdcBed(spark, tmp_path)
    least, most = whole_numbers(order)
    one, other = whole_number(least, order), whole_number(most, order)
    assert spark.range(1).select(F.isnotnull(one) & F.isnotnull(other) & (one != other)).collect()[0][0]
    for number in {least - 1, most + 1} - {-(2**63) - 1, 2**63}:
        with pytest.raises(
            DeclarationError, match=rf"sequence_by is the literal {number}. Allowed are {least} to {most}"
        ):
            make(bed, replace(LITERAL, sequence_literal=number), order)
    assert list(tmp_path.iterdir()) == [], "nothing was changed"
    make(bed, LITERAL, order)
    check_target(spark, schema, spec, bed.path, TABLE)


def make(bed: CdcBed, spec: CdcSpec, order: DataType) -> None:
    prepare(bed.spark, StructType.fromDDL("id INT"), spec, bed.path, TABLE, alone, order)


def test_a_literal_that_does_not_fit_the_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    schema = "id INT, at INT, op STRING"
    CdcBed(spark, tmp_path, SPEC, schema).prepare()
    with pytest.raises(
        DeclarationError, match="is ordered by int, and sequence_by is the literal 5000000000"
    ):
        CdcBed(spark, tmp_path, replace(LITERAL, sequence_literal=5_000_000_000), "id INT").prepare()
