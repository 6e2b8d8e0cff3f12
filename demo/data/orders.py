"""The part of the demo that needs Kafka: a producer that sends orders, some late, some twice.

Asked for by ``make demo KAFKA=1``, or by itself: python -m demo.data.orders BROKERS [--every SECONDS]
"""

from __future__ import annotations

import argparse
import json
import uuid
from datetime import datetime, timedelta, timezone
from functools import partial
from random import Random
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from demo.data.generator import Feed, run
from tools.waiting import NotYet, wait_until

VARIABLE = "ORDERS_BROKERS"
"""Names the brokers; without it the pipeline ``orders`` is not offered."""
TOPIC, PARTITIONS = "orders", 3
TOPIC_SECONDS = 120.0
NEW, REPEATED, LATE = 20, 0.15, 0.08
"""Orders that are new each time, the share of repeated ones, which come on top, and of late ones."""
_KEPT = 500
"""Orders that may be sent again."""


class Orders(Feed):
    """Sends orders to a topic, which is made if it is not there.

    :param brokers: Kafka's address.
    """

    def __init__(self, brokers: str, every: float = 2.0) -> None:
        super().__init__(every)
        self.brokers = brokers
        self._random, self._recent = Random(), list[bytes]()

    def start(self) -> Self:
        self._make_topic()
        settings = {"bootstrap.servers": self.brokers, "enable.idempotence": True, "log_level": 3}
        self._producer = Producer(settings)
        return super().start()

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            del self._producer  # before its broker, whose going it would report

    def write(self) -> None:
        for order in self._orders(self._random, datetime.now(timezone.utc)):
            self._producer.produce(TOPIC, order, on_delivery=self._delivered)
        self._producer.flush(30)

    def _make_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.brokers})

        def made() -> bool:
            try:
                if TOPIC not in admin.list_topics(timeout=10).topics:
                    for creation in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
                        creation.result(10)
            except KafkaException as error:
                raise NotYet(str(error)) from error
            return True

        wait_until(made, TOPIC_SECONDS, f"Kafka has the topic {TOPIC}")

    def _orders(self, random: Random, moment: datetime) -> list[bytes]:
        new = [_order(random, moment) for _ in range(NEW)]
        again = [random.choice(self._recent) for _ in new if self._recent and random.random() < REPEATED]
        self._recent = [*self._recent, *new][-_KEPT:]
        return random.sample([*new, *again], len(new) + len(again))

    def _delivered(self, error: Any, _message: object) -> None:
        if error is not None:
            self._failed = RuntimeError(f"Kafka did not take an order: {error}")
        else:
            self.written += 1


class Sent:
    """Reads the ids of the orders that a topic holds; each as often as it came."""

    def __init__(self, brokers: str) -> None:
        self.ids: list[str] = []
        self._next = dict.fromkeys(range(PARTITIONS), 0)
        self._consumer = Consumer(
            {"bootstrap.servers": brokers, "group.id": "seen", "enable.auto.commit": False}
        )
        self._consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in self._next])

    def read(self) -> dict[int, int]:
        """Read on to the present end of each partition, and return those ends by partition."""
        condition = f"Kafka tells the ends of {TOPIC}"
        ends = {part: wait_until(partial(self._end, part), TOPIC_SECONDS, condition) for part in self._next}
        while any(self._next[partition] < end for partition, end in ends.items()):
            message = self._consumer.poll(60)
            if message is None:
                raise TimeoutError("Kafka gave nothing for a minute")
            if message.error():
                raise KafkaException(message.error())
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None and offset is not None and value is not None, "it is a record"
            self._next[partition] = offset + 1
            self.ids.append(json.loads(value)["order_id"])
        return ends

    def _end(self, partition: int) -> int:
        try:
            return int(self._consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=10)[1])
        except KafkaException as error:
            raise NotYet(str(error)) from error  # of a broker that was just started again, say

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()


def _order(random: Random, moment: datetime) -> bytes:
    age = (
        timedelta(minutes=random.uniform(3, 45))
        if random.random() < LATE
        else timedelta(seconds=random.uniform(0, 2))
    )
    order = {
        "order_id": str(uuid.UUID(int=random.getrandbits(128), version=4)),
        "customer_id": random.randint(1, 500),
        "amount": round(random.uniform(1, 200), 2),
        "ordered_at": (moment - age).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    return json.dumps(order).encode()


def main(arguments: list[str] | None = None) -> None:
    """Send orders until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m demo.data.orders", description="Send orders to Kafka.")
    parser.add_argument("brokers")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS")
    chosen = parser.parse_args(arguments)
    run(Orders(chosen.brokers, every=chosen.every))


if __name__ == "__main__":
    main()
