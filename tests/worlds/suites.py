"""Which cases of a table `make test` runs, and which `make test-long` adds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


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


def _long(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, marks=(*case.marks, pytest.mark.long), id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
