"""A pipeline file's text with its sources replaced by folders of Parquet files, which a test fills.

All else stays as it stands, also the numbers of lines. So the driver imports the test's file as any other.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from streamkeeper.declare.model import GivenState, Source
from streamkeeper.errors import RequestError

_HEADERS = ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def schema_of(source: Source, schemas: Mapping[str, str]) -> str:
    """Return the columns of a source as a DDL string.

    :param schemas: by source name, for those that declare none.
    :raises RequestError: it is neither declared nor given.
    """
    if source.name in schemas:
        return schemas[source.name]
    if source.schema is not None:
        return source.schema
    if source.kind.columns:
        return source.kind.columns + (_HEADERS if source.option("includeHeaders").lower() == "true" else "")
    content = "a Delta table" if source.kind.table else "files whose schema is inferred"
    raise RequestError(
        f"{source.location}: the source {source.name} reads {content}. Give its columns to the test:"
        f' schemas={{"{source.name}": "id INT, …"}}.'
    )


def schema_of_state(initial_state: GivenState, schemas: Mapping[str, str]) -> str:
    """Return the columns of an initial state as a DDL string.

    :param schemas: by name, for those that declare none.
    :raises RequestError: it is neither declared nor given.
    """
    schema = initial_state.schema or schemas.get(initial_state.name)
    if schema is None:
        raise RequestError(
            f"{initial_state.location}: the initial state {initial_state.name} is of a table. Give its"
            " columns to the test:"
            f' schemas={{"{initial_state.name}": "id INT, …"}}.'
        )
    return schema


def rewritten(text: str, schemas: Mapping[str, str], file: str) -> str:
    """Return the text of a pipeline file with each source read from ``{data}/<name>``, a file a batch.

    :param schemas: the columns of every source, by name.
    :raises RequestError: a source's name is no literal in the file, so its declaration is not found.
    """
    lines = text.encode().splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and _declares(node)]
    replaced, plain = set(), text.encode()
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        name = _name(call)
        if name is None or name not in schemas:
            raise RequestError(
                f"{file}, line {call.lineno}: the name of this source is not written out, so a test cannot"
                ' replace it. Write dp.create_source("name", …).'
            )
        replaced.add(name)
        assert call.end_lineno is not None and call.end_col_offset is not None, "it was parsed"
        begin = starts[call.lineno - 1] + call.col_offset
        end = starts[call.end_lineno - 1] + call.end_col_offset
        call_text = (
            f"{ast.unparse(call.func)}({name!r}, format='parquet', path={'{data}/' + name!r},"
            f" schema={schemas[name]!r}, options={{'maxFilesPerTrigger': 1}}"
        )
        padding = "\n" * (call.end_lineno - call.lineno)
        plain = plain[:begin] + f"{call_text}{padding})".encode() + plain[end:]
    missing = sorted(schemas.keys() - replaced)
    if missing:
        raise RequestError(
            f"{file}: the sources {', '.join(missing)} are declared by other files, so a test of this file"
            " cannot replace them. Declare them in it."
        )
    return plain.decode()


def _declares(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(attr="create_source") | ast.Name(id="create_source"):
            return True
    return False


def _name(call: ast.Call) -> str | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
    match [*call.args, *named]:
        case [ast.Constant(value=str(name)), *_]:
            return name
    return None
