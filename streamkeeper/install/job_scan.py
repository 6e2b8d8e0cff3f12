"""``streamkeeper adopt --scan``: the Spark jobs of a folder of DAGs, and what each could become.

DAG files and applications are read from their syntax. Nothing is run or imported.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from streamkeeper.errors import RequestError
from streamkeeper.install.job_reading import Names, Query, Reading, read_application
from streamkeeper.manifest import pipeline_files
from streamkeeper.settings import typed_path

APPEND, AUTO_CDC, STAYS, LOOK = "append flow", "AUTO CDC flow", "stays a job", "to be looked at"
_OPERATOR = "SparkSubmitOperator"
_PLACES = ("kafka", "delta", "json", "csv", "parquet", "orc", "text", "avro", "rate")
"""Formats of sources that a flow can read."""
_TABLES = ("delta",)
"""Formats of targets that are tables."""


@dataclass(frozen=True)
class Job:
    """A streaming query of a task, or a task of which no query is known.

    ``becomes`` says what it could be, ``hinders`` what has to be done or known first; both are for people.
    """

    dag: str
    task: str
    location: str
    application: str | None
    becomes: str
    hinders: tuple[str, ...] = ()
    query: Query | None = None
    readings: tuple[Reading, ...] = ()

    @property
    def name(self) -> str:
        """``dag.task``."""
        return f"{self.dag}.{self.task}"


@dataclass(frozen=True)
class Scan:
    """What was found in a folder of DAGs; ``unread`` has a reason for each file that could not be read."""

    jobs: tuple[Job, ...]
    unread: dict[str, str]


def scan(folder: Path) -> Scan:
    """Return the Spark jobs of all DAG files of a folder.

    :raises RequestError: there is no such folder.
    """
    folder = typed_path("--scan", str(folder))
    if not os.access(folder, os.R_OK | os.X_OK) or not folder.is_dir():
        raise RequestError(f"{folder} is no folder that can be read. Give the folder of Airflow's DAG files.")
    jobs: list[Job] = []
    unread: dict[str, str] = {}
    for file in sorted(folder.rglob("*.py")):
        try:
            text = _text(file)
            if _OPERATOR in text:
                jobs += list(_jobs(file, ast.parse(text)))
        except _UNREADABLE as error:
            unread[str(file)] = str(error) or type(error).__name__
    return Scan(tuple(jobs), unread)


def definitions(folder: Path, ids: Collection[str]) -> dict[str, str]:
    """Return where DAG files of a folder define DAGs of these ids: ``file:line`` by id. An id that only
    running the file would tell is not known, nor are those of a file that cannot be read.
    """
    any_id, places = re.compile("|".join(map(re.escape, ids))), dict[str, str]()
    for file in sorted(folder.rglob("*.py")):
        try:
            text = _text(file)
            tree = ast.parse(text) if any_id.search(text) else ast.Module([], [])
            places |= {id: f"{file}:{node.lineno}" for node, id in _dags(tree) if id in ids}  # type: ignore[attr-defined]
        except _UNREADABLE:
            continue  # Airflow itself says what is wrong with it
    return places


_UNREADABLE = (OSError, ValueError, SyntaxError, RecursionError, MemoryError)
"""What a file of somebody else's may cost: the last two for expressions that are too deep for Python's
parser, or for a look at them.
"""


def _text(file: Path) -> str:
    """Return the text of a regular file: a pipe would be waited for.

    :raises OSError: it is none, or cannot be read.
    """
    content = pipeline_files.content(file)
    if content is None:
        raise OSError("it is no regular file, or cannot be read")
    return content.decode()


def _jobs(file: Path, tree: ast.Module) -> Iterator[Job]:
    names, dags = Names.assigned_in(tree), list(_dags(tree))
    operators = _names_of(_OPERATOR, tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=made, attr="partial")) | ast.Call(func=made):
                if _last_name(made) in operators:
                    yield from _jobs_of_task(file, node, names, dags)


def _dags(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield each call or function that makes a DAG, and the DAG's id."""
    names, classes, decorators = Names.assigned_in(tree), _names_of("DAG", tree), _names_of("dag", tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=made) if _last_name(made) in classes:
                yield node, _named(node, "dag_id", names) or "?"
            case ast.FunctionDef(decorator_list=items, name=name):
                for item in items:
                    call = item if isinstance(item, ast.Call) else None
                    if _last_name(item if call is None else call.func) in decorators:
                        dag_id = None if call is None else _named(call, "dag_id", names)
                        yield node, dag_id or name


def _names_of(name: str, tree: ast.Module) -> set[str]:
    """Return what a module calls something of this name: also by ``import … as``."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    aliases = [alias for node in imports for alias in node.names if alias.name == name]
    return {name, *(alias.asname for alias in aliases if alias.asname)}


def _last_name(node: ast.expr) -> str:
    """Return the name of what is called: ``DAG`` of ``DAG`` and of ``models.DAG``."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _named(call: ast.Call, name: str, names: Names) -> str | None:
    keyword = next((word.value for word in call.keywords if word.arg == name), None)
    return names.text(keyword if keyword is not None else call.args[0] if call.args else None)


def _jobs_of_task(file: Path, call: ast.Call, names: Names, dags: list[tuple[ast.AST, str]]) -> Iterator[Job]:
    words = {word.arg: word.value for word in call.keywords if word.arg}
    around = [(node.lineno, id) for node, id in dags if node.lineno <= call.lineno]  # type: ignore[attr-defined]
    task, location = names.text(words.get("task_id")) or "?", f"{file}:{call.lineno}"
    bare = Job(max(around, default=(0, "?"))[1], task, location, None, LOOK)
    application = names.text(words.get("application"))
    arguments = words.get("application_args")
    argument_values = (
        [names.text(item) or "" for item in arguments.elts]
        if isinstance(arguments, ast.List | ast.Tuple)
        else []
    )
    if application is None or "{{" in application:
        yield replace(bare, hinders=("its application is known only while the DAG runs",))
        return
    bare = replace(bare, application=application)
    if not application.endswith(".py"):
        hinder = "a flow's query is Python: write it anew, then adopt the checkpoint"
        yield replace(bare, hinders=(hinder,))
        return
    path = next((path for path in (Path(application), file.parent / application) if path.is_file()), None)
    if path is None:
        yield replace(bare, hinders=(f"{application} is not on this host",))
        return
    try:
        streams = read_application(_text(path), argument_values)
    except _UNREADABLE as error:
        yield replace(bare, application=str(path), hinders=(f"it cannot be read: {error}",))
        return
    bare = replace(bare, application=str(path), readings=streams.readings)
    if not streams.queries:
        hinder = "no streaming query is in the file; one may be in a module that it imports"
        yield replace(bare, becomes=STAYS if not streams.readings else LOOK, hinders=(hinder,))
    for query in streams.queries:
        yield _judged(replace(bare, query=query), len(streams.queries))


def _judged(job: Job, queries: int) -> Job:
    """Return a job with what it could become, and what hinders that."""
    query = job.query
    assert query is not None, "a task without a query is not judged"
    becomes, hinders = APPEND, []
    if query.checkpoint is None:
        hinders.append("its checkpoint is not in the text: look it up, and give it")
    if query.format == "foreachBatch":
        becomes = AUTO_CDC if query.merges else LOOK
        hinders.append(
            "it merges by hand: AUTO CDC needs a column that orders changes, and a new table"
            if query.merges
            else f"what {query.function} does with a batch has to be read"
        )
    elif query.format not in _TABLES:
        becomes = LOOK
        hinders.append(f"it writes {query.format}, not a Delta table")
    elif query.mode != "append":
        becomes = f"{query.mode} flow"
        hinders.append(f"output mode {query.mode} writes by keys: into a new table")
    hinders += [f"it reads {item.format}" for item in job.readings if item.format not in _PLACES]
    if queries > 1:
        hinders.append(f"it is one of {queries} queries of its application: adopt all of them at once")
    return replace(job, becomes=becomes, hinders=tuple(hinders))
