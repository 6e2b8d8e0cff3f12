"""How the story ends: in exit code 0 only if every step came true."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from demo import story
from demo.airflow.api import AirflowApi
from demo.data.generator import Generator
from demo.seeing import check
from demo.story import Story
from streamkeeper.settings import Settings

STEPS = (
    "it_runs",
    "it_breaks",
    "a_dry_run_shows_the_plan",
    "it_is_brought_back",
    "it_goes_on_from_where_it_stood",
    "every_customer_is_there",
)


@pytest.mark.parametrize("failing", [None, *STEPS])
def test_the_story_ends_in_1_at_the_first_step_that_does_not_come_true(
    failing: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    for name in STEPS:

        def step(_story: Story, name: str = name) -> None:
            told.append(name)
            check(f"{name} came true", name != failing, "it did not")

        monkeypatch.setattr(Story, name, step)
    places = {
        f"STREAMKEEPER_{name}": str(tmp_path / name) for name in ("PIPELINES", "STATE", "WAREHOUSE", "DATA")
    }
    ending = story.tell(AirflowApi("", "", ""), Settings.from_environment(places), cast("Generator", None))
    assert ending == (0 if failing is None else 1)
    assert told == list(STEPS[: STEPS.index(failing) + 1] if failing else STEPS)
    assert ("FAILED after" in capsys.readouterr().out) == (failing is not None)
