"""The look before the restart, as far as files tell: what needs no Spark, and how verdicts are shown."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from streamkeeper.flows import holds
from streamkeeper.flows.rename import rename
from streamkeeper.manifest.manifest import declared
from streamkeeper.recover import engine
from streamkeeper.recover.kinds.reset_checkpoint import KIND
from streamkeeper.recover.plans import explain
from streamkeeper.support.json_values import read_as
from streamkeeper.trial import change, last_run
from streamkeeper.trial.change import Change, ChangeState, ill
from streamkeeper.trial.look import look, verdicts
from streamkeeper.trial.verdict import EXIT_CODES, Compatibility, Verdict, to_line, worst
from tests.worlds.pipelines import edited
from tests.worlds.small_world import World

FLOW = "events.clean_events"


def test_a_flow_that_never_ran_goes_on(world: World) -> None:
    [found] = verdicts(world.settings, world.settings, declared(world.settings), [])
    assert (found.flow, found.compatibility, found.tried) == (FLOW, Compatibility.COMPATIBLE, False)


def test_the_declaration_that_ran_last_needs_no_spark_and_another_one_does(world: World) -> None:
    world.begin([], 0, 0)
    flow = declared(world.settings).find(FLOW)
    assert look(world.settings, flow) is None, "it is not known what the driver ran"
    last_run.keep(world.home, 1, last_run.record_of(flow, ("Project",)))
    found = look(world.settings, flow)
    assert (
        found is not None
        and found.compatibility is Compatibility.COMPATIBLE
        and "ran last" in found.reasons[0]
    )
    assert look(world.settings, replace(flow, fingerprint="another")) is None


def test_what_a_driver_ran_is_written_once_and_again_when_it_runs_something_else(world: World) -> None:
    world.begin([], 0, 0)
    flow = declared(world.settings).find(FLOW)
    last_run.keep(world.home, 1, last_run.record_of(flow, ("Project",)))
    first = last_run.read(world.home, 1)
    assert first is not None and first.plan == ("Project",) and first.at
    last_run.keep(world.home, 1, last_run.record_of(flow, ("Project",)))
    assert last_run.read(world.home, 1) == first
    last_run.keep(world.home, 1, last_run.record_of(flow, ("Filter",)))
    again = last_run.read(world.home, 1)
    assert again is not None and again.plan == ("Filter",)


def test_a_plan_names_the_verdict_on_a_declaration_that_does_not_simply_go_on(world: World) -> None:
    world.begin([], 0, 0)
    flow = declared(world.settings).find(FLOW)
    assert said_in_plan(world) == "", "nobody knows what the driver ran"
    last_run.keep(world.home, 1, last_run.record_of(flow, ("Project",)))
    assert said_in_plan(world) == "", "it goes on"
    last_run.keep(world.home, 1, replace(last_run.record_of(flow, ("Project",)), fingerprint="another"))
    assert said_in_plan(world).startswith("changed since it ran; streamkeeper preflight")
    refused = Verdict(
        FLOW,
        Compatibility.INCOMPATIBLE,
        ("An operator is gone.",),
        "reset_checkpoint",
        ("raw: data loss: nothing",),
    )
    change.write(world.home, Change(flow.fingerprint, ChangeState.REFUSED, refused))
    assert said_in_plan(world) == "incompatible. An operator is gone. reset_checkpoint carries the change in."


def test_a_form_chooses_a_flow_whose_change_is_refused_and_says_so_after_those_that_are_parked(
    world: World,
) -> None:
    file = world.root / "pipelines" / "events.py"
    file.write_text(edited(file.read_text(), ("append_flow(", 'append_flow(on_change="try", ')))
    world.begin([], 0, 0)
    manifest = declared(world.settings)
    assert ill(world.home.storage, manifest) == {}
    mark = manifest.find(FLOW).fingerprint
    change.write(world.home, Change(mark, ChangeState.REFUSED, Verdict(FLOW, Compatibility.INCOMPATIBLE)))
    found = ill(world.home.storage, manifest)
    assert found == {FLOW: "change refused: incompatible"}
    field = next(field for field in KIND.form(manifest, found) if field.name == "flow")
    assert (field.suggested, field.labels) == (FLOW, {FLOW: f"{FLOW} (change refused: incompatible)"})
    holds.put(world.home, holds.PARK, "why", "a driver")
    assert ill(world.home.storage, manifest) == {FLOW: "parked"}


def said_in_plan(world: World) -> str:
    """Return what a reset's plan says of the declaration."""
    made = engine.plan(world.settings, KIND, KIND.parse({"flow": FLOW}, declared(world.settings), "x"), "r-1")
    [planned], text = made.flows, explain.as_text(made)
    assert (f"Its declaration, looked at before: {planned.verdict}" in text) == bool(planned.verdict)
    return planned.verdict


@pytest.mark.parametrize(
    ("fits", "code"),
    [
        ([], 0),
        (["compatible", "compatible, results differ"], 0),
        (["compatible", "unknown"], 4),
        (["unknown", "incompatible"], 1),
    ],
)
def test_the_worst_verdict_is_the_exit_code(fits: list[str], code: int) -> None:
    assert EXIT_CODES[worst(tuple(Verdict("p.f", Compatibility(fit)) for fit in fits))] == code


def test_a_verdict_survives_its_line_and_is_said_in_words() -> None:
    verdict = Verdict(
        "p.f",
        Compatibility.INCOMPATIBLE,
        ("Spark says no.",),
        "reset_checkpoint",
        ("raw: data loss: nothing",),
        True,
    )
    assert to_line(verdict).startswith("VERDICT {")
    assert read_as(Verdict, asdict(verdict)) == verdict
    assert verdict.in_words().splitlines() == [
        "p.f: incompatible",
        "  Spark says no.",
        "  reset_checkpoint carries the change in.",
        "  raw: data loss: nothing",
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
    assert (found.flow, found.compatibility) == ("events.cleaned_events", Compatibility.INCOMPATIBLE)
    assert found.reasons[1].endswith(f"streamkeeper rename {FLOW} events.cleaned_events.")
    (branch.pipelines / "events.py").unlink()
    assert [
        (one.flow, one.compatibility) for one in verdicts(world.settings, branch, declared(branch), [])
    ] == [(FLOW, Compatibility.RESULTS_DIFFER)]


def test_a_flow_that_was_renamed_already_goes_on_though_the_deployed_file_has_its_old_name(
    world: World,
) -> None:
    world.begin([], 0, 0)
    file, new = world.settings.pipelines / "events.py", "events.cleaned_events"
    branch = replace(world.settings, pipelines=world.root / "branch")
    branch.pipelines.mkdir()
    (branch.pipelines / file.name).write_text(file.read_text().replace("clean_events", "cleaned_events"))
    last_run.keep(world.home, 1, last_run.record_of(declared(branch).find(new), ("Project",)))
    rename(world.settings, FLOW, new, "ada")
    found = verdicts(world.settings, branch, declared(branch), [])
    assert [(one.flow, one.compatibility) for one in found] == [(new, Compatibility.COMPATIBLE)]


def test_a_renamed_file_is_told_the_command_that_works_and_a_moved_flow_where_it_stays(world: World) -> None:
    world.begin([], 0, 0)
    file = world.settings.pipelines / "events.py"
    branch = replace(world.settings, pipelines=world.root / "branch")
    branch.pipelines.mkdir()
    text = file.read_text()
    (branch.pipelines / "visits.py").write_text(text)
    [found] = verdicts(world.settings, branch, declared(branch), [])
    assert (found.flow, found.reasons[1].partition(": ")[2]) == (
        "visits.clean_events",
        "streamkeeper rename events visits.",
    )
    (branch.pipelines / "visits.py").write_text(text.replace("clean_events", "cleaned"))
    [found] = verdicts(world.settings, branch, declared(branch), [])
    assert found.reasons[1].endswith(
        ": streamkeeper rename events visits, then streamkeeper rename visits.clean_events visits.cleaned."
    )
    (branch.pipelines / file.name).write_text(
        text.replace("clean_events", "others").replace('"events"', '"t"')
    )
    _, found = verdicts(world.settings, branch, declared(branch), [])
    assert "declare it in events.py" in found.reasons[1]
