"""The start of a generation: table, fence of earlier ones, position, checkpoint, and last the start record.

Before that record is written, the sink holds nothing of the generation. So if a driver dies on the way, the
next one starts over in a checkpoint folder of its own, and finds the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.log_entries import PARTITIONS
from streamkeeper.declare.model import Source
from streamkeeper.drivers.submit import why_partitions
from streamkeeper.flows import generations
from streamkeeper.flows.backfill_flow import is_silent
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.generations import (
    ADOPTED,
    COPIED,
    INITIAL_STATE,
    Generation,
    Restart,
    Start,
    given_before,
)
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.sources.files.impacts import PATHS
from streamkeeper.support.times import now
from streamkeeper_jobs.generation.fence_earlier import evidence, fence_earlier, stood
from streamkeeper_jobs.generation.seed import NewCheckpoint, create_checkpoint, keep_schema_logs
from streamkeeper_jobs.generation.start_position import find_origin
from streamkeeper_jobs.generation.take_over import copy_from
from streamkeeper_jobs.sinks.job import Job
from streamkeeper_jobs.sinks.sink import Sink
from streamkeeper_jobs.sources.formats import Looks
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.spark.stateful_operators import heeds_batches, stateful_operators
from streamkeeper_jobs.stream.given_state import as_recorded, recorded
from streamkeeper_jobs.stream.in_flight import made_with
from streamkeeper_jobs.stream.ledger_note import note_in_ledger
from streamkeeper_jobs.stream.readers import infer_schema, is_empty, is_there
from streamkeeper_jobs.stream.watch import NothingYet, Order, Stopped


def begin(job: Job, sink: Sink, generation: Generation) -> Start:
    """Begin a generation and return its start record.

    :raises NothingYet: only with ``--available-now``.
    :raises Stopped: an order ended it, or another driver began the generation first.
    :raises CheckpointError: the old checkpoint or the Delta log lacks something that is needed.
    :raises RecoveryError: the decision cannot be carried out as it stands.
    """
    schemas = learn_schemas(job, generation.schemas)
    job, initial_state = _with_initial_state(job, generation)
    frame = job.frame(schemas)
    sink.check(frame)
    operators = stateful_operators(frame)
    sink.make(frame, generation)
    job.watch.tell(phase="seeding")
    fenced = fence_earlier(job, generation)
    old_position = stood(job, generation, fenced)
    fence_evidence = evidence(old_position, fenced)
    note_in_ledger(job.home, generation.recovery, "driver.fenced", fence_evidence)
    folder = job.home.checkpoint(generation.number, job.lease.epoch)
    made = _make(
        job, NewCheckpoint(folder, generation, schemas, operators, heeds_batches(frame)), old_position
    )
    start = Start(
        number=generation.number,
        checkpoint=folder,
        seed_batch=made.seed_batch,
        positions=made.positions,
        schemas=schemas,
        operators=operators,
        state=generation.state if operators and made.seed_batch is not None else None,
        epoch=job.lease.epoch,
        at=now(),
        evidence={
            **fence_evidence,
            **initial_state,
            "notes": list(made.notes),
            **({"topics": made.topics} if made.topics else {}),
            PATHS: {source.name: source.path for source in job.sources if source.reads_files},
        },
    )
    job.watch.obey()
    # Written last: until then, the next driver starts over in a folder of its own.
    if generations.begin(job.home, start) != start:
        words = f"Another driver began generation {generation.number} first. This one stops."
        raise Stopped(Order(words, at_once=True))
    details = {**start.evidence, "checkpoint": folder, "seed_batch": made.seed_batch}
    note_in_ledger(job.home, generation.recovery, "driver.began", details)
    _say_begun(job, generation, start)
    return start


@dataclass(frozen=True)
class _Made:
    """A checkpoint that was made: the batch that it continues after, positions by source, and the ids of
    Kafka's topics.
    """

    seed_batch: int | None
    positions: dict[str, Any]
    topics: dict[str, Any]
    notes: tuple[str, ...] = ()


def _make(job: Job, new: NewCheckpoint, old_position: CommittedPosition | None) -> _Made:
    """Copy the checkpoint of where the flow stood, or create one at the generation's start."""
    generation = new.generation
    looks = Looks(job, f"{new.folder}-listing", new.schemas)
    if generation.state == COPIED and old_position is not None and old_position.batch is not None:
        adopted = generation.start.mode == ADOPTED
        return _Made(
            *copy_from(job, new, old_position),
            looks.topic_ids() if adopted else old_position.start.evidence.get("topics", {}),
        )
    origin = find_origin(generation, job.sources, old_position, looks)
    keep_schema_logs(job, generation, old_position, new.folder)
    return _Made(*create_checkpoint(job, new, origin, looks, old_position), looks.topic_ids(), origin.notes)


def _with_initial_state(job: Job, generation: Generation) -> tuple[Job, dict[str, Any]]:
    """Return the job with the initial state that a generation begins with, and what is recorded of it.

    A copied state was given its own. Only a copied batch 0 that is to be repeated is given it again, as it
    was. A rebuilt state begins with what the old one began with.
    """
    before, declared = _begun_before(job.home, generation), job.flow.declaration.initial_state
    if declared is None:
        return job, {}
    evidence = {} if before is None else before.evidence
    spent = generation.state == COPIED and (
        before is None or Checkpoint(job.home.storage, before.checkpoint).last_commit() is not None
    )
    record = given_before(evidence, declared, Restart(generation.start, generation.state))
    if record is None and not spent:
        record = recorded(job.spark, declared)
    initial_state = {INITIAL_STATE: record} if record is not None else {}
    return replace(job, flow=as_recorded(job.spark, job.flow, initial_state, spent=spent)), initial_state


def _begun_before(home: FlowHome, generation: Generation) -> Start | None:
    """Return the start of the generation that one follows; None if none before it began."""
    number = generation.start.generation or generation.previous
    while number is not None:
        start, decided = generations.read_start(home, number), generations.read(home, number)
        if start is not None or decided is None:
            return start
        number = decided.previous
    return None


def learn_schemas(job: Job, known_schemas: dict[str, str]) -> dict[str, str]:
    """Return the schema of each source that declares none: the known one, else inferred from its files.

    Waits until the folder of every files source and the table of every Delta source exists. A flow that runs
    once also waits for a first file: without one it would finish with nothing, and later files would never be
    read. Sources from which a backfill reads nothing may be empty.

    :raises NothingYet: there is nothing yet, and the driver was not to wait.
    """
    schemas = {}
    for source in job.sources:
        if source.path is None:
            continue
        announced = False
        while True:
            schema = _schema(job, source, known_schemas)
            nothing = (
                job.flow.declaration.once
                and source.reads_files
                and not is_silent(source)
                and is_empty(source)
            )
            if (schema is not None or not source.reads_files) and is_there(job.spark, source) and not nothing:
                break
            if not announced:
                awaited = "waiting for a first file" if source.reads_files else "waiting for the table"
                say(f"Source {source.name} has nothing in {source.path} yet: {awaited}.")
                announced = True
            if job.available_now:
                raise NothingYet
            job.watch.wait(job.settings.look_interval)
        if source.schema is None and schema is not None:
            schemas[source.name] = schema
    return schemas


def _schema(job: Job, source: Source, known_schemas: dict[str, str]) -> str | None:
    """Return the schema of a files source; None if it is not known yet, or the source brings its own."""
    if not source.reads_files:
        return None
    return source.schema or known_schemas.get(source.name) or infer_schema(job.spark, source)


def _say_begun(job: Job, generation: Generation, start: Start) -> None:
    """Print where a generation begins, and how many partitions its state has, for what reason."""
    say(_describe(job, generation, start))
    # those of a copied state, else what the session is set to
    partitions = made_with(Checkpoint(job.home.storage, start.checkpoint)) or job.spark.conf.get(PARTITIONS)
    master = str(job.spark.sparkContext.master)
    say(why_partitions(job.flow.declaration, master, str(partitions), bool(start.operators)))


def _describe(job: Job, generation: Generation, start: Start) -> str:
    words = f"Generation {start.number} of {job.flow.full_name} begins"
    start_evidence = start.evidence
    if start.seed_batch is None:
        return f"{words} with all that its sources have."
    if start_evidence["batch"] is not None:
        before = (
            f"the query of {generation.start.checkpoint}"
            if generation.start.mode == ADOPTED
            else "the one before it"
        )
        words += (
            f" where {before} stood: batch {start_evidence['batch']}, by the {start_evidence['ruled_by']}"
        )
    return f"{words}; state {start.state}." if start.state else f"{words}."
