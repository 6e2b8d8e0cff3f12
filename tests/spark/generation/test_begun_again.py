"""Beginning a generation is cut off before each single write, and begun again by the next driver: the table
is the same every time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import generations, leases
from streamkeeper.flows.generations import COPIED, EMPTY, REBUILT
from streamkeeper.storage import LocalStorage
from tests.oracle import first_per
from tests.worlds.flow_world import Flowbed, pipeline

pytestmark = pytest.mark.long

Make = Callable[..., Flowbed]
IGNORED = ("heartbeats/", "lease/")
"""What a driver writes all the time, and before it begins anything."""


class PowerCut(BaseException):
    """The machine went down."""


class CutStorage(LocalStorage):
    """A local storage that records what is written, and fails before a write of one's choice and at every
    write after it.
    """

    def __init__(self, root: str, cut_at: int | None = None) -> None:
        super().__init__(root)
        self.writes: list[str] = []
        self._cut_at = cut_at

    def create(self, name: str, content: bytes) -> bool:
        self._record(name)
        return super().create(name, content)

    def overwrite(self, name: str, content: bytes) -> None:
        self._record(name)
        super().overwrite(name, content)

    def remove(self, name: str) -> None:
        self._record(name)
        super().remove(name)

    def _record(self, name: str) -> None:
        if any(part in name for part in IGNORED):
            return
        if self._cut_at is not None and len(self.writes) >= self._cut_at:
            raise PowerCut(name)
        self.writes.append(name)


@pytest.mark.parametrize("state", [REBUILT, EMPTY, COPIED])
def test_a_generation_that_is_cut_off_at_any_write_is_begun_again_the_same(
    make_bed: Make, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Generation 2 is a stateful query after a stateful one. Each driver gets one write further than the one
    before it.
    """
    bed = make_bed()
    bed.arrive(1, 2)
    bed.arrive(2, 3)
    assert bed.run() is Outcome.STOPPED
    if state != COPIED:
        bed.declare(pipeline(view='.dropDuplicates(["event_id", "user_id"])'))
    bed.reset(state=state)
    cut_at, cuts = 0, []
    while True:
        storage = CutStorage(bed.settings.state, cut_at)
        monkeypatch.setattr(
            "streamkeeper_jobs.driver.driver.open_storage", lambda _, storage=storage: storage
        )
        try:
            outcome = bed.run()
        except PowerCut as cut:
            cuts.append(str(cut))
            lease = leases.current(bed.home)
            assert lease is not None
            leases.leave(bed.home, lease, "its machine went down: this test's own process lives on")
            assert generations.read_start(bed.home, 2) is None or cuts[-1].endswith("driver.began.json")
            cut_at += 1
            continue
        break
    assert outcome is Outcome.STOPPED
    written = [name.split("/", 2)[2] for name in cuts]
    assert [name for name in written if name.endswith(("metadata", "offsets/0", "000002.start.json"))], (
        written
    )
    bed.holds(first_per(bed.events, ["event_id"]))
    bed.arrive(4, 5)
    monkeypatch.undo()
    assert bed.run() is Outcome.STOPPED
    bed.holds(first_per(bed.events, ["event_id"]))
    assert len(set(bed.home.storage.names("events/clean_events/checkpoints"))) > 2, (
        "each driver had a folder of its own"
    )
