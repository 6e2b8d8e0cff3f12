"""Importing pipeline files: what changes a flow's fingerprint, what stays behind in the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.import_file import fingerprint, load_pipeline

PIPELINE = '''
import re
from streamkeeper import pipelines as dp
from helper import LIMIT
FACTOR = 2

dp.create_source("raw", format="json", path="{data}/raw", schema="id INT", options={"maxFilesPerTrigger": 5})
dp.create_source("other", format="json", path="{data}/other", schema="id INT")
dp.create_streaming_table("t")
dp.create_streaming_table("u")

@dp.temporary_view(sources=["raw"])
def seen(raw):
    """Say what."""
    return raw.where(f"id < {LIMIT * FACTOR}")

@dp.append_flow(name="f", target="t", sources=["seen"])
def f(seen):
    return seen

@dp.append_flow(name="g", target="u", sources=["other"])
def g(other):
    return other.limit(1)
'''
HELPER = '"""Help."""\nLIMIT = 10\n'


def mark(folder: Path, pipeline: str = PIPELINE, helper: str = HELPER, data: str = "/data") -> str:
    """Give the fingerprint of flow f."""
    (folder / "helper.py").write_text(helper)
    (folder / "p.py").write_text(pipeline)
    loaded = load_pipeline(folder / "p.py", data)
    flow = loaded.flow("f")
    assert flow is not None
    return fingerprint(loaded, flow)


def changed(old: str, new: str) -> str:
    assert PIPELINE.count(old) == 1, old
    return PIPELINE.replace(old, new)


SAME = {
    "nothing": (PIPELINE, HELPER),
    "a comment": (changed("FACTOR = 2", "FACTOR = 2  # twice"), HELPER),
    "lines": ("\n\n\n" + PIPELINE, HELPER),
    "layout": (changed("return raw.where(", "return raw.where(\n        "), HELPER),
    "quotes": (changed('dp.create_streaming_table("t")', "dp.create_streaming_table('t')"), HELPER),
    "a docstring": (changed('"""Say what."""', '"""Say more."""'), HELPER),
    "another flow's code": (changed("limit(1)", "limit(2)"), HELPER),
    "another flow's source": (changed("{data}/other", "{data}/others"), HELPER),
    "another flow more": (
        PIPELINE + '\n@dp.append_flow(target="u", sources=["other"])\ndef h(other):\n    return other\n',
        HELPER,
    ),
    "a sink more": (
        PIPELINE + '\ndp.create_sink("s", "csv", {"path": "{data}/s"})\n'
        '@dp.append_flow(target="s", sources=["other"])\ndef i(other):\n    return other\n',
        HELPER,
    ),
    "a helper's comment": (PIPELINE, HELPER + "# ten\n"),
    "a helper's docstring": (PIPELINE, HELPER.replace("Help.", "Help more.")),
    "a helper's layout": (PIPELINE, HELPER.replace("LIMIT = 10", "LIMIT   =   10")),
}
OTHER = {
    "the view's code": (changed('"id < ', '"id <= '), HELPER),
    "the flow's code": (changed("    return seen\n", "    return seen.distinct()\n"), HELPER),
    "shared code": (changed("FACTOR = 2", "FACTOR = 3"), HELPER),
    "a helper's code": (PIPELINE, HELPER.replace("10", "11")),
    "an import": (changed("import re\n", "import json as re\n"), HELPER),
    "the source's path": (changed("{data}/raw", "{data}/rows"), HELPER),
    "the source's schema": (
        changed('path="{data}/raw", schema="id INT"', 'path="{data}/raw", schema="id LONG"'),
        HELPER,
    ),
    "the source's options": (changed('"maxFilesPerTrigger": 5', '"maxFilesPerTrigger": 6'), HELPER),
    "the source's name": (
        PIPELINE.replace('"raw"', '"rows"').replace("(raw)", "(rows)").replace("raw.where", "rows.where"),
        HELPER,
    ),
    "the target": (changed('name="f", target="t"', 'name="f", target="u"'), HELPER),
    "a decorator of the user's": (
        changed(
            '@dp.temporary_view(sources=["raw"])\n', '@dp.temporary_view(sources=["raw"])\n@(lambda x: x)\n'
        ),
        HELPER,
    ),
    "a view that a flow calls as a function": (
        changed("    return seen\n", "    return g(seen)\n").replace("limit(1)", "limit(2)"),
        HELPER,
    ),
}


@pytest.mark.parametrize(("pipeline", "helper"), SAME.values(), ids=SAME.keys())
def test_the_fingerprint_stays_when_the_flow_does_the_same(
    pipeline: str, helper: str, tmp_path: Path
) -> None:
    before = mark(tmp_path)
    assert mark(tmp_path, pipeline, helper) == before


@pytest.mark.parametrize(("pipeline", "helper"), OTHER.values(), ids=OTHER.keys())
def test_the_fingerprint_changes_when_the_flow_may_do_something_else(
    pipeline: str, helper: str, tmp_path: Path
) -> None:
    before = mark(tmp_path)
    assert mark(tmp_path, pipeline, helper) != before


def test_a_file_of_the_same_length_in_the_same_second_is_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def path_of(source: str) -> str | None:
        for name, content in (("p.py", PIPELINE.replace("/raw", source)), ("helper.py", HELPER)):
            (tmp_path / name).write_text(content)
            os.utime(tmp_path / name, (1_790_000_000, 1_790_000_000))
        return load_pipeline(tmp_path / "p.py", "/data").source("raw").path

    assert (path_of("/one"), path_of("/two")) == ("/data/one", "/data/two")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["helper.py", "p.py"]
    assert not sys.dont_write_bytecode


def test_a_function_that_another_calls_is_shared_code(tmp_path: Path) -> None:
    calling = changed("    return seen\n", "    return g(seen)\n")
    assert mark(tmp_path, calling) != mark(tmp_path, calling.replace("limit(1)", "limit(2)"))


def test_the_fingerprint_is_pinned_so_that_an_upgrade_does_not_change_every_flow(tmp_path: Path) -> None:
    # If this must change, raise manifest.FORMAT, and say in the changelog that every flow counts as changed
    # once.
    assert mark(tmp_path) == "826edce7ee1185d4"


def test_two_pipelines_that_import_one_module_both_get_its_declarations(tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text(
        'from streamkeeper import pipelines as dp\ndp.create_source("raw", format="json", path="/x")\n'
    )
    body = (
        "import common\nfrom streamkeeper import pipelines as dp\ndp.create_streaming_table('{0}')\n"
        "@dp.append_flow(target='{0}', sources=['raw'])\ndef f(raw): return raw\n"
    )
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(body.format(name))
        assert [source.name for source in load_pipeline(tmp_path / f"{name}.py", "/data").sources] == ["raw"]


def test_a_pipeline_named_like_a_module_of_python_hides_it_from_nobody(tmp_path: Path) -> None:
    (tmp_path / "numbers.py").write_text("import fractions\n" + PIPELINE)
    (tmp_path / "other.py").write_text("import decimal, numbers\nassert numbers.Number\n" + PIPELINE)
    (tmp_path / "helper.py").write_text(HELPER)
    code = (
        "import sys; from pathlib import Path; from streamkeeper.manifest.import_file import load_pipeline;"
    )
    code += " [print(load_pipeline(Path(name), '/data').name) for name in sys.argv[1:]]"
    files = [tmp_path / "other.py", tmp_path / "numbers.py"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["other", "numbers"], "")


def test_no_module_of_the_pipelines_stays_so_that_spark_ships_functions_by_value(tmp_path: Path) -> None:
    before = (set(sys.modules), list(sys.path))
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "p.py").write_text(PIPELINE)
    view = load_pipeline(tmp_path / "p.py", "/data").view("seen")
    assert (set(sys.modules) - before[0], sys.path) == (set(), before[1])
    assert view is not None and view.function is not None
    assert view.function.__module__ not in sys.modules
    assert view.function.__globals__["LIMIT"] == 10


def test_what_a_pipeline_file_prints_is_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "p.py").write_text("print('hello')\n" + PIPELINE)
    load_pipeline(tmp_path / "p.py", "/data")
    assert capsys.readouterr() == ("", "hello\n")


def test_an_error_in_a_helper_names_the_line_that_imports_it(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("LIMIT = 1 / 0\n")
    (tmp_path / "p.py").write_text(PIPELINE)
    with pytest.raises(DeclarationError, match=r"^p\.py, line 4: the file raises ZeroDivisionError"):
        load_pipeline(tmp_path / "p.py", "/data")
