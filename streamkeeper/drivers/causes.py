"""Chains of causes, as Spark and Python raise them: which link names the failure, what the others name (a
file, an expression, a line of the user's code), and whether the input, or Java's memory, is at fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from streamkeeper.exit_codes import MORE_MEMORY


@dataclass(frozen=True)
class Cause:
    """One link of a failure's chain: class name, message, and Spark's error condition and SQLSTATE if it has
    them. ``code_line`` is the line of the user's code that raised it, if it is an exception of Python.
    """

    type: str
    condition: str | None
    sql_state: str | None
    message: str
    code_line: str | None = None


_WRAPPERS = ("STREAM_FAILED", "TASK_WRITE_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR")
"""Conditions that say only where a failure came through."""
_DATA_STATES = ("21", "22", "23")
"""Classes of SQLSTATEs that a row is at fault for: cardinality, data, integrity (ISO/IEC 9075)."""
_BROKEN_FILE = re.compile(
    r"not a Parquet file|not a data file|Not an Avro|[Mm]alformed ORC|[Uu]nexpected end of"
    r"|(?:shaded\.parquet|org\.apache\.(?:parquet|orc|avro)|com\.fasterxml|java\.util\.zip)\."
    r"|java\.net\.URISyntaxException|java\.nio\.charset\."
)
"""What readers raise on a file that is no such file, or a part of one; a network raises other classes."""
_BROKEN_VALUE = re.compile(
    r"java\.lang\.(?:Arithmetic|ArrayIndexOutOfBounds|ClassCast|IllegalArgument|IndexOutOfBounds|"
    r"NegativeArraySize|NullPointer|NumberFormat|StringIndexOutOfBounds)Exception|"
    r"java\.time\.(?:DateTimeException|format\.DateTimeParseException)"
)
_OF_VALUES = frozenset(
    [
        "ArithmeticError",
        "AssertionError",
        "AttributeError",
        "IndexError",
        "InvalidOperation",
        "KeyError",
        "LookupError",
        "NameError",
        "OverflowError",
        "TypeError",
        "UnicodeDecodeError",
        "UnicodeEncodeError",
        "ValueError",
        "ZeroDivisionError",
    ]
)
"""Exceptions of Python that a value, or the code for it, is at fault for; a network raises others."""
_OUT_OF_MEMORY = re.compile(r"\bOutOfMemoryError\b|Java heap space|GC overhead limit exceeded")

_VIEW = (
    "Let the view handle such values (try_cast, try_divide, …), and set their rows aside with"
    " expect_or_drop(…, quarantine=…) (docs/how-to/expectations.md)."
)
_CODE = (
    "Correct the function at that line, or keep such rows from it in the view (docs/how-to/expectations.md)."
)
_FILE = (
    "Put a whole file in its place, by a rename, or leave it out: the source's option pathGlobFilter takes a"
    " pattern such as '[!_]*.json', and the file a name that it leaves out. The other files of the batch are"
    " then read. Its own rows come later as a file of a new name, or by the recovery backfill."
)
MEMORY = f"Java ran out of memory: {MORE_MEMORY}"


def decisive(causes: Sequence[Cause]) -> Cause:
    """Return the link that names a failure: the deepest with a condition of its own, else the deepest that
    has something to say.

    :param causes: outermost first; at least one.
    """
    named = [cause for cause in causes if cause.condition not in (None, *_WRAPPERS)]
    spoken = [cause for cause in causes if cause.message.strip() and cause.condition is None]
    return (named or spoken or causes)[-1]


def out_of_memory(causes: Iterable[Cause]) -> Cause | None:
    """Return the link by which Java's memory ran out, here or in a task; None if it did not."""
    return next((cause for cause in causes if _OUT_OF_MEMORY.search(f"{cause.type}: {cause.message}")), None)


def remedy(causes: Sequence[Cause]) -> str | None:
    """Return what helps where the input is at fault, so that each try fails; None if it may pass."""
    for number, cause in enumerate(causes):
        below = " ".join(f"{one.type}: {one.message}" for one in causes[number + 1 :])
        family = (cause.condition or "").partition(".")[0]
        if family == "FAILED_READ_FILE" and _BROKEN_FILE.search(below):
            return _FILE
        if family == "FAILED_EXECUTE_UDF" and _BROKEN_VALUE.search(below):
            return _CODE
        raised = headline(cause).partition(":")[0].rpartition(".")[2]
        if (raised if family == "PYTHON_EXCEPTION" else cause.type) in _OF_VALUES:  # Java's names have dots
            return _CODE
        if (cause.sql_state or "").startswith(_DATA_STATES) or family == "USER_RAISED_EXCEPTION":
            return _FILE if family == "FAILED_READ_FILE" else _VIEW
    return None


def headline(cause: Cause) -> str:
    """Return what a link says in itself: no name of the condition, no plan, no context, no traces. Of a
    traceback of Python it is the exception.
    """
    text = cause.message.removeprefix(f"[{cause.condition}] ").strip()
    if "Traceback (most recent call last)" in text:
        raised = [line for line in text.splitlines() if re.match(r"[\w.]+(:|$)", line)]
        text = raised[-1] if raised else text.splitlines()[0]
    text = re.split(r";\n|\n== |\n\s+at |\n\n?JVM stacktrace|\n\n?Driver stacktrace", text, maxsplit=1)[0]
    return re.sub(r"\s*SQLSTATE: \w{5}\s*$", "", text).strip()


def particulars(causes: Sequence[Cause], main: Cause) -> tuple[str, ...]:
    """Return what a chain names beside the link that classes it: the file that was read, the expression, the
    line of the user's code, and the deepest cause below.
    """
    at = causes.index(main)
    sentences = [
        f"It came up as {cause.condition}: {headline(cause)}"
        for cause in causes[:at]
        if cause.condition not in (None, *_WRAPPERS)
    ]
    sentences += _context(main.message)
    sentences += (
        f"The code: {code_line}" for code_line in (_line_of(main.message), main.code_line) if code_line
    )
    below = [cause for cause in causes[at + 1 :] if cause.message.strip() and "Py4J" not in cause.type]
    lowest = next(
        (one for one in below if _BROKEN_FILE.search(one.message)), decisive(below) if below else None
    )
    if lowest is not None and headline(lowest) not in main.message:
        sentences.append(f"Its cause: {lowest.condition or lowest.type}: {headline(lowest)}")
        sentences += [f"The code: {lowest.code_line}"] if lowest.code_line else []
    return tuple(dict.fromkeys(sentences))


def _context(message: str) -> Iterator[str]:
    """Yield the expressions that Spark quotes in the context of a message, in SQL or by the calling line."""
    for kind, block in re.findall(r"^== (SQL|DataFrame)\b[^\n]*==\n(.*?)(?=^== |\Z)", message, re.M | re.S):
        lines = [line.strip() for line in block.splitlines() if line.strip(" ^")]
        yield f"The expression: {' '.join(lines)[:300]}" if kind == "SQL" else f"The code: {' '.join(lines)}"


def _line_of(message: str) -> str | None:
    """Return the line of the user's code in the text of a traceback, which may be of a worker's Python."""
    frames = re.findall(r'^ *File "([^"]+)", line (\d+), in (\S+)', message, re.M)
    return line_of_user((file, int(line), function) for file, line, function in frames)


def line_of_user(frames: Iterable[tuple[str, int, str]]) -> str | None:
    """Return the innermost of some frames (file, line, function), outermost first, that is of no library."""
    library = re.compile(
        r"/(site-packages|dist-packages|pyspark|py4j|python3\.\d+|streamkeeper\w*)/|\.zip/|^<"
    )
    own = [frame for frame in frames if not library.search(frame[0])]
    return None if not own else "{}, line {}, in {}".format(*own[-1])
