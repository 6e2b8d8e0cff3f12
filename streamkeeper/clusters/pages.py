"""Pages of a cluster, which answer in a few seconds or not at all (:mod:`streamkeeper.web`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from streamkeeper.web import ask

GONE = "GONE"
"""State of a driver that its cluster knows no more, where that proves no end."""


@dataclass(frozen=True)
class Unbegun:
    """What a cluster says of a driver that has taken no lease. ``over`` is its state if it is over, which
    need not be a proof; None if it may begin yet. ``waits_for`` is what it waits for, in words, if it does.
    """

    over: str | None = None
    waits_for: str | None = None


def read_json(address: str) -> dict[str, Any]:
    """Return what a page says, which is a JSON object.

    :raises OSError: it does not answer; or it says something else: a master of Spark that starts answers each
        address by its first page for a moment.
    """
    text = ask(address)
    try:
        page = json.loads(text)
    except (ValueError, RecursionError):
        page = None
    if not isinstance(page, dict):
        raise OSError(f"{address} answers by something else than a JSON object: {text[:80]!r}")
    return page
