"""Names of files that are hard to take for names: what each may be mistaken for is beside it."""

from __future__ import annotations

from pathlib import Path

PATTERNS = ("a[123].json", "a{1,2}.json", "a*.json", "a?.json", "a]1.json", "a}b.json", "a\\b.json")
"""Each has one of the signs of Hadoop's patterns."""
PLAIN = ("a1.json", "a2.json", "a3.json", "abc.json")
"""Files that a pattern would find."""
ADDRESSES = (
    "a:b.json",
    "10:00:00.json",
    "file:x.json",
    "s3a:x",
    "a#b.json",
    "a;b.json",
    "a&b=c.json",
    "a@b.json",
)
"""Parts of URLs."""
ESCAPES = ("a%20b.json", "a%.json", "%41.json", "a+b.json", "a b.json", " a.json", "a .json", "a%2Fb.json")
TEXTS = (
    "a'b.json",
    'a"b.json',
    "a,b.json",
    "a$b.json",
    "a|b.json",
    "a<b>.json",
    "a!b.json",
    "^a.json",
    "-a.json",
)
LETTERS = (
    *("u\u00e4.json", "ua\u0308.json", "\U0001f600.json", "\u00a0.json", "\u2028.json", "\u0085.json"),
    *("a\nb.json", "a\tb.json", "a\rb.json", "\x01.json"),
)
ENDS = ("a.json.", "a..json", "~a.json", "(1).json", "_a=b.json", "x" * 250 + ".json")
NAMES = (*PATTERNS, *PLAIN, *ADDRESSES, *ESCAPES, *TEXTS, *LETTERS, *ENDS)
"""All that Spark reads."""
HIDDEN = (".a.json", "_a.json", "_metadata.json", "a.json._COPYING_")
"""What Spark leaves out by its rule."""
INSIDE = ("", "[1]", "{1,2}", "*", "?", "\\", "a:b", "%20", ";b", " ü", "#b")
"""What a short name has inside, by its number."""


def put(folder: Path, name: str, text: str) -> Path:
    """Place a file under a name at once."""
    aside = folder / ".new"
    aside.write_text(text)
    return aside.replace(folder / name)
