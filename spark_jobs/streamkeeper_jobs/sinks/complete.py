"""The table of a complete flow: each batch replaces it as a whole, so it must be known to be its own."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from streamkeeper.declare.model import Table
from streamkeeper.delta import log as delta_log
from streamkeeper.errors import DeclarationError
from streamkeeper_jobs.spark.delta_commit import table_at, table_properties
from streamkeeper_jobs.spark.delta_table import ensure_table
from streamkeeper_jobs.spark.frames import quoted
from streamkeeper_jobs.spark.session import spark_url

REPLACED_PROPERTY = "streamkeeper.replacedByEachBatch"
"""Table property of a complete flow's table."""


def make_replaceable(spark: SparkSession, path: str, table: Table, schema: StructType, adopted: bool) -> None:
    """Create a complete flow's table, or let an empty one be it; ``adopted``: the plan said that it is one.

    :raises DeclarationError: it has rows of something else, which the first batch would remove.
    """
    if not delta_log.exists(path):
        own = {**table.properties, REPLACED_PROPERTY: "true"}
        ensure_table(spark, path, replace(table, properties=own), schema, by_batch=False)
        return
    if not adopted:
        check_may_be_replaced(spark, path, table)
    if REPLACED_PROPERTY not in table_properties(table_at(spark, path)):
        spark.sql(
            f"ALTER TABLE delta.{quoted(spark_url(path))} SET TBLPROPERTIES ('{REPLACED_PROPERTY}' = 'true')"
        )


def check_may_be_replaced(spark: SparkSession, path: str, table: Table) -> None:
    """Check that an existing table is a complete flow's, or empty.

    :raises DeclarationError: it is neither.
    """
    if not delta_log.exists(path) or REPLACED_PROPERTY in table_properties(table_at(spark, path)):
        return
    if not spark.read.format("delta").load(spark_url(path)).isEmpty():
        raise DeclarationError(
            f"{table.location}: the table {table.name} is there, and no complete flow made it: the first"
            " batch would"
            " remove its rows. Nothing was changed. Declare another table, or empty this one (full_refresh)."
        )
