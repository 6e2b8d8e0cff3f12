"""A local storage that records what it is asked."""

from __future__ import annotations

from streamkeeper.storage import LocalStorage


class RecordedStorage(LocalStorage):
    """``asked`` has what was asked for, in order: ``read``, ``names``, ``modified`` or ``write``, and the
    name.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.asked: list[tuple[str, str]] = []

    def asked_to(self, act: str) -> list[str]:
        """Return the names with which one of these was asked for."""
        return [name for asked, name in self.asked if asked == act]

    def read(self, name: str, most: int | None = None) -> bytes | None:
        self.asked.append(("read", name))
        return super().read(name, most)

    def names(self, folder: str = "") -> list[str]:
        self.asked.append(("names", folder))
        return super().names(folder)

    def modified(self, name: str) -> float | None:
        self.asked.append(("modified", name))
        return super().modified(name)

    def create(self, name: str, content: bytes) -> bool:
        self.asked.append(("write", name))
        return super().create(name, content)

    def overwrite(self, name: str, content: bytes) -> None:
        self.asked.append(("write", name))
        super().overwrite(name, content)
