"""Administrators: they make topics, look at them and at groups, and delete them.

Knows the admin client.
"""

from __future__ import annotations

import uuid

from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # documented there
from confluent_kafka.cimpl import NewTopic
from locust import constant_throughput, task
from locust.env import Environment

from loadtest.locust import topics
from loadtest.locust.operations import (
    CREATE_TOPIC,
    DELETE_TOPIC,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUP,
    METADATA,
)
from loadtest.locust.user import REQUEST_SECONDS_MAX, KafkaUser

_TASKS_PER_SECOND = 1
_PARTITIONS = 6


class AdminUser(KafkaUser):
    """Does one thing a second."""

    wait_time = constant_throughput(_TASKS_PER_SECOND)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._topics = topics.planned(self.options)
        self._groups = topics.group_names(self.options)

    def on_start(self) -> None:
        """Connect, and ask for all topics, so that even a run of seconds has measured that."""
        self._client = AdminClient(self.client_config())
        self.look()

    @task(2)
    def look(self) -> None:
        """Ask for all topics."""
        with self.measured(METADATA):
            self.blocking(self._client.list_topics, timeout=REQUEST_SECONDS_MAX)

    @task(2)
    def describe(self) -> None:
        """Ask for a topic's configs, and for a group with its members."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, self._topics[0].name)
        with self.measured(DESCRIBE_CONFIGS):
            self.blocking(self._client.describe_configs([resource])[resource].result, REQUEST_SECONDS_MAX)
        group = self._groups[0]
        with self.measured(DESCRIBE_GROUP):
            described = self._client.describe_consumer_groups([group])[group]
            self.blocking(described.result, REQUEST_SECONDS_MAX)

    @task(1)
    def create_and_delete(self) -> None:
        """Make a topic and delete it."""
        name = f"{self.options.prefix}-short-{uuid.uuid4().hex}"
        with self.measured(CREATE_TOPIC):
            created = self._client.create_topics([NewTopic(name, _PARTITIONS, 1)])[name]
            self.blocking(created.result, REQUEST_SECONDS_MAX)
        with self.measured(DELETE_TOPIC):
            self.blocking(self._client.delete_topics([name])[name].result, REQUEST_SECONDS_MAX)
