"""A target of AUTO CDC to try changes on, in a folder of its own, and batches made of plain rows."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType
from streamkeeper_jobs.cdc import Step, apply_changes, prepare
from streamkeeper_jobs.cdc.columns import layout_by
from streamkeeper_jobs.cdc.remembered import rows_of
from streamkeeper_jobs.cdc.replace_rows import opened
from streamkeeper_jobs.spark.session import with_settings

from streamkeeper.declare.cdc_spec import BOOKKEEPING, CdcSpec
from streamkeeper.declare.model import Location, Table
from tests.cdc_oracle import DELETE, TRUNCATE, Change

SPEC = CdcSpec(
    keys=("id",),
    sequence_by=("at",),
    apply_as_deletes="op = 'D'",
    apply_as_truncates="op = 'T'",
    except_column_list=("op", "at"),
)
VERSIONS = replace(SPEC, scd_type=2, apply_as_truncates=None)
SCHEMA = "id INT, at BIGINT, op STRING, name STRING, city STRING"
TABLE = Table("customers", None, {}, (), Location("customers.py", 1))
WITHOUT_VECTORS = replace(TABLE, properties={"delta.enableDeletionVectors": "false"})


_TARGET_COMMITS = (
    "replace_rows._merge",
    "scd1.merging",
)
"""What a batch calls last before the commit of its step, each in the module that calls it."""


class Killed(Exception):
    """Stands for the end of the process between two commits."""


@contextmanager
def alone() -> Iterator[None]:
    """Give the lock to the only writer."""
    yield


@contextmanager
def killed_before_the_target() -> Iterator[None]:
    """Let the batch that is applied inside the block die right before it is committed."""

    def die(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        for place in _TARGET_COMMITS:
            patched.setattr(f"streamkeeper_jobs.cdc.{place}", die)
        yield


@dataclass
class CdcBed:
    """One target, written by flows that need not have the same declaration."""

    spark: SparkSession
    root: Path
    spec: CdcSpec = SPEC
    schema: str = SCHEMA
    query_id: str = "first-generation"
    batches: int = field(default=0, init=False)

    @property
    def path(self) -> str:
        return str(self.root / "customers")

    @property
    def columns(self) -> StructType:
        return StructType.fromDDL(self.schema)

    def prepare(self, table: Table = TABLE) -> CdcBed:
        prepare(self.spark, self.columns, self.spec, self.path, table, alone)
        return self

    def frame(self, rows: Iterable[Sequence[Any]]) -> DataFrame:
        return self.spark.createDataFrame([tuple(row) for row in rows], self.columns)

    def apply(self, *rows: Sequence[Any], batch: int | None = None) -> int:
        """Apply one batch, the next one by default, and give its number."""
        number = self.batches if batch is None else batch
        self.batches = max(self.batches, number + 1)
        apply_changes(self.frame(rows), self.spec, self.path, Step(self.query_id, number), alone)
        return number

    def table(self) -> DataFrame:
        return self.spark.read.format("delta").load(self.path)

    def remembered(self) -> DataFrame:
        """Give all that the table remembers beside its rows."""
        return all_remembered(self.spark, self.path)

    def rows(self) -> list[dict[str, Any]]:
        """Give the table's rows without the bookkeeping, in an order of their own."""
        found = [plain(row) for row in self.table().drop(BOOKKEEPING).collect()]
        return in_order(found)

    def versions(self) -> int:
        return int(self.spark.sql(f"DESCRIBE HISTORY delta.`{self.path}`").count())


def optimized(bed: CdcBed) -> None:
    bed.spark.sql(f"OPTIMIZE delta.`{bed.path}`")


def vacuumed(bed: CdcBed) -> None:
    with with_settings(bed.spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
        bed.spark.sql(f"VACUUM delta.`{bed.path}` RETAIN 0 HOURS")


def cleaned_log(bed: CdcBed) -> None:
    """Leave of the log its last checkpoint and the newest commit."""
    opened(bed.spark, bed.path).transaction.deltaLog().checkpoint()
    for commit in sorted(Path(bed.path, "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()


def cloned(bed: CdcBed) -> None:
    shutil.rmtree(bed.root / "clone", ignore_errors=True)
    bed.spark.sql(f"CREATE OR REPLACE TABLE delta.`{bed.root}/clone` SHALLOW CLONE delta.`{bed.path}`")


DONE_BY_OTHERS = (optimized, vacuumed, cleaned_log, cloned)
"""What others may do to a table between batches, without harm to what it remembers."""


def all_remembered(spark: SparkSession, path: str) -> DataFrame:
    """Give all that a table remembers beside its rows."""
    target = opened(spark, path)
    return rows_of(spark, path, layout_by(target.schema, target.properties), target.remembered)


def plain(value: Any) -> Any:
    """Give a row, and every row in it, as a dict."""
    return {name: plain(item) for name, item in value.asDict().items()} if isinstance(value, Row) else value


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort rows by what they look like, so that two lists can be compared."""
    return sorted(rows, key=repr)


def change(
    row: Sequence[Any], columns: Sequence[str], stored: Sequence[str], keys: Sequence[str] = ("id",)
) -> Change:
    """Read a row of the bed's source (``op`` and ``at`` among its columns) as the oracle's change."""
    values = dict(zip(columns, row, strict=True))
    kind = {"D": DELETE, "T": TRUNCATE}.get(values["op"], "upsert")
    return Change(
        kind, tuple(values[key] for key in keys), values["at"], {name: values[name] for name in stored}
    )
