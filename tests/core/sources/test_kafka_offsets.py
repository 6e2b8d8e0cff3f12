"""Positions in Kafka: where to go on, what is lost on the way, and what is wrong with offsets that a person
gives.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkeeper.declare.model import Location, Source
from streamkeeper.observe.position import CommittedPosition
from streamkeeper.sources.base.format import Before
from streamkeeper.sources.kafka.impacts import KafkaSnapshot
from streamkeeper.sources.kafka.offsets import (
    OffsetRange,
    Offsets,
    Topics,
    go_on,
    history_of,
    misfits,
    records_between,
    resolved,
)
from streamkeeper.sources.kafka.options import (
    admin_options,
    assigned,
    fails_on_loss,
    patience,
    plain_ids,
    start_options,
)
from streamkeeper.sources.kafka.start import KafkaLook, KafkaStarts

TOPICS = Topics({"orders": {"0": OffsetRange(0, 10), "1": OffsetRange(4, 8)}}, {"orders": "id-1"})
IDS = {"orders": "id-1"}


@pytest.mark.parametrize(
    ("old", "ids", "offsets", "lost", "told"),
    [
        pytest.param(
            {"orders": {"0": 3, "1": 1}},
            IDS,
            {"orders": {"0": 3, "1": 4}},
            [3],
            "nothing before 4 any more",
            id="expired",
        ),
        pytest.param(
            {"orders": {"0": 3}},
            IDS,
            {"orders": {"0": 3, "1": 4}},
            [4],
            "orders/1 is new",
            id="a new partition, in part expired",
        ),
        pytest.param(
            {"orders": {"0": 3, "1": 5}},
            {"orders": "id-0"},
            TOPICS.earliest,
            [None],
            "its id was id-0",
            id="recreated, by its id",
        ),
        pytest.param(
            {"orders": {"0": 11, "1": 2}},
            IDS,
            {"orders": {"0": 10, "1": 4}},
            [2, None],
            "orders/0 was read up to 11, and ends at 10",
            id="one partition cut off, the other expired",
        ),
        pytest.param(
            {"orders": {"0": 11, "1": 5}},
            {},
            TOPICS.earliest,
            [None],
            "read up to 11, and ends at 10: it was deleted and recreated, or its brokers lost records",
            id="shorter, and no id tells why",
        ),
        pytest.param(
            {"orders": {"0": 1, "1": 5, "2": 5}},
            IDS,
            {"orders": {"0": 1, "1": 5}},
            [],
            "",
            id="a partition that is assigned no more",
        ),
        pytest.param(
            {"orders": {"0": 1, "2": 5}},
            {},
            TOPICS.earliest,
            [None],
            "has no partition 2 any more",
            id="recreated, with fewer parts",
        ),
    ],
)
def test_a_flow_goes_on_where_it_stood_as_far_as_that_is_still_there(
    old: Offsets, ids: dict[str, str], offsets: Offsets, lost: list[int | None], told: str
) -> None:
    onward = go_on(old, TOPICS, ids)
    assert onward.offsets == offsets
    assert [loss.records for loss in onward.losses] == lost
    assert told in " ".join(loss.reason for loss in onward.losses)


@pytest.mark.parametrize(
    ("old", "ids", "anew", "guessed", "short", "left"),
    [
        ({"0": 11, "1": 5}, IDS, (), (), ("orders/0",), ()),
        ({"0": 11, "1": 5}, {}, ("orders",), ("orders",), ("orders/0",), ()),
        ({"0": 11, "1": 5}, {"orders": "id-0"}, ("orders",), (), (), ()),
        ({"0": 1, "2": 5}, IDS, (), (), (), ("orders/2",)),
        ({"0": 1, "2": 5}, {}, ("orders",), ("orders",), (), ()),
    ],
    ids=["cut off", "without an id", "another id", "assigned no more", "fewer, without an id"],
)
def test_only_another_id_proves_that_a_topic_was_made_anew(
    old: dict[str, int],
    ids: dict[str, str],
    *,
    anew: tuple[str, ...],
    guessed: tuple[str, ...],
    short: tuple[str, ...],
    left: tuple[str, ...],
) -> None:
    onward = go_on({"orders": old}, TOPICS, ids)
    assert (onward.recreated, onward.guessed, onward.short, onward.removed) == (anew, guessed, short, left)


def test_ids_are_those_of_javas_clients_and_0_is_none() -> None:
    ids = {"new": "Ab+/cD==", "java": "Ab-_cD", "old": "AAAAAAAAAAAAAAAAAAAAAA=="}
    assert plain_ids(ids) == {"new": "Ab-_cD", "java": "Ab-_cD"}


@settings(max_examples=300, deadline=None)
@given(data=st.data(), same=st.sampled_from([True, None, False]))
def test_no_record_is_lost_or_comes_twice_unimpactd_whatever_becomes_of_a_topic(
    data: st.DataObject, same: bool | None
) -> None:
    """The oracle knows each offset's record: whether it is the old one, and whether that was read."""
    old, held, written, expected = {}, {}, {}, {}
    for part in ("0", "1", "2"):
        stood = data.draw(st.integers(0, 8))
        cut = 0 if same is False else data.draw(st.integers(0, stood + 2))
        end = cut + data.draw(st.integers(0, 6))
        first = data.draw(st.integers(0, min(stood, cut)))
        old[part], held[part] = stood, OffsetRange(first, end)
        written[part] = {at: (at < cut and same is not False, at < stood) for at in range(first, end)}
        expected[part] = cut
    topics = Topics({"orders": held}, {} if same is None else {"orders": "b"})
    ids = {} if same is None else {"orders": "b" if same else "a"}
    snapshot = KafkaSnapshot({"orders": old}, None, topics, ids=ids)
    onward = go_on({"orders": old}, topics, ids)
    twice = lost = 0
    for part, records in written.items():
        begins = onward.offsets["orders"][part]
        assert held[part].first <= begins <= held[part].end
        for at, (is_old, was_read) in records.items():
            twice += at >= begins and is_old and was_read
            lost += at < begins and not (is_old and was_read)
    impactd = records_between(onward.offsets, snapshot.readable_offsets)
    assert twice <= impactd
    assert same is None or impactd == 0, "of a topic whose id is known, nothing comes twice"
    if onward.short or same is False:
        assert onward.losses, "what may be lost is said"
    elif all(expected[part] >= old[part] for part in old):
        assert lost == 0


def test_new_partitions_and_topics_that_went_are_named() -> None:
    onward = go_on(
        {"orders": {"0": 1, "1": 4}, "gone": {"0": 7}},
        Topics({**TOPICS.ranges, "more": {"0": OffsetRange(0, 1)}}),
        {},
    )
    assert (onward.new, onward.removed, onward.recreated) == (("more",), ("gone",), ())
    assert go_on({"orders": {"1": 4}}, TOPICS, {}).new == ("orders/0",)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"orders": {"0": 5, "1": 4}}, []),
        ({"orders": {"0": -2, "1": -1}}, []),
        ({"orders": {"0": 10, "1": 8}}, []),
        ({"orders": {"0": 5}}, ["of the topic orders, partition 1 is left out"]),
        ({"order": {"0": 5}}, ["has no topic 'order'; it has orders", "the topic orders is left out"]),
        ({"orders": {"0": 5, "1": 4, "2": 0}}, ["orders has no partition 2; it has 0, 1"]),
        (
            {"orders": {"0": 11, "1": 3}},
            ["orders/0 starts at 11, and holds 0 to 10", "orders/1 starts at 3, and holds 4 to 8"],
        ),
    ],
    ids=[
        "fits",
        "by words",
        "at the end",
        "a partition left out",
        "an unknown topic",
        "an unknown partition",
        "outside",
    ],
)
def test_each_misfit_of_explicit_offsets_is_named(wanted: Offsets, said: list[str]) -> None:
    found = misfits(wanted, TOPICS)
    assert len(found) == len(said)
    for part in said:
        assert any(part in item for item in found), found


def test_words_become_numbers() -> None:
    assert resolved({"orders": {"0": -2, "1": -1}}, TOPICS) == {"orders": {"0": 0, "1": 8}}


def test_records_are_counted_in_the_partitions_that_both_have() -> None:
    assert records_between({"a": {"0": 2, "1": 9}}, {"a": {"0": 5, "1": 8, "2": 4}, "b": {"0": 3}}) == 3


@pytest.mark.parametrize(
    ("initial", "start", "gone"),
    [
        ({}, {"orders": {"0": 0, "1": 4}}, 4),
        ({"orders": {"0": 2, "1": 5}}, {"orders": {"0": 2, "1": 5}}, 0),
        ({"orders": {"0": 9, "1": 4}}, {"orders": {"0": 6, "1": 4}}, 0),
    ],
    ids=["from the first record, in part expired", "from where it began", "never after the position"],
)
def test_history_is_what_was_read_and_is_still_there(initial: Offsets, start: Offsets, gone: int) -> None:
    assert history_of(initial, {"orders": {"0": 6, "1": 6}}, TOPICS) == (start, gone)


def test_history_ends_where_its_partition_was_cut_off() -> None:
    assert history_of({}, {"orders": {"0": 13, "1": 8}}, TOPICS) == ({"orders": {"0": 0, "1": 4}}, 3 + 4)
    assert history_of({"orders": {"0": 12}}, {"orders": {"0": 13}}, TOPICS) == ({"orders": {"0": 10}}, 1)


def source(start: object = "earliest", **options: str) -> Source:
    return Source("raw", "kafka", None, None, options, Location("p.py", 1), start=start)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "options"),
    [
        ("earliest", {"startingOffsets": "earliest"}),
        ("latest", {"startingOffsets": "latest"}),
        ({"orders": {"0": 5}}, {"startingOffsets": '{"orders": {"0": 5}}'}),
        (
            "timestamp:2026-11-21T10:00:00Z",
            {"startingTimestamp": "1795255200000", "startingOffsetsByTimestampStrategy": "latest"},
        ),
    ],
    ids=["earliest", "latest", "offsets", "timestamp"],
)
def test_the_declared_start_is_what_spark_is_told_where_no_checkpoint_says_another(
    start: object, options: dict[str, str]
) -> None:
    assert start_options(source(start)) == options


def test_an_admin_client_gets_the_sources_own_options_and_waits_only_so_long() -> None:
    options = {"kafka.bootstrap.servers": "b:1", "Kafka.security.protocol": "SSL", "subscribe": "orders"}
    assert admin_options(source(**options), 5) == {
        "bootstrap.servers": "b:1",
        "security.protocol": "SSL",
        "request.timeout.ms": "5000",
        "default.api.timeout.ms": "5000",
    }
    assert (
        admin_options(source(**{**options, "kafka.request.timeout.ms": "9"}), 5)["request.timeout.ms"] == "9"
    )


def test_what_a_source_says_of_partitions_and_loss() -> None:
    assert assigned(source(assign='{"orders": [1, 0]}')) == {"orders": [0, 1]}
    assert assigned(source(subscribe="orders")) == {}
    assert (fails_on_loss(source()), fails_on_loss(source(FailOnDataLoss="False"))) == (True, False)


def test_a_source_that_bears_losses_waits_for_an_end_that_went_back_unless_it_declares_how_long() -> None:
    interval = "fetchOffset.retryIntervalMs"
    assert (patience(source()), patience(source(failOnDataLoss="false"))) == ({}, {interval: "30000"})
    assert patience(source(failOnDataLoss="false", **{interval.lower(): "5"})) == {}


@pytest.mark.parametrize(
    ("then", "now", "at", "returned"),
    [("B", "B", 4, ("b",)), (None, "B", 4, ("b",)), ("B", None, 4, ("b",)), ("B", "C", 0, ())],
)
def test_a_topic_that_is_read_again_goes_on_where_an_earlier_generation_ended(
    then: str | None, now: str | None, at: int, returned: tuple[str, ...]
) -> None:
    """It was left out for a generation; with another id it was made anew, and nothing of it was read."""
    held = {topic: {"0": OffsetRange(0, 9)} for topic in ("a", "b", "new")}
    topics = Topics(held, {"a": "A", **({"b": now} if now else {})})
    ids = {"topics": {"raw": {"b": then} if then else {}}}
    earlier = cast(CommittedPosition, SimpleNamespace(start=SimpleNamespace(evidence=ids)))
    ends = [(earlier, {"b": {"0": 4}, "gone": {"0": 1}}), (earlier, {"a": {"0": 1}, "b": {"0": 2}})]
    before = Before(None, {"topics": {"raw": {"a": "A"}}}, "raw", {"a": {"0": 5}}, earlier=lambda: ends)
    source = Source("raw", "kafka", None, None, {}, Location("p.py", 1))
    start = KafkaStarts().after(source, before, lambda: KafkaLook(topics, lambda _: {}))
    assert start.position is not None
    assert start.position.offsets == {"a": {"0": 5}, "b": {"0": at}, "new": {"0": 0}}
    assert (start.returned, start.lost) == (returned, "")
