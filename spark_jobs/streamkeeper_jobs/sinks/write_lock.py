"""A driver's access to the write lock on its table; a holder that is not proven dead is fenced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.flows import generations
from streamkeeper.flows.files import FlowHome, LockFiles
from streamkeeper.flows.generations import Generation
from streamkeeper.flows.leases import Process
from streamkeeper.support.times import now
from streamkeeper.tables.write_lock import Holder, WriteLock, describe
from streamkeeper_jobs.spark.delta_table import shut_out
from streamkeeper_jobs.spark.jvm import classes
from streamkeeper_jobs.spark.log import say
from streamkeeper_jobs.stream.watch import Order, Stopped

if TYPE_CHECKING:
    from streamkeeper_jobs.sinks.job import Job


def write_lock(job: Job, generation: Generation, writes: bool = True) -> WriteLock:
    """Return a flow's access to its lock, in one of its generations; an order of the watch ends the waiting.

    :param writes: False if only the table is created or gets columns.
    """

    def check() -> None:
        if generations.is_over(job.home, generation.number):
            raise Stopped(
                Order(
                    f"generation {generation.number} was fenced in its table; the next driver continues in"
                    " the next generation"
                )
            )

    me = Holder(
        flow=job.flow.name,
        epoch=job.lease.epoch,
        generation=generation.number,
        query_id=generation.query_id if writes else None,
        process=job.lease.process,
        jvm=jvm_process(job.spark),
        at=now(),
    )
    locks = LockFiles(job.home.storage, job.home.pipeline, job.flow.declaration.target)
    return WriteLock(
        locks,
        me,
        job.settings.lease_term,
        check=check,
        shut_out=lambda holder: _shut_out(job, holder),
        wait=job.watch.wait,
        say=say,
    )


def jvm_process(spark: SparkSession) -> Process | None:
    """Return the JVM process that commits to the tables; None if it is not visible from here."""
    java = classes(spark)
    return Process.of_pid(int(java("java.lang.ProcessHandle").current().pid()))


def _shut_out(job: Job, holder: Holder) -> None:
    """Fence a generation that may have a batch in progress, so that the batch is refused whenever it arrives.

    Its last commit is recorded first: from this record its own drivers learn that it is fenced, and continue
    in a new generation.
    """
    assert holder.query_id is not None, "who writes nothing is not shut out"
    home = FlowHome(job.home.storage, job.home.pipeline, holder.flow)
    start = generations.read_start(home, holder.generation)
    say(
        f"{describe(holder)[0].upper()}{describe(holder)[1:]} holds the write lock of"
        f" {job.flow.declaration.target}, is silent, and may still run. Its generation {holder.generation}"
        " is fenced in the table, and the flow continues in the next one."
    )
    generations.end(
        home, holder.generation, Checkpoint(home.storage, start.checkpoint).last_commit() if start else None
    )
    shut_out(job.spark, job.table_path, holder.query_id, job.watch.obey)
