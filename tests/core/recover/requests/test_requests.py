"""What a person asks of a reset: every bad value is refused, all of them together, before anything is
touched.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from streamkeeper.cli.recovering import _with_options
from streamkeeper.errors import RequestError
from streamkeeper.flows.generations import StartAt
from streamkeeper.manifest.manifest import Manifest, read_manifest
from streamkeeper.recover.plans.kind import KINDS, kind
from streamkeeper.recover.requests.reset_checkpoint import ResetRequest
from tests.worlds.small_world import RATE, World

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
FLOW = "events.clean_events"
RATES = RATE.replace("events", "rates")


@pytest.fixture
def known(world: World) -> Manifest:
    world.declare(RATES, "rates.py")
    return read_manifest(world.settings)


def parse(known: Manifest, **values: Any) -> ResetRequest:
    return ResetRequest.parse({"flow": FLOW, **values}, known, by="ada", now=NOW)


def test_the_form_asks_for_what_a_reset_needs_in_reading_order(known: Manifest) -> None:
    fields = {field.name: field for field in ResetRequest.form(known)}
    start = ("start", "timestamp", "offsets", "generation")
    of_any = ("rehearse", "rehearsal", "accept", "approval", "dry_run", "reason")
    assert tuple(fields) == ("flow", "flows", "pipeline", "all", *start, "state", "infer_schemas", *of_any)
    assert fields["flow"].enum == (FLOW, "rates.clean_rates")
    assert fields["flow"].default is None, "nobody resets a flow that was not named"
    defaults = [fields[name].default for name in ("start", "approval", "dry_run")]
    assert defaults == ["after-last", True, False]
    assert all(field.title and field.description for field in fields.values())


def test_only_the_flow_must_be_said(known: Manifest) -> None:
    assert parse(known) == ResetRequest((FLOW,), StartAt("after-last"), "rebuilt", by="ada")


def test_a_flow_may_be_given_by_its_own_name(known: Manifest) -> None:
    assert ResetRequest.parse({"flow": "clean_rates"}, known, "ada").flows == ("rates.clean_rates",)


def at(moment: Any) -> dict[str, Any]:
    return {"start": "timestamp", "timestamp": moment}


def offsets(of_source: Any) -> dict[str, Any]:
    return {"start": "offsets", "offsets": {"events_raw": of_source}}


GOOD: dict[str, tuple[dict[str, Any], StartAt]] = {
    "earliest": ({"start": "earliest"}, StartAt("earliest")),
    "latest": ({"start": "latest"}, StartAt("latest")),
    "timestamp in UTC": (at("2026-11-21T10:00:00Z"), StartAt("timestamp", timestamp_ms=1_795_255_200_000)),
    "timestamp with an offset": (
        at("2026-11-21T12:00:00.250+02:00"),
        StartAt("timestamp", timestamp_ms=1_795_255_200_250),
    ),
    **{
        case: (
            offsets({"logOffset": batch}),
            StartAt("offsets", offsets={"events_raw": {"logOffset": batch}}),
        )
        for case, batch in (("offsets", 7), ("offsets before everything", -1))
    },
}


@pytest.mark.parametrize(("values", "start"), GOOD.values(), ids=GOOD.keys())
def test_a_position_that_fits_is_taken(values: dict[str, Any], start: StartAt, known: Manifest) -> None:
    assert parse(known, **values).start == start


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown flow": (
        {"flow": "events.other"},
        r"There is no flow 'events.other'. Declared are: events.clean_events, rates.clean_rates",
    ),
    "flow with a newline": ({"flow": FLOW + "\n"}, "which is no flow's name"),
    "timestamp missing": (
        {"start": "timestamp"},
        "no timestamp is given. Give one such as 2026-11-21T10:00:00Z",
    ),
    "timestamp in words": (at("noon"), "timestamp is 'noon', which is no ISO 8601 moment"),
    "timestamp in the future": (
        at("2026-11-21T12:00:01Z"),
        r"lies in the future \(it is 2026-11-21T12:00:00\+00:00 now\).* Give a past moment, or start latest",
    ),
    "timestamp far in the future": (at("9999-12-31T23:59:59-12:00"), "lies in the future"),
    "timestamp before time": (at("0001-01-01T00:00:00+12:00"), "lies before 1970"),
    "timestamp without a zone": (at("2026-11-21T10:00:00"), "names no time zone. Add Z for UTC"),
    "timestamp beside another start": (
        {"timestamp": "2026-11-21T10:00:00Z"},
        "timestamp is '2026-11-21T10:00:00Z', but start is after-last",
    ),
    "offsets beside another start": (
        {"offsets": {"events_raw": {"logOffset": 1}}},
        "offsets are given, but start is after-last",
    ),
    "offsets missing": ({"start": "offsets"}, "no offsets are given. Give one for every source"),
    "offsets of a stranger": (
        {"start": "offsets", "offsets": {"events_raw": {"logOffset": 1}, "other": {"logOffset": 1}}},
        "offsets name other, which the flow does not read. It reads events_raw",
    ),
    "offsets leave a source out": (
        {"start": "offsets", "offsets": {"x": 1}},
        "offsets leave out events_raw. Give a position for every",
    ),
    "offsets of Kafka for files": (
        offsets({"topic": {"0": 5}}),
        "offsets of events_raw: .* is an offset of a kafka source; a json source has",
    ),
    "offsets that say nothing": (offsets({}), "offsets of events_raw: .* no source that is known"),
    "offsets of null": (offsets(None), "offsets of events_raw are null"),
    "offsets below everything": (offsets({"logOffset": -2}), "The files log has no batch -2"),
    "offsets that are no whole number": (offsets({"logOffset": 1.5}), "offsets of events_raw"),
    "offsets that are a truth value": (offsets({"logOffset": True}), "offsets of events_raw"),
    "latest of a rate source": (
        {"flow": "rates.clean_rates", "start": "latest"},
        r"start is latest, which source rates_raw \(rate\) cannot do",
    ),
    "timestamp of a rate source": (
        {"flow": "rates.clean_rates", **at("2026-11-21T10:00:00Z")},
        r"start is timestamp, which source rates_raw \(rate\) cannot do",
    ),
}


@pytest.mark.parametrize(("values", "message"), BAD.values(), ids=BAD.keys())
def test_a_value_that_does_not_fit_is_refused(values: dict[str, Any], message: str, known: Manifest) -> None:
    with pytest.raises(RequestError, match=rf"(?s)nothing was changed:\n- .*{message}"):
        parse(known, **values)


def test_a_moment_just_past_is_fine_by_the_real_clock(known: Manifest) -> None:
    moment = datetime.now(timezone.utc) - timedelta(seconds=1)
    values = {"flow": FLOW, "start": "timestamp", "timestamp": moment.isoformat()}
    assert ResetRequest.parse(values, known, "ada").start.timestamp_ms == int(moment.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("after-last", {"start": "after-last"}),
        ("earliest", {"start": "earliest"}),
        ("timestamp:2026-11-21T10:00:00Z", {"start": "timestamp", "timestamp": "2026-11-21T10:00:00Z"}),
        ('offsets:{"a": {"logOffset": 7}}', {"start": "offsets", "offsets": {"a": {"logOffset": 7}}}),
        ("nonsense:1", {"start": "nonsense:1"}),
    ],
)
def test_the_command_lines_from_is_read(text: str, values: dict[str, Any]) -> None:
    assert ResetRequest.shorthand({"start": text}) == values


def test_offsets_that_are_no_json_are_refused() -> None:
    with pytest.raises(RequestError, match=r"what follows offsets: is not JSON .* Example: offsets:"):
        ResetRequest.shorthand({"start": "offsets:{events_raw: 7}"})


WRITTEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "reset_checkpoint": (
        {"flows": ["p.f"], "start": {"mode": "generation", "generation": 3}},
        {"start": StartAt("generation", generation=3)},
    ),
    "rewind": (
        {"flow": "p.f", "to": {"mode": "batch", "batch": 17}, "along": ["p.g"]},
        {"to": StartAt("batch", batch=17), "along": ("p.g",)},
    ),
    "backfill": (
        {"flow": "p.f", "read": "history", "from_offsets": {"t": {"0": 5}}},
        {"from_offsets": {"t": {"0": 5}}, "to_offsets": None},
    ),
    "clean_up": ({"pipeline": "p", "forget_flows": ["old"]}, {"forget_flows": ("old",), "keep_days": 30.0}),
    "full_refresh": ({"table": "p.t", "accept": ["data-loss"]}, {"accept": ("data-loss",)}),
}
"""Some fields of a request as a ledger holds them, and how they are read."""


@pytest.mark.parametrize("name", WRITTEN)
def test_a_request_is_read_from_the_ledger(name: str) -> None:
    written, read = WRITTEN[name]
    found = kind(name).read_request({**written, "reason": "why", "by": "ada"})
    assert {field: getattr(found, field) for field in read} == read
    assert kind(name).read_request(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_field_has_one_name_in_form_command_line_and_plan(name: str) -> None:
    of = kind(name)
    form = {field.name for field in of.form(Manifest("", (), {}, {}))} - {"approval", "dry_run"}
    made = {
        field.name: {part.name or field.name for part in field.metadata.get("form", ())}
        for field in fields(of.request)
    }
    assert set().union(*made.values()) | {"reason"} == form
    options = set(inspect.signature(_with_options(lambda **_: None, of, {})).parameters) - {"json", "master"}
    assert options == form
    apart = {field: parts for field, parts in made.items() if parts and field not in parts}
    assert apart in ({}, {"to": {"batch", "timestamp", "offsets"}}), (
        "what is asked for in parts alone is named where it is put together"
    )
