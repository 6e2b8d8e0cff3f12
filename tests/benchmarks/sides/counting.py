"""Requests to a state folder, counted by kind."""

from __future__ import annotations

from collections import Counter
from typing import Any

from streamkeeper.storage import Storage


class Counting:
    """A storage that counts the requests made to the one within, by kind."""

    def __init__(self, within: Storage) -> None:
        self._within, self.requests = within, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._within, name)
        if not callable(found) or name == "path":
            return found

        def counted(*arguments: Any) -> Any:
            self.requests[name] += 1
            return found(*arguments)

        return counted
