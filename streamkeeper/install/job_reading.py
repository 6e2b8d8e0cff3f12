"""A Spark application's streaming queries, read from its syntax: nothing of it is run or imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

CHECKPOINT = "checkpointLocation"
_STARTS = ("start", "toTable")
_SHORT = ("json", "csv", "parquet", "orc", "text", "avro")
_LOADS = ("load", "table", *_SHORT)
_MERGES = re.compile(r"\bMERGE\s+INTO\b", re.IGNORECASE)
_SAME_KEY = re.compile(r"\b(\w+)\.(\w+)\s*=\s*(\w+)\.\2\b")


@dataclass(frozen=True)
class Reading:
    """A ``readStream``: its format, path, schema as DDL and options, as far as the text tells them."""

    format: str
    path: str | None
    schema: str | None
    options: dict[str, str]
    line: int


@dataclass(frozen=True)
class Query:
    """A ``writeStream`` that is started: format and place of its target, checkpoint, output mode and trigger,
    as far as the text tells them.

    ``function`` is the name of its foreachBatch; ``merges`` whether that function merges, and ``keys`` by
    which columns.
    """

    line: int
    format: str
    target: str | None
    checkpoint: str | None
    mode: str
    trigger: dict[str, str]
    function: str | None = None
    merges: bool = False
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Application:
    """What a Spark application's text says: what it reads as streams, and its queries."""

    readings: tuple[Reading, ...] = ()
    queries: tuple[Query, ...] = ()


@dataclass
class Names:
    """Values that a text gives to names, and arguments that the application is called with."""

    values: dict[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()

    @classmethod
    def assigned_in(cls, tree: ast.AST, arguments: Sequence[str] = ()) -> Names:
        """Collect the names that a text assigns once, to something that is known without running it."""
        collected = cls({}, arguments)
        assigned = [
            (node.targets[0].id, node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
        ]
        names = [name for name, _ in assigned]
        for name, value in assigned:
            if names.count(name) == 1 and (text := collected.text(value)) is not None:
                collected.values[name] = text
        return collected

    def text(self, node: ast.AST | None) -> str | None:
        """Return the text that an expression has; None where only running it would tell."""
        text: str | None = None
        match node:
            case ast.Constant(value=str() | int() | float() as value):
                text = str(value)
            case ast.Name(id=name):
                text = self.values.get(name)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                text = self._joined([left, right], "")
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                text = self._joined([left, right], "/")
            case ast.JoinedStr(values=parts):
                bare = [part.value if isinstance(part, ast.FormattedValue) else part for part in parts]
                text = self._joined(bare, "")
            case ast.Call(func=ast.Attribute(attr="join"), args=[_, *_] as parts):
                text = self._joined(parts, "/")
            case ast.Call(func=ast.Name(id="str" | "Path"), args=[one]):
                text = self.text(one)
            case ast.Subscript(value=ast.Attribute(attr="argv"), slice=ast.Constant(value=int(number))):
                text = self.arguments[number - 1] if 0 < number <= len(self.arguments) else None
            case ast.Attribute(value=ast.Name(), attr=name):
                text = self._option(name.replace("_", "-")) or self._option(name)
        return text

    def _joined(self, parts: Sequence[ast.AST], between: str) -> str | None:
        texts = [self.text(part) for part in parts]
        resolved = [text for text in texts if text is not None]
        return between.join(resolved) if len(resolved) == len(texts) else None

    def _option(self, name: str) -> str | None:
        """Return the value of ``--name`` among the arguments, as argparse gives it to ``args.name``."""
        for number, argument in enumerate(self.arguments):
            if argument == f"--{name}" and number + 1 < len(self.arguments):
                return self.arguments[number + 1]
            if argument.startswith(f"--{name}="):
                return argument.partition("=")[2]
        return None


def read_application(source: str, arguments: Sequence[str] = ()) -> Application:
    """Return the streams that an application reads and writes.

    :param arguments: those that it is called with, for paths that come from them.
    :raises SyntaxError: the text is no Python of this release.
    """
    tree = ast.parse(source)
    names = Names.assigned_in(tree, arguments)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    calls = sorted(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        ),
        key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0),
    )
    readings, queries = [], []
    for call in calls:
        links = list(_links(call, tree))
        if links[0][0] in _LOADS and (chain := _until("readStream", links)):
            readings.append(_reading(chain, names))
        if links[0][0] in _STARTS and (chain := _until("writeStream", links)):
            queries.append(_query(chain, names, functions))
    return Application(tuple(readings), tuple(queries))


Links = list[tuple[str, ast.Call]]


def _links(node: ast.expr, tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield name and node of each link of a chain of calls, the last one first, also through names."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr, node
            node = node.func.value
        elif isinstance(node, ast.Attribute):
            yield node.attr, node
            node = node.value
        elif isinstance(node, ast.Name) and (value := _assigned(tree, node)) is not None:
            node = value
        else:
            return


def _assigned(tree: ast.AST, name: ast.Name) -> ast.expr | None:
    """Return what a name is assigned last before it is used; None if that is nowhere above."""
    values = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name.id for target in node.targets)
        and (node.end_lineno or 0) < name.lineno
    ]
    return max(values, key=lambda value: value.lineno, default=None)


def _until(end: str, links: list[tuple[str, ast.expr]]) -> Links:
    """Return the calls of a chain down to an attribute; none if the chain has no such attribute."""
    names = [name for name, _ in links]
    if end not in names:
        return []
    return [(name, node) for name, node in links[: names.index(end)] if isinstance(node, ast.Call)]


def _options(links: Links, names: Names) -> dict[str, str]:
    """Return the options of a chain that are known; of two settings of one the later holds."""
    options: dict[str, str] = {}
    for name, call in reversed(links):
        if name == "option" and len(call.args) == 2 and (key := names.text(call.args[0])):
            options[key] = names.text(call.args[1]) or ""
        for keyword in call.keywords if name in ("options", *_LOADS, *_STARTS) else ():
            if keyword.arg:
                options[keyword.arg] = names.text(keyword.value) or ""
    return options


def _argument(links: Links, method: str, names: Names) -> str | None:
    """Return the first argument of a method's call in a chain; None if it is unknown or not called."""
    return next((names.text(call.args[0]) for name, call in links if name == method and call.args), None)


def _reading(links: Links, names: Names) -> Reading:
    last, call = links[0]
    options = _options(links, names)
    format = last if last in _SHORT else options.pop("format", None) or _argument(links, "format", names)
    path = names.text(call.args[0]) if call.args else options.pop("path", None)
    return Reading(
        format or ("delta" if last == "table" else "unknown"),
        path,
        _argument(links, "schema", names),
        options,
        call.lineno,
    )


def _query(links: Links, names: Names, functions: Mapping[str, ast.FunctionDef]) -> Query:
    last, call = links[0]
    options = _options(links, names)
    target = names.text(call.args[0]) if call.args else options.get("path")
    each = next((node for name, node in links if name == "foreachBatch"), None)
    function = (
        each.args[0].id if each is not None and each.args and isinstance(each.args[0], ast.Name) else None
    )
    body = functions.get(function or "")
    text = "" if body is None else ast.unparse(body)
    trigger = next((node for name, node in links if name == "trigger"), None)
    format = options.get("format") or _argument(links, "format", names)
    return Query(
        line=call.lineno,
        format="foreachBatch" if each is not None else format or ("delta" if last != "start" else "unknown"),
        target=target or _delta_table(text),
        checkpoint=options.get(CHECKPOINT) or None,
        mode=_argument(links, "outputMode", names) or options.get("outputMode") or "append",
        trigger={word.arg: names.text(word.value) or "" for word in trigger.keywords if word.arg}
        if trigger
        else {},
        function=function or ("a lambda" if each is not None else None),
        merges=".merge(" in text or bool(_MERGES.search(text)),
        keys=tuple(dict.fromkeys(match[2] for match in _SAME_KEY.finditer(text) if match[1] != match[3])),
    )


def _delta_table(text: str) -> str | None:
    """Return the table that a function merges into: ``DeltaTable.forPath(spark, …)`` or ``forName``."""
    match = re.search(r"DeltaTable\.for(?:Path|Name)\(\w+(?:\.\w+)*, '([^']+)'\)", text)
    return match[1] if match else None
