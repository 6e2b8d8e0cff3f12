"""Sessions whose catalog is a Hive metastore on Derby, in the memory of the one JVM that all tests have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession

from streamkeeper.declare.driver import CATALOG, HIVE, OURS

_SETTINGS = {
    CATALOG: HIVE,
    "spark.sql.catalog.spark_catalog": OURS["spark.sql.catalog.spark_catalog"],
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:names;create=true",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
}


def hive_session(spark: SparkSession, warehouse: str, **settings: str) -> SparkSession:
    """Return a session with a catalog of its own kind, and a client of its own.

    :param settings: further ones, with ``__`` for each dot.
    """
    jvm: Any = spark._jvm
    options = jvm.java.util.HashMap()
    more = {name.replace("__", "."): value for name, value in settings.items()}
    for name, value in {**_SETTINGS, "spark.sql.warehouse.dir": warehouse, **more}.items():
        options.put(name, value)
    classic = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
    return SparkSession(spark.sparkContext, classic(spark.sparkContext._jsc.sc(), options))


@contextmanager
def opened_by_drivers(hive: SparkSession) -> Iterator[None]:
    """Let drivers of this process open a session, instead of the one that other tests share."""
    with patch.object(SparkSession, "_instantiatedSession", hive):
        yield


def raw_columns(hive: SparkSession, name: str) -> list[tuple[str, str, str | None]]:
    """Return the columns of a table as the metastore itself has them: name, type, comment."""
    external: Any = hive._jsparkSession.sessionState().catalog().externalCatalog()
    client = external.unwrapped().client().clientLoader().cachedHive().getMSC()
    entry = client.getTable(*name.split("."))
    return [(one.getName(), one.getType(), one.getComment()) for one in entry.getSd().getCols()]
