"""A real consumer that has joined its group: what tests of groups need a member for."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer

from tests.handlers import apis
from tests.support.processes import wait_until
from tests.support.topic_client import Client


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


@contextlib.contextmanager
def sharing(client: Client, group: str, topic: str) -> Iterator[str]:
    """Have a member in a share group, and give its id."""
    member_id = str(uuid.uuid4())
    member = {"group_id": group, "member_id": member_id}
    joined = client.ask(apis.ShareGroupHeartbeat, 1, **member, subscribed_topic_names=[topic])
    assert joined.assignment is not None
    try:
        yield member_id
    finally:
        assert client.ask(apis.ShareGroupHeartbeat, 1, **member, member_epoch=-1).error_code == 0


@contextlib.contextmanager
def streaming(client: Client, group: str, topic: str, *, leaves: bool = True) -> Iterator[str]:
    """Have a member in a streams group that has the tasks of a topic, and give its id; in the end it `leaves`."""
    member_id = str(uuid.uuid4())
    member = {"group_id": group, "member_id": member_id, "endpoint_information_epoch": -1}

    def heartbeat(epoch: int, **fields: Any) -> Any:
        answer = client.ask(apis.StreamsGroupHeartbeat, 0, **member, member_epoch=epoch, **fields)
        assert answer.error_code == 0
        return answer

    topology = {"subtopologies": [{"subtopology_id": "0", "source_topics": [topic]}]}
    joined_in = heartbeat(0, rebalance_timeout_ms=60_000, topology=topology, process_id="p")
    # The first assignment waits for more members.
    wait_until(lambda: not heartbeat(joined_in.member_epoch).status, "it has its tasks")
    try:
        yield member_id
    finally:
        if leaves:
            heartbeat(-1)
