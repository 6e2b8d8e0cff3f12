"""Reads the contents of a source's topics from Kafka's brokers without a JVM.

It uses confluent-kafka, an optional dependency. The source's options are those of Kafka's Java clients.
Options of authentication are translated; one that cannot be translated is reported, not ignored.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from streamkeeper.declare.model import Source
from streamkeeper.errors import NotAskable, SourceError
from streamkeeper.manifest.environment import variables
from streamkeeper.settings import PIPELINE_ENV
from streamkeeper.sources.kafka.offsets import OffsetRange, Offsets, Topics
from streamkeeper.sources.kafka.options import admin_options, assigned, plain_ids

SECONDS = 5.0
"""Seconds that brokers may take to answer a question of a plan or of the monitor."""

_SAME = (
    "bootstrap.servers",
    "security.protocol",
    "sasl.mechanism",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
)
_PEM = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
_NEEDLESS = ("ssl.truststore.type", "ssl.keystore.type", "ssl.protocol", "ssl.enabled.protocols")
_LOGIN = re.compile(
    r"\.(?:PlainLoginModule|ScramLoginModule)\s.*?\busername=\"([^\"]*)\".*?\bpassword=\"([^\"]*)\"",
    re.DOTALL,
)


def look_at(source: Source, seconds: float = SECONDS) -> Topics:
    """Return the offsets that the topics of an opened source hold, their ids, and their clean-up policies.

    A policy is missing if this client is not allowed to read it.

    :raises SourceError: the brokers do not answer in time, a topic does not exist, or the source's options
        are only understood with a JVM.
    """
    with _asking(source, seconds) as source_client:
        first, end = source_client.offsets("earliest"), source_client.offsets("latest")
        ranges = {
            topic: {part: OffsetRange(first[topic][part], end[topic][part]) for part in parts}
            for topic, parts in source_client.parts.items()
        }
        return Topics(ranges, source_client.ids(), source_client.policies())


def at_time(source: Source, moment_ms: int, seconds: float = SECONDS) -> Offsets:
    """Return the offsets of the first records at or after a time (epoch ms); the end if there is none.

    :raises SourceError: as :func:`look_at`.
    """
    with _asking(source, seconds) as source_client:
        offsets, end = source_client.offsets("for_timestamp", moment_ms), source_client.offsets("latest")
        return {
            topic: {part: end[topic][part] if at < 0 else at for part, at in parts.items()}
            for topic, parts in offsets.items()
        }


def written_at(source: Source, offsets: Offsets, seconds: float = SECONDS) -> Offsets:
    """Return when (epoch ms) the first record at or after each offset was written, by topic and partition.

    Partitions without such a record are left out: what follows there are the marks of transactions.

    :raises SourceError: as :func:`look_at`.
    """
    kafka: Any = _module("confluent_kafka")
    group = f"{source.option('groupIdPrefix', 'spark-kafka-source')}-lag"  # a name that Spark's may have, too
    options = {
        **_READS_LITTLE,
        "isolation.level": source.option("kafka.isolation.level", "read_uncommitted"),
        "group.id": source.option("kafka.group.id", group),
    }
    times: Offsets = {}
    pending = {(topic, int(part)): at for topic, parts in offsets.items() for part, at in parts.items()}
    with _connected(source, seconds, kafka.Consumer, options) as consumer:
        try:
            consumer.assign([kafka.TopicPartition(*place, at) for place, at in pending.items()])
            until = time.monotonic() + seconds
            while pending:
                message = consumer.poll(max(0.0, until - time.monotonic()))
                if message is None:
                    raise TimeoutError
                error, place = message.error(), (message.topic(), message.partition())
                if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:
                    raise kafka.KafkaException(error)
                if pending.pop(place, None) is not None:
                    consumer.pause([kafka.TopicPartition(*place)])
                    if error is None:
                        times.setdefault(place[0], {})[str(place[1])] = message.timestamp()[1]
        finally:
            consumer.close()
    return times


def client_options(source: Source, seconds: float) -> dict[str, Any]:
    """Return the options of confluent-kafka's clients for those of a source.

    :raises SourceError: an option of authentication cannot be translated.
    """
    options: dict[str, Any] = {"log_level": 0, "socket.timeout.ms": int(seconds * 1000)}
    for name, value in admin_options(source, seconds).items():
        if name in _SAME:
            options[name] = value
        elif name in _PEM:
            options[_PEM[name]] = value
        elif name == "sasl.jaas.config" and (login := _LOGIN.search(value)):
            options["sasl.username"], options["sasl.password"] = login[1], login[2]
        elif name.startswith(("ssl.", "sasl.")) and name not in _NEEDLESS:
            raise NotAskable(f"its option kafka.{name} is only understood with a JVM")
    return options


_READS_LITTLE = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "fetch.message.max.bytes": 2**14,
    "queued.min.messages": 1,
}
"""Options of a consumer that reads one record of a partition, and commits nothing."""

_NOT_ALLOWED = (29, 31)
"""Kafka's error codes TOPIC_AUTHORIZATION_FAILED and CLUSTER_AUTHORIZATION_FAILED."""


class _SourceClient:
    """A client, and the partitions of the source by topic."""

    def __init__(self, client: Any, source: Source, seconds: float) -> None:
        self._kafka: Any = importlib.import_module("confluent_kafka")
        self._admin: Any = importlib.import_module("confluent_kafka.admin")
        self._client, self._source, self._seconds = client, source, seconds
        self.parts = self._partitions(client.list_topics(timeout=seconds).topics)

    def ids(self) -> dict[str, str]:
        if not self.parts:
            return {}
        futures = self._client.describe_topics(
            self._kafka.TopicCollection(list(self.parts)), request_timeout=self._seconds
        )
        return plain_ids(
            {topic: str(future.result(self._seconds).topic_id) for topic, future in futures.items()}
        )

    def policies(self) -> dict[str, str]:
        """Return each topic's ``cleanup.policy``, except those that this client may not read."""
        kind = self._admin.ConfigResource.Type.TOPIC
        resources = {topic: self._admin.ConfigResource(kind, topic) for topic in self.parts}
        if not resources:
            return {}
        futures = self._client.describe_configs(list(resources.values()), request_timeout=self._seconds)
        policies = {}
        for topic, resource in resources.items():
            try:
                policies[topic] = str(futures[resource].result(self._seconds)["cleanup.policy"].value)
            except self._kafka.KafkaException as error:
                if error.args[0].code() not in _NOT_ALLOWED:
                    raise
        return policies

    def offsets(self, kind: str, *arguments: int) -> Offsets:
        spec = getattr(self._admin.OffsetSpec, kind)(*arguments)
        specs = {
            self._kafka.TopicPartition(topic, int(part)): spec
            for topic, parts in self.parts.items()
            for part in parts
        }
        if not specs:
            return {}
        level = self._source.option("kafka.isolation.level", "read_uncommitted").upper()
        futures = self._client.list_offsets(
            specs, isolation_level=getattr(self._kafka.IsolationLevel, level), request_timeout=self._seconds
        )
        offsets: Offsets = {topic: {} for topic in self.parts}
        for partition, future in futures.items():
            offsets[partition.topic][str(partition.partition)] = int(future.result(self._seconds).offset)
        return offsets

    def _partitions(self, topics: Mapping[str, Any]) -> dict[str, list[str]]:
        assigned_parts = assigned(self._source)
        if pattern := self._source.option("subscribePattern"):
            names = [name for name in topics if _matches(pattern, name)]
        else:
            names = list(assigned_parts) or [
                part.strip() for part in self._source.option("subscribe").split(",")
            ]
        if missing := [name for name in names if name not in topics or topics[name].error is not None]:
            raise SourceError(f"the topic {missing[0]} is not there")
        return {
            name: [str(part) for part in assigned_parts.get(name, sorted(topics[name].partitions))]
            for name in sorted(names)
        }


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error as error:
        raise NotAskable(
            f"its subscribePattern {pattern!r} is only understood with a JVM ({error})"
        ) from error


@contextmanager
def _asking(source: Source, seconds: float) -> Iterator[_SourceClient]:
    with _connected(source, seconds, _module("confluent_kafka.admin").AdminClient, {}) as client:
        yield _SourceClient(client, source, seconds)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotAskable(
            "confluent-kafka is not installed here; install streamkeeper-airflow[kafka]"
        ) from error


@contextmanager
def _connected(
    source: Source, seconds: float, kind: Callable[[Any], Any], more: Mapping[str, Any]
) -> Iterator[Any]:
    """Make a client of a source's brokers, whose errors say which these are."""
    if unset := variables(source):
        raise NotAskable(
            f"the environment variable {unset[0]} is not set here, or {PIPELINE_ENV} does not name it"
        )
    errors: list[str] = []
    options = {
        **client_options(source, seconds),
        "error_cb": lambda error: errors.append(str(error.str())),
    }
    client = kind({**options, **more})
    try:
        yield client
    except _module("confluent_kafka").KafkaException as error:
        if hasattr(client, "describe_topics"):
            client.poll(0)  # only poll delivers the errors of the client's connections
        message = errors[-1] if errors else error.args[0].str()
        raise SourceError(
            f"{options['bootstrap.servers']} does not answer within {seconds:g} s: {message}"
        ) from error
    except TimeoutError as error:
        raise SourceError(f"{options['bootstrap.servers']} does not answer within {seconds:g} s") from error
