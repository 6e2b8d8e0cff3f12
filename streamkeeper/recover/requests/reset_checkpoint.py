"""The request of ``reset_checkpoint``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import check_fits
from streamkeeper.errors import RequestError
from streamkeeper.flows.generations import (
    AFTER_LAST,
    GENERATION,
    LATEST,
    MODES,
    OFFSETS,
    REBUILT,
    STATES,
    TIMESTAMP,
    InitialState,
    StartAt,
    StartMode,
)
from streamkeeper.manifest.manifest import Flow
from streamkeeper.recover.requests.form import (
    FLOW,
    Asking,
    FormField,
    chosen_flows,
    form_field,
    form_fields,
    of_pipeline_or_all,
    schemas_inferred,
)
from streamkeeper.recover.requests.rehearsal import Rehearsable
from streamkeeper.support.json_values import parse

WHERE = "Position"
_FURTHER = "Further flows"


@dataclass(frozen=True)
class ResetRequest(Rehearsable):
    """A reset as requested; every value was checked against the manifest."""

    refused = "The reset was not planned"

    flows: tuple[str, ...] = form_fields(
        FormField(
            "flow",
            "string",
            "Flow",
            "The flow to give a new checkpoint. Several: below, under Further flows.",
            nullable=True,
            names=FLOW,
            mends=True,
        ),
        FormField(
            "flows",
            "array",
            "Further flows",
            "Other flows that get a new checkpoint too, in the same recovery: all are held before any is"
            " changed.",
            [],
            many=True,
            names=FLOW,
            section=_FURTHER,
        ),
        *(replace(part, section=_FURTHER) for part in of_pipeline_or_all("reset", "flows")),
    )
    start: StartAt = form_fields(
        FormField(
            "start",
            "string",
            "Start",
            "Start of the new checkpoint. After the last processed batch nothing is lost and nothing"
            " duplicated.",
            AFTER_LAST,
            MODES,
            option=(
                'With a value: timestamp:2026-11-21T10:00:00Z, offsets:{"events_raw": {"logOffset": 7}},'
                " generation:3."
            ),
        ),
        FormField(
            "timestamp",
            "string",
            "Timestamp",
            "For start timestamp: files changed, records written and versions committed at or after this"
            " moment are read.",
            nullable=True,
            format="date-time",
            section=WHERE,
        ),
        FormField(
            "offsets",
            "object",
            "Offsets",
            "For start offsets: a position for every source, by its name, as streamkeeper inspect shows it."
            ' Files: {"events_raw": {"logOffset": 7}}. Kafka: {"orders_raw": {"orders": {"0": 5, "1": -2}}}'
            " (-2 is earliest, -1 latest).",
            nullable=True,
            section=WHERE,
        ),
        FormField(
            "generation",
            "number",
            "Generation",
            "For start generation: the earlier generation after whose last batch the new one continues, with"
            " a copy of its checkpoint if the declaration is the same. Rows read since then are read again.",
            nullable=True,
            whole=True,
            least=1,
            section=WHERE,
        ),
    )
    state: InitialState = form_field(
        "string",
        "State",
        "For a query with state: rebuilt from history without writing it again, or empty (old keys then"
        " count as new).",
        REBUILT,
        enum=tuple(map(str, STATES)),
        section="State",
    )
    infer_schemas: bool = schemas_inferred("State")

    @classmethod
    def check(cls, values: Mapping[str, Any], asking: Asking) -> Mapping[str, Any]:
        """Check that the start fits the sources of the flows."""
        flows = chosen_flows(values, asking)
        pipelines = sorted({flow.pipeline.name for flow in flows})
        if len(pipelines) > 1 and (values["rehearse"] or values["rehearsal"]):
            asking.wrong.append(
                f"The flows are of several pipelines: {', '.join(pipelines)}. A rehearsal is of one: rehearse"
                " them pipeline by pipeline, or leave rehearse and rehearsal out."
            )
        return {"flows": tuple(flow.full_name for flow in flows), "start": parse_start(values, flows, asking)}

    @classmethod
    def shorthand(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the form's values of ``--start``, which may contain timestamp, offsets or generation.

        :raises RequestError: no JSON follows ``offsets:``.
        """
        mode, _, argument = values.get("start", "").partition(":")
        if not argument or mode not in (TIMESTAMP, OFFSETS, GENERATION):
            return values
        if mode == OFFSETS:
            try:
                return {**values, "start": mode, mode: parse(argument)}
            except ValueError as error:
                raise RequestError(
                    f"--start {values['start']!r}: what follows offsets: is not JSON ({error}). "
                    'Example: offsets:{"events_raw": {"logOffset": 7}}'
                ) from error
        return {
            **values,
            "start": mode,
            mode: int(argument) if argument.isdecimal() and mode == GENERATION else argument,
        }


def start_of(start: StartAt, flow: Flow) -> StartAt:
    """Return the start of one flow out of several: offsets may be given by source, or by flow and source."""
    if start.offsets is None:
        return start
    own = start.offsets.get(flow.full_name)
    if own is not None:
        return replace(start, offsets=own)
    names = [source.name for source in flow.sources]
    return replace(start, offsets={name: start.offsets[name] for name in names if name in start.offsets})


def parse_start(values: Mapping[str, Any], flows: Sequence[Flow], asking: Asking) -> StartAt | None:
    """Return the start from the fields ``start``, ``timestamp``, ``offsets`` and ``generation``."""
    mode, timestamp, offsets, number = (
        values.get(name) for name in ("start", "timestamp", "offsets", "generation")
    )
    wrong = asking.wrong
    if timestamp is not None and mode != TIMESTAMP:
        wrong.append(
            f"timestamp is {timestamp!r}, but start is {mode}. Leave it empty, or choose start timestamp."
        )
    if offsets is not None and mode != OFFSETS:
        wrong.append(f"offsets are given, but start is {mode}. Leave them empty, or choose start offsets.")
    if number is not None and mode != GENERATION:
        wrong.append(
            f"generation is {number!r}, but start is {mode}. Leave it empty, or choose start generation."
        )
    if mode == GENERATION:
        return StartAt(GENERATION, generation=_generation(number, flows, wrong))
    if mode in (TIMESTAMP, LATEST):
        sources = {source.name: source for flow in flows for source in flow.sources}
        wrong += [_cannot(source, mode) for source in sources.values() if not source.kind.history]
    if mode == TIMESTAMP:
        return StartAt(TIMESTAMP, timestamp_ms=_moment(timestamp, asking.now, wrong))
    if mode == OFFSETS:
        _check_offsets(offsets, flows, wrong)
        return StartAt(OFFSETS, offsets=offsets if isinstance(offsets, dict) else {})
    return StartAt(StartMode(str(mode)))


def _generation(number: int | None, flows: Sequence[Flow], wrong: list[str]) -> int | None:
    if number is None:
        wrong.append(
            "start is generation, but no generation is given. Give its number, as streamkeeper inspect"
            " shows it."
        )
    if len(flows) > 1:
        wrong.append(
            "start is generation, but several flows are named, and each has its own generations. Reset one"
            " at a time."
        )
    return number


def _cannot(source: Source, mode: str) -> str:
    ways = (
        "after-last, which is a new connection, or from a generation"
        if source.kind.connection
        else "after-last, earliest, or at offsets"
    )
    return f"start is {mode}, which source {source.name} ({source.format}) cannot do. It can start {ways}."


def _moment(text: Any, now: datetime, wrong: list[str]) -> int | None:
    if not isinstance(text, str) or not text:
        wrong.append("start is timestamp, but no timestamp is given. Give one such as 2026-11-21T10:00:00Z.")
        return None
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        wrong.append(
            f"timestamp is {text!r}, which is no ISO 8601 moment. Give one such as 2026-11-21T10:00:00Z."
        )
        return None
    if moment.tzinfo is None:
        misfit = "names no time zone. Add Z for UTC, or an offset such as +02:00."
    elif moment > now:
        misfit = (
            f"lies in the future (it is {now.isoformat(timespec='seconds')} now). Everything up to it would"
            " be lost silently. Give a past moment, or start latest."
        )
    elif moment.timestamp() < 0:
        misfit = "lies before 1970, earlier than any file's time. To read everything, choose start earliest."
    else:
        return int(moment.timestamp() * 1000)
    wrong.append(f"timestamp is {text!r}, which {misfit}")
    return None


def _check_offsets(offsets: Any, flows: Sequence[Flow], wrong: list[str]) -> None:
    if not isinstance(offsets, dict) or not offsets:
        wrong.append(
            'start is offsets, but no offsets are given. Give one for every source, such as {"events_raw":'
            ' {"logOffset": 7}}.'
        )
        return
    if not flows:
        return
    read = {flow.full_name: flow.sources for flow in flows}
    named = {flow: value for flow, value in offsets.items() if flow in read}
    shared = {name: value for name, value in offsets.items() if name not in read}
    ours = {flow: sources for flow, sources in read.items() if flow not in named}
    source_names = list(dict.fromkeys(source.name for sources in ours.values() for source in sources))
    unknown = sorted(set(shared) - set(source_names))
    if unknown:
        reads = (
            f"It reads {', '.join(source_names)}."
            if len(flows) == 1
            else f"Sources of the flows not named are {', '.join(source_names) or 'none'}."
        )
        wrong.append(
            f"offsets name {', '.join(unknown)}, which the flow{'' if len(flows) == 1 else 's'} does not"
            f" read. {reads}"
        )
    for flow, sources in read.items():
        if flow in named and not isinstance(named[flow], dict):
            wrong.append(
                f"offsets of {flow} are {named[flow]!r}. Give a position for each of its sources, by their"
                " names."
            )
            continue
        flow_suffix = f" of {flow}" if len(flows) > 1 else ""
        _check_positions(named.get(flow, shared), sources, flow_suffix, wrong)
    for name in shared:
        readers = [flow for flow, sources in ours.items() if any(one.name == name for one in sources)]
        files = any(one.name == name and one.reads_files for sources in ours.values() for one in sources)
        if len(readers) > 1 and files:
            wrong.append(
                f"offsets of {name} count files in each flow's own checkpoint, and {', '.join(readers)} read"
                " it. Give them by flow: "
                f'{{"{readers[0]}": {{"{name}": {{"logOffset": 7}}}}, …}}.'
            )


def _check_positions(
    offsets: dict[str, Any], sources: Sequence[Source], flow_suffix: str, wrong: list[str]
) -> None:
    names = [source.name for source in sources]
    missing = [name for name in names if name not in offsets]
    if missing:
        wrong.append(
            f"offsets{flow_suffix} leave out {', '.join(missing)}. Give a position for every source of the"
            f" flow: {', '.join(names)}."
        )
    for source in sources:
        if source.name in offsets and offsets[source.name] is None:
            wrong.append(
                f"offsets of {source.name} are null. Give a position, or choose start earliest to read"
                " everything again."
            )
        elif source.name in offsets:
            misfit = check_fits(source.format, offsets[source.name])
            if misfit:
                wrong.append(f"offsets of {source.name}: {misfit}")
