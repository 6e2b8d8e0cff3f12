"""Pages of a cluster, which answer in a few seconds or not at all."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from typing import Any

ANSWER = 5.0
"""Seconds that a page may take to answer."""
GONE = "GONE"
"""State of a driver that its cluster knows no more, where that proves no end."""


@dataclass(frozen=True)
class Unbegun:
    """What a cluster says of a driver that has taken no lease. ``over`` is its state if it is over, which
    need not be a proof; None if it may begin yet. ``waits_for`` is what it waits for, in words, if it does.
    """

    over: str | None = None
    waits_for: str | None = None


def read(address: str) -> bytes:
    """Return what a page says.

    :raises OSError: it does not answer, or says that something is wrong.
    """
    with urllib.request.urlopen(address, timeout=ANSWER) as answer:
        text: bytes = answer.read()
        return text


def read_json(address: str) -> dict[str, Any]:
    """Return what a page says, which is a JSON object.

    :raises OSError: as :func:`read`; or it says something else: a master of Spark that starts answers each
        address by its first page for a moment.
    """
    text = read(address)
    try:
        page: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise OSError(f"{address} answers by something else than JSON: {text[:80]!r}") from error
    return page
