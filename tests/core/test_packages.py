"""Which package may import which (docs/internals/architecture.md): read from the code's syntax, lazy imports
included.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamkeeper.settings import PROJECT

ROOTS = {
    "streamkeeper": PROJECT / "streamkeeper",
    "streamkeeper_jobs": PROJECT / "spark_jobs" / "streamkeeper_jobs",
    "streamkeeper_airflow": PROJECT / "plugins" / "streamkeeper_airflow",
}

STAIRS = (
    ("streamkeeper",),
    ("streamkeeper.support",),
    ("streamkeeper.distribution",),
    ("streamkeeper.jars",),
    ("streamkeeper.storage",),
    ("streamkeeper.checkpoint", "streamkeeper.delta"),
    ("streamkeeper.declare",),
    ("streamkeeper.manifest",),
    ("streamkeeper.history",),
    ("streamkeeper.flows",),
    ("streamkeeper.observe",),
    ("streamkeeper.tables",),
    ("streamkeeper.sources.base",),
    ("streamkeeper.sources.files", "streamkeeper.sources.kafka", "streamkeeper.sources.delta"),
    ("streamkeeper.sources",),
    ("streamkeeper.clusters",),
    ("streamkeeper.drivers",),
    ("streamkeeper.watch",),
    ("streamkeeper.trial",),
    ("streamkeeper.recover.requests",),
    ("streamkeeper.recover.plans",),
    ("streamkeeper.recover.moves",),
    ("streamkeeper.recover.steps",),
    ("streamkeeper.recover.kinds",),
    ("streamkeeper.recover",),
    ("streamkeeper.health",),
    ("streamkeeper.supervise",),
    ("streamkeeper.install",),
    ("streamkeeper.cli",),
    ("streamkeeper_jobs", "streamkeeper_airflow"),
    ("streamkeeper_jobs.spark",),
    ("streamkeeper_jobs.stream", "streamkeeper_jobs.cdc", "streamkeeper_jobs.catalog"),
    ("streamkeeper_jobs.sinks",),
    ("streamkeeper_jobs.sources",),
    ("streamkeeper_jobs.generation",),
    ("streamkeeper_jobs.trial",),
    ("streamkeeper_jobs.driver",),
    ("streamkeeper_jobs.recover",),
    ("streamkeeper_airflow.operate",),
    ("streamkeeper_airflow.flow",),
    ("streamkeeper_airflow.recovery",),
    ("streamkeeper_airflow.page",),
    ("streamkeeper.testing",),
)
"""A package may import itself and the packages of every stair above its own in this list, and no other."""

FACES = {"streamkeeper.pipelines", "streamkeeper.__main__"}
"""Modules of the top package that only hand on what users start with: they may import from every package."""

LOADERS = {
    "streamkeeper.declare.language",
    "streamkeeper.manifest.manifest",
    "streamkeeper.recover.plans.kind",
}
"""Modules that load something of a later stair by its name, when it is needed: a check of schedules, the
claims of tables, the kinds of recoveries. Steps of recoveries name what Spark runs, in another process.
"""

MOST_MODULES = 12
"""How many modules a folder may hold: as many as one can keep in mind."""


def modules() -> dict[str, Path]:
    """Return every module of the product, by its dotted name."""
    found = {}
    for top, folder in ROOTS.items():
        for file in sorted(folder.rglob("*.py")):
            parts = (top, *file.relative_to(folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def package_of(name: str, known: dict[str, Path]) -> str:
    """Return the package that a module lies in."""
    return name if known[name].name == "__init__.py" else name.rpartition(".")[0]


def imported(source: str, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Return line and name of each of the product's modules that a source text imports."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), level=0, names=names):
                for alias in names:
                    whole = f"{module}.{alias.name}"
                    if whole in known or module in known:
                        yield node.lineno, whole if whole in known else module
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names if alias.name in known)


def named(source: str, known: dict[str, Path]) -> Iterator[tuple[int, str, str]]:
    """Return line, module and attribute of each ``"module:attribute"`` in a source text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            module, _, attribute = node.value.partition(":")
            if module in known and attribute.isidentifier():
                yield node.lineno, module, attribute


def runs_up(importing: str, package: str, target: str) -> bool:
    """Return whether an import leads to the importing package's own stair or to a later one."""
    stair = {name: number for number, names in enumerate(STAIRS) for name in names}
    return importing not in FACES and target != package and stair[target] >= stair[package]


def violations(name: str, source: str, known: dict[str, Path]) -> list[str]:
    """Return every import of a module that its package may not have, with its line."""
    package = package_of(name, known)
    return [
        f"{name}:{line} imports {target}"
        for line, target in imported(source, known)
        if runs_up(name, package, package_of(target, known))
    ]


def test_every_package_has_its_stair() -> None:
    known = modules()
    packages = {package_of(name, known) for name in known}
    assert packages == {name for names in STAIRS for name in names}


def test_no_import_runs_up_the_stairs() -> None:
    known = modules()
    assert len(known) > 200, "the product is there"
    assert [item for name, file in known.items() for item in violations(name, file.read_text(), known)] == []


def test_what_is_loaded_by_its_name_is_there_and_is_named_from_below_by_few() -> None:
    known, found = modules(), []
    for name, file in known.items():
        for line, target, attribute in named(file.read_text(), known):
            defined = re.search(rf"^(def )?{attribute}\b", known[target].read_text(), re.MULTILINE)
            assert defined, f"{name}:{line} names {target}:{attribute}, which is not there"
            in_spark = target.startswith("streamkeeper_jobs.") and name.startswith("streamkeeper.recover.")
            if not in_spark and runs_up(name, package_of(name, known), package_of(target, known)):
                found.append(name)
    assert {*found} == LOADERS


@pytest.mark.parametrize(
    "source",
    [
        "from streamkeeper.recover.plans.plan import Plan",
        "from streamkeeper.recover.plans import plan",
        "def late():\n    from streamkeeper.recover import engine",
        "import streamkeeper.cli.running",
    ],
)
def test_a_planted_import_up_the_stairs_is_found(source: str) -> None:
    (found,) = violations("streamkeeper.flows.leases", source, modules())
    assert found.startswith("streamkeeper.flows.leases:")


def test_each_package_says_in_its_docstring_what_it_answers() -> None:
    inits = [file for file in modules().values() if file.name == "__init__.py"]
    assert [str(file) for file in inits if not ast.get_docstring(ast.parse(file.read_text()))] == []


def test_no_folder_holds_more_modules_than_one_can_keep_in_mind() -> None:
    rooms = ("streamkeeper", "spark_jobs", "plugins", "dags", "demo", "tools", "tests")
    files = [file for room in rooms for file in (PROJECT / room).rglob("*.py")]
    counts = Counter(file.parent for file in files if file.name not in {"__init__.py", "conftest.py"})
    assert len(counts) > 50, "the rooms are there"
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}
