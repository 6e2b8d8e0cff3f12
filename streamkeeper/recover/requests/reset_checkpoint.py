"""What a person asks of ``reset_checkpoint``: the form's fields, and the request that values of them make."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from streamkeeper.declare.model import Source
from streamkeeper.declare.offsets import check_fits
from streamkeeper.errors import RequestError
from streamkeeper.flows.generations import (
    AFTER_LAST,
    EARLIEST,
    GENERATION,
    LATEST,
    MODES,
    OFFSETS,
    REBUILT,
    STATES,
    TIMESTAMP,
    StartAt,
)
from streamkeeper.manifest.manifest import Flow, Manifest
from streamkeeper.recover.requests.form import (
    FormField,
    approval_fields,
    find_flow,
    price_field,
    read_values,
    refuse,
    request_of,
)


@dataclass(frozen=True)
class ResetRequest:
    """A reset as asked for; every value was checked against the manifest. All flows are of one pipeline."""

    flows: tuple[str, ...]
    start: StartAt
    state: str = REBUILT
    accept: tuple[str, ...] = ()
    infer_schemas: bool = False
    reason: str = ""
    by: str = "someone"

    def of(self, flow: Flow) -> ResetRequest:
        """Give the request of one of the flows: explicit offsets are those of its sources."""
        return replace(self, flows=(flow.full_name,), start=start_of(self.start, flow))


def start_of(start: StartAt, flow: Flow) -> StartAt:
    """Give where one flow starts, of the start of several: explicit offsets may be given by source, or by
    flow and source.
    """
    if start.offsets is None:
        return start
    own = start.offsets.get(flow.full_name)
    if own is not None:
        return replace(start, offsets=own)
    names = [source.name for source in flow.pipeline.sources_of(flow.declaration)]
    return replace(start, offsets={name: start.offsets[name] for name in names if name in start.offsets})


def request_from_json(value: dict[str, Any]) -> ResetRequest:
    """Read a request back from a plan."""
    return request_of(ResetRequest, value, start=StartAt(**value["start"]))


def reset_form(manifest: Manifest) -> tuple[FormField, ...]:
    """Give the fields of ``reset_checkpoint``, in the order in which a person reads them."""
    flows = tuple(flow.full_name for flow in manifest.flows())
    return (
        FormField("flow", "string", "Flow", "The flow that gets a new checkpoint.", None, flows),
        FormField(
            "flows",
            "array",
            "Further flows",
            "Flows of the same pipeline that get one too, in the same recovery: all are held before any is"
            " changed.",
            [],
            flows,
            many=True,
        ),
        FormField(
            "start_from",
            "string",
            "Start",
            "Where the new checkpoint starts reading. After the last processed loses nothing and repeats"
            " nothing.",
            AFTER_LAST,
            MODES,
            section="Position",
            option="from",
        ),
        FormField(
            "timestamp",
            "string",
            "Timestamp",
            "For start `timestamp`: files changed, records written and versions committed at or after this"
            " moment are read.",
            nullable=True,
            format="date-time",
            section="Position",
        ),
        FormField(
            "offsets",
            "object",
            "Offsets",
            "For start `offsets`: a position for every source, by its name, as `streamkeeper inspect` shows"
            ' it: `{"events_raw": {"logOffset": 7}}`, `{"orders_raw": {"orders": {"0": 5, "1": -2}}}` (-2 is'
            " earliest, -1 latest).",
            nullable=True,
            section="Position",
        ),
        FormField(
            "generation",
            "number",
            "Generation",
            "For start `generation`: the earlier generation after whose last batch the new one goes on, with"
            " a copy of its checkpoint where the declaration is the same. What was read since is read again.",
            nullable=True,
            section="Position",
        ),
        FormField(
            "state",
            "string",
            "State",
            "For a query that keeps state: rebuilt from history without writing again, or empty (then old"
            " keys count as new).",
            REBUILT,
            STATES,
            section="State",
        ),
        FormField(
            "infer_schemas",
            "boolean",
            "Infer schemas again",
            "Look at the files again for sources that declare no schema. Off: the schemas of the old"
            " generation stay.",
            False,
            section="State",
        ),
        price_field(),
        *approval_fields(),
    )


def parse_reset(
    values: Mapping[str, Any], manifest: Manifest, by: str, now: datetime | None = None
) -> ResetRequest:
    """Make a request of a form's values.

    :param values: by field name; missing fields take the form's default.
    :param now: the present moment, which no timestamp may lie after.
    :raises RequestError: any value does not fit; all misfits are listed.
    """
    merged, wrong = read_values(values, reset_form(manifest))
    flows = parse_flows(merged, manifest, wrong)
    start = parse_start(merged, flows, now or datetime.now(timezone.utc), wrong)
    refuse("The reset was not planned", wrong)
    assert flows and start is not None, "what is missing was listed as wrong"
    return ResetRequest(
        flows=tuple(flow.full_name for flow in flows),
        start=start,
        state=merged["state"],
        accept=tuple(merged["accept"] or ()),
        infer_schemas=merged["infer_schemas"],
        reason=merged["reason"] or "",
        by=by,
    )


def parse_flows(values: Mapping[str, Any], manifest: Manifest, wrong: list[str]) -> tuple[Flow, ...]:
    """Find the flows that the fields ``flow`` and ``flows`` name, each once; add to ``wrong`` what is not
    right with them.
    """
    further = values["flows"] if isinstance(values["flows"], (list, tuple)) else ()
    names = [values["flow"], *further] if values["flow"] is not None or not further else list(further)
    found = {
        flow.full_name: flow
        for flow in (find_flow(name, manifest, wrong) for name in names)
        if flow is not None
    }
    pipelines = sorted({flow.pipeline.name for flow in found.values()})
    if len(pipelines) > 1:
        wrong.append(
            f"The flows belong to several pipelines: {', '.join(pipelines)}. One recovery is of one pipeline:"
            " trigger one for each of them."
        )
    return tuple(found.values())


STARTS_WITH_VALUE = (
    "timestamp:2026-11-21T10:00:00Z",
    'offsets:{"events_raw": {"logOffset": 7}}',
    "generation:3",
)
"""How ``--from`` says what the form has fields of their own for."""


def values_from_command_line(start: str) -> dict[str, Any]:
    """Read ``--from``: ``after-last``, ``earliest``, ``latest``, ``timestamp:2026-11-21T10:00:00Z``,
    ``offsets:{…}`` or ``generation:3``.

    :raises RequestError: it is none of these, or no JSON follows ``offsets:``.
    """
    mode, _, rest = start.partition(":")
    if mode == OFFSETS:
        try:
            offsets = json.loads(rest)
        except ValueError as error:
            raise RequestError(
                f"--from {start!r}: what follows offsets: is no JSON ({error}). Example:"
                ' offsets:{"events_raw": {"logOffset": 7}}'
            ) from error
        return {"start_from": OFFSETS, "offsets": offsets}
    if mode == TIMESTAMP:
        return {"start_from": TIMESTAMP, "timestamp": rest}
    if mode == GENERATION:
        return {"start_from": GENERATION, "generation": int(rest) if rest.isdecimal() else rest}
    return {"start_from": start}


def parse_start(
    values: Mapping[str, Any], flows: Sequence[Flow], now: datetime, wrong: list[str]
) -> StartAt | None:
    """Make a start of the fields ``start_from``, ``timestamp`` and ``offsets``, or add to ``wrong`` what does
    not fit.
    """
    mode, timestamp, offsets = values["start_from"], values["timestamp"], values["offsets"]
    if mode not in MODES:
        return None
    if timestamp is not None and mode != TIMESTAMP:
        wrong.append(
            f"timestamp is {timestamp!r}, but start_from is {mode}. Leave it empty, or choose start_from"
            " timestamp."
        )
    if offsets is not None and mode != OFFSETS:
        wrong.append(
            f"offsets are given, but start_from is {mode}. Leave them empty, or choose start_from offsets."
        )
    number = values.get("generation")
    if number is not None and mode != GENERATION:
        wrong.append(
            f"generation is {number!r}, but start_from is {mode}. Leave it empty, or choose start_from"
            " generation."
        )
    if mode == GENERATION:
        return StartAt(GENERATION, generation=_generation(number, flows, wrong))
    if mode in (TIMESTAMP, LATEST):
        sources = {
            source.name: source for flow in flows for source in flow.pipeline.sources_of(flow.declaration)
        }
        wrong += [_cannot(source, mode) for source in sources.values() if source.format == "rate"]
    if mode == TIMESTAMP:
        return StartAt(TIMESTAMP, timestamp_ms=_moment(timestamp, now, wrong))
    if mode == OFFSETS:
        _check_offsets(offsets, flows, wrong)
        return StartAt(OFFSETS, offsets=offsets if isinstance(offsets, dict) else {})
    assert mode in (AFTER_LAST, EARLIEST, LATEST)
    return StartAt(mode)


def _generation(number: Any, flows: Sequence[Flow], wrong: list[str]) -> int | None:
    if (
        not isinstance(number, (int, float))
        or isinstance(number, bool)
        or number != int(number)
        or number < 1
    ):
        wrong.append(
            f"start_from is generation, and generation is {number!r}. Give its number, as streamkeeper"
            " inspect shows it."
        )
        return None
    if len(flows) > 1:
        wrong.append(
            "start_from is generation, but several flows are named, whose generations are their own. Reset"
            " one at a time."
        )
    return int(number)


def _cannot(source: Source, mode: str) -> str:
    return (
        f"start_from is {mode}, which source {source.name} ({source.format}) cannot do. It can start"
        " after-last, earliest, or at offsets."
    )


def _moment(text: Any, now: datetime, wrong: list[str]) -> int | None:
    if not isinstance(text, str) or not text:
        wrong.append(
            "start_from is timestamp, but no timestamp is given. Give one such as 2026-11-21T10:00:00Z."
        )
        return None
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        wrong.append(
            f"timestamp is {text!r}, which is no ISO 8601 moment. Give one such as 2026-11-21T10:00:00Z."
        )
        return None
    if moment.tzinfo is None:
        wrong.append(
            f"timestamp is {text!r}, which names no time zone. Add Z for UTC, or an offset such as +02:00."
        )
        return None
    if moment > now:
        wrong.append(
            f"timestamp is {text!r}, which lies in the future (it is {now.isoformat(timespec='seconds')}"
            " now). Everything up to it would be lost without a trace. Give a past moment, or start_from"
            " latest."
        )
        return None
    if moment.timestamp() < 0:
        wrong.append(
            f"timestamp is {text!r}, which lies before 1970, where no file has its time. To read everything,"
            " choose start_from earliest."
        )
        return None
    return int(moment.timestamp() * 1000)


def _check_offsets(offsets: Any, flows: Sequence[Flow], wrong: list[str]) -> None:
    if not isinstance(offsets, dict) or not offsets:
        wrong.append(
            "start_from is offsets, but no offsets are given. Give one for every source, such as"
            ' {"events_raw": {"logOffset": 7}}.'
        )
        return
    if not flows:
        return
    read = {flow.full_name: flow.pipeline.sources_of(flow.declaration) for flow in flows}
    named = {flow: value for flow, value in offsets.items() if flow in read}
    shared = {name: value for name, value in offsets.items() if name not in read}
    known = list(
        dict.fromkeys(
            source.name for flow, sources in read.items() if flow not in named for source in sources
        )
    )
    strangers = sorted(set(shared) - set(known))
    if strangers:
        reads = (
            f"It reads {', '.join(known)}."
            if len(flows) == 1
            else f"Sources of the flows not named are {', '.join(known) or 'none'}."
        )
        wrong.append(
            f"offsets name {', '.join(strangers)}, which the flow{'' if len(flows) == 1 else 's'} does not"
            f" read. {reads}"
        )
    for flow, sources in read.items():
        if flow in named and not isinstance(named[flow], dict):
            wrong.append(
                f"offsets of {flow} are {named[flow]!r}. Give a position for each of its sources, by their"
                " names."
            )
            continue
        of = f" of {flow}" if len(flows) > 1 else ""
        _check_positions(named.get(flow, shared), sources, of, wrong)
    for name in shared:
        readers = [
            flow
            for flow, sources in read.items()
            if flow not in named
            for source in sources
            if source.name == name
        ]
        source = next(
            (source for sources in read.values() for source in sources if source.name == name), None
        )
        if len(readers) > 1 and source is not None and source.reads_files:
            wrong.append(
                f"offsets of {name} count files in each flow's own checkpoint, and {', '.join(readers)} read"
                " it. Give them by flow: "
                f'{{"{readers[0]}": {{"{name}": {{"logOffset": 7}}}}, …}}.'
            )


def _check_positions(offsets: dict[str, Any], sources: Sequence[Source], of: str, wrong: list[str]) -> None:
    names = [source.name for source in sources]
    missing = [name for name in names if name not in offsets]
    if missing:
        wrong.append(
            f"offsets{of} leave out {', '.join(missing)}. Give a position for every source of the flow:"
            f" {', '.join(names)}."
        )
    for source in sources:
        if source.name in offsets and offsets[source.name] is None:
            wrong.append(
                f"offsets of {source.name} are null. Give a position, or choose start_from earliest to read"
                " everything again."
            )
        elif source.name in offsets:
            misfit = check_fits(source.format, offsets[source.name])
            if misfit:
                wrong.append(f"offsets of {source.name}: {misfit}")
