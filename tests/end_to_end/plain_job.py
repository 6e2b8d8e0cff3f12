"""A Spark job as people write them who know nothing of Streamkeeper: ``python plain_job.py JARS FILES TABLE
CHECKPOINT``.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(jars: str, files: str, table: str, checkpoint: str) -> None:
    """Read all files that are there into a Delta table, each id once."""
    builder = SparkSession.builder.master("local[2]").config("spark.driver.extraClassPath", f"{jars}/*")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config(
        "spark.sql.shuffle.partitions", "2"
    )
    builder = builder.config(
        "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    )
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    rows = spark.readStream.schema("id INT, name STRING").json(files).dropDuplicates(["id"])
    query = (
        rows.writeStream.format("delta")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(table)
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
