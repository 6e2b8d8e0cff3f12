"""A bound name says what type of thing it holds: words that fit anything become fewer, and never more."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from streamkeeper.settings import PROJECT

ROOMS = ("streamkeeper", "spark_jobs", "plugins", "dags", "demo", "tools")
EMPTY_WORDS = frozenset(
    (
        "found", "what", "where", "said", "kept", "why", "given", "wanted", "asked", "there",
        "told", "of", "seen", "stands", "held", "known", "left", "rest", "heard", "anew",
    )
)  # fmt: skip
CEILING = 7.7
"""Percent of all bound names that may be empty words. Lower it with every pass, and never raise it."""
SLACK = 0.3
"""Percentage points by which the share may lie below the ceiling, before that has to follow."""


def bound_names(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, str]]:
    """Yield the scope and the name of each binding of a variable, a field or a parameter."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield scope, name
        is_scope = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        yield from bound_names(node, f"{scope}.{node.name}".lstrip(".") if is_scope else scope)


def test_empty_words_as_names_become_fewer() -> None:
    total, places = 0, Counter[tuple[str, str]]()
    for file in sorted(file for room in ROOMS for file in (PROJECT / room).rglob("*.py")):
        names = list(bound_names(ast.parse(file.read_text())))
        total += len(names)
        path = str(file.relative_to(PROJECT))
        places.update((path, f"{scope} {name}") for scope, name in names if name in EMPTY_WORDS)
    assert total > 15_000, "the product is there"
    share = 100 * places.total() / total
    files = Counter(path for path, _ in places.elements()).most_common(10)
    worst = [f"{path}: {count}" for path, count in files]
    worst += [f"{path}::{place}" for path, place in places if path == files[0][0]]
    measured = f"{share:.2f} % of {total:,} bound names are empty words, and the ceiling is {CEILING} %"
    assert share <= CEILING, (
        f"{measured}: name the type of the thing instead (alert, plan, progress). Most are in:\n"
        + "\n".join(worst)
    )
    assert share > CEILING - SLACK or not places, f"{measured}: lower it"


def test_each_way_to_bind_a_name_is_counted() -> None:
    text = """
class Lag:
    why: str
    def of(self, left, *rest, asked=1, **known): kept, (there, _) = 1, (2, 3)
def f():
    for said in x.found: print(told)
    return [seen for seen in y if (held := seen)]
"""
    names = list(bound_names(ast.parse(text)))
    assert " ".join(name for _, name in names) == "why self left rest asked known kept there _ said seen held"
    assert ("Lag.of", "left") in names
