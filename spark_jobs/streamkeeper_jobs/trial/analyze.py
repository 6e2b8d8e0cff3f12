"""A flow's query planned on sources without rows: what a pull request wants to know before anything runs.

No checkpoint, no table and no broker is needed. A files source with a schema is an empty folder; one without
a schema takes that of the files that are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from streamkeeper.declare.driver import heap_note
from streamkeeper.declare.model import Source
from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.environment import opened_flow, opened_if_possible
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper.tables.by_path import check_by_path
from streamkeeper.trial.verdict import Compatibility, Verdict
from streamkeeper_jobs.catalog.named_sources import looked_up
from streamkeeper_jobs.catalog.registration import check_names
from streamkeeper_jobs.stream.data_frame import frames_of
from streamkeeper_jobs.stream.given_state import given_frame
from streamkeeper_jobs.stream.readers import is_empty, is_there, read_stream
from streamkeeper_jobs.trial.trial import DoesNotFit, judged, plan_query, schemas_of, session_of

MOST_GIVEN = 1_000
"""Rows of an initial state that are given to a query's code at most, to try it."""
_IN_STATE = re.compile(r'File ".*", line (\d+), in (handleInitialState|init)$')
_RAISED = re.compile(r"[\w.]+(Error|Exception): ")


def analyze(spark: SparkSession, settings: Settings, flow: Flow, empty: Path) -> Verdict:
    """Plan a flow's query, and check its expectations, its output mode and, if it is there, its table. What
    takes its initial state is run.

    :param flow: as imported, functions included.
    :param empty: a folder without files.
    """
    verdict = Verdict(flow.full_name, Compatibility.COMPATIBLE, ("Spark plans it.",))

    def refused(refusal: DoesNotFit, verdict: Verdict) -> Verdict:
        reason = f"{flow.declaration.location}: Spark says {refusal.message()}"
        return replace(verdict, compatibility=Compatibility.INCOMPATIBLE, reasons=(reason,))

    return judged(verdict, lambda: _planned(spark, settings, flow, empty, verdict), refused)


def _planned(spark: SparkSession, settings: Settings, flow: Flow, empty: Path, verdict: Verdict) -> Verdict:
    opened = looked_up(spark, opened_flow(flow, settings, opened_if_possible))
    check_by_path(settings, opened)
    check_names(spark, settings, opened)
    awaited = tuple(_awaited(spark, opened))
    if awaited:
        return replace(verdict, compatibility=Compatibility.UNKNOWN, reasons=awaited)
    session, without_rows = session_of(spark, flow), _without_rows(opened, empty)
    frame = plan_query(session, settings, without_rows, {})
    _give_initial_state(session, without_rows)
    note = heap_note(flow.declaration, len(frame.columns))
    if note is None:
        return verdict
    return replace(verdict, compatibility=Compatibility.RESULTS_DIFFER, reasons=(note,))


def _give_initial_state(spark: SparkSession, flow: Flow) -> None:
    """Run a flow's query as a batch that has no rows but those of its initial state, into nowhere.

    :raises DeclarationError: the code of its state raises.
    """
    initial_state, declared = flow.declaration.initial_state, flow.declaration
    if initial_state is None:
        return
    schemas = schemas_of(spark, flow, {})
    frames = frames_of(
        flow,
        lambda source: spark.createDataFrame([], read_stream(spark, source, schemas).schema),
        lambda state: given_frame(spark, state).limit(MOST_GIVEN),
    )
    try:
        frames[declared.name].write.format("noop").mode("overwrite").save()
    except PythonException as error:
        lines = [line.strip() for line in str(error).splitlines()]
        at = [match for line in lines if (match := _IN_STATE.match(line))]
        line = f" (line {at[-1][1]}, in {at[-1][2]})" if at else ""
        raised = next((line for line in reversed(lines) if _RAISED.match(line)), lines[0])
        columns = given_frame(spark, initial_state).schema.toDDL()
        raise DeclarationError(
            f"{declared.location}: the flow {declared.name}, given the initial state {initial_state.name},"
            f" raises {raised}{line}. Allowed are its columns: {columns}. Correct the code, or the initial"
            f" state ({initial_state.location})."
        ) from error


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
                f"{source.location}: the source {source.name} declares no schema, and {source.path} has no"
                " file to infer it from. Declare a schema, or analyze where files are."
            )
        elif source.kind.table and not is_there(spark, source):
            yield (
                f"{source.location}: the source {source.name} reads {source.path}, and there is no table yet."
            )
