"""The look before the restart, as far as files tell: what needs no Spark, and how verdicts are shown."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from streamkeeper.json_values import read_as
from streamkeeper.manifest.manifest import declared
from streamkeeper.preflight import last_run
from streamkeeper.preflight.look import look, verdicts
from streamkeeper.preflight.verdict import EXIT_CODES, Fit, Verdict, told, worst
from tests.worlds.small_world import World

FLOW = "events.clean_events"


def test_a_flow_that_never_ran_goes_on(world: World) -> None:
    [found] = verdicts(world.settings, world.settings, declared(world.settings), [])
    assert (found.flow, found.fit, found.tried) == (FLOW, Fit.GOES_ON, False)


def test_the_declaration_that_ran_last_needs_no_spark_and_another_one_does(world: World) -> None:
    world.begin([], 0, 0)
    flow = declared(world.settings).find(FLOW)
    assert look(world.settings, flow) is None, "it is not known what the driver ran"
    last_run.keep(world.home, 1, last_run.of(flow, ("Project",)))
    found = look(world.settings, flow)
    assert found is not None and found.fit is Fit.GOES_ON and "ran last" in found.why[0]
    assert look(world.settings, replace(flow, fingerprint="another")) is None


def test_what_a_driver_ran_is_written_once_and_again_when_it_runs_something_else(world: World) -> None:
    world.begin([], 0, 0)
    flow = declared(world.settings).find(FLOW)
    last_run.keep(world.home, 1, last_run.of(flow, ("Project",)))
    first = last_run.read(world.home, 1)
    assert first is not None and first.plan == ("Project",) and first.at
    last_run.keep(world.home, 1, last_run.of(flow, ("Project",)))
    assert last_run.read(world.home, 1) == first
    last_run.keep(world.home, 1, last_run.of(flow, ("Filter",)))
    again = last_run.read(world.home, 1)
    assert again is not None and again.plan == ("Filter",)


@pytest.mark.parametrize(
    ("fits", "code"),
    [
        ([], 0),
        (["goes on", "goes on, and note"], 0),
        (["goes on", "undefined"], 4),
        (["undefined", "breaks"], 1),
    ],
)
def test_the_worst_verdict_is_the_exit_code(fits: list[str], code: int) -> None:
    assert EXIT_CODES[worst(tuple(Verdict("p.f", Fit(fit)) for fit in fits))] == code


def test_a_verdict_survives_its_line_and_is_said_in_words() -> None:
    verdict = Verdict(
        "p.f", Fit.BREAKS, ("Spark says no.",), "reset_checkpoint", ("raw: lost nothing",), True
    )
    assert told(verdict).startswith("VERDICT {")
    assert read_as(Verdict, asdict(verdict)) == verdict
    assert verdict.in_words().splitlines() == [
        "p.f: breaks",
        "  Spark says no.",
        "  reset_checkpoint carries the change in.",
        "  raw: lost nothing",
    ]


def test_a_flow_under_another_name_breaks_with_the_command_and_one_that_is_gone_is_noted(
    world: World,
) -> None:
    world.begin([], 0, 0)
    branch = replace(world.settings, pipelines=world.root / "branch")
    branch.pipelines.mkdir()
    text = (world.root / "pipelines" / "events.py").read_text()
    (branch.pipelines / "events.py").write_text(text.replace("clean_events", "cleaned_events"))
    [found] = verdicts(world.settings, branch, declared(branch), [])
    assert (found.flow, found.fit) == ("events.cleaned_events", Fit.BREAKS)
    assert found.why[1].endswith(f"streamkeeper rename {FLOW} events.cleaned_events.")
    (branch.pipelines / "events.py").unlink()
    assert [(one.flow, one.fit) for one in verdicts(world.settings, branch, declared(branch), [])] == [
        (FLOW, Fit.NOTED)
    ]
