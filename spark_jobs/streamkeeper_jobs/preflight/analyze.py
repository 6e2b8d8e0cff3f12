"""A flow's query planned on sources without rows: what a pull request wants to know before anything runs.

No checkpoint, no table and no broker is needed. A files source with a schema is an empty folder; one without
a schema takes that of the files that are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streamkeeper.declare.model import Source
from streamkeeper.drivers.failures import classify
from streamkeeper.errors import SettingsError, SourceError, StorageError, StreamkeeperError
from streamkeeper.manifest.environment import opened_flow, opened_if_possible
from streamkeeper.manifest.manifest import Flow
from streamkeeper.preflight.verdict import Fit, Verdict
from streamkeeper.settings import Settings
from streamkeeper_jobs.preflight.dry_run import DoesNotFit, plan_query, session_of
from streamkeeper_jobs.spark.exceptions import causes_of
from streamkeeper_jobs.stream.readers import is_empty, is_there


def analyze(spark: SparkSession, settings: Settings, flow: Flow, empty: Path) -> Verdict:
    """Plan a flow's query, and check its expectations, its output mode and, if it is there, its table.

    :param flow: as imported, functions included.
    :param empty: a folder without files.
    """
    verdict = Verdict(flow.full_name, Fit.GOES_ON, ("Spark plans it.",))
    where = flow.declaration.where
    try:
        opened = opened_flow(flow, settings, opened_if_possible)
        awaited = tuple(_awaited(spark, opened))
        if awaited:
            return replace(verdict, fit=Fit.UNDEFINED, why=awaited)
        plan_query(session_of(spark, flow), settings, _without_rows(opened, empty), {})
    except PySparkException as error:
        said = DoesNotFit(classify(causes_of(error))).said()
        return replace(verdict, fit=Fit.BREAKS, why=(f"{where}: Spark says {said}",))
    except (SourceError, StorageError, SettingsError) as error:
        return replace(verdict, fit=Fit.UNDEFINED, why=(str(error), "It may pass: run it again."))
    except StreamkeeperError as error:
        return replace(verdict, fit=Fit.BREAKS, why=(str(error),))
    return verdict


def _without_rows(flow: Flow, empty: Path) -> Flow:
    """Return a flow whose files sources with a schema read an empty folder."""

    def emptied(source: Source) -> Source:
        return replace(source, path=str(empty)) if source.reads_files and source.schema else source

    sources = tuple(map(emptied, flow.pipeline.sources))
    return replace(flow, pipeline=replace(flow.pipeline, sources=sources))


def _awaited(spark: SparkSession, flow: Flow) -> Iterator[str]:
    """Yield the sources whose schema nobody knows yet."""
    for source in flow.pipeline.sources_of(flow.declaration):
        if source.reads_files and source.schema is None and is_empty(source):
            yield (
                f"{source.where}: the source {source.name} declares no schema, and {source.path} has no file"
                " to infer it from. Declare a schema, or analyze where files are."
            )
        elif source.kind.table and not is_there(spark, source):
            yield f"{source.where}: the source {source.name} reads {source.path}, and there is no table yet."
