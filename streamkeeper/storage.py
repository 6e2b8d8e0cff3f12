"""Storage of everything that Streamkeeper keeps: create if absent, overwrite, read, list, copy, remove.

Local folders go through the standard library; URLs (``s3://…``) through fsspec. Callers rely on two
properties:

* *create if absent* is atomic: exactly one of several writers wins, and no reader sees half a file. Locally
  it is a hard link onto a finished temporary file; on S3 it is fsspec's mode ``xb``, a conditional PUT
  (``If-None-Match: *``, "Conditional writes" in the documentation of Amazon S3).
* *overwrite* is atomic: a rename locally, a PUT on S3.

Proven for local disks and for S3 through s3fs; other fsspec file systems were not tried.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import stat
import uuid
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from streamkeeper.errors import StorageError
from streamkeeper.storage_errors import or_storage_error


class Storage(Protocol):
    """Operations of every storage. Names are relative to ``root``, with ``/`` between their parts.

    Every operation raises :class:`StorageError` if the storage refuses: no rights, a full disk, no network.
    """

    root: str

    def create(self, name: str, content: bytes) -> bool:
        """Write a new file whole. Return False, without a change, if it exists already."""
        ...

    def overwrite(self, name: str, content: bytes) -> None:
        """Write a file whole; an existing one is replaced."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes; None if there is no such file."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """Return the names (without the folder) of files and folders right below ``folder``, sorted; empty if
        it does not exist.
        """
        ...

    def modified(self, name: str) -> float | None:
        """Return the time of a file's last write, in seconds since the epoch by the storage's clock; None if
        it does not exist.
        """
        ...

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes; None if there is no such file."""
        ...

    def bring(self, source: Storage, name: str, target: str) -> None:
        """Copy one file of any storage into this one, whole or not at all, of any size.

        :raises StorageError: there is no such file, or it cannot be written here.
        """
        ...

    def share(self, source: Storage, name: str, target: str) -> None:
        """Make a file of another storage available under a name of its own here, without copying if both are
        folders of one disk; otherwise as :meth:`bring`.

        The file must never change. It exists until its last name is removed.

        :raises StorageError: there is no such file, or it cannot be written here.
        """
        ...

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading.

        :raises StorageError: there is no such file.
        """
        ...

    def copy(self, name: str, target: str) -> None:
        """Copy a file, or a folder with all its content, inside the storage. Existing files of the target are
        replaced by those of the same name.

        :raises StorageError: there is nothing to copy.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all its content; without effect if it does not exist."""
        ...

    def path(self, name: str = "") -> str:
        """Return the full path or URL of a name."""
        ...


def open_storage(root: str) -> Storage:
    """Return the storage at a path or URL; ``s3a://`` is read as ``s3://``.

    :raises StorageError: fsspec, or its file system for this URL, is not installed.
    """
    if root.startswith("file://"):
        root = root.removeprefix("file://")
    return RemoteStorage(root) if "://" in root else LocalStorage(root)


def read_json(storage: Storage, name: str) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is no such file.

    :raises StorageError: the content is not one JSON object.
    """
    content = storage.read(name)
    if content is None:
        return None
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise StorageError(
            f"{storage.path(name)} holds {content[:60]!r}…, not a JSON object. Streamkeeper writes such"
            " files whole, so another process changed it. Restore it from a copy, or move it away if its"
            " content is known."
        )
    return value


def to_json(value: object) -> bytes:
    """Return the bytes of a JSON file, as :func:`read_json` reads them."""
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


class LocalStorage:
    """Folder on a local disk."""

    def __init__(self, root: str) -> None:
        self.root = str(root).rstrip("/") or "/"

    def path(self, name: str = "") -> str:
        return f"{self.root}/{name}" if name else self.root

    def create(self, name: str, content: bytes) -> bool:
        target = Path(self.path(name))
        temporary = self._write_aside(target, content)
        with or_storage_error(str(target), "written", _MUST_BE_WRITABLE):
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            finally:
                temporary.unlink()
        return True

    def overwrite(self, name: str, content: bytes) -> None:
        target = Path(self.path(name))
        temporary = self._write_aside(target, content)
        with or_storage_error(str(target), "written", _MUST_BE_WRITABLE):
            try:
                temporary.replace(target)
            except OSError:
                temporary.unlink()
                raise

    def read(self, name: str) -> bytes | None:
        with or_storage_error(self.path(name), "read", _CHECK_MODE):
            try:
                with _opened(self.path(name)) as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def names(self, folder: str = "") -> list[str]:
        with or_storage_error(self.path(folder), "listed", _CHECK_MODE):
            try:
                with os.scandir(self.path(folder)) as found:
                    return sorted(item.name for item in found if not item.name.startswith(_ASIDE))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def modified(self, name: str) -> float | None:
        with or_storage_error(self.path(name), "looked at", _CHECK_MODE):
            try:
                return Path(self.path(name)).stat().st_mtime
            except (FileNotFoundError, NotADirectoryError):
                return None

    def size(self, name: str) -> int | None:
        with or_storage_error(self.path(name), "looked at", _CHECK_MODE):
            try:
                return Path(self.path(name)).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def open(self, name: str) -> BinaryIO:
        with or_storage_error(self.path(name), "read", _CHECK_MODE):
            return _opened(self.path(name))

    def bring(self, source: Storage, name: str, target: str) -> None:
        path = Path(self.path(target))
        aside = path.with_name(f"{_ASIDE}{uuid.uuid4().hex}")
        with or_storage_error(source.path(name), f"copied to {path}", _MUST_BE_WRITABLE):
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
            try:
                if isinstance(source, LocalStorage):
                    # The kernel copies; the bytes do not pass through this process.
                    shutil.copyfile(source.path(name), aside)
                else:
                    with source.open(name) as found, aside.open("xb") as file:
                        shutil.copyfileobj(found, file, _PIECE)
                with aside.open("rb") as file:
                    os.fsync(file.fileno())
                aside.replace(path)
            except BaseException:
                aside.unlink(missing_ok=True)
                raise

    def share(self, source: Storage, name: str, target: str) -> None:
        path = Path(self.path(target))
        if isinstance(source, LocalStorage):
            aside = path.with_name(f"{_ASIDE}{uuid.uuid4().hex}")
            # On another disk, or one without links, the file is copied instead, and that reports any error.
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                os.link(source.path(name), aside)
                aside.replace(path)
                # If both names were already of one file, the rename did nothing.
                aside.unlink(missing_ok=True)
                return
        self.bring(source, name, target)

    def copy(self, name: str, target: str) -> None:
        source, destination = Path(self.path(name)), Path(self.path(target))
        with or_storage_error(str(source), f"copied to {destination}", _MUST_BE_WRITABLE):
            if source.is_dir():
                shutil.copytree(source, destination, dirs_exist_ok=True)
            else:
                self.overwrite(target, source.read_bytes())

    def remove(self, name: str) -> None:
        target = Path(self.path(name))
        with (
            or_storage_error(str(target), "removed", _MUST_BE_WRITABLE),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
        ):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink()

    def _write_aside(self, target: Path, content: bytes) -> Path:
        """Write a complete temporary file beside the target, flushed to disk."""
        temporary = target.with_name(f"{_ASIDE}{uuid.uuid4().hex}")
        with or_storage_error(str(target), "written", _MUST_BE_WRITABLE):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with temporary.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise
        return temporary


class RemoteStorage:
    """Prefix on an object store, through fsspec."""

    def __init__(self, root: str) -> None:
        try:
            fsspec = importlib.import_module("fsspec")  # an optional dependency, without types

            self._fs, self._base = fsspec.core.url_to_fs(
                root.replace("s3a://", "s3://", 1).rstrip("/"), use_listings_cache=False
            )
        except ImportError as error:
            raise StorageError(
                f"{root} needs a package that is not installed: {error}. Install streamkeeper[remote]."
            ) from error
        except ValueError as error:
            raise StorageError(
                f"{root} cannot be opened: {error}. Give a path, or the URL of a store, such as"
                " s3://bucket/folder."
            ) from error
        self.root = root.rstrip("/")

    def path(self, name: str = "") -> str:
        return f"{self.root}/{name}" if name else self.root

    def create(self, name: str, content: bytes) -> bool:
        with or_storage_error(self.path(name), "written", _CHECK_STORE):
            try:
                with self._fs.open(self._key(name), "xb") as file:
                    file.write(content)
            except FileExistsError:
                return False
        return True

    def overwrite(self, name: str, content: bytes) -> None:
        with or_storage_error(self.path(name), "written", _CHECK_STORE):
            self._fs.pipe_file(self._key(name), content)

    def read(self, name: str) -> bytes | None:
        with or_storage_error(self.path(name), "read", _CHECK_STORE):
            try:
                return bytes(self._fs.cat_file(self._key(name)))
            except FileNotFoundError:
                return None

    def names(self, folder: str = "") -> list[str]:
        base = self._key(folder).rstrip("/")
        with or_storage_error(self.path(folder), "listed", _CHECK_STORE):
            try:
                keys = [str(key).rstrip("/") for key in self._fs.ls(base, detail=False)]
            except FileNotFoundError:
                return []
        return sorted({key.removeprefix(f"{base}/") for key in keys if key.startswith(f"{base}/")})

    def modified(self, name: str) -> float | None:
        with or_storage_error(self.path(name), "looked at", _CHECK_STORE):
            try:
                return float(self._fs.modified(self._key(name)).timestamp())
            except FileNotFoundError:
                return None

    def size(self, name: str) -> int | None:
        with or_storage_error(self.path(name), "looked at", _CHECK_STORE):
            try:
                return int(self._fs.size(self._key(name)))
            except FileNotFoundError:
                return None

    def open(self, name: str) -> BinaryIO:
        with or_storage_error(self.path(name), "read", _CHECK_STORE):
            return cast(BinaryIO, self._fs.open(self._key(name), "rb"))

    def bring(self, source: Storage, name: str, target: str) -> None:
        with or_storage_error(source.path(name), f"copied to {self.path(target)}", _CHECK_STORE):
            if isinstance(source, RemoteStorage) and type(source._fs) is type(self._fs):
                self._fs.cp_file(source._key(name), self._key(target))  # the store copies
                return
            with source.open(name) as found, self._fs.open(self._key(target), "wb") as file:
                shutil.copyfileobj(found, file, _PIECE)

    def share(self, source: Storage, name: str, target: str) -> None:
        self.bring(source, name, target)

    def copy(self, name: str, target: str) -> None:
        source, destination = self._key(name), self._key(target)
        with or_storage_error(self.path(name), f"copied to {self.path(target)}", _CHECK_STORE):
            found = [str(key) for key in self._fs.find(source)]
            if not found:
                raise FileNotFoundError(2, "there is no such file or folder")
            for key in found:
                self._fs.cp_file(key, destination + key.removeprefix(source))

    def remove(self, name: str) -> None:
        with (
            or_storage_error(self.path(name), "removed", _CHECK_STORE),
            contextlib.suppress(FileNotFoundError),
        ):
            self._fs.rm(self._key(name), recursive=True)

    def _key(self, name: str) -> str:
        return f"{self._base}/{name}" if name else str(self._base)


def _opened(path: str) -> BinaryIO:
    """Return a regular file, open for reading.

    :raises StorageError: it is a folder, a pipe or a device.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(number, "rb")
    os.close(number)
    what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
    raise StorageError(f"{path} is {what} where a file belongs. Find out who put it there, and move it away.")


_ASIDE = ".streamkeeper-"
_PIECE = 8 * 2**20
"""Bytes of a file in memory at a time."""
_CHECK_MODE = "Check the folder's owner and mode."
_MUST_BE_WRITABLE = (
    "The state folder must be writable for the user that runs Airflow and the drivers; correct its owner or"
    " mode, or set STREAMKEEPER_STATE to another folder."
)
_CHECK_STORE = (
    "Check that the bucket is there, that the network reaches it, and that the credentials may read and"
    " write it."
)
