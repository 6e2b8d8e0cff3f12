"""What ``streamkeeper init`` writes: its own test passes, and fails where its pipeline is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamkeeper.install.project import init
from streamkeeper.settings import PROJECT


def run_tests(project: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of a project as its owner does: in its folder, with the jars of this checkout."""
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("STREAMKEEPER_", "PYTEST_"))
    }
    env["PYTHONPATH"] = str(PROJECT)
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    return subprocess.run(line, check=False, capture_output=True, text=True, cwd=project, env=env)


@pytest.mark.long
def test_the_test_of_a_new_project_passes_and_fails_where_duplicates_stay(tmp_path: Path) -> None:
    init(tmp_path / "streams")
    passed = run_tests(tmp_path / "streams")
    assert passed.returncode == 0 and "1 passed" in passed.stdout, passed.stdout + passed.stderr
    pipeline = tmp_path / "streams" / "pipelines" / "orders.py"
    text = pipeline.read_text()
    pipeline.write_text(text.replace('        .dropDuplicatesWithinWatermark(["order_id"])\n', ""))
    assert pipeline.read_text() != text
    failed = run_tests(tmp_path / "streams")
    assert failed.returncode == 1 and "['a1', 'a1', 'b2']" in failed.stdout, failed.stdout
