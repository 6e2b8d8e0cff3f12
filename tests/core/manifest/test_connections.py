"""``{conn:NAME.FIELD}`` in options: kept out of what others read, and handed over by a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamkeeper.drivers import submit
from streamkeeper.errors import SettingsError
from streamkeeper.manifest.environment import opened, opened_if_possible
from streamkeeper.manifest.manifest import make_manifest
from streamkeeper.support import connections
from tests.worlds.small_world import EVENTS, World, write_manifest

KAFKA = """
from streamkeeper import pipelines as dp

dp.create_source("orders_raw", format="kafka", options={
    "kafka.bootstrap.servers": "{conn:kafka.prod.host}:{conn:kafka.prod.port}",
    "kafka.sasl.jaas.config": "Login required username='a' password='{conn:kafka.prod.password}';",
    "subscribe": "orders",
})
dp.create_source("others", format="kafka", options={
    "kafka.bootstrap.servers": "b:9092", "kafka.ssl.key.password": "{conn:other.extra.key}", "subscribe": "x",
})
dp.create_streaming_table("orders")

@dp.append_flow(name="orders_flow", target="orders", sources=["orders_raw"])
def orders_flow(orders):
    return orders
"""
SECRET = "s3cr3t"
VALUES = {"kafka.prod.host": "b", "kafka.prod.port": "9093", "kafka.prod.password": SECRET}


@pytest.fixture(autouse=True)
def without_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_resolvers", [])
    connections._taken.cache_clear()


def test_a_driver_gets_the_values_of_its_own_sources_by_a_file_that_it_removes(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(KAFKA)
    flow = make_manifest(world.settings).find("events.orders_flow")
    source = flow.sources[0]
    job = submit.driver(world.settings, [flow])
    assert job.connections == tuple(VALUES)
    with pytest.raises(SettingsError, match=r"\{conn:kafka.prod.host\} is of a connection of Airflow's"):
        opened(source, world.settings)
    assert opened_if_possible(source, world.settings).options == source.options

    file = tmp_path / "values"
    file.write_text("somebody else's")
    file.chmod(0o644)
    connections.hand_over(VALUES, file)
    assert file.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv(connections.FILE_VARIABLE, str(file))
    for _ in range(2):
        options = opened(source, world.settings).options
        assert options["kafka.bootstrap.servers"] == "b:9093"
        assert SECRET in options["kafka.sasl.jaas.config"]
        assert not file.exists()
    manifests = [path for path in Path(world.settings.state).rglob("*") if path.is_file()]
    assert not [path for path in manifests if SECRET in path.read_text(errors="replace")]


@pytest.mark.parametrize(
    ("name", "allowed", "said"),
    [
        ("streamkeeper_airflow", "", "the connection 'streamkeeper_airflow' is Streamkeeper's own"),
        (
            "hr_db",
            "orders_*,kafka.*",
            "may not use the connection 'hr_db': STREAMKEEPER_PIPELINE_CONNECTIONS",
        ),
        ("hr_db", "hr_*,kafka.*", None),
    ],
)
def test_a_pipeline_uses_the_connections_that_a_setting_names_and_never_streamkeepers_own(
    name: str, allowed: str, said: str | None, world: World
) -> None:
    world.more["STREAMKEEPER_PIPELINE_CONNECTIONS"] = allowed
    world.declare(KAFKA.replace("{conn:other.extra.key}", f"{{conn:{name}.password}}"))
    errors = write_manifest(world.settings).errors
    assert (said in errors["events"]) if said else (errors == {})
    world.declare(f"{EVENTS}dp.configure_pipeline(connection={name!r})\n")
    errors = write_manifest(world.settings).errors
    assert (said in errors["events"]) if said else (errors == {})


@pytest.mark.parametrize(
    "text", ["{conn:kafka}", "{conn:kafka.pass}", "{conn:.password}", "{conn:kafka.password"]
)
def test_what_begins_as_a_value_of_a_connection_and_is_none_is_refused(text: str, world: World) -> None:
    world.declare(KAFKA.replace("{conn:other.extra.key}", text))
    (message,) = make_manifest(world.settings).errors.values()
    assert "source others has" in message and "Allowed is {conn:NAME.FIELD} with host, port, login" in message
