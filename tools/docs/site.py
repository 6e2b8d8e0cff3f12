"""Hook of MkDocs: a link out of ``docs/``, to code, is text on the site, which has no such page."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)\s]*)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page's Markdown, with links out of ``docs/`` as text."""
    depth = len(PurePosixPath(page.file.src_uri).parts) - 1
    return _LINK.sub(lambda link: link[1] if link[2].count("../") > depth else link[0], markdown)
