"""The configs of topics and brokers: what they are, where that comes from, and how clients alter them.

Knows which resources have configs, and whose business each is; the rules for values are config_changes.py's. A broker
tells and alters its own settings and those of all brokers, as Kafka's do: clients send the rest where it belongs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

import msgspec

from korvet import logs
from korvet.domain import config_changes, topic_config
from korvet.domain.config_changes import Change
from korvet.domain.config_entries import ConfigEntry, broker_entries, cluster_entries
from korvet.domain.live_settings import LiveSettings
from korvet.domain.topic_names import check_name
from korvet.domain.topics import Topic, Topics
from korvet.errors import ErrorCode, KafkaError
from korvet.storage.broker_config_store import DEFAULT, BrokerConfigStore
from korvet.storage.topic_store import TopicRow

_log = logs.Log(__name__)

_ID = re.compile(r"[0-9]{1,10}")


class Kind(IntEnum):
    """What configs belong to (DescribeConfigs, `resource_type`)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(msgspec.Struct, frozen=True):
    """One topic, broker or other thing; a broker's name is its id, and '' are all brokers of the cluster.

    `kind` may be a number that is no Kind: nothing is known of such a resource.
    """

    kind: int
    name: str


Alteration = Callable[[Mapping[str, str]], dict[str, str]]
"""Is given what is set, and gives what is to be set instead; raises KafkaError where that cannot be."""


class Configs:
    """What handlers ask of configs. Every method raises KafkaError and StorageUnavailableError."""

    def __init__(self, topics: Topics, live: LiveSettings, store: BrokerConfigStore) -> None:
        self._topics = topics
        self._live = live
        self._store = store
        # The same for all topics until a setting is altered: a request may ask for thousands.
        self._inherited = topic_config.inherited(live.layers)
        self._inherited_from = live.layers

    def refresh(self) -> None:
        """Take in what others have altered just now: a client that altered something may ask another worker of it."""
        self._live.refresh()
        self._topics.refresh()

    def describe(self, resource: Resource) -> list[ConfigEntry]:
        """Return all configs of a resource by name, as of the last `refresh` or later.

        Raises KafkaError: INVALID_REQUEST (a resource that has no configs here, or another broker's),
        INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
        """
        match resource.kind:
            case Kind.TOPIC:
                check_name(resource.name, "")
                topic = self._topics.find(resource.name)
                return topic_config.with_overrides(self._of_every_topic(), topic.overrides)
            case Kind.BROKER if not resource.name:
                return cluster_entries(self._live.layers)
            case Kind.BROKER:
                self._check_own(resource.name)
                return broker_entries(self._live.layers)
            case Kind.GROUP:
                _check_group(resource.name)
                return []
            case _:
                raise _without_configs(resource)

    def alter(
        self,
        resource: Resource,
        changes: Sequence[Change],
        *,
        anew: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Change configs, all of `changes` or none; `anew`: and what they do not name is not set any more.

        Raises KafkaError as `describe`, and INVALID_REQUEST and INVALID_CONFIG for what cannot be.
        """
        config_changes.check_form(changes)
        self.refresh()
        layers = self._live.layers
        match resource.kind:
            case Kind.TOPIC:
                self._alter_topic(
                    resource.name,
                    lambda held: config_changes.changed_topic(held, changes, layers, anew=anew),
                    validate_only=validate_only,
                )
            case Kind.BROKER:
                if resource.name:
                    self._check_own(resource.name)
                    scope = config_changes.one_broker(layers)
                else:
                    scope = config_changes.all_brokers(layers)
                self._alter_broker(
                    resource.name,
                    lambda held: config_changes.changed_broker(held, changes, scope, anew=anew),
                    validate_only=validate_only,
                )
            case Kind.GROUP:
                _check_group(resource.name)
                if changes:
                    message = f"Unknown group config name: {changes[0].name}"
                    raise KafkaError(ErrorCode.INVALID_CONFIG, message)
            case _:
                raise _without_configs(resource)

    def _alter_topic(self, name: str, change: Alteration, *, validate_only: bool) -> None:
        topic = self._topic(name)
        if validate_only:
            change(topic.overrides)
            return

        def changed(row: TopicRow) -> TopicRow:
            return msgspec.structs.replace(row, configs=change(row.configs))

        self._topics.alter(topic, changed)

    def _alter_broker(self, name: str, change: Alteration, *, validate_only: bool) -> None:
        whose = str(self._live.settings.broker_id) if name else DEFAULT
        if validate_only:
            [held] = self._store.load(whose)
            change(held)
            return
        altered = self._store.alter(whose, change)
        told = ", ".join(f"{key}={value}" for key, value in sorted(altered.items()))
        _log.info("settings altered by a client", broker=name or "all", dynamic=told)
        self._live.refresh()

    def _of_every_topic(self) -> Sequence[ConfigEntry]:
        if self._inherited_from is not self._live.layers:
            self._inherited_from = self._live.layers
            self._inherited = topic_config.inherited(self._inherited_from)
        return self._inherited

    def _topic(self, name: str) -> Topic:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_name(name, "")
        return self._topics.find(name)

    def _check_own(self, name: str) -> None:
        own = self._live.settings.broker_id
        if not _ID.fullmatch(name):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
        if int(name) != own:
            message = f"Unexpected broker id, expected {own} or empty string, but received {name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_group(name: str) -> None:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")


def _without_configs(resource: Resource) -> KafkaError:
    match resource.kind:
        case Kind.BROKER_LOGGER:
            said = "Loggers are no resources of their own: the broker's setting log.levels has their levels"
        case Kind.CLIENT_METRICS:
            said = "Subscriptions to clients' metrics are not supported"
        case _:
            said = f"Unknown resource type {resource.kind}"
    return KafkaError(ErrorCode.INVALID_REQUEST, said)
