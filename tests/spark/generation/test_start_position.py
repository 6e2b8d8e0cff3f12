"""From where a generation reads: which old offset belongs to which source, and how a start goes on after what
a backup kept. No JVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.checkpoint import Checkpoint, write_initial_offsets
from streamkeeper.declare.model import DELTA, KAFKA, Location, Source
from streamkeeper.delta.history import History, offset_before
from streamkeeper.errors import RecoveryError
from streamkeeper.flows.generations import AFTER_LAST, OFFSETS, REBUILT, Generation, Start, StartAt
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.sources.base.format import Before, Resolved
from streamkeeper.sources.kafka.offsets import OffsetRange, Offsets, Topics, history_of
from streamkeeper.sources.kafka.start import KafkaLook, KafkaPosition, after_last
from streamkeeper.sources.starts import starts_of
from streamkeeper.storage import LocalStorage
from streamkeeper.support.amounts import DATA_LOSS

TABLE_ID = "7c0ffee0-0000-4000-8000-000000000001"
STOOD: Offsets = {"orders": {"0": 6, "1": 3}}
HELD = Topics({"orders": {"0": OffsetRange(0, 10), "1": OffsetRange(0, 3)}}, {"orders": "id-1"})
WIDENED = Topics(
    {"orders": {**HELD.ranges["orders"], "2": OffsetRange(0, 5)}, "more": {"0": OffsetRange(4, 9)}}, HELD.ids
)
EXPIRED = Topics({"orders": {"0": OffsetRange(8, 10), "1": OffsetRange(0, 3)}}, HELD.ids)
ANEW = Topics(HELD.ranges, {"orders": "id-2"})


def source(name: str, kind: str = "json", **options: str) -> Source:
    return Source(name, kind, f"/data/{name}", "id INT", options, Location("p.py", 1))


@dataclass
class Seen:
    """What the looks of a driver find: the same topics and the same table for every source."""

    held: Topics = HELD
    table: History = field(default_factory=lambda: History("/data/source", TABLE_ID, 0, 4))

    def look(self, source: Source) -> KafkaLook | History:
        return KafkaLook(self.held, lambda moment_ms: STOOD) if source.format == KAFKA else self.table

    def resolve(self, source: Source, start: StartAt, before: Before) -> Resolved[Any]:
        return starts_of(source).resolve(source, start, before, lambda: self.look(source))

    def complete(self, source: Source, position: Any) -> Any:
        return position


def begun(folder: Path) -> CommittedPosition:
    """A generation that read topics from their first record, and whose checkpoint has none of its batches any
    more.
    """
    storage = LocalStorage(str(folder))
    storage.create("c/sources/raw/0", write_initial_offsets({"orders": {"0": 0, "1": 0}}))
    start = Start(
        1,
        "c",
        None,
        {},
        {},
        (),
        None,
        1,
        "2026-11-21T10:00:00+00:00",
        {"topics": {"raw": {"orders": "id-1"}}},
    )
    return CommittedPosition(
        decided(StartAt(AFTER_LAST)), start, Checkpoint(storage, "c"), None, None, fenced=True
    )


def decided(start: StartAt, *accepted: str) -> Generation:
    return Generation(
        2, 1, start, REBUILT, "q2", "a test", "a test", "2026-11-21T10:00:00+00:00", "f", accepted=accepted
    )


def kept(offsets: Mapping[str, Any]) -> StartAt:
    """Start after the offsets that a backup kept of generation 1."""
    return StartAt(OFFSETS, offsets=dict(offsets), generation=1)


@pytest.mark.parametrize(
    ("held", "accepted", "offsets", "said"),
    [
        pytest.param(HELD, (), STOOD, "", id="as it was"),
        pytest.param(
            WIDENED,
            (),
            {"orders": {"0": 6, "1": 3, "2": 0}, "more": {"0": 4}},
            "source raw: new since then, and read from the first record: orders/2, more",
            id="wider, and one topic more",
        ),
        pytest.param(
            EXPIRED,
            (DATA_LOSS,),
            {"orders": {"0": 8, "1": 3}},
            "holds nothing before 8 any more",
            id="a loss that was accepted",
        ),
        pytest.param(
            ANEW,
            (DATA_LOSS,),
            HELD.earliest,
            "was deleted and recreated (its id was id-1",
            id="recreated, and that accepted",
        ),
    ],
)
def test_topics_are_gone_on_in_after_kept_offsets_as_after_a_batch(
    tmp_path: Path, held: Topics, accepted: tuple[str, ...], *, offsets: Offsets, said: str
) -> None:
    from streamkeeper_jobs.generation.start_position import find_origin

    found = find_origin(
        decided(kept({"raw": STOOD}), *accepted), (source("raw", KAFKA),), begun(tmp_path), Seen(held)
    )  # type: ignore[arg-type]
    origin = found.sources["raw"]
    assert isinstance(origin, KafkaPosition)
    assert (origin.offsets, said in " ".join(found.notes)) == (offsets, True)


def test_a_topic_that_is_not_read_any_more_is_left_and_a_source_that_was_not_read_begins(
    tmp_path: Path,
) -> None:
    from streamkeeper_jobs.generation.start_position import find_origin

    start = kept({"raw": {**STOOD, "gone": {"0": 7}}, "left": {"logOffset": 2}})
    found = find_origin(decided(start), (source("raw", KAFKA), source("new")), begun(tmp_path), Seen())  # type: ignore[arg-type]
    assert found.sources.keys() == {"raw"}
    assert isinstance(origin := found.sources["raw"], KafkaPosition)
    assert origin.offsets == STOOD
    for said in (
        "source new is new: read from its beginning",
        "source left is no longer read",
        "source raw: not read any more: gone",
    ):
        assert said in found.notes or any(said in note for note in found.notes)


@pytest.mark.parametrize("held", [EXPIRED, ANEW], ids=["expired", "recreated"])
def test_records_that_are_gone_after_kept_offsets_are_refused_where_nobody_accepted_that(
    tmp_path: Path, held: Topics
) -> None:
    from streamkeeper_jobs.generation.start_position import find_origin

    with pytest.raises(
        RecoveryError, match=r"The source raw cannot continue from its position: .*Nothing was changed"
    ):
        find_origin(decided(kept({"raw": STOOD})), (source("raw", KAFKA),), begun(tmp_path), Seen(held))  # type: ignore[arg-type]


@pytest.mark.parametrize("held", [WIDENED, EXPIRED], ids=["wider", "expired"])
def test_offsets_that_a_person_gave_must_fit_whatever_was_accepted(tmp_path: Path, held: Topics) -> None:
    from streamkeeper_jobs.generation.start_position import find_origin

    typed = StartAt(OFFSETS, offsets={"raw": STOOD})
    with pytest.raises(RecoveryError, match="The offsets of source raw cannot be used"):
        find_origin(decided(typed, DATA_LOSS), (source("raw", KAFKA),), begun(tmp_path), Seen(held))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("table", "offset", "goes_on"),
    [
        (
            History("/data/source", TABLE_ID, 3, 4, (3,)),
            offset_before(TABLE_ID, 1),
            offset_before(TABLE_ID, 3),
        ),
        (History("/data/source", TABLE_ID, 0, 4), offset_before("another", 1), None),
    ],
    ids=["cleaned up", "recreated"],
)
def test_a_table_is_gone_on_in_after_a_kept_offset_with_a_loss_that_was_accepted(
    tmp_path: Path, table: History, offset: dict[str, Any], goes_on: dict[str, Any] | None
) -> None:
    from streamkeeper_jobs.generation.start_position import find_origin

    start, sources, where = kept({"raw": offset}), (source("raw", DELTA),), begun(tmp_path)
    with pytest.raises(RecoveryError, match="The source raw cannot continue from its position"):
        find_origin(decided(start), sources, where, Seen(table=table))  # type: ignore[arg-type]
    found = find_origin(decided(start, DATA_LOSS), sources, where, Seen(table=table))  # type: ignore[arg-type]
    assert getattr(found.sources.get("raw"), "offset", None) == goes_on
    with pytest.raises(RecoveryError, match="The offsets of source raw cannot be used"):
        typed = StartAt(OFFSETS, offsets={"raw": offset})
        find_origin(decided(typed, DATA_LOSS), sources, where, Seen(table=table))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offset", "initial", "held"),
    [
        pytest.param(
            STOOD,
            {"orders": {"0": 1, "1": 0}},
            Topics({"orders": {"0": OffsetRange(4, 10), "1": OffsetRange(2, 3)}}),
            id="history expired",
        ),
        pytest.param(
            STOOD,
            {"orders": {"0": 6, "1": 0}},
            EXPIRED,
            id="of a partition in which nothing was read yet, too",
        ),
        pytest.param(
            STOOD, {"orders": {"0": 0, "1": 0}}, WIDENED, id="a topic that came when some of it had expired"
        ),
        pytest.param(STOOD, None, EXPIRED, id="nobody knows where it was first read from"),
        pytest.param(STOOD, {"orders": {"0": 0, "1": 0}}, ANEW, id="recreated"),
    ],
)
def test_what_was_never_read_is_no_history_of_which_a_rebuilt_state_would_lack_a_part(
    offset: Offsets, initial: Offsets | None, held: Topics
) -> None:
    """The very number that a plan gives (impacts_kafka.with_state): else the driver would refuse what the
    plan did not ask for.
    """
    origin = after_last(offset, initial, held, {"orders": "id-1"}).position
    assert origin is not None
    assert origin.offsets is not None
    known = {} if held is ANEW else offset
    assert origin.gone == history_of(initial if initial is not None else held.earliest, known, held)[1]
    assert all(
        origin.initial[topic][part] <= origin.replay_from[topic][part] <= after
        for topic, parts in origin.offsets.items()
        for part, after in parts.items()
    )
