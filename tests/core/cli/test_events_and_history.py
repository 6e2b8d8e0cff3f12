"""``streamkeeper events`` and ``streamkeeper history``: what is shown, refused, and followed until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from streamkeeper.cli.commands import app
from streamkeeper.errors import RequestError, UsageError
from streamkeeper.history import events, rows
from streamkeeper.history.events import Kind
from streamkeeper.history.rows import Sample, Totals
from tests.killing import HEEDING_CTRL_C
from tests.worlds.small_world import World

FLOW = "events.clean_events"
Run = Callable[..., str]


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return the output of a command; raise what it raises."""
    world.enter(monkeypatch)
    world.begin([], 0, 0)  # its first generation is the first event

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None:
            raise result.exception
        return result.output

    return invoke


def test_events_are_lines_in_order_with_who_did_it(world: World, run: Run) -> None:
    other = world.home.beside("events", "other")
    events.note(world.home, Kind.PARKED, "it broke", 1, by="driver", at=time.time() + 1)
    events.note(other, Kind.STARTED, "it began", 1, by="driver", at=time.time() + 2)
    world.home.storage.overwrite(f"{other.root}/supervisor", b"")
    *_, first, second = run("events").splitlines()
    assert first.endswith(f"  {FLOW}  parked: it broke (by driver)")
    assert second.endswith("  events.other  started: it began (by driver)")
    assert run("events", "events").splitlines()[-2:] == [first, second]
    assert run("events", FLOW).splitlines()[-1] == first
    assert run("events", "--kind", "started").splitlines() == [second]
    assert [event["kind"] for event in json.loads(run("events", "events.other", "--json"))] == ["started"]


def test_events_go_back_as_far_as_is_asked_or_show_the_newest_hundred(world: World, run: Run) -> None:
    now = time.time()
    for number in range(110):
        events.note(world.home, Kind.RETRIED, str(number), number, at=now - 60 * number)
    assert len(run("events").splitlines()) == 100
    assert len(run("events", "--since", "30m", "--kind", "retried").splitlines()) == 30
    assert run("events", "--since", "1s", "--kind", "parked") == "Nothing happened.\n"


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("events", "sales"), RequestError, "Nothing is kept of 'sales'. There are the pipelines events"),
        (("events", "events.nothing"), RequestError, "events has events.clean_events"),
        (("events", "--kind", "broken"), RequestError, "There are: started, committed"),
        (("events", "--since", "yesterday"), UsageError, "such as 2h"),
        (("history", "events"), RequestError, "Name one of its flows: events.clean_events"),
        (("history", FLOW, "--since", "2 h"), UsageError, "such as 2h"),
    ],
)
def test_what_is_not_there_is_said_with_what_there_is(
    run: Run, arguments: tuple[str, ...], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        run(*arguments)


def test_history_shows_rows_by_minute(world: World, run: Run) -> None:
    now = time.time()
    for number in range(5):
        totals = Totals(10 * number, 3600 * number)
        sample = Sample(now - 3600 * (4 - number), 1, totals, "running", lag_seconds=30.0)
        rows.record(world.home, sample, lambda: now - 5 * 3600, lambda epoch: Totals())
    heading, first, second = run("history", FLOW).splitlines()
    assert heading.split()[:3] == ["until", "(UTC)", "of"]
    for line in (first, second):
        assert line.split()[2:] == ["60", "min", "running", "10", "3600", "1", "0.0", "s", "30", "s", "0"]
    found = json.loads(run("history", FLOW, "--since", "1d", "--json"))
    assert [row["batches"] for row in found] == [0, 10, 10, 10, 10]


def test_follow_prints_what_comes_once_and_ends_cleanly_on_ctrl_c(world: World, run: Run) -> None:
    process = following(world)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["kind"] == "generation"
    events.note(world.home, Kind.PARKED, "it broke", 1)
    assert json.loads(process.stdout.readline())["text"] == "it broke"
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=30)
    assert (process.returncode, out, said) == (0, "", "")


def test_follow_ends_when_its_reader_does(world: World, run: Run) -> None:
    process = following(world)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    events.note(world.home, Kind.PARKED, "it broke", 1)
    assert process.wait(timeout=30) == 0


def following(world: World) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*HEEDING_CTRL_C, "events", "--follow", "--json"],
        env={**os.environ, **world.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
