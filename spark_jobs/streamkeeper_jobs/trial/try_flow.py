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
from streamkeeper.flows.files import FlowHome
from streamkeeper.manifest.environment import opened_flow
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage
from streamkeeper.trial import last_run
from streamkeeper.trial.differences import differences, moved_files
from streamkeeper.trial.last_run import LastRun
from streamkeeper.trial.standing import standing
from streamkeeper.trial.verdict import UNCHANGED, Compatibility, Verdict
from streamkeeper_jobs.catalog.named_sources import looked_up
from streamkeeper_jobs.catalog.registration import check_names
from streamkeeper_jobs.generation.consistency import check_sources
from streamkeeper_jobs.sources.formats import look_with_spark
from streamkeeper_jobs.stream.in_flight import made_with
from streamkeeper_jobs.stream.logical_plan import normal_plan
from streamkeeper_jobs.stream.readers import is_empty, is_there
from streamkeeper_jobs.trial.trial import dry_run, judged, of_newest


def try_flow(
    spark: SparkSession, settings: Settings, home: FlowHome, flow: Flow, scratch: Storage | None = None
) -> Verdict:
    """Try a declaration on a copy of the newest state of its flow, and return the verdict.

    :param flow: as imported, functions included.
    :param scratch: where the copy is made, and removed again; by default in the flow's folder for trials.
    """
    verdict = Verdict(flow.full_name, Compatibility.COMPATIBLE, tried=True)
    return judged(verdict, lambda: _tried(spark, settings, home, flow, scratch, verdict))


def _tried(  # noqa: PLR0917 - as try_flow, and the verdict to begin with
    spark: SparkSession,
    settings: Settings,
    home: FlowHome,
    flow: Flow,
    scratch: Storage | None,
    verdict: Verdict,
) -> Verdict:
    newest = of_newest(spark, home, looked_up(spark, opened_flow(flow, settings)), scratch)
    assert newest is not None, "a flow that never began needs no Spark"
    trial, begun = newest
    opened, checkpoint, last = trial.flow, trial.checkpoint, trial.batch
    check_names(spark, settings, opened)
    check_sources(opened, checkpoint, begun[0])
    first = replace(verdict, reasons=("It has no batch yet, so there is no state that must fit.",))
    awaited = tuple(_awaited(spark, opened, trial.schemas))
    if awaited:
        return (
            first if last is None else replace(verdict, compatibility=Compatibility.UNKNOWN, reasons=awaited)
        )
    standing_verdict = standing(settings, home, opened, begun, partial(look_with_spark, spark))
    if standing_verdict.compatibility is Compatibility.INCOMPATIBLE:
        return replace(standing_verdict, tried=True)
    frame = dry_run(spark, settings, trial)
    if last is None:
        return first
    before = last_run.read(home, begun[0].number)
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
