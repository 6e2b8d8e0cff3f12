"""Object stores as Spark writes to them: what a driver checks before it writes there."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from streamkeeper.errors import StorageError
from streamkeeper.settings import is_s3
from streamkeeper_jobs.spark.jvm import classes
from streamkeeper_jobs.spark.session import spark_url


def check_conditional_writes(session: SparkSession, *locations: str) -> None:
    """Check that the stores on S3 refuse a second conditional PUT, as commits of Delta's log and of
    checkpoints need. Locations elsewhere are not looked at.

    :raises StorageError: one does not, or cannot be written.
    """
    for location in filter(is_s3, locations):
        conf = session._jsc.hadoopConfiguration()
        try:
            classes(session)("streamkeeper.storage.ConditionalStream").prove(spark_url(location), conf)
        except Py4JJavaError as error:
            reason = error.java_exception.toString()
            raise StorageError(
                f"Spark cannot write to {location} exactly: {reason} Check the settings"
                " spark.hadoop.fs.s3a.…, the login, and that STREAMKEEPER_JARS has the jars of `make"
                " s3-jars`."
            ) from error
