"""The Spark step of ``backfill``: drives the backfill's own flow to its end, as any once flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from streamkeeper.declare.cdc_spec import BOOKKEEPING
from streamkeeper.delta import log as delta_log
from streamkeeper.delta.history import require_history, with_new_rows
from streamkeeper.errors import RecoveryError, RequestError, StreamkeeperError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations
from streamkeeper.flows.backfill_flow import HISTORY, KIND, SEQUENCE, TABLE, name_of
from streamkeeper.flows.files import FlowHome
from streamkeeper.manifest.environment import opened
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.recover.kinds.backfill import check_path
from streamkeeper.recover.moves import backfill_source
from streamkeeper.recover.moves.backfill_source import Backup, Filled, FillingIn, Filters
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.requests.backfill import BackfillRequest
from streamkeeper.settings import Settings
from streamkeeper.sources.delta.start import path_of
from streamkeeper.sources.kafka.offsets import LATEST
from streamkeeper_jobs.cdc.columns import SEQUENCE as AT
from streamkeeper_jobs.cdc.columns import layout_by
from streamkeeper_jobs.cdc.events import KEY
from streamkeeper_jobs.cdc.events import KIND as KIND_OF_CHANGE
from streamkeeper_jobs.cdc.remembered import rows_of
from streamkeeper_jobs.cdc.replace_rows import opened as opened_target
from streamkeeper_jobs.driver.derived_flow import FOR_NOW, Tell, drive_derived_flow
from streamkeeper_jobs.driver.driver import declared_in, find
from streamkeeper_jobs.recover.predicate import check_predicate
from streamkeeper_jobs.spark.frames import column
from streamkeeper_jobs.spark.kafka_topics import look_at
from streamkeeper_jobs.spark.session import open_session, spark_url


@dataclass(frozen=True)
class Filling:
    """A backfill to carry out. ``fingerprint`` is that of the declaration for which it was planned."""

    settings: Settings
    request: BackfillRequest
    recovery: str
    fingerprint: str
    backup: Backup | None = None


def fill_step(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Carry out the step ``fill`` of a recovery: see :func:`fill`."""
    planned = work.plan.details_as(FillingIn)
    request = BackfillRequest.from_json(planned.backfill or work.plan.request)

    def tell(numbers: dict[str, int]) -> None:
        work.progress(**numbers)
        work.check_stop()

    filling = Filling(work.settings, request, work.plan.recovery_id, planned.fingerprint, planned.backup)
    return asdict(fill(spark, filling, tell, work.check_stop))


def fill(
    spark: SparkSession, filling: Filling, tell: Tell, check_stop: Callable[[], None] = lambda: None
) -> Filled:
    """Run a backfill to its end.

    A completed backfill is not run again; an interrupted one continues.

    :raises RecoveryError: the declaration has changed, or the backfill could not be completed; mend what the
        message names, and run it again.
    :raises StreamkeeperError: it failed several times for a reason that may pass; another try may succeed.
    """
    home, derived = _prepare(spark, filling)
    if generations.finished(home) is None:
        _drive(filling.settings, home, derived, tell, check_stop)
    return _evidence(filling.settings, home, derived)


def _evidence(settings: Settings, home: FlowHome, derived: Flow) -> Filled:
    position = Observed(home).position(settings.table_path(derived.declaration.target))
    assert position is not None, "it is done"
    return Filled(
        home.full_name,
        position.generation.query_id,
        done=True,
        batch=position.batch,
        missing=position.missing_in_sink,
    )


def _prepare(spark: SparkSession, filling: Filling) -> tuple[FlowHome, Flow]:
    request, backup = filling.request, filling.backup
    check_path(filling.settings, request)
    home, file = find(filling.settings, request.flow)
    flow = declared_in(load_pipeline(file, filling.settings.data), home.flow)
    if flow.fingerprint != filling.fingerprint:
        raise RecoveryError(
            f"The declaration of {request.flow} changed since the backfill was planned"
            f" ({filling.fingerprint} → {flow.fingerprint}). The backfill stops here. Give this recovery"
            " up, and plan a new one. Rows already filled in are kept."
        )
    begun = Observed(home).begun
    schemas = begun[1].schemas if begun else {}
    sources = tuple(
        replace(item, schema=item.schema or schemas.get(item.name)) for item in flow.pipeline.sources
    )
    flow = replace(flow, pipeline=replace(flow.pipeline, sources=sources))
    request = _with_all_partitions(spark, filling.settings, request, flow)
    if backup is not None:
        backup = replace(backup, parts=_sequence_parts(spark, backup, flow))
        if backup.tombstones is None and flow.declaration.spec is not None:
            side = FlowHome(home.storage, home.pipeline, name_of(flow.name, filling.recovery))
            place = home.storage.path(f"{side.root}/remembered")
            backup = replace(backup, tombstones=_remembered(spark, backup.target, place))
    if request.from_version is not None:
        side = FlowHome(home.storage, home.pipeline, name_of(flow.name, filling.recovery))
        place = home.storage.path(f"{side.root}/versions")
        request = replace(
            request, read=TABLE, path=_of_versions(spark, filling.settings, request, flow, place)
        )
    filters = Filters(
        partial(_only, request), lambda frame: frame.where(F.lit(False)), partial(_changes, request)
    )
    derived = backfill_source.derive(flow, request, filling.recovery, filters, backup)
    return FlowHome(home.storage, home.pipeline, derived.name), derived


def _remembered(spark: SparkSession, path: str, place: str) -> str:
    """Write what a backup remembers as a table that can be read as a stream, once; return its place."""
    if not delta_log.exists(place):
        target = opened_target(spark, path)
        layout = layout_by(target.schema, target.properties)
        rows = rows_of(spark, path, layout, target.remembered)
        rows.write.format("delta").save(spark_url(place))
    return place


def _of_versions(
    spark: SparkSession, settings: Settings, request: BackfillRequest, flow: Flow, place: str
) -> str:
    """Write the rows that some commits of a Delta source added or changed as a table that can be read as a
    stream, once; return its place.

    Each version is compared with the one before, since a commit writes unchanged rows again, too.
    """
    if delta_log.exists(place):
        return place
    declared = flow.pipeline.source(str(request.source))
    assert declared is not None, "the request was checked against the same declaration"
    assert request.from_version is not None and request.to_version is not None, "both are given"
    source = opened(declared, settings)
    history = require_history(path_of(source), source.name)

    def at(version: int) -> DataFrame:
        reader = spark.read.format("delta").option("versionAsOf", version)
        return reader.load(spark_url(history.path))

    columns = at(request.to_version).schema
    rows = spark.createDataFrame([], columns)
    skips = source.option("skipChangeCommits") == "true"
    for commit in with_new_rows(history, request.from_version, request.to_version, skips):
        now = at(commit.version)
        if commit.version > 0:
            # A commit may change the schema, too.
            before = at(commit.version - 1).unionByName(now.limit(0), allowMissingColumns=True)
            now = now.exceptAll(before.select(*map(column, now.columns)))
        rows = rows.unionByName(now, allowMissingColumns=True)
    rows.write.format("delta").option("delta.columnMapping.mode", "name").save(spark_url(place))
    return place


def _with_all_partitions(
    spark: SparkSession, settings: Settings, request: BackfillRequest, flow: Flow
) -> BackfillRequest:
    """Return the request with every partition of a Kafka source in its range, as Spark requires.

    A partition that was not requested gets an empty range.
    """
    if request.from_offsets is None or request.source is None:
        return request
    source = flow.pipeline.source(request.source)
    assert source is not None, "the request was checked against the same declaration"
    ranges = look_at(spark, opened(source, settings)).ranges
    start = {
        topic: {part: request.from_offsets.get(topic, {}).get(part, LATEST) for part in parts}
        for topic, parts in ranges.items()
    }
    end = {
        topic: {part: 0 for part in parts if part not in request.from_offsets.get(topic, {})}
        for topic, parts in ranges.items()
    }
    for topic, parts in (request.to_offsets or {}).items():
        end[topic] = {**parts, **end.get(topic, {})}
    return replace(request, from_offsets=start, to_offsets=end)


def _drive(
    settings: Settings, home: FlowHome, derived: Flow, tell: Tell, check_stop: Callable[[], None]
) -> None:
    ended = drive_derived_flow(
        settings, home, derived, tell, partial(open_session, settings), check_stop=check_stop
    )
    if ended.outcome is Outcome.DONE:
        return
    reason = ended.reason or f"it ended ({ended.outcome.words})"
    # By the class, Airflow's tasks decide whether to try again.
    error = StreamkeeperError if ended.outcome in FOR_NOW else RecoveryError
    raise error(
        f"The backfill of {derived.declaration.target} stopped after batch {ended.batch}: {reason}\nWhat it"
        " filled in stays. Fix that error and run this step again: it continues from there."
    )


def _only(request: BackfillRequest, frame: DataFrame) -> DataFrame:
    """Keep the requested rows: within the bounds of a Kafka source, and where the predicate is true."""
    if request.read == HISTORY and request.to_offsets is not None:
        frame = frame.where(~_at_or_after(request.to_offsets))
    return _filtered(request.predicate, frame)


def _filtered(predicate: str | None, frame: DataFrame) -> DataFrame:
    if predicate is None:
        return frame
    try:
        check_predicate(frame.sparkSession, predicate)
        return frame.where(F.expr(predicate))
    except PySparkException as error:
        raise RequestError(
            f"predicate is {predicate!r}, which Spark refuses: {error}. The columns are"
            f" {', '.join(frame.columns)}. Plan the backfill again."
        ) from error


def _at_or_after(end: dict[str, dict[str, int]]) -> Column:
    """Return whether a record lies at or after the end of its partition; one without an end has no limit."""
    past = F.lit(False)
    for topic, parts in end.items():
        for part, offset in parts.items():
            past |= (
                (F.col("topic") == topic) & (F.col("partition") == int(part)) & (F.col("offset") >= offset)
            )
    return past


def _sequence_parts(spark: SparkSession, backup: Backup, flow: Flow) -> int:
    """Return the number of columns of the sequence in a backup; 1 for rows without a sequence."""
    if flow.declaration.spec is None:
        return 1
    rows = spark.read.format("delta").load(spark_url(backup.target))
    return len(_parts(rows, BOOKKEEPING, AT))


def _changes(request: BackfillRequest, rows: DataFrame, tombstones: DataFrame) -> DataFrame:
    """Turn a backup into changes: an upsert of each row at its sequence, and each stored delete and truncate.

    The predicate does not apply to deletes and truncates: they happened, and later rows are compared with
    them.
    """
    stored = [column(name) for name in rows.columns if name != BOOKKEEPING]
    upserts = _filtered(request.predicate, rows).select(
        *stored, *_parts(rows, BOOKKEEPING, AT), F.lit("upsert").alias(KIND)
    )
    keys = [column(KEY, name).alias(name) for name in _fields(tombstones, KEY)]
    ends = tombstones.select(*keys, *_parts(tombstones, AT), column(KIND_OF_CHANGE).alias(KIND))
    return upserts.unionByName(ends, allowMissingColumns=True)


def _parts(frame: DataFrame, *path: str) -> list[Column]:
    """Return the columns of a sequence, under the names that the backfill's changes use."""
    names = _fields(frame, *path)
    parts = [column(*path, name) for name in names] if names else [column(*path)]
    return [part.alias(f"{SEQUENCE}{number}") for number, part in enumerate(parts)]


def _fields(frame: DataFrame, *path: str) -> list[str]:
    """Return the names of a struct's fields; none if it is no struct."""
    data_type: DataType = frame.schema
    for name in path:
        assert isinstance(data_type, StructType), f"{'.'.join(path)} is a field of structs"
        data_type = data_type[name].dataType
    return data_type.fieldNames() if isinstance(data_type, StructType) else []
