"""What two declarations differ in, beside plans and code: whatever may change rows is said."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from streamkeeper.declare.cdc_spec import CdcSpec
from streamkeeper.declare.model import AppendFlow, AutoCdcFlow, Source, Table, View
from streamkeeper.manifest.environment import opened_flow
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper.trial import last_run
from streamkeeper.trial.differences import differences

TEXT = """
from streamkeeper import pipelines as dp

dp.create_source("raw", format="json", path="/data/raw", schema="id INT, n INT", \
options={"maxFilesPerTrigger": 2})

@dp.temporary_view(sources=["raw"])
def parsed(raw):
    return raw

dp.create_streaming_table("events")
"""
APPEND = (
    TEXT
    + """
@dp.append_flow(name="events", target="events", sources=["parsed"], trigger="10 seconds", spark_conf={})
def events(parsed):
    return parsed
"""
)
CHANGES = (
    TEXT
    + """
dp.create_auto_cdc_flow(name="events", target="events", source="parsed", keys=["id"], sequence_by="n")
"""
)


def declared(folder: Path, text: str) -> Flow:
    file = folder / "events.py"
    file.write_text(text)
    pipeline = load_pipeline(file, "/data")
    flow = pipeline.flow("events")
    assert flow is not None
    return Flow(pipeline, flow, "")


@pytest.mark.parametrize(
    ("before", "old", "new", "said"),
    [
        (APPEND, "", "", []),
        (APPEND, '"10 seconds"', '"20 seconds"', []),
        (APPEND, '"maxFilesPerTrigger": 2', '"maxfilespertrigger": 3', []),
        (APPEND, "spark_conf={}", 'spark_conf={"spark.executor.memory": "2g"}', []),
        (APPEND, "spark_conf={}", 'spark_conf={"spark.pinned": "2g"}', []),
        (APPEND, "spark_conf={}", 'spark_conf={"spark.sql.ansi.enabled": False}', ["spark.sql.ansi.enabled"]),
        (APPEND, "n INT", "n LONG", ["has schema id INT, n LONG, and had id INT, n INT"]),
        (APPEND, '"maxFilesPerTrigger": 2', '"mode": "FAILFAST"', ["value of mode"]),
        (APPEND, '"events")\n', '"events", partition_cols=["n"])\n', ["partition_cols n, and had nothing"]),
        (APPEND, ', trigger="10 seconds"', ", once=True", ["once True, and had False"]),
        (CHANGES, '"n")', '"id")', ["sequence_by id, and had n"]),
        (CHANGES, '"n")', '"n", apply_as_deletes="n = 1")', ["apply_as_deletes n = 1, and had nothing"]),
    ],
)
def test_what_may_change_rows_is_said(
    before: str, old: str, new: str, said: list[str], tmp_path: Path
) -> None:
    ran, now = declared(tmp_path, before), declared(tmp_path, before.replace(old, new) if old else before)
    found = list(differences(ran, now, ("spark.pinned",)))
    assert [words in line for words, line in zip(said, found, strict=True)] == [True] * len(said), found


def test_another_kind_of_flow_is_said(tmp_path: Path) -> None:
    [said] = differences(declared(tmp_path, APPEND), declared(tmp_path, CHANGES), ())
    assert said.startswith("The flow appended rows")


def test_a_field_that_is_new_to_the_language_is_noticed() -> None:
    """All fields, so that whoever adds one decides whether it changes rows: unless it is left out in
    ``differences``, it is said.
    """
    known = {
        Source: "name format path schema options location table start track_schema registered_as",
        View: "name sources code location function",
        Table: "name comment properties partition_cols location keys sink code function existing_rows"
        " registered_as column_comments asset_every",
        AppendFlow: "name target sources code trigger spark_conf location on_failure once on_change"
        " park_after function expectations mode keys initial_state",
        AutoCdcFlow: "name target source spec trigger spark_conf location on_failure once on_change"
        " park_after expectations",
        CdcSpec: "keys sequence_by sequence_literal apply_as_deletes apply_as_truncates column_list"
        " except_column_list ignore_null_updates scd_type track_history_column_list"
        " track_history_except_column_list change_feed",
    }
    assert {kind: " ".join(field.name for field in fields(kind)) for kind in known} == known


def test_what_the_environment_fills_in_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_BROKERS", "hush")
    flow = declared(tmp_path, APPEND.replace('"maxFilesPerTrigger": 2', '"key": "{env:ORDERS_BROKERS}"'))
    settings = replace(Settings.from_environment({}), pipeline_env=("ORDERS_BROKERS",))
    opened = opened_flow(flow, settings)
    assert opened.pipeline.sources[0].options == {"key": "hush"}
    assert "hush" not in json.dumps(
        asdict(last_run.record_of(flow, ("Project",), {"events.py": ""}, opened=opened))
    )
