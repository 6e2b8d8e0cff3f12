"""Generations: decided once, begun once, never changed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from streamkeeper.errors import RecoveryError, StorageError
from streamkeeper.flows import generations
from streamkeeper.flows.files import query_id
from streamkeeper.flows.generations import AFTER_LAST, OFFSETS, Generation, Start, StartAt
from tests.worlds.small_world import World

FILE = "events/clean_events/generations/000002.json"


def decision(world: World, recovery: str | None = "r1", **changes: object) -> Generation:
    first = generations.first(world.home, "f1")
    second = generations.with_number(
        replace(first, previous=1, start=StartAt(AFTER_LAST), recovery=recovery), world.home, 2
    )
    return replace(second, **changes)  # type: ignore[arg-type]


def start(epoch: int = 1) -> Start:
    positions, schemas, evidence = {"raw": {"logOffset": 3}}, {"raw": "id INT"}, {"ruled_by": "sink"}
    return Start(
        2,
        f"c/{epoch}",
        0,
        positions,
        schemas,
        ("dedupe",),
        "rebuilt",
        epoch,
        "2026-11-21T10:00:00+00:00",
        evidence,
    )


def test_a_decision_is_read_as_it_was_written(world: World) -> None:
    written = decision(
        world,
        start=StartAt(OFFSETS, offsets={"raw": {"logOffset": 7}}),
        accepted=("data-loss",),
        schemas={"raw": "id INT"},
    )
    assert generations.decide(world.home, written) == written
    assert generations.read(world.home, 2) == written == generations.latest(world.home)


def test_the_first_generation_reads_everything(world: World) -> None:
    first = generations.first(world.home, "f1")
    assert (first.number, first.previous, first.start.mode) == (1, None, "earliest")
    assert first.query_id == query_id("events.clean_events", 1)


def test_every_generation_has_a_query_id_of_its_own(world: World) -> None:
    ids = {query_id(name, number) for name in ("a.f", "b.f") for number in range(1, 50)}
    assert len(ids) == 98
    fifth = generations.with_number(decision(world), world.home, 5)
    assert fifth.query_id == query_id("events.clean_events", 5)


def test_a_decision_that_is_made_again_by_the_same_recovery_changes_nothing(world: World) -> None:
    first = generations.decide(world.home, decision(world, at="2026-11-21T10:00:00+00:00"))
    before = world.tree()
    assert generations.decide(world.home, decision(world, at="2026-11-22T10:00:00+00:00")) == first
    assert world.tree() == before


@pytest.mark.parametrize(("there", "mine"), [("r1", "r2"), (None, "r2"), (None, None), ("r1", None)])
def test_a_decision_of_someone_else_is_refused(there: str | None, mine: str | None, world: World) -> None:
    generations.decide(world.home, decision(world, there))
    before = world.tree()
    with pytest.raises(
        RecoveryError,
        match=r"Generation 2 of events.clean_events was decided meanwhile by driver .* Plan again",
    ):
        generations.decide(world.home, decision(world, mine, reason="another reason"))
    assert world.tree() == before


def test_of_two_drivers_that_begin_a_generation_the_first_is_what_holds(world: World) -> None:
    generations.decide(world.home, decision(world))
    assert generations.begin(world.home, start(1)) == start(1)
    assert generations.begin(world.home, start(2)) == start(1)
    assert generations.read_start(world.home, 2) == start(1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds b''.* not a JSON object"),
        (b'{"number": 2', "not a JSON object"),
        (b'{"format": 1}', "000002.json is not a generation: .*start"),
        (b'{"format": 1, "start": {"mode": "earliest"}, "accepted": []}', "is not a generation: .*number"),
        (b'{"format": 1, "start": {"when": 1}, "accepted": []}', "is not a generation: .*when"),
        (
            b'{"format": 2}',
            "has format 2; this Streamkeeper reads 1. Use the release that wrote it, or a newer one",
        ),
        (b"{}", "has format None"),
    ],
    ids=["empty", "cut off", "fields missing", "more fields missing", "strange field", "newer", "no format"],
)
def test_a_damaged_or_newer_decision_is_named_and_not_guessed(
    content: bytes, message: str, world: World
) -> None:
    world.home.storage.overwrite(FILE, content)
    with pytest.raises(StorageError, match=message):
        generations.latest(world.home)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 7}, "has format 7"),
        ({"operators": None}, "is not a generation's start"),
        ({"at": "garbage"}, "is not a generation.s start: at: .garbage. is no time"),
        ({"extra": 1}, "is not a generation's start"),
    ],
    ids=["newer", "damaged", "no time", "strange field"],
)
def test_a_damaged_or_newer_start_is_named(change: dict[str, object], message: str, world: World) -> None:
    generations.begin(world.home, start())
    name = world.home.start(2)
    content = json.loads(world.home.storage.read(name) or b"")
    world.home.storage.overwrite(name, json.dumps({**content, **change}).encode())
    with pytest.raises(StorageError, match=message):
        generations.read_start(world.home, 2)


def test_generations_are_ordered_by_number_beyond_six_digits(world: World) -> None:
    for number in (2, 10, 999_999, 1_000_000):
        made = decision(world, f"r{number}")
        generations.decide(world.home, generations.with_number(made, world.home, number))
    assert world.home.generations() == [2, 10, 999_999, 1_000_000]


def test_the_first_word_on_what_a_generation_had_committed_stands(world: World) -> None:
    assert generations.committed(world.home, 1, 4) == 4, "it was not shut out: its checkpoint is believed"
    assert generations.end(world.home, 1, 4) == 4
    assert generations.end(world.home, 1, 6) == 4, "5 and 6 were committed after it was shut out"
    assert generations.committed(world.home, 1, 6) == 4
    assert world.home.generations() == []


def test_a_generation_that_was_shut_out_before_its_first_commit_has_none(world: World) -> None:
    assert generations.end(world.home, 1, None) is None
    assert generations.committed(world.home, 1, 0) is None


def test_a_generation_is_over_once_it_was_written_down_and_no_other_is(world: World) -> None:
    assert not generations.is_over(world.home, 1)
    generations.end(world.home, 1, 4)
    assert (generations.is_over(world.home, 1), generations.is_over(world.home, 2)) == (True, False)
