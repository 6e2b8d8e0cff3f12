"""Operations of every storage, and the JSON files in it."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, BinaryIO, Protocol, TypeVar

from streamkeeper.errors import StorageError
from streamkeeper.support.json_values import MOST_READ, parse, read_as

T = TypeVar("T")

OURS = ".streamkeeper-"
"""First letters of names that a storage keeps for itself: they are in no listing."""
PIECE = 8 * 2**20
"""Bytes of a file in memory at a time."""


class Storage(Protocol):
    """Operations of every storage. Names are relative to ``root``, with ``/`` between their parts.

    Every operation raises :class:`StorageError` if the storage refuses: no rights, a full disk, no network.
    """

    root: str

    def create(self, name: str, content: bytes) -> bool:
        """Write a new file whole. Return False, without a change, if it exists already.

        A file that this very call wrote, and whose answer was lost, is not one that existed: then this
        returns True. Of two calls with the same content only one returns True.
        """
        ...

    def overwrite(self, name: str, content: bytes) -> None:
        """Write a file whole; an existing one is replaced."""
        ...

    def read(self, name: str, most: int | None = None) -> bytes | None:
        """Return a file's bytes; None if there is no such file.

        :param most: bytes that it may have; what is larger is damage, and must not fill the memory.
        :raises FileTooLarge: it is larger.
        """
        ...

    def names(self, folder: str = "") -> list[str]:
        """Return the names of files and folders right below ``folder``, sorted; empty without the folder."""
        ...

    def modified(self, name: str) -> float | None:
        """Return a file's last write, in epoch seconds by the storage's clock; None if it does not exist."""
        ...

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes; None if there is no such file."""
        ...

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the bytes of every file below ``folder``, by its name below it; empty without the folder."""
        ...

    def bring(self, source: Storage, name: str, target: str) -> None:
        """Copy one file of any storage into this one, whole or not at all, of any size. It outlives a power
        cut after :meth:`sync`.

        :raises StorageError: there is no such file, or it cannot be written here.
        """
        ...

    def share(self, source: Storage, name: str, target: str) -> None:
        """Make a file of another storage available under a name of its own here, without copying if both are
        folders of one disk; otherwise as :meth:`bring`.

        The file must never change. It exists until its last name is removed. Its name outlives a power cut
        after :meth:`sync`.

        :raises StorageError: there is no such file, or it cannot be written here.
        """
        ...

    def sync(self, folder: str = "") -> None:
        """Make the names below a folder outlive a power cut: those of the files that were brought or shared.
        All other operations do so themselves.
        """
        ...

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading.

        :raises StorageError: there is no such file.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all its content; without effect if it does not exist."""
        ...

    def path(self, name: str = "") -> str:
        """Return the full path or URL of a name."""
        ...


_LOOK: ContextVar[dict[tuple[str, str], bytes | None] | None] = ContextVar("_LOOK", default=None)
"""What :func:`read_once` has read since the look began, by the storage's root and the file's name."""


@contextlib.contextmanager
def one_look() -> Iterator[None]:
    """Let :func:`read_once`, and so all readers of JSON files, read each file once, however many ask for it.

    So a plan sees one state of the folder, and asks a remote store once a file. It holds for this thread,
    until the outermost look ends. Within, nobody may wait for a file to change, or read what he wrote.
    """
    if _LOOK.get() is not None:
        yield
        return
    token = _LOOK.set({})
    try:
        yield
    finally:
        _LOOK.reset(token)


def read_once(storage: Storage, name: str) -> bytes | None:
    """Return a state file's bytes, within :func:`one_look` as they were at first; None if there is no such
    file.

    :raises FileTooLarge: it is larger than any state file.
    """
    look = _LOOK.get()
    if look is None:
        return storage.read(name, MOST_READ)
    if (storage.root, name) not in look:
        look[storage.root, name] = storage.read(name, MOST_READ)
    return look[storage.root, name]


def read_json(storage: Storage, name: str) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is no such file.

    :raises StorageError: the content is not one JSON object.
    """
    content = read_once(storage, name)
    if content is None:
        return None
    try:
        value, reason = parse(content), ""
    except ValueError as error:
        value, reason = None, f" ({error})"
    if not isinstance(value, dict):
        raise StorageError(
            f"{storage.path(name)} holds {content[:60]!r}…, not a JSON object{reason}. Streamkeeper writes"
            " such files whole, so another process changed it. Restore it from a copy, or move it away if its"
            " content is known."
        )
    return value


def check_create(storage: Storage, create: Callable[[str, bytes], bool]) -> float | None:
    """Check by a file of its own that a storage keeps create-if-absent, and return the time of that file by
    the storage's clock, in seconds since the epoch, where it tells one.

    :raises StorageError: the store takes a second create of one file, or cannot be written or read.
    """
    probe = f"{OURS}probe-{uuid.uuid4().hex}"
    try:
        first, second = create(probe, b"first"), create(probe, b"second")
        content, written = storage.read(probe), storage.modified(probe)
    finally:
        with contextlib.suppress(StorageError):
            storage.remove(probe)
    if (first, second, content) != (True, False, b"first"):
        problem = (
            "the second of two creates of one file was accepted"
            if first and second
            else f"two creates of one file gave {first} and {second}, and {content!r} is there"
        )
        raise StorageError(
            f"{storage.root} does not keep create-if-absent: {problem}. Two drivers of one flow could both"
            " take its lease. Give a store with conditional writes (If-None-Match on PUT), such as Amazon"
            " S3, or a local folder."
        )
    return written


def read_record(
    storage: Storage, name: str, kind: type[T], description: str, way: str, *, format: int | None = None
) -> T | None:
    """Return the dataclass that is kept in a file as a JSON object; None if there is no such file.

    :param description: what the file should be, and ``way`` what to do if it is not that, for the message.
    :param format: the format that the object must have.
    :raises StorageError: the content is no such object, or of another format.
    """
    value, path = read_json(storage, name), storage.path(name)
    if value is None:
        return None
    if format is not None and value.get("format") != format:
        raise StorageError(
            f"{path} has format {value.get('format')!r}; this Streamkeeper reads {format}. Use the release"
            " that wrote it, or a newer one."
        )
    try:
        return read_as(kind, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"{path} is not {description}: {error}. {way}") from error


def to_json(value: object) -> bytes:
    """Return the bytes of a JSON file, as :func:`read_json` reads them."""
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
