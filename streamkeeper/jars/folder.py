"""Keep a folder of exactly the jars that lock files name, Delta and Kafka for Spark by default, and the one
of Streamkeeper's own classes.

    python -m streamkeeper.jars [FOLDER]     fill .cache/jars as jars.lock says, or see that it is complete
    python -m streamkeeper.jars FOLDER --lock FILE   the same for another lock; --lock may be repeated
    python -m streamkeeper.jars --resolve    make jars.lock anew from ROOTS (after a change of versions)
    python -m streamkeeper.jars --resolve --lock FILE --root group:artifact:version …
                                      the same for another lock, which stands by itself;
                                      --beside-spark leaves out what pyspark brings

A lock line is `sha256 group:artifact:version`. A complete folder is only read; no Java is started for it.
Streamkeeper's own jar belongs to jars.lock. It is built of jvm/, and its name has the hash of its sources, so
that a change of them shows. A wheel has it as it was built, and the locks.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamkeeper.errors import StreamkeeperError
from streamkeeper.jars.ivy import IvyError, Module, download, pyspark_jars, resolve
from streamkeeper.jars.java import SUPPORTED, JavaError, find_javac
from streamkeeper.settings import CHECKOUT, FILL_JARS, PROJECT

_IN_WHEEL = Path(__file__).resolve().parent
"""Folder of a wheel's locks and of its jar."""
LOCK = (PROJECT if CHECKOUT else _IN_WHEEL) / "jars.lock"
FOLDER = PROJECT / ".cache" / "jars"

ROOTS = [
    Module.parse("io.delta:delta-spark_4.2_2.13:4.4.0"),
    Module.parse("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"),
]
# The Kafka connector asks for the token provider in its own version, which is not in the repository; 4.0.0
# serves it.
INSTEAD = [Module.parse("org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0")]
S3_LOCK = (PROJECT / "tools" if CHECKOUT else _IN_WHEEL) / "s3.lock"
AVRO_LOCK = S3_LOCK.with_name("avro.lock")
# What Spark's s3a needs, without the SDK's bundle of 686 MB, and without what Spark itself brings.
S3_ROOTS = [
    Module.parse("org.apache.hadoop:hadoop-aws:3.5.0"),
    *(Module.parse(f"software.amazon.awssdk:{name}:2.35.4") for name in ("s3", "s3-transfer-manager", "sts")),
]
SOURCES = PROJECT / "jvm"
LEFT_OUT = (
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13",
    # Spark routes the same classes to its own logging by jcl-over-slf4j.
    "commons-logging:commons-logging",
    # Spark's newer RoaringBitmap holds the same classes.
    "org.roaringbitmap:shims",
    "software.amazon.awssdk:bundle",
)


class JarsError(StreamkeeperError):
    """The folder does not hold, or could not be given, the jars of the lock."""


def read_lock(*locks: Path) -> dict[Module, str]:
    """Return each jar of some lock files, jars.lock by default, with its sha256; raises JarsError for a
    missing file or a malformed line.
    """
    locked = {}
    for lock in locks or (LOCK,):
        if not lock.is_file():
            raise JarsError(
                f"There is no lock file {lock}. Take it from the repository, or make it with `python -m"
                " streamkeeper.jars --resolve`."
            )
        for number, line in enumerate(lock.read_text().splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            digest, _, name = line.partition(" ")
            try:
                locked[Module.parse(name.strip())] = digest
            except ValueError as error:
                raise JarsError(f"{lock}:{number}: {error}") from None
    return locked


def built_jar() -> str:
    """Return the name of the jar that is built of the present sources; in a wheel, of the one that it has."""
    if not CHECKOUT:
        return next(_IN_WHEEL.glob("streamkeeper-jvm-*.jar")).name
    digest = hashlib.sha256()
    for source in sorted(SOURCES.rglob("*.java")):
        digest.update(source.relative_to(SOURCES).as_posix().encode() + b"\n" + source.read_bytes())
    return f"streamkeeper-jvm-{digest.hexdigest()[:12]}.jar"


def jar_paths(folder: Path = FOLDER) -> list[Path]:
    """Return the path of every jar of jars.lock in `folder`, and of the built one, sorted.

    Raises JarsError if one is missing.

    Only the presence is looked at, not the content: `ensure` does that.
    """
    paths = sorted(folder / name for name in [*(module.file_name for module in read_lock()), built_jar()])
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise JarsError(
            f"{folder} lacks {len(missing)} of {len(paths)} jars ({missing[0]} first). Run `{FILL_JARS}`."
        )
    return paths


def problems(folder: Path, *locks: Path) -> list[str]:
    """Compare a folder with locks by name and sha256; an empty list means that it is exactly right."""
    locked = {module.file_name: digest for module, digest in read_lock(*locks).items()}
    built = _built(locks)
    present = {path.name for path in folder.glob("*.jar")} if folder.is_dir() else set()
    differences = [f"{name} is missing" for name in sorted({*locked, *built} - present)]
    differences += [f"{name} is not in the lock" for name in sorted(present - {*locked, *built})]
    for name in sorted(present & locked.keys()):
        digest = _sha256(folder / name)
        if digest != locked[name]:
            differences.append(f"{name} has sha256 {digest}, the lock says {locked[name]}")
    return differences


def ensure(
    folder: Path = FOLDER, *locks: Path, source: Path | None = None, mirror: str | None = None
) -> bool:
    """Make `folder` hold exactly the jars of the locks, and return whether anything had to be made.

    `source` is a folder in which jars are looked for first, below it too; `mirror` is the URL of a Maven
    repository that is asked instead of Maven Central.

    Jars that are there and right are kept. The others come into a folder beside it, are checked there, and
    all take its place in one move: a run that is cut off leaves nothing half done, and two runs at once wait
    for each other. Raises JarsError, IvyError or JavaError.
    """
    folder = folder.absolute()
    with alone(folder):
        if not problems(folder, *locks):
            return False
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as name:
            new = Path(name) / "new"
            new.mkdir()
            lacking = []
            for module, digest in read_lock(*locks).items():
                candidates = [place / module.file_name for place in (folder, FOLDER)]
                candidates += [] if source is None else sorted(source.rglob(module.file_name))
                intact = next((jar for jar in candidates if jar.is_file() and _sha256(jar) == digest), None)
                if intact is None:
                    lacking.append(module)
                else:
                    shutil.copy2(intact, new)
            if lacking:
                download(lacking, new, mirror)
            for jar in _built(locks):
                _build(new / jar, new)
            wrong = problems(new, *locks)
            if wrong:
                raise JarsError(
                    "\n  ".join(
                        ["What was downloaded is not what the lock names, and was thrown away:", *wrong]
                    )
                    + "\nRun it again; if it stays so, the repository or what stands between changed a file:"
                    f" do not use it. The lock is {', '.join(lock.name for lock in locks or (LOCK,))}."
                )
            if folder.exists():
                folder.rename(Path(name) / "old")
            new.rename(folder)
    return True


def _built(locks: tuple[Path, ...]) -> list[str]:
    return [built_jar()] if LOCK in (locks or (LOCK,)) else []


def _build(jar: Path, folder: Path) -> None:
    """Compile the sources of jvm/ against Spark's and a folder's jars, into a jar; a wheel has that jar."""
    if not CHECKOUT:
        shutil.copy2(_IN_WHEEL / jar.name, jar)
        return
    with tempfile.TemporaryDirectory(prefix="javac-", dir=folder.parent) as name:
        classes = Path(name)
        path = os.pathsep.join([f"{pyspark_jars()}/*", f"{folder}/*"])
        command = [str(find_javac()), "--release", str(SUPPORTED[0]), "-Xlint:all,-path", "-Werror"]
        done = subprocess.run(
            [*command, "-d", str(classes), "-cp", path, *map(str, sorted(SOURCES.rglob("*.java")))],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise JarsError(f"The sources in {SOURCES} could not be compiled:\n{done.stdout}{done.stderr}")
        with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(classes.rglob("*.class")):
                archive.write(file, file.relative_to(classes).as_posix())


def make_lock(
    lock: Path, roots: list[Module], instead: list[Module], left_out: tuple[str, ...], *, beside_spark: bool
) -> list[Module]:
    """Resolve `roots` with all that they need, add `instead`, and write the lock; returns what it names.

    With `beside_spark`, artifacts that pyspark already brings, in whatever version, are left out.
    """
    FOLDER.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="resolve-", dir=FOLDER.parent) as name:
        resolved = resolve(roots, Path(name) / "all", exclude=left_out)
        if instead:
            download(instead, Path(name) / "instead")
            for module in instead:
                shutil.move(Path(name) / "instead" / module.file_name, Path(name) / "all" / module.file_name)
        modules = sorted(m for m in [*resolved, *instead] if not (beside_spark and _in_spark(m)))
        lines = [f"{_sha256(Path(name) / 'all' / module.file_name)} {module}" for module in modules]
    lock.write_text("\n".join(["# sha256 group:artifact:version, made by streamkeeper/jars", *lines, ""]))
    return modules


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
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time make a folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _resolve(lock: Path, roots: list[Module], *, beside_spark: bool) -> int:
    if roots:
        return len(make_lock(lock, roots, [], (), beside_spark=beside_spark))
    if lock == S3_LOCK:
        return len(make_lock(lock, S3_ROOTS, [], LEFT_OUT, beside_spark=True))
    if lock != LOCK:
        raise JarsError(
            f"{lock} is neither jars.lock nor tools/s3.lock: name what it is resolved from with --root"
            " group:artifact:version."
        )
    return len(make_lock(LOCK, ROOTS, INSTEAD, LEFT_OUT, beside_spark=True))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line described above; returns 0, or 1 after saying what is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m streamkeeper.jars", description="Keep a folder of exactly the jars that a lock names."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--lock", type=Path, action="append", default=[])
    parser.add_argument("--resolve", action="store_true", help="make the lock again")
    parser.add_argument(
        "--root", type=Module.parse, action="append", default=[], help="what another lock is resolved from"
    )
    parser.add_argument("--beside-spark", action="store_true", help="leave out what pyspark brings")
    chosen = parser.parse_args(arguments)
    try:
        locks = [lock.resolve() for lock in chosen.lock] or [LOCK]
        if chosen.resolve:
            for lock in locks:
                print(f"{lock.name}: {_resolve(lock, chosen.root, beside_spark=chosen.beside_spark)} jars")
        elif ensure(chosen.folder, *locks):
            print(f"{chosen.folder} has {len(list(chosen.folder.glob('*.jar')))} jars now")
    except (JarsError, IvyError, JavaError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
