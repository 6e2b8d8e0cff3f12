"""Keep a folder of exactly the jars that a lock file names: Delta and Kafka for Spark by default.

    python -m tools.jars [FOLDER]             fill .cache/jars as jars.lock says, or see that it is complete
    python -m tools.jars FOLDER --lock FILE   the same for another lock
    python -m tools.jars --resolve            make jars.lock anew from ROOTS (after a change of versions)
    python -m tools.jars --resolve --lock FILE --root group:artifact:version …
                                              the same for another lock, which stands by itself

A lock line is `sha256 group:artifact:version`. A complete folder is only read; no Java is started for it.
"""

import argparse
import fcntl
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.ivy import IvyError, Module, download, pyspark_jars, resolve
from tools.java import JavaError

PROJECT = Path(__file__).resolve().parent.parent
LOCK = PROJECT / "jars.lock"
FOLDER = PROJECT / ".cache" / "jars"

ROOTS = [
    Module.parse("io.delta:delta-spark_4.2_2.13:4.4.0"),
    Module.parse("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"),
]
# The Kafka connector asks for the token provider in its own version, which is not in the repository; 4.0.0
# serves it.
INSTEAD = [Module.parse("org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0")]
LEFT_OUT = (
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13",
    # Spark routes the same classes to its own logging by jcl-over-slf4j.
    "commons-logging:commons-logging",
    # Spark's newer RoaringBitmap holds the same classes.
    "org.roaringbitmap:shims",
)


class JarsError(Exception):
    """The folder does not hold, or could not be given, the jars of the lock."""


def read_lock(lock: Path = LOCK) -> dict[Module, str]:
    """Return each jar of a lock file with its sha256; raises JarsError for a missing file or a malformed
    line.
    """
    if not lock.is_file():
        raise JarsError(
            f"There is no lock file {lock}. Take it from the repository, or make it with `python -m"
            " tools.jars --resolve`."
        )
    locked = {}
    for number, line in enumerate(lock.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        digest, _, name = line.partition(" ")
        try:
            locked[Module.parse(name.strip())] = digest
        except ValueError as error:
            raise JarsError(f"{lock}:{number}: {error}") from None
    return locked


def jar_paths(folder: Path = FOLDER, lock: Path = LOCK) -> list[Path]:
    """Return the path of every jar of the lock in `folder`, sorted; raises JarsError if one is missing.

    Only the presence is looked at, not the content: `ensure` does that.
    """
    paths = sorted(folder / module.file_name for module in read_lock(lock))
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise JarsError(
            f"{folder} lacks {len(missing)} of {len(paths)} jars ({missing[0]} first). Run `make setup`."
        )
    return paths


def problems(folder: Path, lock: Path = LOCK) -> list[str]:
    """Compare a folder with the lock by name and sha256; an empty list means that it is exactly right."""
    locked = {module.file_name: digest for module, digest in read_lock(lock).items()}
    there = {path.name for path in folder.glob("*.jar")} if folder.is_dir() else set()
    found = [f"{name} is missing" for name in sorted(locked.keys() - there)]
    found += [f"{name} is not in the lock" for name in sorted(there - locked.keys())]
    for name in sorted(there & locked.keys()):
        digest = _sha256(folder / name)
        if digest != locked[name]:
            found.append(f"{name} has sha256 {digest}, the lock says {locked[name]}")
    return found


def ensure(folder: Path = FOLDER, lock: Path = LOCK) -> bool:
    """Make `folder` hold exactly the jars of the lock, and return whether anything had to be downloaded.

    The jars come into a folder beside it, are checked there, and then take its place in one move: a run that
    is cut off leaves nothing half done, and two runs at once wait for each other. Raises JarsError, IvyError
    or JavaError.
    """
    folder = folder.absolute()
    with _alone(folder):
        if not problems(folder, lock):
            return False
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as name:
            new = Path(name) / "new"
            download(list(read_lock(lock)), new)
            wrong = problems(new, lock)
            if wrong:
                raise JarsError(
                    "\n  ".join(
                        ["What was downloaded is not what the lock names, and was thrown away:", *wrong]
                    )
                    + "\nRun it again; if it stays so, the repository or what stands between changed a file:"
                    f" do not use it. The lock is {lock.name}."
                )
            if folder.exists():
                folder.rename(Path(name) / "old")
            new.rename(folder)
    return True


def make_lock(
    lock: Path, roots: list[Module], instead: list[Module], left_out: tuple[str, ...], *, beside_spark: bool
) -> list[Module]:
    """Resolve `roots` with all that they need, add `instead`, and write the lock; returns what it names.

    With `beside_spark`, artifacts that pyspark already brings, in whatever version, are left out.
    """
    FOLDER.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="resolve-", dir=FOLDER.parent) as name:
        found = resolve(roots, Path(name) / "all", exclude=left_out)
        if instead:
            download(instead, Path(name) / "instead")
            for module in instead:
                shutil.move(Path(name) / "instead" / module.file_name, Path(name) / "all" / module.file_name)
        kept = sorted(m for m in [*found, *instead] if not (beside_spark and _in_spark(m)))
        lines = [f"{_sha256(Path(name) / 'all' / module.file_name)} {module}" for module in kept]
    lock.write_text("\n".join(["# sha256 group:artifact:version, made by tools/jars.py", *lines, ""]))
    return kept


def _in_spark(module: Module) -> bool:
    prefix = f"{module.artifact}-"
    return any(
        path.name[len(prefix) : len(prefix) + 1].isdigit() for path in pyspark_jars().glob(f"{prefix}*.jar")
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _resolve(lock: Path, roots: list[Module]) -> int:
    if roots:
        return len(make_lock(lock, roots, [], (), beside_spark=False))
    if lock != LOCK:
        raise JarsError(
            f"{lock} is not jars.lock: name what it is resolved from with --root group:artifact:version."
        )
    return len(make_lock(LOCK, ROOTS, INSTEAD, LEFT_OUT, beside_spark=True))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line described at the top of this module; returns 0, or 1 after saying what is
    wrong.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tools.jars", description="Keep a folder of exactly the jars that a lock names."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--lock", type=Path, default=LOCK)
    parser.add_argument("--resolve", action="store_true", help="make the lock again")
    parser.add_argument(
        "--root", type=Module.parse, action="append", default=[], help="what another lock is resolved from"
    )
    chosen = parser.parse_args(arguments)
    try:
        if chosen.resolve:
            print(f"{chosen.lock.name}: {_resolve(chosen.lock, chosen.root)} jars")
        elif ensure(chosen.folder, chosen.lock):
            print(f"{len(read_lock(chosen.lock))} jars downloaded into {chosen.folder}")
    except (JarsError, IvyError, JavaError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
