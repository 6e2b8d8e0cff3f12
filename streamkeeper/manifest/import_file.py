"""Import of a pipeline file: done by drivers and the manifest's own process; others read the manifest."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from streamkeeper.declare.fingerprint import called, hash_of
from streamkeeper.declare.model import (
    OUR_FOLDERS,
    PARK,
    PARK_AFTER,
    AnyFlow,
    AppendFlow,
    Location,
    Pipeline,
    check_name,
    pipeline_to_json,
)
from streamkeeper.declare.registry import DECORATORS, Registry, code_hash, collecting
from streamkeeper.errors import DeclarationError
from streamkeeper.manifest import pipeline_files

_DECLARING = (
    "configure_pipeline",
    "create_auto_cdc_flow",
    "create_initial_state",
    "create_sink",
    "create_source",
    "create_streaming_table",
    "only_where_set",
    "schedule",
)
_OF_SOME_TABLES = ("keys", "sink", "code", "existing_rows", "registered_as", "column_comments")
_OF_SOME_SOURCES = (("table", None), ("start", "earliest"), ("track_schema", False), ("registered_as", None))


def load_pipeline(file: Path, data: str) -> Pipeline:
    """Import one pipeline file, and return its declarations, functions included. Its output goes to standard
    error.

    Neither the file nor the modules beside it stay in ``sys.modules``. So the next pipeline file imports a
    shared module again, with its declarations. And Spark's cloudpickle ships their functions by value, since
    no executor could import them.

    :param data: replaces ``{data}`` in paths.
    :raises DeclarationError: the file's name is not a pipeline name, it raises, or it declares something that
        is not allowed.
    """
    name = check_name("pipeline", pipeline_files.name(file), Location(pipeline_files.as_text(file.name), 1))
    if name.lower() in OUR_FOLDERS:
        raise DeclarationError(
            f"{file.name}, line 1: a pipeline cannot be named {name!r}: Streamkeeper keeps its own"
            f" {', '.join(OUR_FOLDERS)} in the state folder. Rename the file."
        )
    registry = Registry(name, file.name, data)
    module_name = f"streamkeeper_pipeline_{name}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None, f"{file} ends in .py"
    module = importlib.util.module_from_spec(spec)
    _import_namesakes(file.parent)
    before = set(sys.modules)
    sys.modules[module_name] = module
    sys.path.insert(0, str(file.parent))
    try:
        with collecting(registry), contextlib.redirect_stdout(sys.stderr), _no_bytecode():
            spec.loader.exec_module(module)
        return registry.finish(_shared_code(file))
    except (DeclarationError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever class of the user's own it is, the file is at fault
        raise DeclarationError(blame(file, error)) from error
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(file.parent))
        _forget(before, file.parent)


def _import_namesakes(folder: Path) -> None:
    """Import modules of the standard library after which pipelines are named, such as ``numbers``.

    Whoever asks for such a module would be given the pipeline's file instead, while the folder is searched
    first.
    """
    # A manifest asks this for each file, so no file but a namesake is looked at.
    names = {path.stem for path in folder.iterdir() if path.suffix == ".py"}
    for name in sorted(names & sys.stdlib_module_names):
        content = pipeline_files.content(folder / f"{name}.py") or b""
        if not name.startswith("_") and pipeline_files.declares(content):
            importlib.import_module(name)


def fingerprint(pipeline: Pipeline, flow: AnyFlow) -> str:
    """Return 16 hex digits that change if, and only if, the flow may do something else.

    They depend on the flow, the sources and views that it reads (their functions as syntax trees), its table,
    the file's other code, and the modules beside the file. They do not depend on line numbers, comments or
    other flows of the file.
    """
    plain = pipeline_to_json(pipeline)
    names = {item.name for item in pipeline.inputs(flow)}
    parts = {
        "flow": next(item for item in plain["flows"] if item["name"] == flow.name),
        "inputs": [item for item in (*plain["sources"], *plain["views"]) if item["name"] in names],
        "table": next(item for item in plain["tables"] if item["name"] == flow.target),
        "shared": plain["shared"],
    }
    for part in (parts["flow"], parts["table"], *parts["inputs"]):
        del part["location"]
    # How a change is deployed is not what the flow does, nor who is told of it.
    del parts["flow"]["on_change"], parts["table"]["asset_every"]
    # What came later counts only where it is used: an upgrade must not change every flow.
    if flow.on_failure == PARK:
        del parts["flow"]["on_failure"]
    _leave_out(parts["flow"], ("park_after",) if flow.park_after == PARK_AFTER else ())
    if not flow.once:
        del parts["flow"]["once"]
    if not flow.expectations:
        del parts["flow"]["expectations"]
    _leave_out(parts["flow"], () if flow.replaces else ("mode", "keys"))
    _leave_out(parts["table"], [name for name in _OF_SOME_TABLES if not parts["table"][name]])
    for item in parts["flow"].get("expectations", ()):
        del item["location"]
    if flow.initial_state is None:
        parts["flow"].pop("initial_state", None)
    else:
        del parts["flow"]["initial_state"]["location"]
    if isinstance(flow, AppendFlow):
        del parts["flow"]["kind"]
    for part in parts["inputs"]:
        for name, default in _OF_SOME_SOURCES:
            if part.get(name, default) == default:
                part.pop(name, None)
    if pipeline.shared_driver:
        parts["shared_driver"] = True
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _leave_out(part: dict[str, object], names: Iterable[str]) -> None:
    for name in names:
        part.pop(name, None)


def likeness(pipeline: Pipeline, flow: AnyFlow) -> str:
    """Return 16 hex digits that do not depend on the name of the flow or of its function.

    :param pipeline: as imported, functions included.
    """
    alike: AnyFlow = replace(flow, name="")
    if isinstance(alike, AppendFlow):
        assert alike.function is not None, "who was imported has its function"
        alike = replace(alike, code=code_hash(alike.function, named=False))
    return fingerprint(replace(pipeline, flows=(alike,)), alike)


def blame(file: Path, error: BaseException) -> str:
    """Return one sentence with the error and the line of the pipeline file that raised it."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    line = (
        error.lineno
        if isinstance(error, SyntaxError) and error.filename == str(file)
        else (lines[-1] if lines else 1)
    )
    try:
        description = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - str() of a user's error may raise, too
        description = type(error).__name__
    return (
        f"{file.name}, line {line}: the file raises {description}. Correct it, or run `streamkeeper check`"
        " again once what it needs is there; until then its flows keep their last declaration and are not"
        " started again."
    )


@contextlib.contextmanager
def _no_bytecode() -> Iterator[None]:
    """Keep Python from writing ``__pycache__`` inside the ``with`` block."""
    # Python takes cached bytecode for a file if only its size and second fit.
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _forget(before: set[str], folder: Path) -> None:
    """Remove the modules of a folder that were imported since ``before`` from ``sys.modules``."""
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if name not in before and origin is not None and Path(origin).is_relative_to(folder):
            del sys.modules[name]


def _shared_code(file: Path) -> str:
    """Return a hash of the code that any function of the file may use: all but declarations, and modules."""
    tree = ast.parse(file.read_bytes())
    used = set().union(*(_used(node) for node in tree.body)) if tree.body else set()
    own = hash_of(*(node for node in tree.body if not _is_declaration(node, used)))
    beside = [hash_of(ast.parse(module.read_bytes())) for module in files_of(file)[1:]]
    return hashlib.sha256(" ".join([own, *beside]).encode()).hexdigest()[:16]


def files_of(file: Path) -> list[Path]:
    """Return a pipeline file, and the modules beside it that it imports, directly or not.

    :raises SyntaxError: one of them is no Python.
    """
    files, pending = [file], [file]
    while pending:
        imported = _imported_beside(ast.parse(pending.pop(0).read_bytes()), file.parent)
        new = [module for module in imported if module not in files]
        files += new
        pending += new
    return files


def _imported_beside(tree: ast.Module, folder: Path) -> list[Path]:
    """Return the modules and packages in the pipelines folder that a file imports."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    modules: list[Path] = []
    for top in sorted({name.split(".")[0] for name in names}):
        if (folder / f"{top}.py").is_file():
            modules.append(folder / f"{top}.py")
        elif (folder / top / "__init__.py").is_file():
            modules += pipeline_files.listed(folder / top)
    return modules


def _used(statement: ast.stmt) -> set[str]:
    """Return the names that a statement uses, without the parameters of functions in it."""
    nodes = list(ast.walk(statement))
    return {node.id for node in nodes if isinstance(node, ast.Name)} - {
        node.arg for node in nodes if isinstance(node, ast.arg)
    }


def _is_declaration(node: ast.stmt, used: set[str]) -> bool:
    """Return whether a statement is part of a declaration: a docstring, a declaring call, or a decorated
    function that no other code calls.
    """
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or called(node.value) in _DECLARING
    if isinstance(node, ast.FunctionDef):
        return node.name not in used and any(called(item) in DECORATORS for item in node.decorator_list)
    return False
