"""Pipeline files of tests."""

from __future__ import annotations

import textwrap
from pathlib import Path

from streamkeeper.declare.model import Pipeline
from streamkeeper.manifest.import_file import load_pipeline
from tests.worlds.small_world import EVENTS

READER = """
from streamkeeper import pipelines as dp

dp.create_source("their_events", format="delta", table="events"%s)
dp.create_streaming_table("after")

@dp.append_flow(name="after_events", target="after", sources=["their_events"])
def after_events(raw):
    return raw
"""
SEVERAL = (
    EVENTS
    + """
dp.create_streaming_table("aside")

@dp.append_flow(name="more_events", target="events", sources=["events_raw"])
def more_events(raw):
    return raw

@dp.append_flow(name="aside_events", target="aside", sources=["events_raw"])
def aside_events(raw):
    return raw
"""
)
LATE = """
@dp.append_flow(name="late_events", target="events", sources=["events_raw"])
def late_events(raw):
    return raw
"""
"""One more flow of the table ``events``."""
HUNGRY = EVENTS.replace("append_flow(", 'append_flow(spark_conf={"spark.executor.memory": "3g"}, ')

HEAD = "from streamkeeper import pipelines as dp\n"
TAIL = """
dp.create_streaming_table("t")
@dp.append_flow(target="t", sources=["raw"])
def f(raw):
    return raw
"""


def load(folder: Path, body: str, name: str = "p.py") -> Pipeline:
    file = folder / name
    file.write_text(HEAD + textwrap.dedent(body))
    return load_pipeline(file, "/data")


def edited(text: str, *changes: tuple[str, str]) -> str:
    """Return a text with some parts of it replaced, each of which must be there once."""
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    return text
