"""Which room may import what (docs/internals/architecture.md): read from the syntax, so that a lazy import
counts too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamkeeper.settings import PROJECT

STANDARD = set(sys.stdlib_module_names)
PURE = {"__future__"} | STANDARD

OPTIONAL = {
    "streamkeeper/cli": {"typer", "rich"},
    "streamkeeper/testing": {"pytest", "pyspark", "streamkeeper_jobs"},
    "streamkeeper/readers.py": {"pyspark"},
    "streamkeeper/storage/remote.py": {"fsspec"},
    "streamkeeper/recover/plans/schedules.py": {"croniter"},
    "streamkeeper/sources/files/listing.py": {"fsspec"},
    "streamkeeper/sources/kafka/client.py": {"confluent_kafka"},
    "streamkeeper/sources/delta/statistics.py": {"deltalake"},
    "streamkeeper/health/lineage.py": {"openlineage"},
    "streamkeeper/health/otlp.py": {"opentelemetry"},
    "streamkeeper/clusters/kubernetes.py": {"kubernetes", "urllib3"},
    "plugins/streamkeeper_airflow/flow/installation.py": {"sqlalchemy"},
    "plugins/streamkeeper_airflow/page/app.py": {"fastapi"},
    "dags/order_report.py": {"deltalake"},
}
"""What a part of a room may import besides what its room may."""

ONLY = {
    "streamkeeper": {"streamkeeper"},
    "plugins": {"airflow", "streamkeeper", "streamkeeper_airflow"},
    "dags": {"airflow", "streamkeeper", "streamkeeper_airflow"},
}
"""What files of a room may import besides the standard library."""

FORBIDDEN = {"spark_jobs": {"airflow", "streamkeeper_airflow"}}
"""What no file of the room of the user's own code may import."""

DRIVER_NEEDS_NONE_OF = {"cli", "testing"}
"""Parts of streamkeeper that no driver imports."""


def imports(source: str) -> Iterator[tuple[int, str]]:
    """Give line and full name of every import, by statement or by ``importlib.import_module("…")``."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in names)
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield (node.lineno, name)


ASKED_IF_INSTALLED = {
    # A driver knows its own pod; whoever asks a cluster after one is elsewhere.
    "streamkeeper.clusters.kubernetes",
    # Plans ask them; a package that is missing raises NotAskable, and the plan says "unknown".
    "streamkeeper.sources.kafka.client",
    "streamkeeper.sources.delta.statistics",
}
"""Modules that a driver may import, though it needs none of their packages."""


def top(name: str) -> str:
    return name.split(".", maxsplit=1)[0]


def files(room: str) -> list[Path]:
    return sorted(file for file in (PROJECT / room).rglob("*.py") if "__pycache__" not in file.parts)


def violations(room: str, file: str, source: str) -> list[str]:
    """Say which imports of a file its room does not allow; ``file`` is its name below the project."""
    extra = next((names for part, names in OPTIONAL.items() if file.startswith(part)), set())
    found = [
        f"{file}:{line} imports {name}"
        for line, name in imports(source)
        if top(name) in FORBIDDEN.get(room, ())
        or (room in ONLY and top(name) not in PURE | ONLY[room] | extra)
    ]
    if room == "dags":
        found += [
            f"{file}:{line} imports {name}"
            for line, name in imports(source)
            if name.startswith("streamkeeper.manifest.import_file")
        ]
    return sorted(set(found))


def from_tests(file: str, source: str) -> list[str]:
    """Return the imports of a test's file by another: they run its fixtures' modules twice, and bind two
    files that should stand alone.
    """
    return sorted(
        {
            f"{file}:{line} imports {name}"
            for line, name in imports(source)
            if re.search(r"(^|\.)test_\w+\.", f"{name}.")
        }
    )


def test_helpers_are_imported_from_no_test_file() -> None:
    found = [
        item
        for file in files("tests")
        for item in from_tests(str(file.relative_to(PROJECT)), file.read_text())
    ]
    assert files("tests"), "the tests are there"
    assert found == []


@pytest.mark.parametrize(
    "statement",
    [
        "from tests.core.kinds.test_reset_checkpoint import plan",
        "import tests.spark.driver.test_killed",
        "from test_x import y",
    ],
)
def test_a_helper_from_a_test_file_is_found_with_its_place(statement: str) -> None:
    assert from_tests("tests/core/test_y.py", f"def f():\n    {statement}") == [
        "tests/core/test_y.py:2 imports"
        f" {statement.replace(' import ', '.').removeprefix('from ').removeprefix('import ')}"
    ]
    assert from_tests("tests/core/test_y.py", "from tests.worlds.recover.asked import ASKED") == []


@pytest.mark.parametrize("room", [*ONLY, *FORBIDDEN])
def test_no_file_of_a_room_imports_what_the_room_may_not(room: str) -> None:
    found = [
        item
        for file in files(room)
        for item in violations(room, str(file.relative_to(PROJECT)), file.read_text())
    ]
    assert files(room), "the room is there"
    assert found == []


def test_what_a_driver_needs_of_streamkeeper_is_the_standard_library_alone() -> None:
    needed = {"streamkeeper"}
    pending = [
        name
        for file in files("spark_jobs")
        for _, name in imports(file.read_text())
        if top(name) == "streamkeeper"
    ]
    while pending:
        name = pending.pop()
        module = next((part for part in (name, name.rpartition(".")[0]) if module_file(part)), None)
        if module and module not in needed:
            needed.add(module)
            source = module_file(module)
            assert source is not None
            pending += [inner for _, inner in imports(source.read_text()) if top(inner) == "streamkeeper"]
    parts = {module.split(".")[1] for module in needed if "." in module}
    assert {"storage", "flows", "checkpoint", "manifest"} <= parts, "the walk found the driver's modules"
    assert not parts & DRIVER_NEEDS_NONE_OF
    third_party = {
        f"{module}: {name}"
        for module in needed
        for _, name in imports((module_file(module) or Path()).read_text())
        if top(name) not in PURE | {"streamkeeper"} and module not in ASKED_IF_INSTALLED
    }
    assert third_party <= {
        "streamkeeper.storage.remote: fsspec",
        "streamkeeper.sources.files.listing: fsspec",
        "streamkeeper.readers: pyspark.sql.Column",
        "streamkeeper.readers: pyspark.sql.DataFrame",
        "streamkeeper.readers: pyspark.sql.functions",
        "streamkeeper.readers: pyspark.sql.avro.functions.from_avro",
    }, "fsspec alone, and only for remote storage; readers are called where Spark is"
    assert not list((PROJECT / "streamkeeper").rglob("*.so"))


def module_file(module: str) -> Path | None:
    path = PROJECT / Path(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def test_the_core_is_imported_without_any_third_party_package() -> None:
    import subprocess

    modules = [".".join(file.relative_to(PROJECT).with_suffix("").parts) for file in files("streamkeeper")]
    left_out = (".cli", ".testing", "__main__")
    core = [name for name in modules if not any(part in name for part in left_out)]
    said = (
        f"import sys; [__import__(name) for name in {core!r}]; print(sorted({{name.split('.')[0] for name in"
        " sys.modules}))"
    )
    command = [sys.executable, "-S", "-I", "-c", f"import sys; sys.path.insert(0, {str(PROJECT)!r}); {said}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(ast.literal_eval(done.stdout)) - STANDARD <= {
        "streamkeeper",
        "__main__",
        "_sysconfigdata__linux_x86_64-linux-gnu",
    }


PLANTED = {
    "spark in the core": ("streamkeeper", "streamkeeper/flows/leases.py", "import pyspark.sql"),
    "airflow in the core, lazily": (
        "streamkeeper",
        "streamkeeper/flows/leases.py",
        "def f():\n    from airflow.sdk import DAG",
    ),
    "fsspec outside of storage, hidden": (
        "streamkeeper",
        "streamkeeper/flows/holds.py",
        "import importlib\nimportlib.import_module('fsspec')",
    ),
    "airflow in a job": (
        "spark_jobs",
        "spark_jobs/run_flow.py",
        "try:\n    import airflow\nexcept ImportError:\n    pass",
    ),
    "spark in a plugin": ("plugins", "plugins/x/y.py", "if True:\n    import pyspark"),
    "importing pipeline files in a DAG": (
        "dags",
        "dags/flows.py",
        "from streamkeeper.manifest.import_file import load_pipeline",
    ),
}


@pytest.mark.parametrize(("room", "file", "source"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_violation_is_found_with_its_place(room: str, file: str, source: str) -> None:
    (found,) = violations(room, file, source)
    assert found.startswith(f"{file}:")


ALLOWED = {
    "typer in the command line": ("streamkeeper", "streamkeeper/cli/running.py", "import typer"),
    "deltalake in its probe": (
        "streamkeeper",
        "streamkeeper/sources/delta/statistics.py",
        "from deltalake import DeltaTable",
    ),
}


@pytest.mark.parametrize(("room", "file", "source"), ALLOWED.values(), ids=ALLOWED.keys())
def test_what_is_allowed_is_not_reported(room: str, file: str, source: str) -> None:
    assert violations(room, file, source) == []
