"""Readers of what a flow's Kafka sink wrote: which rows came twice is told by their headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FLOW, GENERATION, BATCH, ROW = (f"streamkeeper.{name}" for name in ("flow", "generation", "batch", "row"))
"""Headers of each row: the flow's full name, its generation, the batch, and the row's name in that batch. The
last is the hash of its content, and which of equal rows it is.
"""
_ID = "__streamkeeper_id"


def drop_repeats(rows: DataFrame, within: str = "1 day") -> DataFrame:
    """Return the rows of a Kafka source without those that a flow's sink wrote a second time.

    A batch comes twice if the driver that wrote it died before its end was noted. Rows of other producers
    pass. Rows that a recovery reads and writes again have another generation: they pass, too, and its plan
    counts them.

    :param rows: of Spark's Kafka source with the option ``includeHeaders``, as a stream or at rest.
    :param within: of a stream, for how long a row is remembered, such as ``1 hour``: longer than a flow may
        stand still in the middle of a batch. A row that comes so much later than others is dropped.
    :raises ValueError: the rows have no headers.
    """
    if "headers" not in rows.columns:
        raise ValueError(
            f"The rows have the columns {', '.join(rows.columns)}, and no headers. Read them with the option"
            " includeHeaders."
        )
    named = rows.withColumn(_ID, _identity())
    if not rows.isStreaming:
        return named.dropDuplicates([_ID]).drop(_ID)
    return named.withWatermark("timestamp", within).dropDuplicatesWithinWatermark([_ID]).drop(_ID)


def _identity() -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - only a reader needs Spark

    def told(name: str) -> Column:
        return F.filter("headers", lambda header: header["key"] == name).getItem(0)["value"].cast("string")

    place = F.concat_ws("/", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))
    ours = F.concat_ws("/", *(told(name) for name in (FLOW, GENERATION, BATCH, ROW)))
    return F.when(told(ROW).isNull(), place).otherwise(ours)
