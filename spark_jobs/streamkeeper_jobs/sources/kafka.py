"""Kafka in a driver: brokers are asked by Kafka's own client, with the options of the source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.checkpoint import write_initial_offsets
from streamkeeper.declare.model import Source
from streamkeeper.sources.kafka.start import KafkaLook, KafkaPosition
from streamkeeper.sources.replay_steps import cut_offsets
from streamkeeper_jobs.sources.job_format import JobFormat, Planting
from streamkeeper_jobs.spark import kafka_topics


class KafkaInJob(JobFormat[KafkaLook, KafkaPosition]):
    """Topics of Kafka."""

    has_ids = True

    def look_directly(self, spark: SparkSession, source: Source) -> KafkaLook:
        return KafkaLook(kafka_topics.look_at(spark, source), partial(kafka_topics.at_time, spark, source))

    def write_position(
        self, into: Planting, position: KafkaPosition, look: Callable[[], KafkaLook]
    ) -> list[Any]:
        offsets = position.offsets
        first = position.replay_from if into.bound and offsets is not None else position.initial
        into.write(write_initial_offsets(first))
        if offsets is None:
            return []
        end = into.first if into.as_it_came else offsets
        if end is None:
            return []
        return cut_offsets(first, end, into.bound.records) if into.bound else [end]

    def comes_again(
        self,
        spark: SparkSession,
        source: Source,
        position: KafkaPosition,
        offsets: Sequence[Any],
        look: Callable[[], KafkaLook],
    ) -> bool:
        return not position.gone and position.offsets == offsets[-1]

    def missing(
        self, spark: SparkSession, source: Source, position: KafkaPosition, look: Callable[[], KafkaLook]
    ) -> str | None:
        if position.offsets is None or not position.gone:
            return None
        return (
            f"up to {position.gone} of the processed records of source {source.name} are gone from its topics"
        )

    def ids(self, look: KafkaLook) -> dict[str, str]:
        return dict(look.topics.ids)
