"""AUTO CDC by a Delta table's change feed, as pipeline files declare it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamkeeper.declare.cdc_spec import CdcSpec
from streamkeeper.declare.model import AutoCdcFlow
from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.import_file import load_pipeline

SOURCES = """
from streamkeeper import pipelines as dp
feed = {"readChangeFeed": True}
dp.create_source("feed", format="delta", path="/x", options=feed)
dp.create_source("other", format="delta", path="/y", options=feed)
dp.create_source("rows", format="delta", path="/x", options={"skipChangeCommits": True})
@dp.temporary_view(sources=["feed"])
def parsed(feed): return feed
@dp.temporary_view(sources=["feed", "other"])
def both(feed, other): return feed
dp.create_streaming_table("t")
"""


def load(folder: Path, *flows: dict[str, Any]) -> CdcSpec:
    text = SOURCES
    for number, given in enumerate(flows):
        flow = {"name": f"f{number}", "target": "t", "source": "parsed", "keys": ["id"], **given}
        text += f"dp.create_auto_cdc_flow({', '.join(f'{name}={value!r}' for name, value in flow.items())})\n"
    file = folder / "p.py"
    file.write_text(text)
    flow = load_pipeline(file, "/data").flows[0]
    assert isinstance(flow, AutoCdcFlow)
    return flow.spec


def test_a_change_feed_is_ordered_by_commit_and_then_by_kind_of_change(tmp_path: Path) -> None:
    found = load(tmp_path, {"change_feed": True, "except_column_list": ["n"]})
    assert (found.sequence_by, found.apply_as_deletes) == (
        ("_commit_version", "_change_type"),
        "_change_type = 'delete'",
    )
    assert sorted(["insert", "update_postimage", "delete"])[0] == "delete", "it comes first in its commit"


REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a sequence beside it": ([{"change_feed": True, "sequence_by": "n"}], "change_feed=True and sequence_by"),
    "deletes beside it": ([{"change_feed": True, "apply_as_deletes": "n = 1"}], "and apply_as_deletes. A ch"),
    "nulls beside it": (
        [{"change_feed": True, "ignore_null_updates": True}],
        "and ignore_null_updates. A ch",
    ),
    "neither": ([{}], "sequence_by=None. Allowed are .* or change_feed=True in its place"),
    "in words": ([{"change_feed": "yes"}], "change_feed='yes'. Allowed are True and False"),
    "no feed": (
        [{"change_feed": True, "source": "rows"}],
        r"source rows \(p.py, line 6\) gives no change feed",
    ),
    "two feeds": ([{"change_feed": True, "source": "both"}], "reads feed and other. Commits of one table"),
    "the version alone": ([{"sequence_by": "_commit_version"}], "by _commit_version alone.*change_feed=True"),
    "the version, by its time": (
        [{"sequence_by": ["_Commit_Timestamp", "_commit_version"], "source": "feed"}],
        "by _Commit_Timestamp, _commit_version alone",
    ),
    "another order beside it": (
        [{"change_feed": True}, {"sequence_by": ["_commit_version", "rank"]}],
        "f1 writes t with change_feed=False, and the flow f0 .* with change_feed=True",
    ),
}


@pytest.mark.parametrize(("flows", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_change_feed_that_would_not_be_applied_in_order_is_refused(
    flows: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DeclarationError, match=rf"^p\.py, line 1[0-9]: the flow .*{message}"):
        load(tmp_path, *flows)


@pytest.mark.parametrize(
    "other",
    [{"sequence_by": 0, "once": True}, {"change_feed": True, "source": "other"}],
    ids=["a literal", "a feed of other keys"],
)
def test_flows_that_may_write_a_table_beside_a_change_feed(other: dict[str, Any], tmp_path: Path) -> None:
    assert load(tmp_path, {"change_feed": True}, other).change_feed


def test_commits_may_be_ranked_by_a_column_of_the_pipeline_s_own(tmp_path: Path) -> None:
    assert not load(tmp_path, {"sequence_by": ["_commit_version", "rank"]}).change_feed
