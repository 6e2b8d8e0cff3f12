"""What a person asks of a reset: every bad value is refused, all of them together, before anything is
touched.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from streamkeeper.errors import RequestError
from streamkeeper.flows.generations import StartAt
from streamkeeper.manifest.manifest import Manifest, read_manifest
from streamkeeper.recover.requests import form as request_form
from streamkeeper.recover.requests.reset_checkpoint import (
    ResetRequest,
    parse_reset,
    reset_form,
    values_from_command_line,
)
from tests.worlds.small_world import EVENTS, World

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
FLOW = "events.clean_events"
RATES = EVENTS.replace(
    'format="json", path="{data}/events", schema="event_id STRING", options={}', 'format="rate"'
).replace("events", "rates")


@pytest.fixture
def known(world: World) -> Manifest:
    world.declare(RATES, "rates.py")
    return read_manifest(world.settings)


def parse(known: Manifest, **values: Any) -> ResetRequest:
    return parse_reset({"flow": FLOW, **values}, known, by="ada", now=NOW)


def test_the_form_asks_for_what_a_reset_needs_in_reading_order(known: Manifest) -> None:
    fields = {field.name: field for field in reset_form(known)}
    assert list(fields) == [
        "flow",
        "flows",
        "start_from",
        "timestamp",
        "offsets",
        "generation",
        "state",
        "infer_schemas",
        "accept",
        "approval",
        "dry_run",
        "reason",
    ]
    assert fields["flow"].enum == (FLOW, "rates.clean_rates")
    assert fields["flow"].default is None, "nobody resets a flow that was not named"
    assert (fields["start_from"].default, fields["approval"].default, fields["dry_run"].default) == (
        "after-last",
        True,
        False,
    )
    assert all(field.title and field.description for field in fields.values())


def test_only_the_flow_must_be_said(known: Manifest) -> None:
    assert parse(known) == ResetRequest((FLOW,), StartAt("after-last"), "rebuilt", (), False, "", "ada")


def test_a_flow_may_be_given_by_its_own_name(known: Manifest) -> None:
    assert parse_reset({"flow": "clean_rates"}, known, "ada").flows == ("rates.clean_rates",)


GOOD: dict[str, tuple[dict[str, Any], StartAt]] = {
    "earliest": ({"start_from": "earliest"}, StartAt("earliest")),
    "latest": ({"start_from": "latest"}, StartAt("latest")),
    "timestamp in UTC": (
        {"start_from": "timestamp", "timestamp": "2026-11-21T10:00:00Z"},
        StartAt("timestamp", timestamp_ms=1_795_255_200_000),
    ),
    "timestamp with an offset": (
        {"start_from": "timestamp", "timestamp": "2026-11-21T12:00:00.250+02:00"},
        StartAt("timestamp", timestamp_ms=1_795_255_200_250),
    ),
    "offsets": (
        {"start_from": "offsets", "offsets": {"events_raw": {"logOffset": 7}}},
        StartAt("offsets", offsets={"events_raw": {"logOffset": 7}}),
    ),
    "offsets before everything": (
        {"start_from": "offsets", "offsets": {"events_raw": {"logOffset": -1}}},
        StartAt("offsets", offsets={"events_raw": {"logOffset": -1}}),
    ),
}


@pytest.mark.parametrize(("values", "start"), GOOD.values(), ids=GOOD.keys())
def test_a_position_that_fits_is_taken(values: dict[str, Any], start: StartAt, known: Manifest) -> None:
    assert parse(known, **values).start == start


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no flow": ({"flow": None}, "flow is None, which is no flow's name"),
    "unknown flow": (
        {"flow": "events.other"},
        r"There is no flow 'events.other'. Declared are: events.clean_events, rates.clean_rates",
    ),
    "flow with a slash": (
        {"flow": "events/clean_events"},
        "flow is 'events/clean_events', which is no flow's name",
    ),
    "flow with dots": ({"flow": "../../etc"}, "flow is '../../etc', which is no flow's name"),
    "flow with quotes": ({"flow": "x'; drop"}, "which is no flow's name .letters, digits, underscores"),
    "flow with a space": ({"flow": "events. clean_events"}, "which is no flow's name"),
    "flow with a newline": ({"flow": FLOW + "\n"}, "which is no flow's name"),
    "flow is a list": ({"flow": [FLOW]}, "which is no flow's name"),
    "unknown key": (
        {"Flows": FLOW, "Start": 1},
        "Unknown: 'Flows', 'Start'. Allowed are flow, flows, start_from, timestamp",
    ),
    "unknown start": (
        {"start_from": "yesterday"},
        "start_from is 'yesterday'; allowed are after-last, earliest, latest, timestamp, offsets",
    ),
    "start is a number": ({"start_from": 5}, "start_from is 5; it must be of type string"),
    "unknown state": ({"state": "kept"}, "state is 'kept'; allowed are rebuilt, empty"),
    "unknown price": (
        {"accept": ["loss", "all"]},
        r"accept is \['loss', 'all'\]; allowed are loss, repeats, missing-history, unknown-price, downstream",
    ),
    "price as a text": ({"accept": "loss"}, "accept is 'loss'; it must be of type array"),
    "odd price": ({"accept": [["loss"]]}, "allowed are loss"),
    "a truth value in words": ({"dry_run": "yes"}, "dry_run is 'yes'; it must be of type boolean"),
    "a truth value as a number": ({"approval": 1}, "approval is 1; it must be of type boolean"),
    "reason is no text": ({"reason": 7}, "reason is 7; it must be of type string"),
    "timestamp missing": (
        {"start_from": "timestamp"},
        "no timestamp is given. Give one such as 2026-11-21T10:00:00Z",
    ),
    "timestamp empty": ({"start_from": "timestamp", "timestamp": ""}, "no timestamp is given"),
    "timestamp in words": (
        {"start_from": "timestamp", "timestamp": "noon"},
        "timestamp is 'noon', which is no ISO 8601 moment",
    ),
    "timestamp is a number": (
        {"start_from": "timestamp", "timestamp": 1795255200},
        "timestamp is 1795255200; it must be of type string",
    ),
    "timestamp in the future": (
        {"start_from": "timestamp", "timestamp": "2026-11-21T12:00:01Z"},
        (
            r"lies in the future \(it is 2026-11-21T12:00:00\+00:00 now\).* Give a past moment, or start_from"
            r" latest"
        ),
    ),
    "timestamp far in the future": (
        {"start_from": "timestamp", "timestamp": "9999-12-31T23:59:59-12:00"},
        "lies in the future",
    ),
    "timestamp before time": (
        {"start_from": "timestamp", "timestamp": "0001-01-01T00:00:00+12:00"},
        "lies before 1970",
    ),
    "timestamp without a zone": (
        {"start_from": "timestamp", "timestamp": "2026-11-21T10:00:00"},
        "names no time zone. Add Z for UTC",
    ),
    "timestamp beside another start": (
        {"timestamp": "2026-11-21T10:00:00Z"},
        "timestamp is '2026-11-21T10:00:00Z', but start_from is after-last",
    ),
    "offsets beside another start": (
        {"offsets": {"events_raw": {"logOffset": 1}}},
        "offsets are given, but start_from is after-last",
    ),
    "offsets missing": ({"start_from": "offsets"}, "no offsets are given. Give one for every source"),
    "offsets empty": ({"start_from": "offsets", "offsets": {}}, "no offsets are given"),
    "offsets as a text": (
        {"start_from": "offsets", "offsets": '{"events_raw": 1}'},
        "it must be of type object",
    ),
    "offsets of a stranger": (
        {"start_from": "offsets", "offsets": {"events_raw": {"logOffset": 1}, "other": {"logOffset": 1}}},
        "offsets name other, which the flow does not read. It reads events_raw",
    ),
    "offsets leave a source out": (
        {"start_from": "offsets", "offsets": {"x": 1}},
        "offsets leave out events_raw. Give a position for every",
    ),
    "offsets of Kafka for files": (
        {"start_from": "offsets", "offsets": {"events_raw": {"topic": {"0": 5}}}},
        "offsets of events_raw: .* is an offset of a kafka source; a json source has",
    ),
    "offsets that say nothing": (
        {"start_from": "offsets", "offsets": {"events_raw": {}}},
        "offsets of events_raw: .* no source that is known",
    ),
    "offsets of null": (
        {"start_from": "offsets", "offsets": {"events_raw": None}},
        "offsets of events_raw are null",
    ),
    "offsets below everything": (
        {"start_from": "offsets", "offsets": {"events_raw": {"logOffset": -2}}},
        "The files log has no batch -2",
    ),
    "offsets that are no whole number": (
        {"start_from": "offsets", "offsets": {"events_raw": {"logOffset": 1.5}}},
        "offsets of events_raw",
    ),
    "offsets that are a truth value": (
        {"start_from": "offsets", "offsets": {"events_raw": {"logOffset": True}}},
        "offsets of events_raw",
    ),
    "latest of a rate source": (
        {"flow": "rates.clean_rates", "start_from": "latest"},
        r"start_from is latest, which source rates_raw \(rate\) cannot do",
    ),
    "timestamp of a rate source": (
        {"flow": "rates.clean_rates", "start_from": "timestamp", "timestamp": "2026-11-21T10:00:00Z"},
        r"start_from is timestamp, which source rates_raw \(rate\) cannot do",
    ),
}


@pytest.mark.parametrize(("values", "message"), BAD.values(), ids=BAD.keys())
def test_a_value_that_does_not_fit_is_refused(values: dict[str, Any], message: str, known: Manifest) -> None:
    with pytest.raises(RequestError, match=rf"(?s)nothing was touched:\n- .*{message}"):
        parse(known, **values)


def test_a_reset_that_names_no_flow_is_refused(known: Manifest) -> None:
    with pytest.raises(RequestError, match=r"flow is None"):
        parse_reset({}, known, "ada")


def test_everything_that_is_wrong_is_said_at_once(known: Manifest) -> None:
    bad = {
        "flow": "no.such",
        "start_from": "timestamp",
        "timestamp": "2027-01-01T00:00:00Z",
        "state": "kept",
        "dry_run": 0,
        "typo": 1,
        "offsets": {"a": 1},
    }
    with pytest.raises(RequestError) as caught:
        parse_reset(bad, known, "ada", NOW)
    said = str(caught.value).splitlines()
    for part in (
        "no.such",
        "in the future",
        "state is 'kept'",
        "dry_run is 0",
        "'typo'",
        "offsets are given",
    ):
        assert sum(part in line for line in said) == 1, part
    assert len(said) == 7


def test_a_moment_just_past_is_fine_by_the_real_clock(known: Manifest) -> None:
    moment = datetime.now(timezone.utc) - timedelta(seconds=1)
    request = parse_reset(
        {"flow": FLOW, "start_from": "timestamp", "timestamp": moment.isoformat()}, known, "ada"
    )
    assert request.start.timestamp_ms == int(moment.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("after-last", {"start_from": "after-last"}),
        ("earliest", {"start_from": "earliest"}),
        ("timestamp:2026-11-21T10:00:00Z", {"start_from": "timestamp", "timestamp": "2026-11-21T10:00:00Z"}),
        ('offsets:{"a": {"logOffset": 7}}', {"start_from": "offsets", "offsets": {"a": {"logOffset": 7}}}),
        ("nonsense:1", {"start_from": "nonsense:1"}),
    ],
)
def test_the_command_lines_from_is_read(text: str, values: dict[str, Any]) -> None:
    assert values_from_command_line(text) == values


def test_offsets_that_are_no_json_are_refused() -> None:
    with pytest.raises(RequestError, match=r"what follows offsets: is no JSON .* Example: offsets:"):
        values_from_command_line("offsets:{events_raw: 7}")


def test_each_price_has_its_word_and_meaning() -> None:
    assert set(request_form.PRICES) == {
        request_form.LOSS,
        request_form.REPEATS,
        request_form.MISSING_HISTORY,
        request_form.UNKNOWN_PRICE,
        request_form.DOWNSTREAM,
    }
    assert json.dumps(request_form.PRICES)
