"""The configs of topics and brokers: what they are, where that comes from, and how clients alter them.

Knows which resources have configs, and whose business each is; the rules for values are config_changes.py's. A broker
tells and alters its own settings and those of all brokers, as Kafka's do: clients send the rest where it belongs.

What becomes of the configs of a topic or a broker that are set, deleted, appended to or subtracted from (KIP-339).

Knows the rules; nothing of Redis, of where configs are kept, or of messages. Values are texts, as clients give them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from korvet import logs
from korvet.cluster.dynamic_settings import DEFAULT, BrokerConfigStore, LiveSettings
from korvet.config.dynamic import CLUSTER_WIDE, THIS_BROKER, Layers, checked, dynamic_rows, merge
from korvet.config.settings import rows
from korvet.errors import ConfigError, ErrorCode, KafkaError
from korvet.protocol.types import ConfigOperation, ConfigType, ResourceType
from korvet.topics import config as topic_config
from korvet.topics.config_defs import (
    DEFINITIONS,
    ConfigEntry,
    broker_entries,
    chain,
    cluster_entries,
    listed,
)
from korvet.topics.registry import Topic, Topics, check_name
from korvet.topics.types import TopicRow

_ARCHIVED = "remote.storage.enable"

Held = Mapping[str, str]
"""What is set already, by name."""


class Change(msgspec.Struct, frozen=True):
    """One config, what is to be done to it, and with which value; DELETE needs none."""

    name: str
    operation: ConfigOperation
    value: str | None


def check_form(changes: Sequence[Change]) -> None:
    """Raise KafkaError INVALID_REQUEST where a config is named twice, or has no value where it needs one."""
    times = Counter(change.name for change in changes)
    if twice := sorted(name for name, count in times.items() if count > 1):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Named more than once: {', '.join(twice)}")
    null = [
        each.name for each in changes if each.value is None and each.operation is not ConfigOperation.DELETE
    ]
    if null:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for: {', '.join(null)}")


def changed_topic(
    held: Held, changes: Sequence[Change], layers: Layers, *, anew: bool = False
) -> dict[str, str]:
    """Return the configs of a topic after `changes`; raises KafkaError INVALID_CONFIG where one cannot be.

    `anew`: only what `changes` name is set then, and what is fixed when a topic is created. What is appended to and
    subtracted from is the value that counts, be it the topic's own or not.
    """
    fixed = topic_config.FIXED_AT_CREATION
    result = {name: value for name, value in held.items() if name in fixed or not anew}
    inherited = topic_config.values({}, layers.settings)
    for change in changes:
        name = change.name
        definition = DEFINITIONS.get(name)
        if definition is None and not (change.operation is ConfigOperation.DELETE and name in held):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if change.operation is ConfigOperation.DELETE:
            _keep_fixed(name, held, None)
            result.pop(name, None)
            continue
        value = change.value
        if change.operation is not ConfigOperation.SET:
            if definition is None or definition.type is not ConfigType.LIST:
                raise KafkaError(ErrorCode.INVALID_CONFIG, _no_list(change))
            value = _combined(held.get(name, inherited.get(name, "")), change)
        value = topic_config.check_override(name, value)
        _keep_fixed(name, held, value)
        result[name] = value
    if held.get(_ARCHIVED) == "true" and result.get(_ARCHIVED) != "true":
        message = f"{_ARCHIVED} cannot be switched off: consumers would lose what only the archive holds"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    topic_config.check_together(result, layers.settings)
    return result


def _keep_fixed(name: str, held: Held, value: str | None) -> None:
    if name in topic_config.FIXED_AT_CREATION and value != held.get(name):
        message = f"{name} is fixed when a topic is created; that of this topic is {held.get(name)}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _no_list(change: Change) -> str:
    return f"Can't {change.operation.name} to key {change.name} because its type is not LIST."


def _combined(now: str, change: Change) -> str:
    """Return a list with parts appended that are not in it, or without those that are."""
    parts, given = listed(now), listed(change.value or "")
    if change.operation is ConfigOperation.APPEND:
        parts += [part for part in given if part not in parts]
    else:
        parts = [part for part in parts if part not in given]
    return ",".join(parts)


class Scope(msgspec.Struct, frozen=True):
    """Whose dynamic settings are changed: all brokers' (`layer` CLUSTER_WIDE) or those of the one that is asked.

    `below` is what counts where nothing is set in that layer; `over` lays a row there, and raises ConfigError where it
    does not go together with what there is.
    """

    layer: str
    below: Layers
    over: Callable[[Held], object]


def all_brokers(layers: Layers) -> Scope:
    """Return the scope of all brokers, as the one that is asked sees it."""

    def over(row: Held) -> None:
        merge(layers.static, row, {})
        merge(layers.static, row, layers.broker)

    return Scope(CLUSTER_WIDE, Layers(settings=layers.static, static=layers.static), over)


def one_broker(layers: Layers) -> Scope:
    """Return the scope of the broker that is asked."""
    return Scope(
        THIS_BROKER,
        msgspec.structs.replace(layers, broker={}),
        lambda row: merge(layers.static, layers.cluster, row),
    )


def changed_broker(
    held: Held, changes: Sequence[Change], scope: Scope, *, anew: bool = False
) -> dict[str, str]:
    """Return the dynamic settings after `changes`; `anew`: only what they name is set then.

    Raises KafkaError: INVALID_CONFIG for a name that is no setting, and where something is appended to or subtracted
    from what is no list; INVALID_REQUEST, which is Kafka's answer here, for a setting that cannot be altered while
    brokers run, and for a value that cannot be.
    """
    result = {} if anew else dict(held)
    _check_names([each.name for each in changes], held)
    for change in changes:
        if change.operation is ConfigOperation.DELETE:
            result.pop(change.name, None)
        else:
            result[change.name] = _new_setting(held, change, scope)
    try:
        scope.over({name: text for name, text in result.items() if name in dynamic_rows()})
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    return result


def _new_setting(held: Held, change: Change, scope: Scope) -> str:
    row, value = dynamic_rows()[change.name], change.value or ""
    if change.operation is not ConfigOperation.SET:
        if not row.is_list:
            raise KafkaError(ErrorCode.INVALID_CONFIG, _no_list(change))
        value = _combined(held.get(row.name, chain(row, scope.below)[0].value or ""), change)
    topic_config.check_size(row.name, value)
    try:
        return checked(row.name, value, scope.layer)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error


def _check_names(names: Sequence[str], held: Held) -> None:
    known = {row.name for row in rows()} | dynamic_rows().keys()
    for name in names:
        # What another version of Korvet has set may be deleted.
        if name not in known and name not in held:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {name}")
    fixed = [name for name in names if name in known and name not in dynamic_rows()]
    if fixed:
        message = f"Cannot update these configs dynamically: {', '.join(fixed)}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


_log = logs.Log(__name__)

_ID = re.compile(r"[0-9]{1,10}")


class Resource(msgspec.Struct, frozen=True):
    """One topic, broker or other thing; a broker's name is its id, and '' are all brokers of the cluster.

    `kind` may be a number that is no ResourceType: nothing is known of such a resource.
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
            case ResourceType.TOPIC:
                check_name(resource.name, "")
                topic = self._topics.find(resource.name)
                return topic_config.with_overrides(self._of_every_topic(), topic.overrides)
            case ResourceType.BROKER if not resource.name:
                return cluster_entries(self._live.layers)
            case ResourceType.BROKER:
                self._check_own(resource.name)
                return broker_entries(self._live.layers)
            case ResourceType.GROUP:
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
        check_form(changes)
        self.refresh()
        layers = self._live.layers
        match resource.kind:
            case ResourceType.TOPIC:
                self._alter_topic(
                    resource.name,
                    lambda held: changed_topic(held, changes, layers, anew=anew),
                    validate_only=validate_only,
                )
            case ResourceType.BROKER:
                if resource.name:
                    self._check_own(resource.name)
                    scope = one_broker(layers)
                else:
                    scope = all_brokers(layers)
                self._alter_broker(
                    resource.name,
                    lambda held: changed_broker(held, changes, scope, anew=anew),
                    validate_only=validate_only,
                )
            case ResourceType.GROUP:
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
        case ResourceType.BROKER_LOGGER:
            said = "Loggers are no resources of their own: the broker's setting log.levels has their levels"
        case ResourceType.CLIENT_METRICS:
            said = "Subscriptions to clients' metrics are not supported"
        case _:
            said = f"Unknown resource type {resource.kind}"
    return KafkaError(ErrorCode.INVALID_REQUEST, said)
