"""Contents of a Kafka source's topics, read by Kafka's own admin client with the options of the source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from streamkeeper.declare.model import Source
from streamkeeper.errors import SourceError
from streamkeeper.sources.kafka.offsets import OffsetRange, Offsets, Topics
from streamkeeper.sources.kafka.options import admin_options, assigned, plain_ids
from streamkeeper_jobs.spark.jvm import classes, java_list

SECONDS = 30


def look_at(spark: SparkSession, source: Source) -> Topics:
    """Return the offsets that the topics of an opened source hold, and their ids.

    :raises SourceError: the brokers do not answer within :data:`SECONDS`, or a topic does not exist.
    """
    with _admin(spark, source) as admin:
        described = _described(spark, admin, source)
        first = _listed(spark, admin, source, described, "earliest")
        end = _listed(spark, admin, source, described, "latest")
        offsets = {
            topic: {part: OffsetRange(first[topic][part], end[topic][part]) for part in parts}
            for topic, (_, parts) in described.items()
        }
        return Topics(offsets, plain_ids({topic: id for topic, (id, _) in described.items()}))


def at_time(spark: SparkSession, source: Source, moment_ms: int) -> Offsets:
    """Return the offsets of the first records at or after a time (epoch ms); the end if there is none.

    :raises SourceError: the brokers do not answer, or a topic does not exist.
    """
    with _admin(spark, source) as admin:
        described = _described(spark, admin, source)
        end = _listed(spark, admin, source, described, "latest")
        offsets = _listed(spark, admin, source, described, "forTimestamp", moment_ms)
        return {
            topic: {part: end[topic][part] if at < 0 else at for part, at in parts.items()}
            for topic, parts in offsets.items()
        }


@contextmanager
def _admin(spark: SparkSession, source: Source) -> Iterator[Any]:
    java = classes(spark)
    properties = java("java.util.Properties")()
    for name, value in admin_options(source, SECONDS).items():
        properties.setProperty(name, value)
    admin = None
    try:
        admin = java("org.apache.kafka.clients.admin.Admin").create(properties)
        yield admin
    except Py4JJavaError as error:
        raise SourceError(
            f"The source {source.name} cannot be inspected: {_root_cause(error)}. The brokers asked are"
            f" {source.option('kafka.bootstrap.servers')}."
        ) from error
    finally:
        if admin is not None:
            admin.close(java("java.time.Duration").ofSeconds(1))


def _described(spark: SparkSession, admin: Any, source: Source) -> dict[str, tuple[str, list[str]]]:
    """Return each topic's id and partitions."""
    names = java_list(classes(spark), _names(spark, admin, source))
    descriptions = _answer(spark, admin.describeTopics(names).allTopicNames())
    assignments = assigned(source)
    described = {}
    for name in sorted(descriptions.keySet()):
        topic = descriptions.get(name)
        parts = sorted(part.partition() for part in topic.partitions())
        if missing := [part for part in assignments.get(name, ()) if part not in parts]:
            raise SourceError(
                f"The source {source.name} assigns {name}/{missing[0]}, and the topic has partitions 0 to"
                f" {parts[-1]}."
            )
        described[name] = (
            str(topic.topicId().toString()),
            [str(part) for part in assignments.get(name, parts)],
        )
    return described


def _names(spark: SparkSession, admin: Any, source: Source) -> list[str]:
    if pattern := source.option("subscribePattern"):
        compiled = classes(spark)("java.util.regex.Pattern").compile(pattern)
        topics = _answer(spark, admin.listTopics().names())
        return [name for name in topics if compiled.matcher(name).matches()]
    return list(assigned(source)) or [part.strip() for part in source.option("subscribe").split(",")]


def _listed(
    spark: SparkSession,
    admin: Any,
    source: Source,
    described: dict[str, tuple[str, list[str]]],
    kind: str,
    *arguments: int,
) -> Offsets:
    """Return one offset of each partition.

    With isolation level `read_committed`, the end lies before open transactions.
    """
    java = classes(spark)
    spec = getattr(java("org.apache.kafka.clients.admin.OffsetSpec"), kind)(*arguments)
    specs = java("java.util.HashMap")()
    for topic, (_, parts) in described.items():
        for part in parts:
            specs.put(java("org.apache.kafka.common.TopicPartition")(topic, int(part)), spec)
    level = source.option("kafka.isolation.level", "read_uncommitted").upper()
    options = java("org.apache.kafka.clients.admin.ListOffsetsOptions")(
        java("org.apache.kafka.common.IsolationLevel").valueOf(level)
    )
    answer = _answer(spark, admin.listOffsets(specs, options).all())
    offsets: Offsets = {topic: {} for topic in described}
    for partition in answer.keySet():
        offsets[partition.topic()][str(partition.partition())] = int(answer.get(partition).offset())
    return {
        topic: dict(sorted(parts.items(), key=lambda item: int(item[0]))) for topic, parts in offsets.items()
    }


def _answer(spark: SparkSession, future: Any) -> Any:
    """Wait for what the brokers answer, :data:`SECONDS` at most."""
    return future.get(SECONDS, classes(spark)("java.util.concurrent.TimeUnit").SECONDS)


def _root_cause(error: Py4JJavaError) -> str:
    """Return the innermost cause, which names the topic or the timeout."""
    thrown = error.java_exception
    while thrown.getCause() is not None:
        thrown = thrown.getCause()
    return f"{thrown.getClass().getSimpleName()}: {thrown.getMessage()}"
