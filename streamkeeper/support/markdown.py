"""Texts of people and of other programs, as text in Markdown: in approvals and in notes of runs."""

from __future__ import annotations

import re

from streamkeeper.redaction import visible

_CODE = re.compile(r"((?<!`)`[^`\n]+`(?!`))")
_MARKS = re.compile(r"([\\`*\[\]<|~]|^[#>=]|^-(?=-)|\b_(?!\w)|(?<!\w)_)")


def plain(text: str) -> str:
    """Return a text escaped as Markdown in one line, without links and headings; `code` is kept."""
    parts = _CODE.split(" ".join(visible(text).split()))
    return "".join(part if number % 2 else _MARKS.sub(r"\\\1", part) for number, part in enumerate(parts))


def plain_lines(text: str) -> str:
    """Return a text escaped as Markdown, as :func:`plain` does, with its lines and paragraphs."""
    return "\n".join(map(plain, text.splitlines()))


def literal(text: str) -> str:
    """Return a text as code, in which not even an address becomes a link."""
    return f"`{' '.join(visible(text).replace('`', chr(39)).split())}`"
