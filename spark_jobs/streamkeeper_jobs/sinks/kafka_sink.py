"""Writes each batch to Kafka, each row with headers that tell a reader a repeat.

Kafka does not know which rows of a batch it has: after a kill the batch is written again, whole. So a row
says which it is: its flow, generation and batch, the hash of its content, and which of equal rows it is. A
number by place would be another row's the next time, where a shuffle changed the order.
:func:`streamkeeper.readers.drop_repeats` drops what came twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from streamkeeper.declare.model import Table
from streamkeeper.errors import DeclarationError
from streamkeeper.readers import BATCH, FLOW, GENERATION, ROW

_TEXTS = (StringType(), BinaryType())
_HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
_COLUMNS: Mapping[str, tuple[DataType, ...]] = {
    "value": _TEXTS,
    "key": _TEXTS,
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "headers": (_HEADERS,),
}
"""Columns that Kafka takes, and their types (Spark's KafkaWriter)."""
_ORDER, _PLACE, _CONTENT = (f"__streamkeeper_{name}" for name in ("order", "place", "content"))


def check_rows(table: Table, columns: StructType) -> None:
    """Check that rows can be written to Kafka.

    :raises DeclarationError: a column is missing, unknown, or of another type.
    """
    subject = f"{table.location}: the Kafka sink {table.name}"
    names = columns.fieldNames()
    if "value" not in names:
        raise DeclarationError(
            f"{subject} gets no column value, only {', '.join(names)}. Return one, such as"
            " F.to_json(F.struct('*')).alias('value')."
        )
    if unknown := [name for name in names if name not in _COLUMNS]:
        raise DeclarationError(
            f"{subject} gets the column {unknown[0]}, which Kafka has not, and it would be lost. Allowed are"
            f" {', '.join(_COLUMNS)}: put it into value, such as by F.to_json(F.struct(…))."
        )
    for field in columns:
        allowed = _COLUMNS[field.name]
        if all(field.dataType.simpleString() != kind.simpleString() for kind in allowed):
            raise DeclarationError(
                f"{subject} gets {field.name} as {field.dataType.simpleString()}. Allowed is"
                f" {' or '.join(kind.simpleString() for kind in allowed)}: cast it."
            )
    has_option = "topic" in {name.lower() for name in table.properties}
    if has_option == ("topic" in names):
        problem = "both a topic and a column topic" if has_option else "neither a topic nor a column topic"
        raise DeclarationError(
            f"{subject} has {problem}. Give the option topic, or a column topic, and not both."
        )


def write(rows: DataFrame, options: Mapping[str, str], flow: str, generation: int, batch: int) -> None:
    """Write a batch, in the order of its rows where they have the same key.

    :param options: of the sink, filled in.
    :param flow: its full name.
    """
    key = F.col("key").cast("binary") if "key" in rows.columns else F.lit(None).cast("binary")
    destination = [F.col(name).cast("string") for name in ("topic", "partition") if name in rows.columns]
    parts = (key, F.col("value").cast("binary"))
    content = F.sha2(
        F.concat_ws(".", *destination, *(F.coalesce(F.base64(part), F.lit("-")) for part in parts)), 256
    )
    numbered = rows.withColumn(_ORDER, F.monotonically_increasing_id()).withColumn(_CONTENT, content)
    placed = numbered.withColumn(_PLACE, F.coalesce(F.base64(key), F.col(_CONTENT)))
    # One shuffle for both, by key: rows of a key stay in one task, and so in their order.
    at_once = rows.sparkSession.sparkContext.defaultParallelism
    equal = Window.partitionBy(_PLACE, _CONTENT).orderBy(_ORDER)
    row = F.concat_ws(".", F.col(_CONTENT), F.row_number().over(equal))
    ours = F.array(
        _header(FLOW, F.lit(flow)),
        _header(GENERATION, F.lit(str(generation))),
        _header(BATCH, F.lit(str(batch))),
        _header(ROW, row),
    )
    own = F.coalesce(F.col("headers"), F.array().cast(_HEADERS)) if "headers" in rows.columns else None
    headers = ours if own is None else F.concat(own, ours)
    written = (
        placed.repartition(at_once, _PLACE)
        .withColumn("headers", headers)
        .sortWithinPartitions(_ORDER)
        .drop(_ORDER, _PLACE, _CONTENT)
    )
    written.write.format("kafka").options(**options).save()


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
