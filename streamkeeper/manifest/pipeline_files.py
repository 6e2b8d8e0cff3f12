"""Files in the pipelines folder: the one way to list and read them, for drivers, DAG files, the monitor and
commands.

They are regular files, and links to such, with names that end in ``.py``, in subfolders too. Names that start
with a dot are skipped: editors and checkouts use them. A folder named ``x.py``, a FIFO, and a broken or
circular link are skipped as well. A file that vanishes while it is read counts as missing; a comparison of
two signatures shows the change.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from streamkeeper.errors import SettingsError

Signature = tuple[tuple[str, int, int], ...]


def listed(folder: Path) -> list[Path]:
    """Return every Python file in a folder and in those below it, sorted.

    :raises SettingsError: the folder itself does not exist, or cannot be listed.
    """
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        problem, todo = "is not there", "Make it"
        if not isinstance(error, FileNotFoundError):
            problem, todo = f"cannot be listed: {error.strerror}", "Check its owner and mode"
        raise SettingsError(
            f"The pipelines folder {folder} {problem}. {todo}, or set STREAMKEEPER_PIPELINES to the right"
            " one."
        ) from error
    return sorted(file for path in paths for file in _below(path))


def pipelines(folder: Path) -> list[Path]:
    """Return the files that may declare a pipeline: those right in the folder without a leading underscore,
    sorted.

    :raises SettingsError: as :func:`listed`.
    """
    return [file for file in listed(folder) if file.parent == folder and not file.name.startswith("_")]


def as_text(text: str) -> str:
    """Return a text that can be written as UTF-8: a name or a message may have bytes that are none, and gets
    backslashes, which no pipeline's name has, in their place.
    """
    return text.encode(errors="backslashreplace").decode()


def name(file: Path) -> str:
    """Return the name of the pipeline in a file, as text."""
    return as_text(file.stem)


def declares(content: bytes) -> bool:
    """Return whether a file with such a content may declare a pipeline, rather than be a helper module."""
    # Every declaration needs an import from streamkeeper.
    return b"streamkeeper" in content


def content(file: Path) -> bytes | None:
    """Return a file's bytes; None if it vanished, is no regular file any more, or may not be read."""
    try:
        # Without O_NONBLOCK, opening a FIFO that replaced the file would wait for a writer.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
            return opened.read() if stat.S_ISREG(os.fstat(opened.fileno()).st_mode) else None
    except OSError:
        return None


def signature(folder: Path) -> Signature:
    """Return names, times (ns) and sizes (bytes) of all files; it differs after a file changed, was added or
    removed.

    :raises SettingsError: as :func:`listed`.
    """
    looks = ((file, _regular(file)) for file in listed(folder))
    return tuple((str(file), look.st_mtime_ns, look.st_size) for file, look in looks if look is not None)


def _below(path: Path) -> Iterator[Path]:
    """Yield a Python file itself, or those in a folder; links to folders are not followed."""
    if path.name.startswith(".") or path.name == "__pycache__":
        return
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(OSError):
            for inner in list(path.iterdir()):
                yield from _below(inner)
    elif path.suffix == ".py" and _regular(path) is not None:
        yield path


def _regular(file: Path) -> os.stat_result | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None
