"""Which tests go together where the suite runs in several processes: a file's, and all that share the one
Airflow of a run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

END_TO_END = "tests/end_to_end/"

# Spark's JVMs live for a minute or some here: the second compiler, a parallel collector, a helper that starts
# processes, and the verifier of classes that come from locked jars cost such a JVM more than they give. With
# one compiler alone, the cache of compiled code is small and soon full: what is thrown out of it is compiled
# again and again.
QUICK_TO_START = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
    " -Djdk.lang.Process.launchMechanism=VFORK -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_TO_START)
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark_conf"))


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Gives whole files to a process. (The groups of ``--dist loadgroup`` are not seen by pytest 9.2: xdist
    3.8 writes them elsewhere.)
    """

    def _split_scope(self, nodeid: str) -> str:
        return END_TO_END if nodeid.startswith(END_TO_END) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)
