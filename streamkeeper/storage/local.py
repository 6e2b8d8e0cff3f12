"""Storage in a folder of this machine, through the standard library."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from pathlib import Path
from typing import BinaryIO

from streamkeeper.errors import StorageError
from streamkeeper.storage.base import OURS, PIECE, Storage
from streamkeeper.storage.errors import check_size, or_storage_error


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
            except OSError as error:
                # NFS repeats a request whose answer was lost, and refuses the second: the link is this one's
                # if both names are of one file.
                if not _are_one(temporary, target):
                    if not isinstance(error, FileExistsError):
                        raise
                    # Whoever made the file may not have come to this yet.
                    _sync(target.parent)
                    return False
            finally:
                temporary.unlink()
            _sync(target.parent)
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
            _sync(target.parent)

    def read(self, name: str, most: int | None = None) -> bytes | None:
        with (
            or_storage_error(self.path(name), "read", _CHECK_MODE, may_lack=True),
            _opened(self.path(name)) as file,
        ):
            check_size(self.path(name), os.fstat(file.fileno()).st_size, most)
            return file.read()
        return None

    def names(self, folder: str = "") -> list[str]:
        with (
            or_storage_error(self.path(folder), "listed", _CHECK_MODE, may_lack=True),
            os.scandir(self.path(folder)) as entries,
        ):
            return sorted(item.name for item in entries if not item.name.startswith(OURS))
        return []

    def modified(self, name: str) -> float | None:
        with or_storage_error(self.path(name), "looked at", _CHECK_MODE, may_lack=True):
            return Path(self.path(name)).stat().st_mtime
        return None

    def size(self, name: str) -> int | None:
        with or_storage_error(self.path(name), "looked at", _CHECK_MODE, may_lack=True):
            return Path(self.path(name)).stat().st_size
        return None

    def sizes(self, folder: str = "") -> dict[str, int]:
        root, sizes = self.path(folder), dict[str, int]()
        with or_storage_error(root, "listed", _CHECK_MODE):
            for inner, _, names in os.walk(root, onerror=_unless_gone, followlinks=True):
                below = "" if inner == root else f"{os.path.relpath(inner, root)}/"
                for name in names:
                    if not name.startswith(OURS):
                        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                            sizes[f"{below}{name}"] = Path(inner, name).stat().st_size
        return sizes

    def open(self, name: str) -> BinaryIO:
        with or_storage_error(self.path(name), "read", _CHECK_MODE):
            return _opened(self.path(name))

    def bring(self, source: Storage, name: str, target: str) -> None:
        path = Path(self.path(target))
        aside = path.with_name(f"{OURS}{uuid.uuid4().hex}")
        with or_storage_error(source.path(name), f"copied to {path}", _MUST_BE_WRITABLE):
            _make(path.parent)
            try:
                if isinstance(source, LocalStorage):
                    # The kernel copies; the bytes do not pass through this process.
                    shutil.copyfile(source.path(name), aside)
                else:
                    with source.open(name) as reader, aside.open("xb") as file:
                        shutil.copyfileobj(reader, file, PIECE)
                with aside.open("rb") as file:
                    os.fsync(file.fileno())
                aside.replace(path)
            except BaseException:
                aside.unlink(missing_ok=True)
                raise

    def share(self, source: Storage, name: str, target: str) -> None:
        path = Path(self.path(target))
        if isinstance(source, LocalStorage):
            aside = path.with_name(f"{OURS}{uuid.uuid4().hex}")
            # On another disk, or one without links, the file is copied instead, and that reports any error.
            with contextlib.suppress(OSError):
                _make(path.parent)
                os.link(source.path(name), aside)
                aside.replace(path)
                # If both names were already of one file, the rename did nothing.
                aside.unlink(missing_ok=True)
                return
        self.bring(source, name, target)

    def remove(self, name: str) -> None:
        target = Path(self.path(name))
        with or_storage_error(str(target), "removed", _MUST_BE_WRITABLE, may_lack=True):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink()
            _sync(target.parent)

    def sync(self, folder: str = "") -> None:
        path = Path(self.path(folder))
        with or_storage_error(str(path), "written", _MUST_BE_WRITABLE):
            for inner, _, _ in os.walk(path):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    _sync(Path(inner))

    def _write_aside(self, target: Path, content: bytes) -> Path:
        """Write a complete temporary file beside the target, flushed to disk."""
        temporary = target.with_name(f"{OURS}{uuid.uuid4().hex}")
        with or_storage_error(str(target), "written", _MUST_BE_WRITABLE):
            try:
                _make(target.parent)
                with temporary.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise
        return temporary


def _make(folder: Path) -> None:
    """Make a folder with its parents, whose names outlive a power cut."""
    missing, ancestor = [], folder
    while not ancestor.exists() and ancestor != ancestor.parent:
        missing.append(ancestor)
        ancestor = ancestor.parent
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync(made.parent)


def _sync(folder: Path) -> None:
    """Write a folder's names to the disk."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    except OSError as error:
        # Some file systems, such as those of FUSE, keep no folder to be written.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(number)


def _unless_gone(error: OSError) -> None:
    """Raise the error of a walk, unless the folder does not exist."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


def _are_one(one: Path, other: Path) -> bool:
    """Return whether two names are of one file."""
    try:
        return one.samefile(other)
    except OSError:
        return False


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
    file_kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
    raise StorageError(
        f"{path} is {file_kind} where a file belongs. Find out who put it there, and move it away."
    )


_CHECK_MODE = "Check the folder's owner and mode."
_MUST_BE_WRITABLE = (
    "The state folder must be writable for the user that runs Airflow and the drivers; correct its owner or"
    " mode, or set STREAMKEEPER_STATE to another folder."
)
