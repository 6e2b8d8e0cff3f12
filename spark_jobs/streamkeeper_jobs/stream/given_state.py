"""The initial state of a flow, as Spark reads it, and what of it a generation records.

Spark hands it to the query's own code in batch 0, and in no other (measured with Spark 4.2.0). A batch 0 that
is repeated must read the same rows. So the table's version is recorded before it, in the generation's start.
A query beyond batch 0 is given no rows, and needs their table no more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import from_json
from pyspark.sql.types import StructType

from streamkeeper.declare.model import AppendFlow, GivenState
from streamkeeper.delta import log as delta_log
from streamkeeper.errors import DeclarationError
from streamkeeper.flows.generations import INITIAL_STATE
from streamkeeper.manifest.manifest import Flow
from streamkeeper_jobs.spark.exceptions import causes_of
from streamkeeper_jobs.spark.session import spark_url
from streamkeeper_jobs.spark.stateful_operators import keys_of_given_states

NAME_IN_PLAN = "initial_state"


def given_frame(spark: SparkSession, initial_state: GivenState) -> DataFrame:
    """Return the rows of an initial state.

    :param initial_state: with its table's path.
    :raises DeclarationError: a row does not fit the schema, there is no such table, or it has other columns.
    """
    return (_from_rows if initial_state.table is None else _from_table)(spark, initial_state).alias(
        NAME_IN_PLAN
    )


def _from_rows(spark: SparkSession, initial_state: GivenState) -> DataFrame:
    assert initial_state.schema is not None, "rows were declared with a schema"
    try:
        schema = _struct(initial_state.schema)
        texts = spark.createDataFrame([(json.dumps(row),) for row in initial_state.rows], "row STRING")
        rows = texts.select(from_json("row", schema, {"mode": "FAILFAST"}).alias("row")).select("row.*")
        return spark.createDataFrame(rows.collect() if initial_state.rows else [], schema)
    except (PySparkException, Py4JJavaError) as error:
        reason = causes_of(error)[-1].message.partition("\n")[0]
        raise DeclarationError(
            f"{initial_state.location}: the rows of the initial state {initial_state.name} do not fit"
            f" {initial_state.schema!r}: Spark says {reason} Correct the rows, or the schema."
        ) from error


def _from_table(spark: SparkSession, initial_state: GivenState) -> DataFrame:
    name, table = initial_state.name, initial_state.table
    subject = f"{initial_state.location}: the initial state {name} is of the table {table}"
    assert initial_state.path is not None, "the flow was opened"
    if not delta_log.exists(initial_state.path):
        raise DeclarationError(
            f"{subject}, and there is none at {initial_state.path}. Write it first, or name another table."
        )
    reader = spark.read.format("delta")
    if initial_state.version is not None:
        reader = reader.option("versionAsOf", initial_state.version)
    frame = reader.load(spark_url(initial_state.path))
    if initial_state.schema is None:
        return frame
    schema = _struct(initial_state.schema)
    table_types = {field.name: field.dataType for field in frame.schema.fields}
    misfits = [field for field in schema.fields if table_types.get(field.name) != field.dataType]
    if misfits:
        raise DeclarationError(
            f"{subject}, which has the columns {frame.schema.toDDL()}. Declared are"
            f" {initial_state.schema}: correct the schema, or the table."
        )
    return frame.select(*schema.names)


def _struct(ddl: str) -> StructType:
    struct = StructType.fromDDL(ddl)
    assert isinstance(struct, StructType), "columns are a struct"
    return struct


def recorded(spark: SparkSession, initial_state: GivenState) -> dict[str, Any]:
    """Return what the start of a generation records of an initial state: its table at the newest version.

    :param initial_state: with its table's path.
    :raises DeclarationError: see :func:`given_frame`.
    """
    version = None if initial_state.path is None else delta_log.latest_version(initial_state.path)
    columns = given_frame(spark, replace(initial_state, version=version)).schema.toDDL()
    return {"name": initial_state.name, "table": initial_state.table, "version": version, "columns": columns}


def as_recorded(spark: SparkSession, flow: Flow, evidence: Mapping[str, Any], *, spent: bool) -> Flow:
    """Return a flow whose initial state is that of a generation, as its start recorded it.

    :param evidence: of the start.
    :param spent: no row of it is given any more, as after batch 0.
    :raises DeclarationError: its columns are only known by a table, and that is gone.
    """
    initial_state, declared = flow.declaration.initial_state, flow.declaration
    if initial_state is None or not isinstance(declared, AppendFlow):
        return flow
    record = evidence.get(INITIAL_STATE) or {"table": None, "columns": None, "version": None}
    same = record["table"] == initial_state.table
    if spent:
        columns = initial_state.schema or (record["columns"] if same else None)
        initial_state = _without_rows(
            initial_state, columns or given_frame(spark, initial_state).schema.toDDL()
        )
    elif same:
        initial_state = replace(initial_state, version=record["version"])
    return replace(flow, declaration=replace(declared, initial_state=initial_state))


def _without_rows(initial_state: GivenState, columns: str) -> GivenState:
    return replace(initial_state, rows=(), table=None, path=None, schema=columns)


def check_handed_on(frame: DataFrame, flow: Flow) -> None:
    """Check that a flow's query begins with its initial state, and groups it as it groups its rows.

    Spark compares neither: with keys of other types no row would ever meet its state.

    :raises DeclarationError: it does not.
    """
    initial_state, declared = flow.declaration.initial_state, flow.declaration
    if initial_state is None:
        return
    keys = keys_of_given_states(frame)
    subject = f"{declared.location}: the flow {declared.name} takes the initial state {initial_state.name}"
    if not keys:
        raise DeclarationError(
            f"{subject}, and its query does not begin with it. Hand it to transformWithState(…,"
            " initialState=….groupBy(…)), or leave initial_state out."
        )
    for rows, state in keys:
        if rows != state:
            raise DeclarationError(
                f"{subject} and groups its rows by {', '.join(rows)}, but that by {', '.join(state)}. Group"
                " both by columns of the same types, in the same order."
            )
