"""What a person asks of a recovery: the form's fields, and the request that values of them make.

Every value is checked, together, before anything is touched: :class:`RequestError` lists all that is wrong at once. Airflow's own form
checks little and accepts unknown keys, so this is where the checking is done, for the form, the API and the command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from streamkeeper.declarations import Pipeline, Source
from streamkeeper.errors import RequestError
from streamkeeper.generations import AFTER_LAST, EARLIEST, LATEST, MODES, OFFSETS, REBUILT, STATES, TIMESTAMP, StartAt
from streamkeeper.manifest import Flow, Manifest
from streamkeeper.positions import check_fits

LOSS = "loss"
REPEATS = "repeats"
MISSING_HISTORY = "missing-history"
UNKNOWN_PRICE = "unknown-price"

PRICES = {
    LOSS: "rows that no generation will ever read",
    REPEATS: "rows that the target will get a second time",
    MISSING_HISTORY: "a rebuilt state without rows of the history that are gone, or in files that were written anew",
    UNKNOWN_PRICE: "a price that could not be found out",
}
"""What a person may accept beforehand, by the word that the form and ``--accept`` take."""


@dataclass(frozen=True)
class FormField:
    """One field of a recovery's form. ``type`` is a JSON Schema type; ``many`` lets several of ``enum`` be picked."""

    name: str
    type: str
    title: str
    description: str
    default: Any = None
    enum: tuple[str, ...] | None = None
    many: bool = False
    nullable: bool = False
    format: str | None = None
    section: str | None = None


@dataclass(frozen=True)
class ResetRequest:
    """A reset as asked for; every value was checked against the manifest."""

    flow: str
    start: StartAt
    state: str = REBUILT
    accept: tuple[str, ...] = ()
    infer_schemas: bool = False
    reason: str = ""
    by: str = "someone"


def reset_form(manifest: Manifest) -> tuple[FormField, ...]:
    """Give the fields of ``reset_checkpoint``, in the order in which a person reads them."""
    flows = tuple(flow.full_name for flow in manifest.flows())
    return (
        FormField("flow", "string", "Flow", "The flow that gets a new checkpoint.", None, flows),
        FormField(
            "start_from",
            "string",
            "Start",
            "Where the new checkpoint starts reading. After the last processed loses nothing and repeats nothing.",
            AFTER_LAST,
            MODES,
            section="Position",
        ),
        FormField(
            "timestamp",
            "string",
            "Timestamp",
            "For start `timestamp`: files changed, records written and versions committed at or after this moment are read.",
            nullable=True,
            format="date-time",
            section="Position",
        ),
        FormField(
            "offsets",
            "object",
            "Offsets",
            "For start `offsets`: a position for every source, by its name, as `streamkeeper inspect` shows it: "
            '`{"events_raw": {"logOffset": 7}}`, `{"orders_raw": {"orders": {"0": 5, "1": -2}}}` (-2 is earliest, -1 latest).',
            nullable=True,
            section="Position",
        ),
        FormField(
            "state",
            "string",
            "State",
            "For a query that keeps state: rebuilt from history without writing again, or empty (then old keys count as new).",
            REBUILT,
            STATES,
            section="State",
        ),
        FormField(
            "infer_schemas",
            "boolean",
            "Infer schemas again",
            "Look at the files again for sources that declare no schema. Off: the schemas of the old generation stay.",
            False,
            section="State",
        ),
        FormField(
            "accept",
            "array",
            "Accepted price",
            "What the plan may cost without being refused: " + "; ".join(f"`{word}`: {meaning}" for word, meaning in PRICES.items()) + ".",
            [],
            tuple(PRICES),
            many=True,
            section="Approval",
        ),
        FormField(
            "approval", "boolean", "Ask for approval", "Wait until someone has read the plan and approved it.", True, section="Approval"
        ),
        FormField("dry_run", "boolean", "Only plan", "Stop after the plan; nothing is changed.", False, section="Approval"),
        FormField("reason", "string", "Reason", "Why; it is kept in the ledger and with the generation.", "", section="Approval"),
    )


def parse_reset(values: Mapping[str, Any], manifest: Manifest, by: str, now: datetime | None = None) -> ResetRequest:
    """Make a request of a form's values.

    :param values: by field name; missing fields take the form's default.
    :param now: the present moment, which no timestamp may lie after.
    :raises RequestError: any value does not fit; all misfits are listed.
    """
    merged, wrong = read_values(values, reset_form(manifest))
    flow = _flow(merged["flow"], manifest, wrong)
    start = _start(merged, flow, now or datetime.now(timezone.utc), wrong)
    refuse("The reset was not planned", wrong)
    assert flow is not None and start is not None, "what is missing was listed as wrong"
    return ResetRequest(
        flow=flow.full_name,
        start=start,
        state=merged["state"],
        accept=tuple(merged["accept"] or ()),
        infer_schemas=merged["infer_schemas"],
        reason=merged["reason"] or "",
        by=by,
    )


def values_from_command_line(start: str) -> dict[str, Any]:
    """Read ``--from``: ``after-last``, ``earliest``, ``latest``, ``timestamp:2026-11-21T10:00:00Z`` or ``offsets:{…}``.

    :raises RequestError: it is none of these, or no JSON follows ``offsets:``.
    """
    mode, _, rest = start.partition(":")
    if mode == OFFSETS:
        try:
            offsets = json.loads(rest)
        except ValueError as error:
            raise RequestError(
                f'--from {start!r}: what follows offsets: is no JSON ({error}). Example: offsets:{{"events_raw": {{"logOffset": 7}}}}'
            ) from error
        return {"start_from": OFFSETS, "offsets": offsets}
    if mode == TIMESTAMP:
        return {"start_from": TIMESTAMP, "timestamp": rest}
    return {"start_from": start}


def read_values(values: Mapping[str, Any], form: Iterable[FormField]) -> tuple[dict[str, Any], list[str]]:
    """Give a value for every field of a form, its default where none was given, and what is wrong with the names and types."""
    fields = {field.name: field for field in form}
    unknown = sorted(set(values) - set(fields))
    wrong = [f"Unknown: {', '.join(map(repr, unknown))}. Allowed are {', '.join(fields)}."] if unknown else []
    merged = {name: values.get(name, field.default) for name, field in fields.items()}
    for name, field in fields.items():
        wrong += check_type(field, merged[name])
    return merged, wrong


def refuse(what: str, wrong: Sequence[str]) -> None:
    """Go on if nothing is wrong.

    :param what: was not done, as the start of a sentence.
    :raises RequestError: something is; all of it is listed.
    """
    if wrong:
        raise RequestError("\n".join([f"{what}, and nothing was touched:", *(f"- {item}" for item in wrong)]))


def check_type(field: FormField, value: Any) -> list[str]:
    """Say what is wrong with a value by itself, whatever the others are; nothing if it fits."""
    if value is None and (field.nullable or field.many):
        return []
    kinds: dict[str, tuple[type[Any], ...]] = {
        "string": (str,),
        "boolean": (bool,),
        "number": (int, float),
        "object": (dict,),
        "array": (list,),
    }
    if field.many and isinstance(value, tuple):
        value = list(value)
    if not isinstance(value, kinds[field.type]) or (field.type == "number" and isinstance(value, bool)):
        return [] if field.name == "flow" else [f"{field.name} is {value!r}; it must be of type {field.type}."]
    if field.name == "flow" or field.enum is None:
        return []
    bad = [item for item in (value if field.many else [value]) if item not in field.enum]
    return [f"{field.name} is {value!r}; allowed are {', '.join(field.enum)}."] if bad else []


def _flow(name: Any, manifest: Manifest, wrong: list[str]) -> Flow | None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.]+", name):
        known = ", ".join(flow.full_name for flow in manifest.flows()) or "none"
        wrong.append(f"flow is {name!r}, which is no flow's name (letters, digits, underscores and one dot). Declared are: {known}.")
        return None
    try:
        return manifest.find(name)
    except RequestError as error:
        wrong.append(str(error))
        return None


def _start(values: Mapping[str, Any], flow: Flow | None, now: datetime, wrong: list[str]) -> StartAt | None:
    mode, timestamp, offsets = values["start_from"], values["timestamp"], values["offsets"]
    if mode not in MODES:
        return None
    if timestamp is not None and mode != TIMESTAMP:
        wrong.append(f"timestamp is {timestamp!r}, but start_from is {mode}. Leave it empty, or choose start_from timestamp.")
    if offsets is not None and mode != OFFSETS:
        wrong.append(f"offsets are given, but start_from is {mode}. Leave them empty, or choose start_from offsets.")
    sources = flow.pipeline.sources_of(flow.declaration) if flow else ()
    if mode == TIMESTAMP:
        moment = _moment(timestamp, now, wrong)
        wrong += [_cannot(source, mode) for source in sources if source.format == "rate"]
        return StartAt(TIMESTAMP, timestamp_ms=moment)
    if mode == OFFSETS:
        _check_offsets(offsets, flow.pipeline if flow else None, sources, wrong)
        return StartAt(OFFSETS, offsets=offsets if isinstance(offsets, dict) else {})
    if mode == LATEST:
        wrong += [_cannot(source, mode) for source in sources if source.format == "rate"]
    assert mode in (AFTER_LAST, EARLIEST, LATEST)
    return StartAt(mode)


def _cannot(source: Source, mode: str) -> str:
    return (
        f"start_from is {mode}, which source {source.name} ({source.format}) cannot do. It can start after-last, earliest, or at offsets."
    )


def _moment(text: Any, now: datetime, wrong: list[str]) -> int | None:
    if not isinstance(text, str) or not text:
        wrong.append("start_from is timestamp, but no timestamp is given. Give one such as 2026-11-21T10:00:00Z.")
        return None
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        wrong.append(f"timestamp is {text!r}, which is no ISO 8601 moment. Give one such as 2026-11-21T10:00:00Z.")
        return None
    if moment.tzinfo is None:
        wrong.append(f"timestamp is {text!r}, which names no time zone. Add Z for UTC, or an offset such as +02:00.")
        return None
    if moment > now:
        wrong.append(
            f"timestamp is {text!r}, which lies in the future (it is {now.isoformat(timespec='seconds')} now). Everything up to it would "
            "be lost without a trace. Give a past moment, or start_from latest."
        )
        return None
    if moment.timestamp() < 0:
        wrong.append(
            f"timestamp is {text!r}, which lies before 1970, where no file has its time. To read everything, choose start_from earliest."
        )
        return None
    return int(moment.timestamp() * 1000)


def _check_offsets(offsets: Any, pipeline: Pipeline | None, sources: tuple[Source, ...], wrong: list[str]) -> None:
    if not isinstance(offsets, dict) or not offsets:
        wrong.append(
            'start_from is offsets, but no offsets are given. Give one for every source, such as {"events_raw": {"logOffset": 7}}.'
        )
        return
    if pipeline is None:
        return
    names = [source.name for source in sources]
    strangers = sorted(set(offsets) - set(names))
    if strangers:
        wrong.append(f"offsets name {', '.join(strangers)}, which the flow does not read. It reads {', '.join(names)}.")
    missing = [name for name in names if name not in offsets]
    if missing:
        wrong.append(f"offsets leave out {', '.join(missing)}. Give a position for every source of the flow: {', '.join(names)}.")
    for source in sources:
        if source.name in offsets and offsets[source.name] is None:
            wrong.append(f"offsets of {source.name} are null. Give a position, or choose start_from earliest to read everything again.")
        elif source.name in offsets:
            misfit = check_fits(source.format, offsets[source.name])
            if misfit:
                wrong.append(f"offsets of {source.name}: {misfit}")
