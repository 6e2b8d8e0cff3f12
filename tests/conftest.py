"""Which tests go together where the suite runs in several processes: a file's, and all that share the one
Airflow of a run.

And the seeds of the properties, which are new in each run and shown at its end, and the cases that a long
run takes.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.spark_conf.jvm import quick_to_start
from tests.worlds.seeds import next_seed
from tests.worlds.suites import share_of

END_TO_END = "tests/end_to_end/"

quick_to_start()
# Set here, for the processes of a run inherit it and must collect the same.
PART = int(os.environ.setdefault("STREAMKEEPER_PART", str(date.today().toordinal())))


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Gives whole files to a process. (The groups of ``--dist loadgroup`` are not seen by pytest 9.2: xdist
    3.8 writes them elsewhere.)
    """

    def _split_scope(self, nodeid: str) -> str:
        return END_TO_END if nodeid.startswith(END_TO_END) else nodeid.partition("::")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take a share of the cases of each long test, unless the command names tests."""
    if config.option.markexpr != "long" or config.option.keyword or any("::" in arg for arg in config.args):
        return
    cases = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    taken = {item for group in cases.values() for item in share_of(group, PART)}
    config.hook.pytest_deselected(items=[item for item in items if item not in taken])
    items[:] = [item for item in items if item in taken]


def pytest_report_header() -> str:
    return f"long tests of many cases: STREAMKEEPER_PART={PART}"


@pytest.fixture
def seed(record_property: Callable[[str, object], None]) -> int:
    """A new seed in each run, shown at its end."""
    made = next_seed()
    record_property("seed", made)
    return made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show with which seeds the properties were tried."""
    reports = [
        report
        for found in terminalreporter.stats.values()
        for report in found
        if getattr(report, "when", "") == "call"
    ]
    told = [(report.nodeid, dict(report.user_properties).get("seed")) for report in reports]
    lines = [f"{test}: STREAMKEEPER_SEED={seed}" for test, seed in told if seed is not None]
    if lines:
        terminalreporter.section("seeds")
        terminalreporter.write_line("\n".join(lines))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)
