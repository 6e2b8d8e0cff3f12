"""``streamkeeper init``: the files that a project of one's own begins with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from streamkeeper import __version__
from streamkeeper.distribution.provider_info import DISTRIBUTION
from streamkeeper.distribution.versions import JAVA, VERSIONS
from streamkeeper.errors import RequestError, StorageError
from streamkeeper.install.project_files import FILES
from streamkeeper.settings import typed_path

_PLACE = re.compile("@([A-Z]+)@")


def init(folder: Path) -> list[Path]:
    """Write the files of a new project into a folder, and return their paths.

    :raises RequestError: one of them is there already, or the folder cannot be one; nothing was written.
    :raises StorageError: the folder cannot be written.
    """
    root = typed_path("The folder", str(folder)).absolute()
    if any(letter.isspace() or letter in "'\"$`\\" for letter in str(root)):
        raise RequestError(
            f"{root} has a space, a quote or a dollar sign, which a shell would read. Give another."
        )
    files = {root / name: text for name, text in FILES.items()}
    _check_free(root, files)
    values = {
        "HERE": str(root),
        "AIRFLOW": VERSIONS["airflow"]["tested"][-1],
        "JAVA": str(JAVA),
        "DIST": DISTRIBUTION,
        "VERSION": __version__,
    }
    texts = {path: _PLACE.sub(lambda match: values[match[1]], text) for path, text in files.items()}
    write_files(texts, folders=[root / "var" / "data" / "orders"])
    return list(files)


def write_files(texts: Mapping[Path, str], folders: Iterable[Path] = ()) -> None:
    """Write files, and make folders, with those above them.

    :raises StorageError: one of them cannot be written.
    """
    try:
        for folder in [*folders, *(path.parent for path in texts)]:
            folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, "utf-8")
    except OSError as error:
        raise StorageError(
            f"The files cannot be written: {error}. Give a folder of yours with space."
        ) from error


def _check_free(root: Path, files: dict[Path, str]) -> None:
    blocked = [path for path in (root, *root.parents) if path.exists() and not path.is_dir()]
    if blocked:
        raise RequestError(f"{blocked[0]} is a file, so {root} cannot be a folder. Give another.")
    existing = [str(path.relative_to(root)) for path in files if path.exists() or path.is_symlink()]
    if existing:
        raise RequestError(
            f"{root} has {', '.join(existing)} already. Nothing was written. Give another folder, or move"
            f" {'it' if len(existing) == 1 else 'them'} away."
        )
