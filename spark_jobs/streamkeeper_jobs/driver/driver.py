"""The driver of one flow: its declaration, its holds, its lease, and only then Spark; and its failures.

Which flows a driver runs, and how it ends, is decided in streamkeeper_jobs.driver.application.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.damage import ERROR
from streamkeeper.clusters import cluster_drivers
from streamkeeper.declare.model import MOST_TRIES, NAME, RETRY, Pipeline
from streamkeeper.drivers import failures, supervision
from streamkeeper.drivers.causes import Cause
from streamkeeper.drivers.failures import Failure, FailureClass
from streamkeeper.drivers.submit import LOG_VARIABLE, SUPERVISED_VARIABLE
from streamkeeper.errors import (
    DeclarationError,
    FlowHeld,
    LeaseLost,
    RequestError,
    StreamkeeperError,
)
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, holds, leases
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import Generation, Start
from streamkeeper.flows.leases import Heartbeat, Lease
from streamkeeper.manifest import pipeline_files
from streamkeeper.manifest.environment import opened_flow
from streamkeeper.manifest.import_file import fingerprint
from streamkeeper.manifest.manifest import UNREADABLE, Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.observe.position import of_checkpoint
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.tables import owners
from streamkeeper.tables.by_path import check_by_path
from streamkeeper.trial import change, last_run
from streamkeeper.watch.batch_numbers import UI
from streamkeeper_jobs.catalog.named_sources import looked_up, note_names
from streamkeeper_jobs.catalog.registration import check_names, register
from streamkeeper_jobs.driver.progress import Progress
from streamkeeper_jobs.generation.begin import begin, learn_schemas
from streamkeeper_jobs.generation.connections import begin_connections
from streamkeeper_jobs.generation.consistency import (
    check_consistency,
    check_returned,
    check_sources,
    check_state,
)
from streamkeeper_jobs.generation.source_history import (
    check_histories,
    check_planned_files,
    forget_backward,
)
from streamkeeper_jobs.generation.take_over import own_generation
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.sinks.sink import sink_of
from streamkeeper_jobs.spark.exceptions import causes_of
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.spark.object_storage import check_conditional_writes
from streamkeeper_jobs.spark.stateful_operators import stateful_operators
from streamkeeper_jobs.stream.batch_header import pin_state_partitions
from streamkeeper_jobs.stream.declaration_watch import Declaration
from streamkeeper_jobs.stream.given_state import as_recorded
from streamkeeper_jobs.stream.logical_plan import normal_plan
from streamkeeper_jobs.stream.query import StillRunning, ended, ends_with_its_input, follow
from streamkeeper_jobs.stream.watch import NothingYet, Stopped, Watch


@dataclass(frozen=True)
class DriverRequest:
    """One flow of the command line.

    ``declaration`` is the state of its files before they were imported; ``flow`` is what they declare, or why
    they could not be read; ``files`` are the texts that were imported. ``lifts_park`` says that the flow is
    parked, and that the park is lifted because the declaration has changed since.
    """

    settings: Settings
    home: FlowHome
    declaration: Declaration
    available_now: bool
    flow: Flow | DeclarationError
    lifts_park: bool = False
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def tries_changes(self) -> bool:
        """Whether a change of the declaration is tried while this driver goes on: by its supervisor."""
        supervised = os.environ.get(SUPERVISED_VARIABLE) == "1"
        return supervised and isinstance(self.flow, Flow) and change.is_tried(self.flow)


def find(settings: Settings, name: str) -> tuple[FlowHome, Path]:
    """Return a flow's home and pipeline file by its full name.

    :raises RequestError: the name is wrong, or there is no such pipeline.
    """
    pipeline, dot, flow = name.partition(".")
    if not dot or not NAME.fullmatch(pipeline) or not NAME.fullmatch(flow):
        raise RequestError(
            f"--flow is {name!r}; it must be PIPELINE.FLOW, each of letters, digits and underscores. Run"
            " `streamkeeper flows`."
        )
    file = settings.pipelines / f"{pipeline}.py"
    if not file.is_file():
        names = ", ".join(path.stem for path in pipeline_files.pipelines(settings.pipelines)) or "none"
        raise RequestError(
            f"There is no pipeline {pipeline!r} in {settings.pipelines}. There are: {names}. Correct --flow."
        )
    return FlowHome(open_storage(settings.state), pipeline, flow), file


def declared_in(pipeline: Pipeline, name: str) -> Flow:
    """Return a flow of a pipeline that was just imported.

    :raises RequestError: it declares no such flow.
    """
    declared = pipeline.flow(name)
    if declared is None:
        names = ", ".join(flow.name for flow in pipeline.flows)
        raise RequestError(
            f"{pipeline.file} declares no flow {name!r}. It declares: {names}. Correct --flow, or declare the"
            " flow."
        )
    return Flow(pipeline, declared, fingerprint(pipeline, declared))


def check_holds(home: FlowHome, present: str) -> bool:
    """Check that there is no hold but a park that the present declaration lifts; return whether there is one.

    :raises FlowHeld: there is another.
    """
    present_holds = holds.all_of(home)
    lifted = [hold for hold in present_holds if holds.lifted_by(hold, present)]
    remaining = [hold for hold in present_holds if hold not in lifted]
    if remaining:
        words = "\n".join(f"- {hold.owner}, by {hold.by} at {hold.at}: {hold.reason}" for hold in remaining)
        raise FlowHeld(
            f"{home.full_name} does not start, because it is held:\n{words}\nA park goes with its recovery or"
            f" a corrected declaration; a person's hold with `streamkeeper release {home.full_name}`."
        )
    return bool(lifted)


def is_done(request: DriverRequest) -> bool:
    """Return whether a flow that runs once has read all available data in its present generation."""
    return (
        isinstance(request.flow, Flow)
        and request.flow.declaration.once
        and generations.finished(request.home) is not None
    )


def take_lease(request: DriverRequest) -> Lease:
    """Take a flow's lease, then remove a park that its declaration lifts.

    :raises LeaseHeld: another driver has it.
    """
    home = request.home
    lease = leases.acquire(
        home,
        present_generation(home),
        request.settings.lease_term,
        log=os.environ.get(LOG_VARIABLE),
        cluster=cluster_drivers.here(),
    )
    home.storage.remove(home.trials)  # of processes that were killed
    if request.lifts_park:
        holds.release(home, holds.PARK, "driver")
        say(
            f"The declaration of {home.full_name} changed since it was parked: the new declaration is tried"
            " once."
        )
    return lease


def watch_over(request: DriverRequest, lease: Lease) -> Watch:
    """Return the watch of a flow whose lease was taken; it begins when it is entered as a context."""
    absence = supervision.absence(request.home, request.settings.supervisor_timeout)
    interval, term = request.settings.heartbeat_interval, request.settings.lease_term
    tried = request.tries_changes
    return Watch(request.home, lease, interval, request.declaration, absence, term=term, tried=tried)


def drive(
    request: DriverRequest, lease: Lease, watch: Watch, session: Callable[[Flow], SparkSession]
) -> Outcome:
    """Run a flow under its lease and its watch, leave the lease, and return how it ended.

    :raises StreamkeeperError: the JVM is gone, does not answer, or did not stop the query: it may still
        write, so the lease is kept.
    """
    with watch:
        if isinstance(request.flow, DeclarationError):
            outcome = _park_unreadable(request.home, lease, request.flow)
        else:
            outcome = _drive(request, request.flow, lease, watch, session)
    if outcome is not Outcome.LEASE_LOST:
        leases.leave(request.home, lease, outcome.name.lower())
    return outcome


def present_generation(home: FlowHome) -> int:
    """Return the newest generation of a flow, begun or not; the first one if none is decided."""
    return (home.generations() or [1])[-1]


def _drive(
    request: DriverRequest, flow: Flow, lease: Lease, watch: Watch, session: Callable[[Flow], SparkSession]
) -> Outcome:
    home = request.home
    try:
        watch.obey()
        owners.ensure(request.settings, home, flow)
        with_sources = opened_flow(flow, request.settings)
        spark = session(flow)
        check_conditional_writes(spark, request.settings.state, request.settings.warehouse)
        with_sources = looked_up(spark, with_sources)
        note_names(request.settings, with_sources)
        check_by_path(request.settings, with_sources)
        check_names(spark, request.settings, with_sources)
        _run_generation(
            Job(
                spark,
                request.settings,
                home,
                with_sources,
                lease,
                watch,
                request.available_now,
                request.files,
            ),
            flow,
        )
        if flow.declaration.once:
            return Outcome.DONE
    except Stopped as stopped:
        say(f"{home.full_name} stops: {stopped}.")
        return Outcome.LEASE_LOST if stopped.order.at_once else Outcome.STOPPED
    except NothingYet:
        return Outcome.STOPPED
    except (Py4JNetworkError, ConnectionError) as error:
        raise StreamkeeperError(f"Spark's process does not answer any more ({error}).") from error
    except StillRunning as error:
        raise StreamkeeperError(str(error)) from error
    except (PySparkException, Py4JError, StreamkeeperError) as error:
        return _fail(home, flow, lease, error, watch.heartbeat, request.settings)
    return Outcome.STOPPED


def _run_generation(job: Job, declared: Flow) -> None:
    generation = generations.latest(job.home) or generations.decide(
        job.home, generations.first(job.home, job.flow.fingerprint)
    )
    generation = own_generation(job, generation)
    job.watch.tell(generation=generation.number, application_id=job.spark.sparkContext.applicationId)
    start = generations.read_start(job.home, generation.number)
    begun_now, sink = start is None, sink_of(job)
    if start is None:
        start = begin(job, sink, generation)
    schemas = learn_schemas(job, start.schemas)
    checkpoint = Checkpoint(job.home.storage, start.checkpoint)
    spent = checkpoint.last_commit() is not None
    job = replace(job, flow=as_recorded(job.spark, job.flow, start.evidence, spent=spent))
    frame = job.frame(schemas, checkpoint=start.checkpoint)
    operators = stateful_operators(frame)
    job.watch.tell(details={"operators": list(operators), UI: job.spark.sparkContext.uiWebUrl})
    progress = Progress(job, start, operators)
    check_consistency(job, generation, start)
    check_state(checkpoint)
    check_sources(job.flow, checkpoint, generation)
    position = of_checkpoint(job.home, generation, start)
    check_returned(job.flow, position)
    forget_backward(job, start, generation.query_id)
    check_histories(job, position)
    check_planned_files(job, start, generation.query_id)
    begin_connections(job, checkpoint, generation.query_id)
    if not begun_now:
        sink.check(frame)
        sink.update(frame, generation)
    if job.table.sink is None:
        register(job.spark, job.settings, job.flow.pipeline.name, job.table)
    pin_state_partitions(job.spark, checkpoint)
    job.watch.obey()
    runs = last_run.record_of(declared, normal_plan(frame), dict(job.files), opened=job.flow)
    last_run.keep(job.home, generation.number, runs)
    trigger = None if job.ends_by_itself else job.flow.declaration.trigger
    with ends_with_its_input(frame, trigger):
        query = sink.start(frame, generation, job.home.storage.path(start.checkpoint), trigger)
    with ended(query):
        job.watch.tell(phase="running")
        try:
            with sink.own_failures():
                follow(query, job.watch, progress.look)
            progress.look(query)
        finally:
            progress.keep_all()
    if job.flow.declaration.once:
        _finish(job, generation, start)


def _finish(job: Job, generation: Generation, start: Start) -> None:
    """Record that a once flow is done: its query has ended by itself, with all available data."""
    last = Checkpoint(job.home.storage, start.checkpoint).last_commit()
    generations.finish(job.home, generation.number, last)
    read = "nothing" if last is None or last == start.seed_batch else f"all its input, up to batch {last}"
    say(
        f"{job.flow.full_name} is done: it has read {read}. A reset gives it a new checkpoint and runs it"
        " again."
    )


def _park_unreadable(home: FlowHome, lease: Lease, error: DeclarationError) -> Outcome:
    failure = failures.classify([Cause(type(error).__name__, None, None, str(error))])
    return _park(home, failure, _details(failure, UNREADABLE, lease.generation, None))


def _fail(  # noqa: PLR0917 - how a flow failed, and where
    home: FlowHome,
    flow: Flow,
    lease: Lease,
    error: Exception,
    heartbeat: Heartbeat,
    settings: Settings,
) -> Outcome:
    """Classify a failure, report it, and park the flow if only a person can mend it.

    A driver that has lost its lease parks nothing: it would stop the one that took over.
    """
    try:
        leases.check(home, lease)
    except LeaseLost as lost:
        say(f"{lost} It had failed: {error}")
        return Outcome.LEASE_LOST
    failure = failures.own(error) or failures.classify(causes_of(error))
    failure = _with_schema_in_force(flow, _look_for_damage(home, heartbeat.generation, failure))
    if failure.recovery is not None and not Observed(home).knows_position(
        settings.table_path(flow.declaration.target)
    ):
        failure = replace(failure, context={**failure.context, failures.START: failures.OTHER_STARTS})
    if failure.classed is FailureClass.BAD_INPUT:
        failure = _counted(home, lease, heartbeat.generation, failure, flow.declaration.park_after)
    number = heartbeat.generation if home.generations() else 0
    details = _details(failure, flow.fingerprint, number, heartbeat.details.get("operators"))
    lasts = failure.lasts
    if lasts and flow.declaration.on_failure != RETRY:
        return _park(home, failure, details)
    leases.note_failure(home, lease, details)
    say(failures.describe(home.full_name, failure, retried=lasts))
    if lasts:
        return Outcome.RETRY_DECLARED
    return Outcome.RESTART if failure.classed is FailureClass.RESTART else Outcome.FAILED


def _counted(home: FlowHome, lease: Lease, generation: int, failure: Failure, limit: int) -> Failure:
    """Return the failure of a bad input with its batch and how many drivers failed so at it, this one
    included. Those that ended otherwise in between, as by a kill, do not count and begin no new count.
    """
    start = generations.read_start(home, generation)
    planned = [] if start is None else Checkpoint(home.storage, start.checkpoint).offset_batches()
    failure = replace(failure, batch=max(planned, default=None), tries=1, limit=limit)
    for epoch in reversed([number for number in home.epochs() if number < lease.epoch][-MOST_TRIES:]):
        details = leases.failure_of(home, epoch) or {}
        before = failures.read(details)
        if before is None or before.classed is not FailureClass.BAD_INPUT:
            continue
        if (details.get("generation"), before.batch) != (generation, failure.batch):
            break
        failure = replace(failure, tries=failure.tries + (before.code == failure.code))
    return replace(failure, tries=min(failure.tries, limit))


def _with_schema_in_force(flow: Flow, failure: Failure) -> Failure:
    """Add to an unknown column which schema of a Delta source is in force, where its schemas are followed."""
    tracked = ", ".join(source.name for source in flow.sources if source.track_schema)
    if not tracked or not (failure.condition or "").startswith("UNRESOLVED_COLUMN"):
        return failure
    meaning = (
        f"{failure.meaning}: {tracked} has the columns that its table had where the flow reads"
        " (track_schema), so a renamed column has its old name until the flow has come to the renaming, and"
        " the new one from then on. Write the view for both, such as"
        " raw.withColumnRenamed('old_name', 'new_name')"
    )
    return replace(failure, meaning=meaning)


def _look_for_damage(home: FlowHome, generation: int, failure: Failure) -> Failure:
    """Reclassify a failure that looks transient if the checkpoint is damaged.

    A gap in its logs looks like concurrency.
    """
    start = generations.read_start(home, generation)
    if failure.classed is not FailureClass.TRANSIENT or start is None:
        return failure
    problems = Checkpoint(home.storage, start.checkpoint).problems()
    damage = [f"{problem.file} {problem.description}" for problem in problems if problem.severity == ERROR]
    if not damage:
        return failure
    meaning = f"its checkpoint is damaged: {'; '.join(damage[:3])}"
    return replace(failure, classed=FailureClass.NEEDS_RECOVERY, meaning=meaning, recovery="reset_checkpoint")


def _park(home: FlowHome, failure: Failure, details: dict[str, Any]) -> Outcome:
    holds.put(home, holds.PARK, failures.brief(failure), "driver", details)
    say(failures.describe(home.full_name, failure))
    return Outcome.PARKED


def _details(failure: Failure, present: str, generation: int, operators: list[str] | None) -> dict[str, Any]:
    """Return what is recorded of a failure.

    ``generation`` is 0 where none was decided. ``operators`` are those of the query as declared now; None if
    it could not be planned.
    """
    return {
        **asdict(failure),
        "classed": failure.classed.value,
        "fingerprint": present,
        "generation": generation,
        "stateful": None if operators is None else bool(operators),
        "operators": operators,
    }
