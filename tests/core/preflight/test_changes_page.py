"""The page of changes is that of the cases that are tried."""

from __future__ import annotations

from collections import Counter

from streamkeeper.trial.verdict import Compatibility
from tests.worlds.preflight.catalogue import BY_NAME, CATALOGUE


def test_each_change_is_there_once_and_all_verdicts_are() -> None:
    changes = (*CATALOGUE, *BY_NAME)
    assert [key for key, count in Counter((one.part, one.name) for one in changes).items() if count > 1] == []
    assert {one.compatibility for one in changes} == {*Compatibility}
    assert len(changes) >= 60
