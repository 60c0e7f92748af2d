"""A real consumer that has joined its group: what tests of groups need a member for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from confluent_kafka import Consumer

from tests.support.processes import wait_until


@contextlib.contextmanager
def joined(
    bootstrap: str, group: str, topic: str, *, instance: str = "", protocol: str = "classic"
) -> Iterator[Consumer]:
    """Run a consumer of librdkafka, with client id `reader`, until it has been assigned partitions of the topic.

    `protocol` is the group's: classic or consumer.
    """
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "client.id": "reader",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(config | ({"group.instance.id": instance} if instance else {}))
    try:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(0.05) is not None or consumer.assignment(), "the member is assigned")
        yield consumer
    finally:
        consumer.close()
