"""Expectations in pipeline files: where they may stand, what they may say, and what counts as a change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamkeeper.declare.model import (
    DROP,
    FAIL,
    WARN,
    Pipeline,
    pipeline_from_json,
    pipeline_to_json,
    quarantine_of,
)
from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.import_file import fingerprint
from streamkeeper.manifest.manifest import Flow
from streamkeeper.trial.differences import differences
from tests.worlds.pipelines import load

HEAD = """
dp.create_source("raw", format="json", path="{data}/raw", schema="id INT")
dp.create_streaming_table("refused")
"""
TABLE = 'dp.create_streaming_table("t")\n'
FLOW = """
@dp.append_flow(target="t", sources=["raw"])
def f(raw):
    return raw
"""
CDC = """
dp.create_streaming_table("t", expect_all={"a": "id > 1"}, expect_all_or_drop={"b": "id > 2"}, \
expect_all_or_fail={"c": "id > 3"}, quarantine="refused", alert_above=0.05, alert_window=10)
dp.create_auto_cdc_flow(name="f", target="t", source="raw", keys=["id"], sequence_by="id")
"""


def of(folder: Path, expect: str, table: str = TABLE) -> Pipeline:
    folder.mkdir(exist_ok=True)
    return load(folder, HEAD + table + expect + FLOW)


def test_expectations_are_those_of_the_table_and_of_the_function_in_the_order_of_the_file(
    tmp_path: Path,
) -> None:
    table = 'dp.create_streaming_table("t", expect_all_or_fail={"whole": "id % 1 = 0"})\n'
    above = """
@dp.expect("valid id", "id IS NOT NULL", alert_above=0.05, alert_window=3)
@dp.expect_all_or_drop({"small": "id < 9", "large": "id > 0"}, quarantine="refused")"""
    (flow,) = of(tmp_path, above, table).flows
    assert [(item.name, item.condition, item.action, item.quarantine) for item in flow.expectations] == [
        ("whole", "id % 1 = 0", FAIL, None),
        ("valid id", "id IS NOT NULL", WARN, None),
        ("small", "id < 9", DROP, "refused"),
        ("large", "id > 0", DROP, "refused"),
    ]
    assert (flow.expectations[1].alert_above, flow.expectations[1].alert_window) == (0.05, 3)
    assert str(flow.expectations[1].location) == "p.py, line 7"
    assert quarantine_of(flow) == "refused"


def test_they_may_stand_below_append_flow_as_in_lakeflow(tmp_path: Path) -> None:
    below = FLOW.replace("def f", '@dp.expect_or_fail("valid id", "id > 0")\ndef f')
    (flow,) = load(tmp_path, HEAD + TABLE + below).flows
    assert [item.action for item in flow.expectations] == [FAIL]


def test_an_auto_cdc_flow_has_those_of_its_table_and_json_keeps_them(tmp_path: Path) -> None:
    pipeline = load(tmp_path, HEAD + CDC)
    (flow,) = pipeline.flows
    assert [(item.name, item.action, item.alert_above) for item in flow.expectations] == [
        ("a", WARN, 0.05),
        ("b", DROP, 0.05),
        ("c", FAIL, None),
    ]
    plain = json.loads(json.dumps(pipeline_to_json(pipeline)))
    assert pipeline_from_json(plain) == pipeline


def test_a_changed_expectation_changes_the_flow_and_another_line_does_not(tmp_path: Path) -> None:
    def mark(name: str, expect: str) -> str:
        pipeline = of(tmp_path / name, expect)
        return fingerprint(pipeline, pipeline.flows[0])

    plain = mark("none", "")
    odd = mark("odd", '@dp.expect("odd", "id % 2 = 1")')
    assert mark("moved", '\n\n@dp.expect("odd", "id % 2 = 1")') == odd
    others = [
        '@dp.expect("odd", "id % 2 = 0")',
        '@dp.expect_or_drop("odd", "id % 2 = 1")',
        '@dp.expect_or_drop("odd", "id % 2 = 1", quarantine="refused")',
        '@dp.expect("odd", "id % 2 = 1", alert_above=0.1)',
    ]
    found = [mark(f"other{number}", expect) for number, expect in enumerate(others)]
    assert len({plain, odd, *found}) == 6


def test_what_decides_about_rows_is_told_before_a_restart_and_an_alert_is_not(tmp_path: Path) -> None:
    def flow(name: str, expect: str) -> Flow:
        pipeline = of(tmp_path / name, expect)
        return Flow(pipeline, pipeline.flows[0], "")

    old = flow("old", '@dp.expect_or_drop("odd", "id % 2 = 1")')
    new = flow("new", '@dp.expect_or_drop("odd", "id % 2 = 0")\n@dp.expect("small", "id < 9")')
    assert list(differences(old, new, ())) == [
        "The flow has other expectations ('odd', 'small'): rows so far were checked by the old ones."
    ]
    alerting = flow("alerting", '@dp.expect_or_drop("odd", "id % 2 = 1", alert_above=0.1)')
    assert list(differences(old, alerting, ())) == []


@pytest.mark.parametrize(
    ("expect", "why"),
    [
        ('@dp.expect("", "id > 0")', r"p\.py, line 6: the expectation '' has the name ''\. Give a text"),
        ('@dp.expect("a", 5)', r"the expectation 'a' has the condition 5\. Give a text"),
        ('@dp.expect_all(["id > 0"])', r"Give a dict of names and conditions"),
        (
            '@dp.expect("a", "id > 0", alert_above=5)',
            r"alert_above of .* is 5\. Allowed is a share",
        ),
        ('@dp.expect("a", "id > 0", alert_above=0.1, alert_window=0)', r"alert_window 0\. Allowed is a"),
        ('@dp.expect("a", "id > 0", quarantine="refused")', r"expect takes no quarantine"),
        (
            '@dp.expect_or_drop("a", "id > 0", quarantine="gone")',
            r"the quarantine table 'gone' is not declared in this file\. Declared are refused, t\. Add",
        ),
        (
            '@dp.expect_or_drop("a", "id > 0", quarantine="t")',
            r"the quarantine table t is the target of the flow f \(p\.py, line 7\)",
        ),
        (
            '@dp.expect_or_drop("a", "id > 0", quarantine="refused")\n'
            '@dp.expect_or_drop("b", "id > 0", quarantine="t")',
            r"has the quarantine tables refused and t\. Rows that a flow drops go to one table",
        ),
        (
            '@dp.expect("a", "id > 0")\n@dp.expect("a", "id > 1")',
            r"line 7: the flow f has two expectations 'a'; the other is at p\.py, line 6",
        ),
        (
            '@dp.expect("a", "id > 0")\ndef helper(raw):\n    return raw\n',
            r"'a' stands above a function that is no flow\. Put it above the function of a flow",
        ),
    ],
)
def test_what_cannot_be_expected_is_refused(tmp_path: Path, expect: str, why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        of(tmp_path, expect)


def test_a_table_that_drops_nothing_needs_no_quarantine(tmp_path: Path) -> None:
    table = 'dp.create_streaming_table("t", expect_all={"a": "id > 0"}, quarantine="refused")\n'
    with pytest.raises(DeclarationError, match=r"has the quarantine 'refused' and no expect_all_or_drop"):
        of(tmp_path, "", table)
