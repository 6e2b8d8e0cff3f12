"""The query of the benchmarks as anyone would write it by hand, without Streamkeeper: the thing to compare
with.

``spark-submit bare_query.py EVENTS TABLE CHECKPOINT FILES_PER_TRIGGER VIEW [TRIGGER]``, where VIEW is
``dedupe`` or ``plain``. Without a TRIGGER such as ``2 seconds`` it processes what is there, then ends.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

SCHEMA = "event_id STRING, user_id INT, kind STRING, amount DOUBLE, event_time TIMESTAMP"


def main() -> None:
    """Run the query over what is there, then end; or, with a trigger, for ever."""
    events, table, checkpoint, files, view, *trigger = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    rows = spark.readStream.format("json").schema(SCHEMA).option("maxFilesPerTrigger", files).load(events)
    if view == "dedupe":
        rows = rows.dropDuplicates(["event_id"])
    writer = rows.writeStream.format("delta").outputMode("append").option("checkpointLocation", checkpoint)
    writer = writer.trigger(processingTime=trigger[0]) if trigger else writer.trigger(availableNow=True)
    writer.start(table).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
