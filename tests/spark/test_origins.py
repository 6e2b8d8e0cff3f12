"""Which of the old offsets belongs to which source: by name where the log has names, by order where it has none."""

from __future__ import annotations

import pytest

from streamkeeper.declarations import Source, Where


def source(name: str) -> Source:
    return Source(name, "json", f"/data/{name}", "id INT", {}, Where("p.py", 1))


@pytest.mark.parametrize(
    ("declared", "found", "version", "keys"),
    [
        pytest.param(["a", "b"], ["b", "a"], 2, {"a": "a", "b": "b"}, id="by name, in any order"),
        pytest.param(["a", "new"], ["a", "gone"], 2, {"a": "a"}, id="a new one has none, and one that is gone is not given to it"),
        pytest.param(["a", "b"], ["0", "1"], 1, {"a": "0", "b": "1"}, id="by order"),
        pytest.param(["a", "b"], ["0"], 1, {"a": "0"}, id="one more than the log has"),
        pytest.param(["a"], ["0", "1"], 1, {"a": "0"}, id="one less than the log has"),
    ],
)
def test_a_source_finds_its_old_offset(declared: list[str], found: list[str], version: int, keys: dict[str, str]) -> None:
    from streamkeeper_jobs.origins import source_keys

    assert source_keys(tuple(map(source, declared)), found, version) == keys
