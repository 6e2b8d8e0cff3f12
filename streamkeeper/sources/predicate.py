"""Check of a condition on rows that a person typed: it may look at columns, and at nothing outside of them.

Without Spark, the text is split into words, and what could hide another meaning is refused. The job asks
Spark's own parser besides (``streamkeeper_jobs.recover.predicate``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

OUTSIDE = {
    **dict.fromkeys(("reflect", "try_reflect", "java_method"), "calls into the JVM"),
    **dict.fromkeys(("from_avro", "schema_of_avro"), "can read a schema from a file (avroSchemaUrl)"),
    **dict.fromkeys(("from_protobuf", "to_protobuf"), "reads a descriptor file"),
    **dict.fromkeys(("from_xml", "schema_of_xml"), "can read a schema from a file (rowValidationXSDPath)"),
    "identifier": "makes a name of a text",
}
"""Functions that reach outside of the row, with what they do."""
SUB_QUERY = "a sub-query, which reads another table or file"

_TOKEN = re.compile(
    r"""(?P<text>[rR]?'[^'\\]*'|[rR]?"[^"\\]*"|'(?:[^'\\]|\\[^'"])*'|"(?:[^"\\]|\\[^'"])*")"""
    r"|(?P<name>`(?:[^`]|``)+`)|(?P<word>[^\W\d]\w*)|(?P<number>\d[\w.]*)|(?P<space>\s+)"
    r"|(?P<sign>--|/\*|[-+*/%=<>!&|^~.,:;?()\[\]{}])"
)
_QUERIES = ("table", "values", "with", "from")
"""Words that begin a sub-query after a parenthesis; ``select`` is one anywhere."""
_ALSO_FUNCTIONS = ("map", "reduce")
_IN_WORDS = "A predicate is a condition on the columns of a row, such as customer_id < 1000"


def why_refused(predicate: str) -> str | None:
    """Return why a predicate is not taken, in words; None if it looks at nothing but columns."""
    words: list[str] = []
    at = 0
    while at < len(predicate):
        match = _TOKEN.match(predicate, at)
        if match is None or match[0] in ("--", "/*", ";"):
            return (
                f"the predicate has {predicate[at : at + 20]!r}, which is not taken: no comments, semicolons,"
                " open quotes, backslashes before quotes, and signs other than SQL's. " + _IN_WORDS + "."
            )
        if match.lastgroup in ("name", "text"):
            # What is quoted is a function's name where it is called.
            words.append(match[0].strip('`"').lower() if _is_called(predicate, match.end()) else "'")
        elif match.lastgroup != "space":
            words.append(match[0].lower())
        at = match.end()
    return _why_words(words)


def _is_called(predicate: str, end: int) -> bool:
    return predicate[end:].lstrip().startswith("(")


def _why_words(words: Sequence[str]) -> str | None:
    for before, word, after in zip(("", *words), words, (*words[1:], ""), strict=False):
        begins = before == "(" and (word in _QUERIES or (word in _ALSO_FUNCTIONS and after != "("))
        if word == "select" or begins:
            return (
                f"the predicate has {SUB_QUERY} ({word}). {_IN_WORDS}; write a column of that name in"
                " backquotes."
            )
        if after == "(" and word in OUTSIDE:
            return f"the predicate calls {word}, which {OUTSIDE[word]}. {_IN_WORDS}."
    return None
