"""The look before the restart that needs Spark: a flow's declaration, tried on a copy of its newest state.

Nothing of the flow is changed. The copy lies in a folder of the machine that tries.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import replace

from pyspark.sql import SparkSession

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.log_entries import PARTITIONS
from streamkeeper.drivers.failures import FailureClass
from streamkeeper.errors import DeclarationError, StreamkeeperError
from streamkeeper.flows.files import FlowHome
from streamkeeper.flows.position import last_begun
from streamkeeper.manifest.environment import opened_flow
from streamkeeper.manifest.manifest import Flow
from streamkeeper.preflight import last_run
from streamkeeper.preflight.last_run import LastRun
from streamkeeper.preflight.verdict import Fit, Verdict
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage
from streamkeeper_jobs.generation.consistency import check_sources
from streamkeeper_jobs.preflight.dry_run import DoesNotFit, Rehearsal, rehearse
from streamkeeper_jobs.stream.logical_plan import normal_plan


def try_flow(
    spark: SparkSession, settings: Settings, home: FlowHome, flow: Flow, scratch: Storage, *, folder: str
) -> Verdict:
    """Try a declaration on a copy of the newest state of its flow, and return the verdict.

    :param flow: as imported, functions included.
    :param scratch: where the copy is made, in ``folder``, and removed again.
    """
    begun = last_begun(home)
    assert begun is not None, "a flow that never began needs no Spark"
    generation, start = begun
    checkpoint = Checkpoint(home.storage, start.checkpoint)
    verdict = Verdict(flow.full_name, Fit.GOES_ON, tried=True)
    try:
        opened = opened_flow(flow, settings)
        check_sources(opened, checkpoint)
        last = checkpoint.last_commit()
        if last is None:
            return replace(verdict, why=("It has no batch yet, so there is nothing that must fit.",))
        rehearsal = Rehearsal(scratch, opened, checkpoint, last, folder, lambda: None)
        frame = rehearse(spark, settings, rehearsal, start.schemas)
    except DoesNotFit as refused:
        return _refused(verdict, refused)
    except DeclarationError as error:
        return replace(verdict, fit=Fit.BREAKS, why=(str(error),))
    except StreamkeeperError as error:
        return replace(verdict, fit=Fit.BREAKS, why=(str(error),))
    ran = last_run.read(home, generation.number)
    found = _compared(verdict, ran, last_run.of(opened, normal_plan(frame)))
    pinned = tuple(_pinned(flow, checkpoint, last))
    if not pinned:
        return found
    return replace(found, fit=max(found.fit, Fit.NOTED, key=list(Fit).index), why=(*found.why, *pinned))


def _pinned(flow: Flow, checkpoint: Checkpoint, last: int) -> Iterator[str]:
    """Yield what is declared and has no effect, since the checkpoint keeps another value."""
    kept, stateful = checkpoint.offsets(last).conf, bool(checkpoint.operators())
    for name, value in sorted(flow.declaration.spark_conf.items()):
        was = kept.get(name)
        if was is not None and was.lower() != value.lower() and (stateful or name != PARTITIONS):
            yield f"{name} is declared as {value}, and the checkpoint keeps {was} until a reset."


def _refused(verdict: Verdict, refused: DoesNotFit) -> Verdict:
    failure = refused.failure
    why = (f"Spark says {refused.said()}", f"That is: {failure.meaning}.")
    match failure.classed:
        case FailureClass.NEEDS_RECOVERY | FailureClass.NEEDS_CORRECTION:
            return replace(verdict, fit=Fit.BREAKS, why=why, recovery=failure.recovery)
        case FailureClass.TRANSIENT | FailureClass.RESTART:
            again = "It may pass: run it again."
            return replace(verdict, fit=Fit.UNDEFINED, why=(*why, again))


def _compared(verdict: Verdict, before: LastRun | None, now: LastRun) -> Verdict:
    """Compare what Spark accepts with what the flow ran: Spark does not notice each change that is wrong."""
    if before is None:
        why = "Spark goes on. What the flow ran before is not known, so no plans were compared."
        return replace(verdict, fit=Fit.NOTED, why=(why,))
    moved = [
        f"The source {name} reads {now.sources[name]}, and its positions are of {place}: Spark promises"
        " nothing. Reset it to a start that its plan prices."
        for name, place in before.sources.items()
        if name in now.sources and now.sources[name] != place
    ]
    if moved:
        return replace(verdict, fit=Fit.UNDEFINED, why=tuple(moved), recovery="reset_checkpoint")
    notes = tuple(_notes(before, now))
    if notes:
        return replace(verdict, fit=Fit.NOTED, why=notes)
    why = "Only limits, triggers or settings changed: neither the query's plan nor its code."
    return replace(verdict, why=(why,))


def _notes(before: LastRun, now: LastRun) -> Iterator[str]:
    for name in now.sources.keys() - before.sources.keys():
        yield f"The source {name} is new, and is read from its own start."
    for name in before.sources.keys() - now.sources.keys():
        yield f"The source {name} is gone, and its positions with it."
    differ = [
        line
        for line in difflib.unified_diff(before.plan, now.plan, lineterm="", n=0)
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    if differ:
        yield (
            "The query's plan is another one. Spark raises no error; rows and state so far are of the old"
            " plan:"
        )
        yield from (f"  {line[0]} {line[1:].lstrip(' :+-|~')}" for line in differ)
    elif before.code != now.code:
        yield "Code of functions changed, and the query's plan did not: what it comes to is the code's."
