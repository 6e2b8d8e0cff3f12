"""What a storage refuses, as one error that is meant for the user; fsspec's file systems raise classes of
their own, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from streamkeeper.errors import StorageError

_CLIENTS = ("aiobotocore", "aiohttp", "botocore")
"""Packages whose errors (no network, no credentials) are no OSError."""


@contextlib.contextmanager
def or_storage_error(path: str, done: str, advice: str) -> Iterator[None]:
    """Let what a file system refuses come out as an error for the user.

    :raises StorageError: it refused; the message says what could not be done to ``path``, and the advice.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path} cannot be {done}: {error.strerror or error}. {advice}") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CLIENTS:
            raise
        raise StorageError(f"{path} cannot be {done}: {type(error).__name__}: {error}. {advice}") from error
