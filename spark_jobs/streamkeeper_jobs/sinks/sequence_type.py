"""Sequence type of a new table whose creating flow has a literal `sequence_by`.

It is taken from the other flows of the table: which of them starts first is a race. A literal is compatible
with any type (docs/reference/auto-cdc-semantics.md), and no other type is compatible with a literal's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.types import DataType

from streamkeeper.declare.model import AutoCdcFlow
from streamkeeper.delta import log as delta_log
from streamkeeper.errors import DeclarationError, SettingsError
from streamkeeper.manifest.environment import opened_flow
from streamkeeper.redaction import redact_text
from streamkeeper_jobs.catalog.named_sources import looked_up
from streamkeeper_jobs.cdc.columns import check_spec, holds, sequence_type
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.stream.data_frame import flow_frame
from streamkeeper_jobs.stream.readers import infer_schema, is_there
from streamkeeper_jobs.stream.watch import NothingYet


def order_beside(job: Job, flow: AutoCdcFlow) -> DataType | None:
    """Return the type of the sequences in the table that a flow is about to create.

    None if the flow's own declaration determines it, or the table exists by now. While no other flow of the
    table can determine its type, for instance because its source is empty, this waits until one can, or has
    created the table.

    :raises NothingYet: none can yet, and the driver was not to wait.
    """
    writers = [
        other
        for other in job.flow.pipeline.flows
        if isinstance(other, AutoCdcFlow) and other.target == flow.target
    ]
    ordered = [other for other in writers if other.spec.sequence_by]
    if flow.spec.sequence_literal is None or not ordered:
        return None
    reported = ""
    while not delta_log.exists(job.table_path):
        orders = [_order_of(job, other) for other in ordered]
        types = [item for item in orders if isinstance(item, DataType)]
        if types:
            return reduce(lambda one, other: other if holds(other, one) else one, types)
        reasons = "; ".join(f"{other.name} {item}" for other, item in zip(ordered, orders, strict=True))
        if reasons != reported:
            say(
                f"{flow.target} is not there yet, and its sequences have the type that its ordered flows give"
                f" them, which cannot be told: {reasons}. Waiting until it can, or until one of them has made"
                " the table."
            )
            reported = reasons
        if job.available_now:
            raise NothingYet
        job.watch.wait(job.settings.look_interval)
    return None


def _order_of(job: Job, flow: AutoCdcFlow) -> DataType | str:
    """Return the type of another flow's sequences, or the reason why it cannot be determined."""
    try:
        theirs = looked_up(job.spark, opened_flow(replace(job.flow, declaration=flow), job.settings))
        schemas = {}
        for source in theirs.pipeline.sources_of(flow):
            if not is_there(job.spark, source):
                return f"waits for {source.path}"
            if source.reads_files and source.schema is None:
                schema = infer_schema(job.spark, source)
                if schema is None:
                    return f"has nothing to read in {source.path}"
                schemas[source.name] = schema
        columns = flow_frame(job.spark, theirs, schemas).schema
        check_spec(columns, flow.spec)
        return sequence_type(columns, flow.spec)
    except (DeclarationError, SettingsError, PySparkException, Py4JJavaError) as error:
        first = str(error).strip().partition("\n")[0]
        return f"cannot run ({redact_text(first)})"
