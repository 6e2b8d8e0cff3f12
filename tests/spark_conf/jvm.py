"""Options of Spark's JVMs in tests."""

from __future__ import annotations

import os
from pathlib import Path

# Spark's JVMs live for a minute or some here: the second compiler, a parallel collector, a helper that starts
# processes, and the verifier of classes that come from locked jars cost such a JVM more than they give. With
# one compiler alone, the cache of compiled code is small and soon full: what is thrown out of it is compiled
# again and again.
QUICK_TO_START = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
    " -Djdk.lang.Process.launchMechanism=VFORK -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


def quick_to_start() -> None:
    """Set the environment of this process, and of those that it starts, unless it has a say already."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_TO_START)
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent))
