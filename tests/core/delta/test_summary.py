"""What the summary that Delta writes beside a commit says of a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamkeeper.delta.summary import FORGETFUL, forgets_batches


@pytest.mark.parametrize(
    ("properties", "forgets"), [({FORGETFUL: "interval 7 days"}, f"{FORGETFUL}=interval 7 days"), ({}, None)]
)
def test_a_table_that_forgets_its_batches_is_known(
    properties: dict[str, str], forgets: str | None, tmp_path: Path
) -> None:
    (log := tmp_path / "_delta_log").mkdir()
    assert forgets_batches(str(tmp_path)) is None, "there is no table"
    (log / f"{0:020d}.json").write_text("{}")
    metadata = {"id": "t", "configuration": properties}
    summary = {"numFiles": 0, "tableSizeBytes": 0, "protocol": {}, "metadata": metadata}
    (log / f"{0:020d}.crc").write_text(json.dumps(summary))
    assert forgets_batches(str(tmp_path)) == forgets
