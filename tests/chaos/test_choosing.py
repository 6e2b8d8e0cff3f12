"""The rounds follow from the seed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from streamkeeper.settings import DEFERRED, SLOT
from tests.chaos.arena import half_written
from tests.chaos.choosing import (
    BLOWS,
    CLUSTER,
    LASTING,
    LOCAL,
    LONGEST_JITTER,
    PAUSES,
    SMALL_DISK,
    Moment,
    Victim,
    choose,
    possible,
)

SEEDS = range(50)


def test_the_same_seed_gives_the_same_rounds_and_another_seed_others() -> None:
    first = [choose(7, number) for number in range(40)]
    assert first == [choose(7, number) for number in range(40)]
    assert first != [choose(8, number) for number in range(40)]


def test_a_round_does_not_depend_on_those_before_it_so_it_can_be_replayed_alone() -> None:
    assert choose(7, 33) == [choose(7, number) for number in range(34)][33]


@pytest.mark.parametrize(
    "victims", [LOCAL, SMALL_DISK, CLUSTER, possible(LOCAL, DEFERRED), possible(CLUSTER, DEFERRED)]
)
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_every_turn_strikes_each_victim_once(seed: int, victims: tuple[Victim, ...]) -> None:
    rounds = [choose(seed, number, victims).victim for number in range(2 * len(victims))]
    assert (
        sorted(rounds[: len(victims)], key=str)
        == sorted(rounds[len(victims) :], key=str)
        == sorted(victims, key=str)
    )


@pytest.mark.parametrize("victims", [LOCAL, SMALL_DISK, CLUSTER])
def test_all_blows_moments_and_flows_come_up_and_only_what_a_victim_allows(
    victims: tuple[Victim, ...],
) -> None:
    rounds = [choose(seed, number, victims, 2) for seed in SEEDS for number in range(2 * len(victims))]
    assert {(one.victim, one.blow) for one in rounds} == {
        (victim, blow) for victim in victims for blow in BLOWS[victim]
    }
    assert {one.moment for one in rounds} == set(Moment)
    assert {one.flow for one in rounds} == {0, 1}
    assert all(0 <= one.jitter <= LONGEST_JITTER for one in rounds)
    assert all((PAUSES[0] <= one.pause <= PAUSES[1]) == (one.blow in LASTING) for one in rounds)


@pytest.mark.parametrize("place", [LOCAL, CLUSTER])
def test_where_supervision_is_deferred_no_task_is_struck_and_the_triggerer_is(
    place: tuple[Victim, ...],
) -> None:
    assert possible(place, SLOT) == place
    deferred = possible(place, DEFERRED)
    assert {*place} - {*deferred} == {*place} & {Victim.TASK, Victim.WORKER, Victim.SCHEDULER_GROUP}
    assert deferred.count(Victim.TRIGGERER) == 1


def test_each_victim_has_a_place() -> None:
    assert {*LOCAL, *SMALL_DISK, *CLUSTER} == set(Victim) == set(BLOWS)


def test_a_half_written_file_is_no_python_and_whole_again_afterwards(tmp_path: Path) -> None:
    file = tmp_path / "f.py"
    file.write_text("x = 1\ny = (\n1)\nz = 3\n")
    with half_written(file), pytest.raises(SyntaxError):
        ast.parse(file.read_text())
    assert len(ast.parse(file.read_text()).body) == 3
