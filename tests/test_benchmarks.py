"""How benchmarks are started, and the one table of them all."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import ratios

SCRIPT = """
import sys
sys.path.insert(0, {project!r})
from tests.benchmarks.ratios import print_ratio, rounds
print("rounds:", rounds())
print_ratio({what!r}, [3.0] * rounds(), [2.0] * rounds(), "s", "≤1.50")
{last}
"""


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java and the jars are there; `make test-fast` needs neither."""
    for name in ("find_java", "jar_paths"):
        monkeypatch.setattr(ratios, name, lambda: None)
    monkeypatch.setenv("PATH", os.environ["PATH"])


def write_scripts(folder: Path, **last: str) -> None:
    project = str(Path(__file__).parent.parent)
    for name, line in last.items():
        (folder / f"bench_{name}.py").write_text(
            SCRIPT.format(project=project, what=f"{name} beside bare", last=line)
        )


@pytest.mark.usefixtures("ready")
def test_a_benchmark_started_by_its_python_alone_finds_what_lies_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    ratios.enter_environment()
    for name in ratios.NEEDED:
        assert shutil.which(name) == str(Path(sys.executable).with_name(name))


def test_what_lacks_is_said_at_once_and_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    with pytest.raises(
        SystemExit,
        match=r"(?s)has no spark-submit.*has no airflow.*JAVA_HOME is.*make setup.*make bench NAME=",
    ):
        ratios.enter_environment()


@pytest.mark.usefixtures("ready")
def test_all_ratios_are_in_one_table_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_scripts(tmp_path, one="", broken="sys.exit(1)", two="")
    monkeypatch.setattr(benchmarks, "HERE", tmp_path)
    monkeypatch.setenv("ROUNDS", "3")
    assert benchmarks.main([]) == 1, "one of them is broken"
    said, errors = capfd.readouterr()
    assert said.count("rounds: 3") == 3
    table = said[said.rindex(ratios.HEADER) :].splitlines()
    assert [line.split("  ")[0] or line.strip().split("  ")[0] for line in table[1:]] == [
        *("broken", "broken beside bare", "one", "one beside bare", "two", "two beside bare")
    ]
    assert table[2].endswith("3.00       2.00 s         1.50  (1.50–1.50)  ≤1.50")
    assert "error: failed: broken" in errors


@pytest.mark.usefixtures("ready")
def test_one_benchmark_is_run_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_scripts(tmp_path, one="", two="")
    monkeypatch.setattr(benchmarks, "HERE", tmp_path)
    assert benchmarks.main(["two"]) == 0
    assert "one beside bare" not in capfd.readouterr().out
    assert benchmarks.main(["three"]) == 2
    assert "there is no benchmark three; there are one, two" in capfd.readouterr().err
