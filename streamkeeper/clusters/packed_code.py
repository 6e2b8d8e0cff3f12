"""Streamkeeper's own code as one file, for drivers on hosts that do not have it."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from streamkeeper.errors import SettingsError
from streamkeeper.settings import CHECKOUT, PROJECT

_PACKAGES = (
    PROJECT / "streamkeeper",
    (PROJECT / "spark_jobs" if CHECKOUT else PROJECT) / "streamkeeper_jobs",
)


def packed_code() -> Path:
    """Return the path of a zip file of the packages that a driver imports, for Spark to ship.

    It lies in a folder of this user's own among the temporary files, and is made if it is not there.

    :raises SettingsError: that folder is another user's.
    """
    folder = Path(tempfile.gettempdir()) / f"streamkeeper-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    stat = folder.lstat()
    if not folder.is_dir() or folder.is_symlink() or stat.st_uid != os.getuid() or stat.st_mode & 0o022:
        raise SettingsError(
            f"{folder} is another user's, or others may write to it. Streamkeeper's code is packed there for"
            " the cluster. Remove it, or set TMPDIR to a folder of your own."
        )
    files = {name: file.read_bytes() for name, file in _files()}
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    packed = folder / f"streamkeeper-{digest.hexdigest()[:16]}.zip"
    if not packed.exists():
        aside = folder / f".{packed.name}.{os.getpid()}"
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        aside.replace(packed)
    return packed


def _files() -> Iterator[tuple[str, Path]]:
    for package in _PACKAGES:
        for file in sorted([*package.rglob("*.py"), *package.rglob("*.toml")]):
            yield file.relative_to(package.parent).as_posix(), file
