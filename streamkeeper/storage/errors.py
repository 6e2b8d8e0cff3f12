"""Errors of a storage as :class:`StorageError`. File systems of fsspec also raise classes of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from streamkeeper.errors import FileTooLarge, StorageError

_CLIENTS = ("aiobotocore", "aiohttp", "botocore")
"""Packages whose errors (no network, no credentials) are not OSErrors."""


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
        raise StorageError(f"{path} cannot be {done}: {error.strerror or error}. {advice}") from error
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
