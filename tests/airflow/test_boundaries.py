"""What the rooms ``plugins/`` and ``dags/`` may import: Streamkeeper's core and Airflow, never Spark, the
jobs or the user's pipelines.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from streamkeeper.settings import PROJECT

ALLOWED = {"airflow", "streamkeeper", "streamkeeper_airflow", *sys.stdlib_module_names}
FILES = sorted([*(PROJECT / "dags").rglob("*.py"), *(PROJECT / "plugins").rglob("*.py")])


def imported(file: Path) -> set[str]:
    """Give the top names of all that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PROJECT)))
def test_airflow_s_rooms_import_the_core_and_airflow_only(file: Path) -> None:
    assert imported(file) <= ALLOWED


def test_the_rooms_are_not_empty() -> None:
    assert len(FILES) > 8
