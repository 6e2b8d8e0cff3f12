"""The engine of every trial: a declaration on a copy of a checkpoint, and one verdict on what comes of it.

Without input an incompatible change goes unnoticed: its error comes only when a batch is planned.
So the copy gets one more planned batch, which ends
where the last one did, and the declared query runs it without output. This loads every store at its newest
version, compares every schema, and reads no row. The copy is removed afterwards; the original is only read.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from streamkeeper.checkpoint import Checkpoint, OffsetEntry, write_offsets
from streamkeeper.checkpoint.log_entries import PARTITIONS
from streamkeeper.declare.driver import is_of_session
from streamkeeper.drivers.failures import Failure, FailureClass, classify
from streamkeeper.errors import CatalogError, SettingsError, SourceError, StorageError, StreamkeeperError
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import Generation, Start
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage
from streamkeeper.trial.verdict import Compatibility, Verdict
from streamkeeper_jobs.generation.copy_checkpoint import Copied, copy_checkpoint, copy_file, schema_logs
from streamkeeper_jobs.sinks.expectations import check as check_expectations
from streamkeeper_jobs.spark.exceptions import causes_of
from streamkeeper_jobs.spark.stateful_operators import check_mode
from streamkeeper_jobs.stream.batch_header import pin_state_partitions
from streamkeeper_jobs.stream.data_frame import flow_frame
from streamkeeper_jobs.stream.given_state import as_recorded
from streamkeeper_jobs.stream.in_flight import pin_partitions
from streamkeeper_jobs.stream.query import run_muted
from streamkeeper_jobs.stream.readers import infer_schema
from streamkeeper_jobs.stream.watch import Order
from streamkeeper_jobs.trial.table_fit import check_table

_QUERY_ID = "00000000-0000-0000-0000-000000000000"
"""The id of a query without output."""
_AGAIN = "It may pass: run it again."


class DoesNotFit(Exception):
    """Spark refused a declaration, or a failure kept it from being tried."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @property
    def is_certain(self) -> bool:
        """Whether another try would meet the same."""
        return self.failure.classed in (FailureClass.NEEDS_RECOVERY, FailureClass.NEEDS_CORRECTION)

    def message(self) -> str:
        """Return the first line that Spark said, with its condition."""
        lines = self.failure.message.strip().splitlines() or ["(nothing)"]
        return f"{self.failure.code}: {lines[0].removeprefix(f'[{self.failure.condition}] ')}"

    def judged(self, verdict: Verdict) -> Verdict:
        """Return the verdict on a flow whose declaration was tried."""
        failure = self.failure
        reasons = (f"Spark says {self.message()}", f"That is: {failure.meaning}.")
        if self.is_certain:
            incompatible = replace(verdict, compatibility=Compatibility.INCOMPATIBLE, reasons=reasons)
            return replace(incompatible, recovery=failure.recovery)
        bad_input = failure.classed is FailureClass.BAD_INPUT
        more = (*failure.particulars, failure.remedy) if bad_input else (_AGAIN,)
        return replace(verdict, compatibility=Compatibility.UNKNOWN, reasons=(*reasons, *more))


def judged(
    verdict: Verdict,
    trial: Callable[[], Verdict],
    refused: Callable[[DoesNotFit, Verdict], Verdict] = DoesNotFit.judged,
) -> Verdict:
    """Return the verdict of a trial, also where it ends with an error.

    :param verdict: the one that an error changes.
    :param refused: judges what Spark refused.
    """
    try:
        with _spark_may_refuse():
            return trial()
    except DoesNotFit as refusal:
        return refused(refusal, verdict)
    except (CatalogError, SourceError, StorageError, SettingsError) as error:
        return replace(verdict, compatibility=Compatibility.UNKNOWN, reasons=(str(error), _AGAIN))
    except StreamkeeperError as error:
        return replace(verdict, compatibility=Compatibility.INCOMPATIBLE, reasons=(str(error),))


@contextmanager
def _spark_may_refuse() -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        raise DoesNotFit(classify(causes_of(error))) from error


@dataclass(frozen=True)
class Trial:
    """What is tried: a flow, with its sources opened, after a batch of a checkpoint, if that has any.

    ``folder`` is the copy's name in ``storage``, still empty. ``schemas`` are the known ones of sources that
    declare none; the others are inferred. ``check_stop`` raises where nobody wants the answer any more.
    ``adopted`` says that the checkpoint and the table are another job's.
    """

    storage: Storage
    flow: Flow
    checkpoint: Checkpoint
    batch: int | None
    folder: str
    schemas: Mapping[str, str] = field(default_factory=dict)
    check_stop: Callable[[], None] = lambda: None
    adopted: bool = False

    @property
    def path(self) -> str:
        """The copy's folder or URL."""
        return self.storage.path(self.folder)

    def order(self) -> Order | None:
        """Stop if the recovery was abandoned."""
        self.check_stop()
        return None

    def tell(self, **changes: object) -> None:
        """Do nothing: nobody watches a trial."""

    def copy(self, session: SparkSession) -> Copied:
        """Copy the checkpoint up to the batch, for a query of this session; call within :meth:`scratch`."""
        assert self.batch is not None, "a checkpoint without a batch is not copied"
        copied = copy_checkpoint(
            self.checkpoint, self.batch, self.folder, _QUERY_ID, self.check_stop, self.storage
        )
        pin_state_partitions(session, Checkpoint(self.storage, self.folder))
        return copied

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Remove the copy at the end."""
        try:
            yield
        finally:
            self.storage.remove(self.folder)


@dataclass(frozen=True)
class Bounds:
    """When a query has run enough: ``seconds`` after ``began`` (monotonic) or, with ``one_batch``, after a
    batch.
    """

    seconds: float
    one_batch: bool
    began: float = field(default_factory=time.monotonic)

    def are_reached(self, has_batch: Callable[[], object]) -> bool:
        """Return whether it has; whether it has a batch is asked only where that counts."""
        return time.monotonic() - self.began >= self.seconds or (self.one_batch and bool(has_batch()))


def of_newest(
    spark: SparkSession, home: FlowHome, flow: Flow, scratch: Storage | None = None
) -> tuple[Trial, tuple[Generation, Start]] | None:
    """Return a trial of a flow after the last batch of its newest generation, and that generation; None if
    the flow never began.

    :param flow: with its sources opened.
    :param scratch: an empty place for the copy; by default it is made in the flow's own folder for trials.
    """
    begun = Observed(home).begun
    if begun is None:
        return None
    checkpoint = Checkpoint(home.storage, begun[1].checkpoint)
    last = checkpoint.last_commit()
    flow = as_recorded(spark, flow, begun[1].evidence, spent=last is not None)
    storage, folder = (
        (home.storage, f"{home.trials}/{uuid.uuid4().hex}") if scratch is None else (scratch, home.full_name)
    )
    return Trial(storage, flow, checkpoint, last, folder, begun[1].schemas), begun


def dry_run(spark: SparkSession, settings: Settings, trial: Trial) -> DataFrame:
    """Do the dry run, remove the copy, and return the query's DataFrame.

    :raises DoesNotFit: the declaration does not fit the checkpoint; nothing was changed.
    :raises RecoveryError: it does not fit its table.
    :raises CheckpointError: the checkpoint lacks what the batch needs.
    """
    flow, session = trial.flow, session_of(spark, trial.flow)
    with trial.scratch(), _spark_may_refuse():
        # The log says which schema of a Delta source's is in force.
        for source in (item for item in flow.sources if item.track_schema):
            for name in schema_logs(trial.checkpoint, source.name):
                copy_file(trial.checkpoint, name, trial.storage, trial.folder)
        frame = plan_query(session, settings, flow, trial.schemas, trial.path, adopted=trial.adopted)
        if trial.batch is not None:
            _run(session, frame, trial, trial.batch)
    return frame


def plan_query(
    session: SparkSession,
    settings: Settings,
    flow: Flow,
    schemas: Mapping[str, str],
    checkpoint: str | None = None,
    *,
    adopted: bool = False,
) -> DataFrame:
    """Return a flow's DataFrame, after a check of its expectations, its output mode and its table.

    :param flow: with its sources opened.
    :param schemas: known ones of sources that declare none; the others are inferred.
    :param adopted: the table is one that another job wrote.
    :raises PySparkException: Spark cannot plan it.
    :raises DeclarationError: a function of the pipeline file raises, or an expectation does not fit.
    :raises RecoveryError: it does not fit its table.
    """
    frame = flow_frame(session, flow, schemas_of(session, flow, schemas), checkpoint=checkpoint)
    check_expectations(frame, flow.declaration)
    check_mode(frame, flow.declaration.mode)
    check_table(session, settings, flow, frame, adopted)
    return frame


def session_of(spark: SparkSession, flow: Flow) -> SparkSession:
    """Return a session with those of the flow's declared settings that can be set in a session."""
    session = spark.newSession()
    for name, value in flow.declaration.spark_conf.items():
        if is_of_session(name):
            session.conf.set(name, value)
    return session


def schemas_of(spark: SparkSession, flow: Flow, known_schemas: Mapping[str, str]) -> Mapping[str, str]:
    """Return the schemas of files sources that declare none: known ones, else inferred from their files."""
    sources = flow.pipeline.sources_of(flow.declaration)
    schemas = {
        source.name: known_schemas.get(source.name) or infer_schema(spark, source)
        for source in sources
        if source.reads_files and source.schema is None
    }
    return {name: schema for name, schema in schemas.items() if schema is not None}


def _run(session: SparkSession, frame: DataFrame, trial: Trial, batch: int) -> None:
    """Copy the checkpoint, replay its batch muted if only the table has it, then run an empty one."""
    storage, folder, name = trial.storage, trial.folder, f"{trial.flow.full_name} (rehearsed)"
    copied, copy = trial.copy(session), Checkpoint(storage, folder)
    partitions, mode = str(session.conf.get(PARTITIONS)), trial.flow.declaration.mode
    if not copied.committed:
        pin_partitions(storage, folder, partitions)
        run_muted(frame, name, copy.path(), trial, mode)
    entry = copy.offsets(batch)
    watermark = copy.commit(batch).next_watermark_ms
    following: OffsetEntry = replace(entry, batch=batch + 1, watermark_ms=watermark)
    storage.overwrite(f"{folder}/offsets/{following.batch}", write_offsets(following))
    pin_partitions(storage, folder, partitions)
    run_muted(frame, name, copy.path(), trial, mode)
