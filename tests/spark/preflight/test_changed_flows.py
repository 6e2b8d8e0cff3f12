"""A changed declaration of a flow that has its changes tried: what its next driver runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from streamkeeper.declare.model import ASK, TRY
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import holds
from streamkeeper.manifest.manifest import declared
from streamkeeper.trial import change
from streamkeeper.trial.change import ChangeState
from streamkeeper.trial.verdict import Compatibility
from tests.oracle import first_per
from tests.worlds.flow_world import DEDUPE, NAME, Flowbed, pipeline


def trying(text: str, how: str = TRY) -> str:
    """Return a pipeline whose flow has its changes tried."""
    return text.replace('target="events",', f'target="events", on_change="{how}",')


@pytest.fixture
def bed(make_bed: Callable[..., Flowbed]) -> Flowbed:
    """A flow without duplicates that has run."""
    made = make_bed(trying(pipeline()))
    made.arrive(1, 2, 2)
    assert made.run() is Outcome.STOPPED
    return made


def seen(bed: Flowbed) -> change.Change | None:
    return change.read(bed.home, declared(bed.settings).find(NAME).fingerprint)


def test_a_change_that_breaks_is_refused_and_the_flow_runs_on_with_what_it_had(bed: Flowbed) -> None:
    bed.declare(trying(pipeline(view="")))
    killed = f"{bed.home.trials}/killed"  # what a trial left that did not come to its end
    for folder in ("offsets", "commits"):
        bed.home.storage.overwrite(f"{killed}/{folder}/1", b"v1\n{}")
    assert bed.run() is Outcome.CHANGE_REFUSED
    found = seen(bed)
    assert found is not None and found.state is ChangeState.REFUSED
    assert (found.verdict.compatibility, found.verdict.recovery) == (
        Compatibility.INCOMPATIBLE,
        "reset_checkpoint",
    )
    assert found.verdict.impact[0].startswith("events_raw: data loss: nothing")
    assert bed.home.storage.names(bed.home.trials) == ["killed"], "the copy is removed"
    bed.arrive(2, 3)
    assert bed.run() is Outcome.STOPPED
    assert bed.home.storage.names(bed.home.trials) == []
    bed.holds(first_per(bed.events, ["event_id"]))
    assert holds.all_of(bed.home) == []


def test_a_file_that_cannot_be_read_leaves_the_flow_as_it_was(bed: Flowbed) -> None:
    bed.declare("import streamkeeper\nraise ValueError('half a deploy')\n")
    bed.arrive(2, 3)
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_per(bed.events, ["event_id"]))


def test_a_change_that_fits_is_used_and_one_that_asks_waits_until_it_is_accepted(bed: Flowbed) -> None:
    fits = trying(pipeline(view='.where("n > 2")' + DEDUPE))
    bed.declare(fits.replace(f'"{TRY}"', f'"{ASK}"'))
    assert bed.run() is Outcome.CHANGE_REFUSED
    found = seen(bed)
    assert found is not None and found.state is ChangeState.AWAITS
    bed.arrive(2, 3)
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_per(bed.events, ["event_id"]))
    change.write(bed.home, replace(found, state=ChangeState.ACCEPTED))
    before = len(bed.events)
    bed.arrive(1, 4)
    assert bed.run() is Outcome.STOPPED
    kept = [*bed.events[:before], *(event for event in bed.events[before:] if event["n"] > 2)]
    bed.holds(first_per(kept, ["event_id"]))


def test_a_reset_carries_a_refused_change_in(bed: Flowbed) -> None:
    bed.declare(trying(pipeline(view="")))
    assert bed.run() is Outcome.CHANGE_REFUSED
    bed.reset()
    before = len(bed.events)
    bed.arrive(1, 1)
    assert bed.run() is Outcome.STOPPED
    bed.holds([*first_per(bed.events[:before], ["event_id"]), *bed.events[before:]])
