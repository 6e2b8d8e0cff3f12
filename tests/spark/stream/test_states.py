"""Every kind of state, through restarts and a reset with its state rebuilt: the table is the oracle's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamkeeper.exit_codes import Outcome
from tests.worlds.flow_world import Flowbed
from tests.worlds.states.shapes import SHAPES, Run, Shape

pytestmark = pytest.mark.long


def run(bed: Flowbed, arrives: Run) -> None:
    for folder in ("events", "second"):
        (bed.root / "data" / folder).mkdir(exist_ok=True)
        if arrives.get(folder):
            bed.arrive(*arrives[folder], folder=folder)
    assert bed.run() is Outcome.STOPPED


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_a_state_goes_on_over_restarts_and_is_made_anew_from_history(
    make_bed: Callable[..., Flowbed], shape: Shape
) -> None:
    bed = make_bed(shape.text)
    before, after = shape.runs[:2], shape.runs[2:]
    for arrives in before:
        run(bed, arrives)
    bed.reset()
    for arrives in after:
        run(bed, arrives)
    bed.holds(shape.rows)
    assert bed.start(2).operators == shape.operators
    assert bed.start(2).state == "rebuilt"
