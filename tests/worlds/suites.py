"""Which cases of a table `make test` runs, which `make test-long` adds, and which of those a run takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

Item = TypeVar("Item")
STEPS = (7, 5, 3, 2)
"""Primes, so that a table made of two lists is not walked along one line of it."""


def long_after(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases for ``parametrize``, those after the first ``count`` marked ``long``.

    The first ones prove the claim; the others prove it once more, for another format, shape or moment.
    """
    return [case if place < count else _long(case) for place, case in enumerate(cases)]


def long_but(names: Iterable[str], *fast: str) -> list[Any]:
    """Return the names for ``parametrize``, all but the ``fast`` ones marked ``long``."""
    found = list(names)
    assert set(fast) <= set(found), f"{fast} are among {found}"
    return [name if name in fast else _long(name) for name in found]


def share_of(cases: list[Item], part: int) -> list[Item]:
    """Return each seventh case, or each fifth, third or second where there are fewer.

    Seven parts in a row take all cases.
    """
    step = next((step for step in STEPS if len(cases) >= step), 1)
    return cases[part % step :: step]


def _long(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, marks=(*case.marks, pytest.mark.long), id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
