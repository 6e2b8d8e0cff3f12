"""Expectations of a flow in the pass that writes its rows: each is counted, and fails, drops or sets aside.

The counts are metrics that Spark observes: they come with the query's progress. A flow that sets rows aside
writes two tables a batch, the quarantine first, each once under the generation's query id. A batch that was
killed between the two is repeated: the target gets it then, and the quarantine keeps or replaces what it has
of it (docs/decisions/0044).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructType

from streamkeeper.declare.model import DROP, FAIL, AnyFlow, Expectation, Table, quarantine_of
from streamkeeper.delta import log as delta_log
from streamkeeper.drivers.failures import EXPECTATION_FAILED
from streamkeeper.errors import DeclarationError
from streamkeeper.flows.generations import Generation
from streamkeeper_jobs.catalog.registration import register
from streamkeeper_jobs.spark.delta_commit import table_at
from streamkeeper_jobs.spark.delta_table import ensure_table, last_written, shut_out
from streamkeeper_jobs.spark.frames import column
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.spark.session import spark_url

if TYPE_CHECKING:
    from streamkeeper_jobs.sinks.job import Job

OBSERVED = "streamkeeper_expectations"
_PASSED, _FAILED, _ROWS = "__streamkeeper_passed_", "__streamkeeper_failed", "rows"
_MOST_OF_ROW = 2000
"""Characters of a row in the reason of a park."""

SET_ASIDE = (
    StructType()
    .add("flow", "string")
    .add("generation", "integer")
    .add("batch", "long")
    .add("failed", ArrayType(StringType()))
    .add("row", "string")
    .add("at", "timestamp")
)
"""Columns of a quarantine table. ``row`` is JSON, so that a changed flow can still write to it."""


def check(frame: DataFrame, flow: AnyFlow) -> None:
    """Check the conditions of a flow's expectations against its rows.

    :raises DeclarationError: a condition does not parse, does not fit the columns, or is no truth value.
    """
    for item in flow.expectations:
        subject = f"{item.location}: the expectation {item.name!r} of the flow {flow.name} has the condition"
        allowed = (
            "Allowed is a condition in SQL over one row, such as 'id IS NOT NULL', over the columns"
            f" {', '.join(frame.columns)}. Correct it."
        )
        try:
            dtype = frame.select(F.expr(item.condition).alias("met")).schema["met"].dataType
            frame.where(F.expr(item.condition)) if isinstance(dtype, BooleanType) else None
        except (AnalysisException, ParseException) as error:
            reason = str(error).strip().partition("\n")[0]
            raise DeclarationError(
                f"{subject} {item.condition!r}, which Spark refuses: {reason} {allowed}"
            ) from None
        if not isinstance(dtype, BooleanType):
            raise DeclarationError(
                f"{subject} {item.condition!r}, which gives {dtype.simpleString()} and no truth value."
                f" {allowed}"
            )


def expected(frame: DataFrame, flow: AnyFlow) -> DataFrame:
    """Return the rows of a flow that it writes, counted.

    Rows that it sets aside are still among them, marked: see :func:`passing`.
    """
    items = flow.expectations
    if not items:
        return frame
    met = {item.name: f"{_PASSED}{number}" for number, item in enumerate(items)}
    marked = frame.withColumns(
        {met[item.name]: F.coalesce(F.expr(item.condition), F.lit(False)) for item in items}
    )
    counts = [F.count(F.when(~F.col(name), 1)).alias(name) for name in met.values()]
    # Spark moves no filter below what it observes, so each row is counted before one is refused or dropped.
    marked = marked.observe(OBSERVED, F.count(F.lit(1)).alias(_ROWS), *counts)
    failing = [item for item in items if item.action == FAIL]
    if failing:
        marked = marked.where(_refusal(failing, met, frame.columns))
    dropping = [item for item in items if item.action == DROP]
    if quarantine_of(flow) is not None:
        names = [F.when(~F.col(met[item.name]), F.lit(item.name)) for item in dropping]
        marked = marked.withColumn(_FAILED, F.array_compact(F.array(*names)))
    else:
        for item in dropping:
            marked = marked.where(F.col(met[item.name]))
    return marked.drop(*met.values())


def _refusal(items: list[Expectation], met: Mapping[str, str], columns: list[str]) -> Column:
    """Return a condition that is true, or ends the batch with the expectation and the row."""
    row = F.substring(F.to_json(F.struct(*(column(name) for name in columns))), 1, _MOST_OF_ROW)
    refusal: Any = F
    for item in items:
        words = f"{EXPECTATION_FAILED} {item.name!r} ({item.condition}) fails for the row "
        ended = F.raise_error(F.concat(F.lit(words), row)).cast("boolean")
        refusal = refusal.when(~F.col(met[item.name]), ended)
    always: Column = refusal.otherwise(F.lit(True))
    return always


def counts_of(flow: AnyFlow, progress: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the rows of a batch that passed and that failed, by expectation; empty if none were observed."""
    observed = progress["observedMetrics"].get(OBSERVED)
    if observed is None:
        return {}
    failed = [int(observed[f"{_PASSED}{number}"]) for number in range(len(flow.expectations))]
    return {
        item.name: [int(observed[_ROWS]) - count, count]
        for item, count in zip(flow.expectations, failed, strict=True)
    }


class Quarantine:
    """The rows that a flow's expectations drop, in a table of their own: one generation's."""

    def __init__(self, job: Job, generation: Generation) -> None:
        self._job, self._generation = job, generation
        self._flow = job.flow.declaration
        self._name = quarantine_of(self._flow)
        self._first = True

    def make(self) -> None:
        """Create the table, if the flow names one and it is not there."""
        if self._name is not None:
            table = self._job.flow.pipeline.table(self._name) or _undeclared(self._name, self._flow)
            path = self._job.settings.table_path(self._name)
            ensure_table(self._job.spark, path, table, SET_ASIDE, by_batch=False)
            register(self._job.spark, self._job.settings, self._job.flow.pipeline.name, table)

    @contextmanager
    def passing(self, batch: DataFrame, number: int) -> Iterator[DataFrame]:
        """Set the dropped rows of a batch aside; give those that are to be written.

        The batch is computed once, whatever is done with its rows: so its rows are counted once, and the two
        tables are of the same rows.
        """
        if not self._flow.expectations:
            yield batch
            return
        batch.persist()
        try:
            if self._name is None:
                yield batch
            else:
                self._set_aside(batch, number, self._job.settings.table_path(self._name))
                yield batch.where(F.size(_FAILED) == 0).drop(_FAILED)
        finally:
            batch.unpersist()

    def _set_aside(self, batch: DataFrame, number: int, path: str) -> None:
        first, self._first = self._first, False
        named = [item.name for item in self._flow.expectations if item.quarantine is not None]
        dropped = batch.where(F.arrays_overlap(_FAILED, F.array(*(F.lit(name) for name in named))))
        # Counted first, which computes the whole batch: also its state, where both tables have it already.
        any_dropped = dropped.count() > 0
        query_id = self._generation.query_id
        last = last_written(batch.sparkSession, path, query_id) if first else None
        columns = [column(name) for name in batch.columns if name != _FAILED]
        rows = dropped.select(
            F.lit(self._job.flow.full_name).alias("flow"),
            F.lit(self._generation.number).alias("generation"),
            F.lit(number).cast("bigint").alias("batch"),
            F.col(_FAILED).alias("failed"),
            F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}).alias("row"),
            F.current_timestamp().alias("at"),
        )
        if last == number:
            # The target may lack the batch, and the expectations may have changed since it was tried.
            say(f"{self._job.flow.full_name}: batch {number} is repeated, and its quarantined rows with it.")
            mine = f"{_own(self._job.flow.full_name, self._generation.number)} AND batch = {number}"
            rows.write.format("delta").mode("overwrite").option("replaceWhere", mine).save(spark_url(path))
        elif any_dropped:
            writer = rows.write.format("delta").mode("append")
            writer.option("txnAppId", query_id).option("txnVersion", number).save(spark_url(path))


def fence_quarantine(job: Job, table: str, number: int, query_id: str, last: int | None) -> None:
    """Fence a generation in a quarantine table, and remove rows of a batch that its target does not have.

    The next generation reads these rows again.

    :param last: the last batch of the generation that counts as written; None if there is none.
    """
    path = job.settings.table_path(table)
    if not delta_log.exists(path):
        return
    shut_out(job.spark, path, query_id, job.watch.obey)
    ahead = f"{_own(job.flow.full_name, number)} AND batch > {-1 if last is None else last}"
    quarantine = table_at(job.spark, path)
    if not quarantine.toDF().where(ahead).isEmpty():
        quarantine.delete(ahead)


def _own(flow: str, generation: int) -> str:
    # Names of flows have letters, digits and underscores only.
    return f"flow = '{flow}' AND generation = {generation}"


def _undeclared(name: str, flow: AnyFlow) -> Table:
    """Return the declaration of a quarantine table for a derived pipeline, which declares only its target."""
    return Table(name, None, {}, (), flow.location)
