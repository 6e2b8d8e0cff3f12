"""Storage of everything that Streamkeeper keeps: create if absent, overwrite, read, list, bring, remove.

Local folders go through the standard library; URLs (``s3://…``) through fsspec. Callers rely on two
properties:

* *create if absent* is atomic: exactly one of several writers wins, and no reader sees half a file. Locally
  it is a hard link onto a finished temporary file; on S3 it is a conditional PUT (``If-None-Match: *``,
  "Conditional writes" in the documentation of Amazon S3). A store under a URL is tried before the first one.
* *overwrite* is atomic: a rename locally, a PUT on S3.

What has returned outlives a power cut (docs/decisions/0036).
"""

from __future__ import annotations

from streamkeeper.errors import StorageError
from streamkeeper.settings import why_refused_place
from streamkeeper.storage.base import (
    Storage,
    check_create,
    one_look,
    read_json,
    read_once,
    read_record,
    to_json,
)
from streamkeeper.storage.local import LocalStorage
from streamkeeper.storage.remote import RemoteStorage

__all__ = [
    "LocalStorage",
    "RemoteStorage",
    "Storage",
    "check_create",
    "one_look",
    "open_storage",
    "read_json",
    "read_once",
    "read_record",
    "to_json",
]


def open_storage(root: str) -> Storage:
    """Return the storage at a path or URL; ``s3a://`` is read as ``s3://``.

    :raises StorageError: the URL is of no store, or fsspec, or its file system for it, is not installed.
    """
    if (refused := why_refused_place(root)) is not None:
        raise StorageError(f"{refused} Nothing was asked.")
    if root.startswith("file://"):
        root = root.removeprefix("file://")
    return RemoteStorage(root) if "://" in root else LocalStorage(root)
