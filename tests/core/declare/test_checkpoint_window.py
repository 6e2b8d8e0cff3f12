"""A flow says how far back it is to be rewound, and its checkpoint keeps as many batches."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from streamkeeper.declare.checkpoint_window import RETAIN, batches_to_retain, reach
from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.import_file import load_pipeline

FILE = """
from streamkeeper import pipelines as dp
dp.create_source("raw", format="json", path="{{data}}/raw", schema="id INT, n INT", options={{}})
dp.create_streaming_table("t")
dp.create_streaming_table("c")

@dp.append_flow(target="t", sources=["raw"], {arguments})
def f(raw):
    return raw

dp.create_auto_cdc_flow(name="g", target="c", source="raw", keys=["id"], sequence_by="n", {arguments})
"""


def declared(folder: Path, arguments: str) -> list[str | None]:
    """Give the setting of each of the file's two flows."""
    file = folder / "p.py"
    file.write_text(textwrap.dedent(FILE.format(arguments=arguments)))
    return [flow.spark_conf.get(RETAIN) for flow in load_pipeline(file, "/data").flows]


@pytest.mark.parametrize(
    ("window", "trigger", "batches"),
    [
        (86400, "1 minute", 1440),
        (7 * 86400, "10 minutes", 1008),
        (90, "1 minute", 100),
        (7 * 86400, "10 seconds", 10_000),
        (61, "500 milliseconds", 122),
        (3600 * 150 + 1, "1 hour", 151),
    ],
    ids=["a day", "a week", "the least", "the most", "below a second", "rounded up"],
)
def test_a_window_is_as_many_batches_as_triggers_fit_into_it(
    window: float, trigger: str, batches: int
) -> None:
    assert batches_to_retain(window, trigger) == batches


@pytest.mark.parametrize("retained", ["²", "9" * 5000, "many", ""])
def test_a_setting_that_is_no_number_of_batches_reaches_back_nowhere(retained: str) -> None:
    assert reach({RETAIN: retained}, "1 minute") == 0
    assert reach({RETAIN: "100"}, "1 minute") == 6000


def test_both_kinds_of_flow_keep_their_window(tmp_path: Path) -> None:
    assert declared(tmp_path, 'trigger="1 minute", rewind_window="1 day"') == ["1440", "1440"]
    assert declared(tmp_path, 'trigger="1 minute"') == [None, None]
    assert declared(tmp_path, f"spark_conf={{'{RETAIN}': 7}}") == ["7", "7"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('rewind_window="long"', "line 7: rewind_window of flow f is 'long'. Allowed is a number and a unit"),
        ("rewind_window=7", "rewind_window of flow f is 7. Allowed is"),
        (f'rewind_window="{"9" * 400} days"', "Allowed is a number and a unit"),
        (f'trigger="{"9" * 400} seconds"', "Allowed is a number and a unit"),
        ('rewind_window="7 days", once=True', "runs once and has a rewind_window"),
        (
            f'rewind_window="7 days", spark_conf={{"{RETAIN}": 7}}',
            "has a rewind_window and sets .*minBatchesToRetain to '7'",
        ),
    ],
)
def test_a_window_that_cannot_be_is_refused(arguments: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=said):
        declared(tmp_path, arguments)
