"""Errors of a storage as :class:`StorageError`. File systems of fsspec also raise classes of their own."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from streamkeeper.errors import FileTooLarge, StorageError

_CLIENTS = ("aiobotocore", "aiohttp", "botocore")
"""Packages whose errors (no network, no credentials) are not OSErrors."""


_FULL = (
    "Make room on that disk, or move the folder to a larger one. What was written before is whole, and what"
    " was begun goes on from there."
)
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: (
        "The disk is mounted read-only, often after an error of its own. See the system's log, and mount it"
        " for writing again."
    ),
    errno.EIO: "The disk reports an error. See the system's log before anything else.",
    errno.ENAMETOOLONG: "The file system takes no names of that length. Give a shorter name.",
}
"""What to do about errors that have a remedy of their own."""


@contextlib.contextmanager
def or_storage_error(path: str, done: str, advice: str, *, may_lack: bool = False) -> Iterator[None]:
    """Convert errors of a file system inside the ``with`` block.

    :param may_lack: whether there need be no such file or folder: the block then just ends.
    :raises StorageError: the file system refused; the message has ``path``, what could not be ``done``, and
        ``advice``.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if may_lack and isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return
        todo = _ADVICE.get(error.errno or 0, advice)
        raise StorageError(f"{path} cannot be {done}: {error.strerror or error}. {todo}") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CLIENTS:
            raise
        raise StorageError(f"{path} cannot be {done}: {type(error).__name__}: {error}. {advice}") from error


def check_size(path: str, size: int, most: int | None) -> None:
    """Check that a file is not too large to be read whole.

    :raises FileTooLarge: it has more than ``most`` bytes.
    """
    if most is not None and size > most:
        raise FileTooLarge(
            f"{path} has {size:,} bytes, and such a file at most {most:,}, so it was not read. Another"
            " process changed it: restore it from a copy, or move it away if its content is known."
        )
