"""Avro and Protobuf in a schema registry's wire format, from a real broker: each row by the schema that it
was written with, none as nulls in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession

from streamkeeper.errors import SourceError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows.holds import parked
from streamkeeper.readers import NULL, registry_id, registry_payload, registry_schemas
from tests.worlds.flow_world import Flowbed, pipeline
from tests.worlds.sources.schema_registry import avro, avro_jars, delete, framed, register, schema_registry
from tests.worlds.sources.source_world import KafkaBed

FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "order_id", "type": "long"}, {"name": "label", "type": "string"}],
}
AMOUNT = {"name": "amount", "type": ["null", "double"], "default": None}
SECOND = {**FIRST, "fields": [*FIRST["fields"], AMOUNT]}
SCHEMAS = [json.dumps(schema) for schema in (FIRST, SECOND)]

HEAD = """
from pyspark.sql import functions as F
from streamkeeper import pipelines as dp, readers

dp.create_source("raw", format="kafka",
                 options={{"kafka.bootstrap.servers": "{brokers}", "subscribe": "{topic}"}})
dp.create_streaming_table("events")
dp.create_streaming_table("kept")
"""
AVRO = (
    HEAD
    + """
@dp.temporary_view(sources=["raw"])
def orders(raw):
    schemas = readers.registry_schemas("{registry}", "{topic}-value")
    read = readers.from_registry_avro("value", schemas{more})
    return raw.select(read.alias("order"), readers.registry_id("value").alias("schema_id"))

@dp.append_flow(name="clean_events", target="events", sources=["orders"], trigger="200 milliseconds",
                driver=dp.driver(jars={jars}))
@dp.expect_or_drop("known schema", "order IS NOT NULL", quarantine="kept")
def clean_events(orders):
    return orders.select("order.order_id", "order.label", "order.amount", "schema_id", "order")
"""
)
PROTOBUF = (
    HEAD
    + """
import order_messages

@dp.temporary_view(sources=["raw"])
def orders(raw):
    payload = readers.registry_payload("value", ids=[7, 8], message=(1,))
    read = F.udf(order_messages.read, "order_id BIGINT, label STRING")
    return raw.select(read(payload).alias("order")).select("order.*")

@dp.append_flow(name="clean_events", target="events", sources=["orders"], trigger="200 milliseconds")
def clean_events(orders):
    return orders
"""
)
MESSAGES = """
DESCRIPTOR = {descriptor!r}

def read(payload):
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(DESCRIPTOR)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order")).FromString(payload)
    return order.order_id, order.label
"""


@pytest.fixture
def registry() -> Iterator[str]:
    with schema_registry() as address:
        yield address


def produce(bed: KafkaBed, *values: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": bed.brokers, "linger.ms": 0})
    for value in values:
        producer.produce(bed.topic, value, partition=0)
    assert producer.flush(30) == 0


def rows(bed: KafkaBed, table: str = "events") -> list[Any]:
    frame = bed.bed.spark.read.format("delta").load(str(bed.bed.root / "warehouse" / table))
    return [tuple(row) for row in frame.collect()]


def declare_avro(bed: KafkaBed, registry: str, more: str = "") -> None:
    named = {"brokers": bed.brokers, "topic": bed.topic, "registry": registry}
    bed.bed.declare(AVRO.format(jars=avro_jars(), more=more, **named))


def run(bed: KafkaBed) -> tuple[int, str]:
    with bed.bed.driver("--available-now") as driver:
        return driver.wait(), driver.said()


@pytest.mark.long
def test_avro_of_two_schemas_in_one_batch_is_read_into_the_newest_by_the_schemas_of_a_registry(
    kafka: Callable[..., KafkaBed], spark: SparkSession, registry: str
) -> None:
    bed = kafka()
    first, second = (register(registry, f"{bed.topic}-value", schema) for schema in SCHEMAS)
    old = avro(spark, SCHEMAS[0], order_id=1, label="one")
    new = avro(spark, SCHEMAS[1], order_id=2, label="two", amount=2.5)
    produce(bed, framed(first, old), framed(second, new), framed(9999, new), None)
    declare_avro(bed, registry, ', on_unknown="null"')
    code, said = run(bed)
    assert code == Outcome.STOPPED, said[-4000:]
    assert sorted(row[:4] for row in rows(bed)) == [(1, "one", None, first), (2, "two", 2.5, second)]
    assert sorted(str("9999" in str(row)) for row in rows(bed, "kept")) == ["False", "True"]


@pytest.mark.long
def test_an_unknown_schema_fails_the_batch_by_its_id_and_the_next_driver_knows_it_if_the_registry_does(
    kafka: Callable[..., KafkaBed], spark: SparkSession, registry: str
) -> None:
    bed = kafka()
    first = register(registry, f"{bed.topic}-value", SCHEMAS[0])
    produce(bed, framed(first + 1, avro(spark, SCHEMAS[1], order_id=2, label="two", amount=2.5)))
    declare_avro(bed, registry)
    bed.bed.declare(bed.bed.file.read_text().replace('"order.amount", ', ""))
    code, said = run(bed)
    assert code == Outcome.FAILED, said[-4000:]
    assert f"value has the schema id {first + 1}. Known are {first}." in said
    register(registry, f"{bed.topic}-value", SCHEMAS[1])
    code, said = run(bed)
    assert code == Outcome.STOPPED, said[-4000:]
    assert [row[:2] for row in rows(bed)] == [(2, "two")]


def test_a_registry_that_does_not_answer_fails_the_driver_and_parks_nothing(
    make_bed: Callable[..., Flowbed],
) -> None:
    asks = """
def asked(events):
    from streamkeeper import readers

    readers.registry_schemas("http://127.0.0.1:1", "orders-value")
    return events
"""
    bed = make_bed(pipeline(flow="asked(events)" + asks))
    bed.arrive(1)
    assert bed.run() is Outcome.FAILED
    assert parked(bed.home) is None


def descriptor(*, label: bool) -> descriptor_pb2.FileDescriptorProto:
    """Describe a file of two messages, of which the second is an order."""
    file = descriptor_pb2.FileDescriptorProto(name=f"orders_{label}.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Other")
    order = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    order.field.add(name="order_id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    if label:
        order.field.add(name="label", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    return file


def protobuf(file: descriptor_pb2.FileDescriptorProto, **fields: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**fields)
    encoded: bytes = made.SerializeToString()
    return encoded


def test_protobuf_of_two_versions_is_read_by_its_newest_message(kafka: Callable[..., KafkaBed]) -> None:
    bed = kafka()
    newest = descriptor(label=True)
    content = MESSAGES.format(descriptor=newest.SerializeToString())
    (bed.bed.settings.pipelines / "order_messages.py").write_text(content)
    bed.bed.declare(PROTOBUF.format(brokers=bed.brokers, topic=bed.topic))
    second_message = b"\x02\x02"
    old = protobuf(descriptor(label=False), order_id=1)
    new = protobuf(newest, order_id=2, label="two")
    produce(bed, framed(7, old, second_message), framed(8, new, second_message))
    assert bed.bed.run() is Outcome.STOPPED
    assert sorted(rows(bed)) == [(1, ""), (2, "two")]


def values(spark: SparkSession, *found: bytes | None) -> DataFrame:
    return spark.createDataFrame([(value,) for value in found], "value BINARY")


def test_the_id_of_a_schema_is_that_of_the_header_and_null_without_one(spark: SparkSession) -> None:
    given = values(spark, framed(7, b"x"), framed(2**32 - 1, b""), b"\x01\0\0\0\x07x", b"\0\0\0", b"", None)
    ids = [row[0] for row in given.select(registry_id("value")).collect()]
    assert ids == [7, 2**32 - 1, None, None, None, None]


@pytest.mark.parametrize(
    ("message", "path"),
    [(None, b""), ((0,), b"\0"), ((1,), b"\x02\x02"), ((1, 0), b"\x04\x02\0"), ((64,), b"\x02\x80\x01")],
    ids=["no message", "first", "second", "inside the second", "65th"],
)
def test_the_payload_is_what_stands_behind_the_header_and_the_path_of_the_message(
    *, message: tuple[int, ...] | None, path: bytes, spark: SparkSession
) -> None:
    payload = registry_payload("value", [7], message)
    given = values(spark, framed(7, b"abc", path), framed(7, b"", path), None)
    assert [row[0] for row in given.select(payload).collect()] == [b"abc", b"", None]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            framed(9, b"\0abc"),
            "value has the schema id 9 or another message than 00. Known are 7, 8. Schemas of",
        ),
        (framed(7, b"abc", b"\x02\x02"), "value has the schema id 7 or another message than 00. Known are"),
        (b"{}", "value has the schema id of none, for it does not begin as a registry's values do"),
    ],
    ids=["another id", "another message", "no wire format"],
)
def test_what_is_not_known_fails_with_the_id_or_is_null_where_that_is_asked_for(
    value: bytes, said: str, spark: SparkSession
) -> None:
    given = values(spark, framed(7, b"abc", b"\0"), value)
    with pytest.raises(SparkRuntimeException) as failed:
        given.select(registry_payload("value", [7, 8], (0,))).collect()
    assert said in str(failed.value)
    quiet = given.select(registry_payload("value", [7, 8], (0,), on_unknown=NULL))
    assert [row[0] for row in quiet.collect()] == [b"abc", None]


def test_a_registrys_schemas_come_newest_last_and_deleted_ones_first(registry: str) -> None:
    subject = "some.orders-value"
    third = json.dumps({**SECOND, "doc": "the third"})
    ids = [register(registry, subject, schema) for schema in (*SCHEMAS, third)]
    delete(registry, subject, 3)
    found = registry_schemas(registry, subject)
    assert list(found) == [ids[2], ids[0], ids[1]]
    assert json.loads(found[ids[1]]) == SECOND


def test_a_subject_that_a_registry_does_not_know_may_come_and_its_answer_is_told(registry: str) -> None:
    with pytest.raises(
        SourceError, match=r"does not answer .*/subjects/none/versions.*404.*No artifact with ID"
    ):
        registry_schemas(registry, "none")


def test_no_ids_and_other_words_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"Known ids are none, and on_unknown is 'fail'\. Give one id or more"
    ):
        registry_payload("value", [])
    with pytest.raises(ValueError, match=r"on_unknown is 'drop'\. Give one id or more, and 'fail' or 'null'"):
        registry_payload("value", [1], on_unknown="drop")
