"""Find the Java that Spark will run on, and refuse one that Spark 4.2 does not support; find its compiler."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from streamkeeper.distribution.versions import SPARK, VERSIONS
from streamkeeper.errors import StreamkeeperError

SUPPORTED: tuple[int, ...] = tuple(VERSIONS["java"]["supported"])
WHAT_TO_DO = (
    "Install one (Debian and Ubuntu: apt-get install openjdk-17-jdk-headless), or point JAVA_HOME at one that"
    " is already there."
)


class JavaError(StreamkeeperError):
    """No usable Java was found; the message says what was found, what is allowed and what to do."""


def find_java() -> Path:
    """Return the `java` that Spark's own scripts would start: JAVA_HOME's if that is set, else the first on
    PATH.

    Raises JavaError if there is none, or if its version is not one of SUPPORTED.
    """
    allowed = " or ".join(map(str, SUPPORTED))
    java = _locate(allowed)
    version = _version(java, allowed)
    if version not in SUPPORTED:
        raise JavaError(
            f"Java {version} was found at {java}; Spark {SPARK} needs Java {allowed}. {WHAT_TO_DO}"
        )
    return java


def find_javac() -> Path:
    """Return the compiler beside `java`, or the first on PATH; raises JavaError if there is none."""
    java = find_java()
    beside = java.resolve().parent / "javac"
    javac = str(beside) if os.access(beside, os.X_OK) else shutil.which("javac")
    if javac is None:
        raise JavaError(
            f"{java} has no compiler beside it, and there is no `javac` on PATH; a JRE does not do, since"
            f" the classes in jvm/ are compiled. {WHAT_TO_DO}"
        )
    return Path(javac)


def parse_version(text: str) -> int | None:
    """Return the major version in what `java -version` prints ("1.8.0" is 8), or None if there is none."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


def _locate(allowed: str) -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise JavaError(
                f"JAVA_HOME is {home}, but {java} is not an executable; Java {allowed} is needed."
                f" {WHAT_TO_DO}"
            )
        return java
    on_path = shutil.which("java")
    if on_path is None:
        raise JavaError(
            f"No Java was found: JAVA_HOME is not set and there is no `java` on PATH; Java {allowed} is"
            f" needed. {WHAT_TO_DO}"
        )
    return Path(on_path)


def _version(java: Path, allowed: str) -> int:
    answer = subprocess.run(
        [java, "-version"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    output = (answer.stderr + answer.stdout).strip()
    version = parse_version(output)
    if answer.returncode != 0 or version is None:
        raise JavaError(
            f"`{java} -version` ended with exit code {answer.returncode} and said {output!r}; Java {allowed}"
            f" is needed. {WHAT_TO_DO}"
        )
    return version


def main() -> int:
    """Print nothing and return 0 if Java and its compiler are usable; else say why not and return 1."""
    try:
        find_javac()
    except JavaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
