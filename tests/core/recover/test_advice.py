"""A pipeline that one installation offers and another does not, by an environment variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamkeeper import pipelines as dp
from streamkeeper.errors import DeclarationError, RequestError
from streamkeeper.flows import generations
from streamkeeper.flows.files import open_home
from streamkeeper.manifest.import_file import fingerprint, load_pipeline
from streamkeeper.manifest.manifest import files_key, read_manifest
from streamkeeper.settings import PIPELINE_ENV, PROJECT
from tests.worlds.small_world import EVENTS, World, write_manifest

ASKS = EVENTS.replace(
    "import pipelines as dp\n", "import pipelines as dp\n\ndp.only_where_set('A_BROKER')\n"
).replace("events", "asking")


@pytest.fixture(autouse=True)
def seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pipelines see the variable that these tests ask for."""
    monkeypatch.setenv(PIPELINE_ENV, "A_*,ORDERS_BROKERS")
    world.more[PIPELINE_ENV] = "A_*,ORDERS_BROKERS"


def test_a_pipeline_is_left_out_with_the_reason_where_the_variable_is_not_set(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(ASKS, "asking.py")
    monkeypatch.delenv("A_BROKER", raising=False)
    manifest = write_manifest(world.settings)
    assert [flow.full_name for flow in manifest.flows()] == ["events.clean_events"]
    assert manifest.errors == {}
    assert manifest.left_out == {
        "asking": (
            "asking.py, line 4: the pipeline is offered only where A_BROKER is set, and it is not set here."
        )
    }
    assert read_manifest(world.settings) == manifest
    with pytest.raises(RequestError, match=r"There is no flow 'asking\.clean_asking'"):
        manifest.find("asking.clean_asking")


def test_the_manifest_is_another_one_as_soon_as_the_variable_is_set(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(ASKS, "asking.py")
    monkeypatch.delenv("A_BROKER", raising=False)
    without = files_key(world.settings)
    monkeypatch.setenv("A_BROKER", "b:1")
    assert files_key(world.settings) != without
    assert [flow.full_name for flow in write_manifest(world.settings).flows()] == [
        "asking.clean_asking",
        "events.clean_events",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            ASKS.replace("clean_asking", "cleaned"),
            "Run `streamkeeper rename asking.clean_asking asking.cleaned`",
        ),
        (ASKS + "raise ValueError", "the file raises ValueError"),
    ],
    ids=["renamed", "broken"],
)
def test_its_last_declaration_is_known_after_looks_without_the_variable(
    text: str, said: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(ASKS, "asking.py")
    monkeypatch.setenv("A_BROKER", "b:1")
    before = [flow.full_name for flow in write_manifest(world.settings).flows()]
    home = open_home(world.settings, "asking.clean_asking")
    generations.decide(home, generations.first(home, "f"))
    monkeypatch.delenv("A_BROKER")
    for _ in range(2):
        assert [flow.full_name for flow in write_manifest(world.settings).flows()] == ["events.clean_events"]
    monkeypatch.setenv("A_BROKER", "b:1")
    world.declare(text, "asking.py")
    found = write_manifest(world.settings)
    assert [flow.full_name for flow in found.flows()] == before
    assert said in found.errors["asking"]


def test_a_pipeline_that_may_not_see_its_variable_is_left_out_and_says_which_setting_lacks_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(ASKS, "asking.py")
    world.more[PIPELINE_ENV] = "ANOTHER"
    monkeypatch.setenv("A_BROKER", "b:1")
    manifest = read_manifest(world.settings)
    assert manifest.left_out["asking"].startswith(
        "asking.py, line 4: the pipeline is offered only where A_BROKER is set, and A_BROKER is not an"
        " environment variable that pipelines may read: STREAMKEEPER_PIPELINE_ENV names ANOTHER. Add it"
        " there"
    )
    world.more[PIPELINE_ENV] = "A_BROKER"
    assert read_manifest(world.settings).left_out == {}, "another setting is another manifest"


def test_a_variable_must_have_a_name() -> None:
    with pytest.raises(DeclarationError, match="'A BROKER' names no environment variable"):
        dp.only_where_set("A BROKER")


def test_the_orders_pipeline_is_whole_and_keeps_its_brokers_address_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORDERS_BROKERS", "secret-host:9092")
    pipeline = load_pipeline(Path(PROJECT / "spark_jobs" / "pipelines" / "orders.py"), "/data")
    before = fingerprint(pipeline, pipeline.flows[0])
    assert "secret-host" not in repr(pipeline)
    monkeypatch.setenv("ORDERS_BROKERS", "another:9092")
    again = load_pipeline(Path(PROJECT / "spark_jobs" / "pipelines" / "orders.py"), "/data")
    assert fingerprint(again, again.flows[0]) == before
