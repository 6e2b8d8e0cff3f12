"""The look before the restart that needs Spark: a flow's declaration, tried on a copy of its newest state.

Nothing of the flow is changed. The copy lies in a folder of the machine that tries.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from streamkeeper.checkpoint import Checkpoint
from streamkeeper.checkpoint.log_entries import PARTITIONS
from streamkeeper.drivers.failures import FailureClass
from streamkeeper.errors import CatalogError, SettingsError, SourceError, StorageError, StreamkeeperError
from streamkeeper.flows.files import FlowHome
from streamkeeper.manifest.environment import opened_flow
from streamkeeper.manifest.manifest import Flow
from streamkeeper.observe.observed import Observed
from streamkeeper.preflight import last_run
from streamkeeper.preflight.differences import differences, moved_files
from streamkeeper.preflight.last_run import LastRun
from streamkeeper.preflight.standing import standing
from streamkeeper.preflight.verdict import UNCHANGED, Compatibility, Verdict
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage
from streamkeeper_jobs.catalog.named_sources import looked_up
from streamkeeper_jobs.catalog.registration import check_names
from streamkeeper_jobs.generation.consistency import check_sources
from streamkeeper_jobs.preflight.dry_run import DoesNotFit, Rehearsal, rehearse
from streamkeeper_jobs.sources.formats import look_with_spark
from streamkeeper_jobs.stream.given_state import as_recorded
from streamkeeper_jobs.stream.in_flight import made_with
from streamkeeper_jobs.stream.logical_plan import normal_plan
from streamkeeper_jobs.stream.readers import is_empty, is_there


def try_flow(
    spark: SparkSession, settings: Settings, home: FlowHome, flow: Flow, scratch: Storage, *, folder: str
) -> Verdict:
    """Try a declaration on a copy of the newest state of its flow, and return the verdict.

    :param flow: as imported, functions included.
    :param scratch: where the copy is made, in ``folder``, and removed again.
    """
    verdict = Verdict(flow.full_name, Compatibility.COMPATIBLE, tried=True)
    try:
        return _tried(spark, settings, home, flow, scratch, folder=folder)
    except DoesNotFit as refused:
        return _refused(verdict, refused)
    except (CatalogError, SourceError, StorageError, SettingsError) as error:
        return replace(
            verdict, compatibility=Compatibility.UNKNOWN, reasons=(str(error), "It may pass: run it again.")
        )
    except StreamkeeperError as error:
        return replace(verdict, compatibility=Compatibility.INCOMPATIBLE, reasons=(str(error),))


def _tried(
    spark: SparkSession, settings: Settings, home: FlowHome, flow: Flow, scratch: Storage, *, folder: str
) -> Verdict:
    verdict = Verdict(flow.full_name, Compatibility.COMPATIBLE, tried=True)
    begun = Observed(home).begun
    assert begun is not None, "a flow that never began needs no Spark"
    generation, start = begun
    checkpoint = Checkpoint(home.storage, start.checkpoint)
    last = checkpoint.last_commit()
    opened = looked_up(spark, opened_flow(flow, settings))
    check_names(spark, settings, opened)
    opened = as_recorded(spark, opened, start.evidence, spent=last is not None)
    check_sources(opened, checkpoint, generation)
    first = replace(verdict, reasons=("It has no batch yet, so there is no state that must fit.",))
    awaited = tuple(_awaited(spark, opened, start.schemas))
    if awaited:
        return (
            first if last is None else replace(verdict, compatibility=Compatibility.UNKNOWN, reasons=awaited)
        )
    standing_verdict = standing(settings, home, opened, begun, partial(look_with_spark, spark))
    if standing_verdict.compatibility is Compatibility.INCOMPATIBLE:
        return replace(standing_verdict, tried=True)
    rehearsal = Rehearsal(scratch, opened, checkpoint, last, folder, lambda: None)
    frame = rehearse(spark, settings, rehearsal, start.schemas)
    if last is None:
        return first
    before = last_run.read(home, generation.number)
    if before is None:
        note = "Spark goes on. What the flow ran before is not known, so nothing was compared."
        return replace(
            verdict, compatibility=Compatibility.RESULTS_DIFFER, reasons=(note, *standing_verdict.reasons)
        )
    moved = moved_files(before.flow(flow.name), flow) if before.pipeline else None
    if moved is not None:
        return replace(
            verdict, compatibility=Compatibility.INCOMPATIBLE, reasons=(moved,), recovery="reset_checkpoint"
        )
    more = (*_declared(before, flow, _checkpoint_settings(checkpoint, last)), *standing_verdict.reasons)
    return _compared(verdict, before, last_run.record_of(flow, normal_plan(frame), opened=opened), more)


def _awaited(spark: SparkSession, opened: Flow, schemas: Mapping[str, str]) -> Iterator[str]:
    """Yield the sources that a driver would wait for, and read nothing until they are there."""
    for source in opened.pipeline.sources_of(opened.declaration):
        has_schema = not source.reads_files or source.schema is not None or source.name in schemas
        if not is_there(spark, source) or (not has_schema and is_empty(source)):
            problem = f"The source {source.name} has nothing in {source.path} yet"
            yield f"{problem}: a driver waits for it, and reads nothing."


def _checkpoint_settings(checkpoint: Checkpoint, last: int) -> dict[str, str]:
    """Return the settings that a checkpoint keeps, whatever is declared: partitions only of a state."""
    settings = dict(checkpoint.offsets(last).conf)
    settings.pop(PARTITIONS, None)
    if partitions := made_with(checkpoint):
        settings[PARTITIONS] = str(partitions)
    return settings


def _declared(before: LastRun, flow: Flow, conf: Mapping[str, str]) -> Iterator[str]:
    """Yield what is declared otherwise than it ran, beside plan and code, and what of it has no effect."""
    ran = before.flow(flow.name) if before.pipeline else None
    if ran is None:
        yield "What was declared before is not known but for its plan: options, schemas and rules may differ."
    had = {} if ran is None else ran.declaration.spark_conf
    has = flow.declaration.spark_conf
    for name in sorted(conf.keys() & {*had, *has}):
        if name not in has:
            yield f"{name} is declared no more, and the checkpoint keeps {conf[name]} until a reset."
        elif has[name].lower() != conf[name].lower():
            yield f"{name} is declared as {has[name]}, and the checkpoint keeps {conf[name]} until a reset."
    if ran is not None:
        yield from differences(ran, flow, conf)


def _refused(verdict: Verdict, refused: DoesNotFit) -> Verdict:
    failure = refused.failure
    reasons = (f"Spark says {refused.message()}", f"That is: {failure.meaning}.")
    match failure.classed:
        case FailureClass.NEEDS_RECOVERY | FailureClass.NEEDS_CORRECTION:
            return replace(
                verdict, compatibility=Compatibility.INCOMPATIBLE, reasons=reasons, recovery=failure.recovery
            )
        case FailureClass.TRANSIENT | FailureClass.RESTART:
            again = "It may pass: run it again."
            return replace(verdict, compatibility=Compatibility.UNKNOWN, reasons=(*reasons, again))
        case FailureClass.BAD_INPUT:
            return replace(
                verdict,
                compatibility=Compatibility.UNKNOWN,
                reasons=(*reasons, *failure.particulars, failure.remedy),
            )


def _compared(verdict: Verdict, before: LastRun, now: LastRun, more: tuple[str, ...]) -> Verdict:
    """Compare what Spark accepts with what the flow ran: Spark does not notice each change that is wrong.

    :param more: what is to be noted beside plan and code.
    """
    moved = [
        f"The source {name} reads {now.sources[name]}, and its positions are of {place}: Spark promises"
        " nothing. Reset it to a start that its plan counts."
        for name, place in before.sources.items()
        if name in now.sources and now.sources[name] != place
    ]
    if moved:
        return replace(
            verdict, compatibility=Compatibility.UNKNOWN, reasons=tuple(moved), recovery="reset_checkpoint"
        )
    notes = (*_notes(before, now), *more)
    if notes:
        return replace(verdict, compatibility=Compatibility.RESULTS_DIFFER, reasons=notes)
    note = "Only limits, triggers or resources changed: neither the query nor its code."
    return replace(verdict, reasons=(UNCHANGED if before.fingerprint == now.fingerprint else note,))


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
