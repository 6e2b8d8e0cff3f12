"""Writes what the pages of ``docs/`` have from the code: ``python -m tools.docs``; with ``--check`` it names
stale pages, ends with 1, and writes nothing.
"""

from __future__ import annotations

import sys

from tools.docs.made import DOCS, stale


def main() -> None:
    """Write stale pages, or with ``--check`` name them."""
    check = "--check" in sys.argv[1:]
    pages = stale()
    for page, text in pages.items():
        if not check:
            page.write_text(text)
        print(f"{page.relative_to(DOCS.parent)} {'is not what the code says' if check else 'was written'}")
    if check and pages:
        sys.exit(
            "error: pages of docs/ have parts that are made from the code. Write them: python -m tools.docs"
        )


if __name__ == "__main__":
    main()
