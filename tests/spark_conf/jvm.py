"""Options of Spark's JVMs in tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A helper that starts processes, a parallel collector and the verifier of classes that come from locked jars
# cost a JVM of a test more than they give.
_COMMON = (
    "-XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK -XX:+UnlockDiagnosticVMOptions"
    " -XX:-BytecodeVerificationRemote"
)
# A driver lives for a minute or some here: too short for the second compiler. With one compiler alone, the
# cache of compiled code is small and soon full: what is thrown out of it is compiled again and again.
QUICK_TO_START = f"-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m {_COMMON}"
# The shared session lives as long as all tests of Spark. With both compilers a test of AUTO CDC took 9 s of
# processor, with the first alone 19 s (side by side, after six minutes).
LONG_LIVED = f"-XX:ReservedCodeCacheSize=400m {_COMMON}"


def quick_to_start() -> None:
    """Set the environment of this process, and of those that it starts, unless it has a say already."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_TO_START)
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent))


@contextmanager
def long_lived() -> Iterator[None]:
    """Inside the block a JVM is started as one that lives long."""
    before = os.environ["SPARK_SUBMIT_OPTS"]
    os.environ["SPARK_SUBMIT_OPTS"] = before.replace(QUICK_TO_START, LONG_LIVED)
    try:
        yield
    finally:
        os.environ["SPARK_SUBMIT_OPTS"] = before
