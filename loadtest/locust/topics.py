"""The topics of a run: their names, and how they are made and deleted.

Knows the admin client; nothing of locust.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

_SECONDS_MAX = 20.0


class Topic(NamedTuple):
    """A topic and its storage format, "" for the broker's default."""

    name: str
    format: str


def planned(options: Namespace) -> list[Topic]:
    """Return the topics that users write and read: the formats take turns."""
    formats = options.formats.split(",")
    turns = (formats[number % len(formats)] for number in range(options.topics))
    return [Topic(f"{options.prefix}-{number}", item) for number, item in enumerate(turns)]


def group_names(options: Namespace) -> list[str]:
    """Return the groups that users join."""
    return [f"{options.prefix}-group-{number}" for number in range(options.groups)]


def create(bootstrap: str, topics: Iterable[Topic], partitions: int) -> None:
    """Make topics; one that is there stays as it is. Raises KafkaException."""
    client = _client(bootstrap)
    wanted = [
        NewTopic(
            topic.name,
            num_partitions=partitions,
            replication_factor=1,
            config={"storage.format": topic.format} if topic.format else {},
        )
        for topic in topics
    ]
    _await(client.create_topics(wanted, request_timeout=_SECONDS_MAX), KafkaError.TOPIC_ALREADY_EXISTS)


def delete_everything(bootstrap: str, prefix: str) -> None:
    """Delete all topics and groups whose names begin with a prefix. Raises KafkaException."""
    client = _client(bootstrap)
    topics = [name for name in client.list_topics(timeout=_SECONDS_MAX).topics if name.startswith(prefix)]
    listed = client.list_consumer_groups(request_timeout=_SECONDS_MAX).result()
    groups = [item.group_id for item in listed.valid if item.group_id.startswith(prefix)]
    if topics:
        _await(client.delete_topics(topics), KafkaError.UNKNOWN_TOPIC_OR_PART)
    if groups:
        _await(client.delete_consumer_groups(groups), KafkaError.GROUP_ID_NOT_FOUND)


def _client(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def _await(futures: Mapping[str, Future[None]], fine: int) -> None:
    """Wait for all of them; an error with the code `fine` is none."""
    for future in futures.values():
        try:
            future.result(_SECONDS_MAX)
        except KafkaException as error:
            if error.args[0].code() != fine:
                raise
