"""The sources of a flow as Spark reads them, and their schemas where none is declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from streamkeeper.declare.model import Source
from streamkeeper.sources.files.listing import iterate_files
from streamkeeper.sources.starts import starts_of
from streamkeeper_jobs.spark.jvm import classes
from streamkeeper_jobs.spark.session import spark_url

_NOTHING_THERE = ("UNABLE_TO_INFER_SCHEMA", "PATH_NOT_FOUND")


def read_stream(
    spark: SparkSession, source: Source, schemas: Mapping[str, str], checkpoint: str | None = None
) -> DataFrame:
    """Open a source as a stream under its own name.

    :param source: opened (:mod:`streamkeeper.manifest.environment`).
    :param schemas: DDL strings by source name, for sources that declare none.
    :param checkpoint: the path or URL of the stream's checkpoint; without one, no log of schemas is used.
    """
    reader = spark.readStream.format(source.format).options(**source.options).name(source.name)
    reader = reader.options(**starts_of(source).reader_options(source))
    if source.track_schema and checkpoint is not None:
        reader = reader.option("schemaTrackingLocation", f"{spark_url(checkpoint)}/sources/{source.name}")
    schema = source.schema or schemas.get(source.name)
    if schema is not None:
        reader = reader.schema(schema)
    if not source.reads_files:
        return reader.load() if source.path is None else reader.load(spark_url(source.path))
    opened = reader.load(spark_url(str(source.path)))
    return DataFrame(classes(spark)("streamkeeper.sources.Files").of(opened._jdf), spark)


def infer_schema(spark: SparkSession, source: Source) -> str | None:
    """Return a files source's schema in DDL, inferred from all present files; None if there are none."""
    assert source.path is not None, "only files sources are inferred"
    try:
        schema = (
            spark.read.format(source.format).options(**source.options).load(spark_url(source.path)).schema
        )
    except AnalysisException as error:
        if str(error.getCondition()) in _NOTHING_THERE:
            return None
        raise
    return schema.toDDL() if schema.fields else None


def is_there(spark: SparkSession, source: Source) -> bool:
    """Return whether the folder or table of a source exists; a stream of a missing one cannot be started."""
    exists = starts_of(source).is_there(source)
    if exists is not None or source.path is None:
        return exists is not False
    path, file_system = hadoop_path(spark, source.path)
    return bool(file_system.globStatus(path))


def is_empty(source: Source) -> bool:
    """Return whether a files source has no file yet."""
    return next(iterate_files(source), None) is None


def base_url(spark: SparkSession, source: Source) -> str:
    """Return the folder of a files source as the entries of the files log begin, with a ``/`` at its end."""
    assert source.path is not None, "only files sources have a folder"
    path, file_system = hadoop_path(spark, source.path)
    return str(file_system.makeQualified(path).toUri().toString()).rstrip("/") + "/"


def hadoop_path(spark: SparkSession, location: str) -> tuple[Any, Any]:
    """Return a location as Hadoop's ``Path``, and its file system."""
    java = classes(spark)
    path = java("org.apache.hadoop.fs.Path")(spark_url(location))
    return path, path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
