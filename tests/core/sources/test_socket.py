"""A socket keeps nothing: what may be declared of it, and what plans say of its starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamkeeper.declare.offsets import check_fits, describe
from streamkeeper.errors import DeclarationError, RequestError
from streamkeeper.flows.generations import StartAt
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.observe.observed import Observed
from streamkeeper.recover.requests.reset_checkpoint import ResetRequest
from streamkeeper.support.amounts import DATA_LOSS, MISSING_HISTORY
from streamkeeper.watch.pending_input import what_waits
from tests.worlds.recover.recoveries import impact, refused
from tests.worlds.recover.recoveries import plan_reset as plan
from tests.worlds.small_world import EVENTS, World, write_manifest
from tests.worlds.sources.source_impacts import FILES, begun

SOCKET = EVENTS.replace(FILES, 'format="socket", options={"host": "h", "port": 9999}')


@pytest.mark.parametrize(
    ("start", "request_", "impacts"),
    [
        pytest.param("after-last", {}, [MISSING_HISTORY], id="rebuilt"),
        pytest.param("after-last", {"stateful": False}, [], id="stateless"),
        pytest.param("earliest", {}, [DATA_LOSS], id="earliest"),
    ],
)
def test_a_plan_says_what_a_new_connection_costs(
    start: str, request_: dict[str, Any], impacts: list[str], world: World
) -> None:
    begun(world, SOCKET, 40)
    world.park(stateful=request_.get("stateful", True))
    found = plan(world, start)
    assert (impact(found).now, impact(found).then) == (
        "line 41 of its connection",
        "a new connection, and its lines",
    )
    assert refused(found) == impacts


def test_starts_that_a_socket_has_not_are_refused(world: World) -> None:
    begun(world, SOCKET, 40)
    write_manifest(world.settings)
    manifest = read_manifest(world.settings)
    for start in ({"start": "latest"}, {"start": "timestamp", "timestamp": "2026-01-01T00:00:00Z"}):
        with pytest.raises(RequestError, match="after-last, which is a new connection, or from a generation"):
            ResetRequest.parse({"flow": "events.clean_events", **start}, manifest, "ada")
    with pytest.raises(RequestError, match="lines are counted anew by each connection"):
        plan(world, StartAt("offsets", offsets={"events_raw": 7}))
    assert refused(plan(world, StartAt("offsets", offsets={"events_raw": -1}))) == [DATA_LOSS]


def test_whether_lines_wait_is_not_known_and_counts_as_nothing(world: World) -> None:
    begun(world, SOCKET, 40)
    assert not what_waits(Observed(world.home), world.flow).pending
    assert (
        "whether lines wait in events_raw (socket), nobody can tell"
        in what_waits(Observed(world.home), world.flow).description
    )


def test_minus_one_is_the_offset_of_a_connection_of_which_nothing_was_read() -> None:
    assert check_fits("socket", -1) is None
    assert describe(-1) == "no line of its connection"
    assert "Allowed is -1 and above" in str(check_fits("socket", -2))
    assert "Allowed is 0 and above" in str(check_fits("rate", -1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"port": 1}, "has no host. Give the option 'host': 'localhost'"),
        ({"host": "h"}, "has no port. Give the option 'port': '9999'"),
        ({"host": "h", "port": "http"}, "has port 'http'. Allowed is a port, 1 to 65535"),
        ({"host": "h", "port": 65536}, "has port '65536'. Allowed is a port, 1 to 65535"),
        ({"host": "h", "port": 1, "includeTimestamp": True}, "add current_timestamp"),
    ],
)
def test_options_that_a_socket_cannot_have_are_refused_with_their_place(
    options: dict[str, object], words: str, tmp_path: Path
) -> None:
    file = tmp_path / "events.py"
    file.write_text(EVENTS.replace(FILES, f'format="socket", options={options}'))
    with pytest.raises(DeclarationError, match=f"events.py.*line .*{words}"):
        load_pipeline(file, str(tmp_path))


def test_a_flow_that_runs_once_would_read_nothing(tmp_path: Path) -> None:
    file = tmp_path / "events.py"
    file.write_text(SOCKET.replace('target="events",', 'target="events", once=True,'))
    assert "once=True" in file.read_text()
    with pytest.raises(DeclarationError, match=r"runs once, and its source events_raw .* Leave once out"):
        load_pipeline(file, str(tmp_path))
