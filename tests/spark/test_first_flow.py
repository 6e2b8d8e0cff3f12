"""The page "Your first flow", played: its commands run as they stand there, and print what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamkeeper.settings import PROJECT
from tools.docs.markdown import FENCE

PAGE = PROJECT / "docs" / "get-started" / "first-flow.md"
FAILS = {"streamkeeper preflight", "2.json"}
"""What only the blocks have that end with exit code 1."""
MEASURED = re.compile(r"\d+(\.\d+)? (ms|s|min|B|kB)\b")
DIGEST = re.compile(r"\b[0-9a-f]{16}\b")


def played(project: Path) -> Iterator[tuple[str, str]]:
    """Run each block of commands, and yield what the page shows of its output, and the output.

    A block of Python is the pipeline file or its test, as ``init`` wrote them, or the view that replaces that
    of the file.
    """
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("STREAMKEEPER_", "PYTEST_"))
    }
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    output = ""
    for language, block in FENCE.findall(PAGE.read_text()):
        if language == "bash":
            new = "streamkeeper init" in block
            lines = block if new else f"set -a; . ./.env; set +a\n{block}"
            folder = project.parent if new else project
            done = subprocess.run(
                ["bash", "-e", "-c", lines],
                check=False,
                capture_output=True,
                text=True,
                cwd=folder,
                env=env,
                input="y\n",  # the answer where a recovery asks
            )
            output = done.stdout + done.stderr
            code = int(any(word in block for word in FAILS))
            assert done.returncode == code, (block, output)
        elif language == "python":
            pipeline, test = project / "pipelines" / "orders.py", project / "tests" / "test_orders.py"
            if block.startswith("@dp."):
                head, rest = pipeline.read_text().split("@dp.temporary_view", 1)
                pipeline.write_text(head + block + rest[rest.index("\n\n\n") + 1 :])
            else:
                assert any(block in file.read_text() for file in (pipeline, test)), block
        else:
            yield block, output


def shape(line: str) -> str:
    """Return a line without what differs from run to run, and with single spaces."""
    return " ".join(DIGEST.sub("DIGEST", MEASURED.sub("MEASURED", line)).split())


@pytest.mark.long
def test_its_commands_print_what_it_says(tmp_path: Path) -> None:
    # The jars are those of this checkout: the command finds each by its digest, and fetches none.
    shutil.copytree(PROJECT / ".cache" / "jars", tmp_path / "streams" / "var" / "jars", copy_function=os.link)
    missing = []
    for shown, output in played(tmp_path / "streams"):
        lines = iter([shape(line) for line in output.splitlines()])
        for line in filter(None, map(shape, shown.splitlines())):
            pattern = re.escape(line).replace("…", ".*")
            if not any(re.fullmatch(pattern, printed) for printed in lines):
                missing.append(f"{line}\nis not, or not in this order, in\n{output}")
                break
    assert not missing, "\n\n".join(missing)
