"""The configs of topics, brokers and groups, as clients describe and alter them.

A broker describes and alters its own settings and those of all brokers, as Kafka's do: clients send the rest to the
broker concerned. Values are texts, as clients give them; a change is made as a whole or not at all (KIP-339).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

import msgspec

from korvet import logs
from korvet.cluster.dynamic_settings import BrokerConfigStore, LiveSettings
from korvet.cluster.group_configs import GroupConfigs, GroupRow
from korvet.config.broker_configs import BROKER_CONFIGS, DYNAMIC_CONFIGS
from korvet.config.definition import ConfigDef
from korvet.config.described import (
    ConfigEntry,
    Synonym,
    broker_entries,
    cluster_entries,
    group_entries,
    inherited_entries,
    logger_entries,
    slot_tags,
    with_overrides,
)
from korvet.config.dynamic import CLUSTER_WIDE, DEFAULT, THIS_BROKER, Layers, merge, merge_valid
from korvet.config.group_configs import GROUP_CONFIGS
from korvet.config.topic_configs import FIXED_AT_CREATION, SLOT_TAGS, TOPIC_CONFIGS
from korvet.config.values import key_values, listed
from korvet.errors import ConfigError, ErrorCode, KafkaError
from korvet.protocol.types import ConfigOperation, ConfigSource, ConfigType, ResourceType
from korvet.topics import config as topic_config
from korvet.topics.registry import Topic, TopicRegistry, check_name
from korvet.topics.types import TopicRow

_log = logs.Log(__name__)

_ARCHIVED = "remote.storage.enable"
_ID = re.compile(r"[0-9]{1,10}")
_WITHOUT_CONFIGS: dict[int, str] = {
    ResourceType.CLIENT_METRICS: "Subscriptions to clients' metrics are not supported",
}
_LEVELS_SHOWN = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}
_LEVELS_TAKEN = {shown: level for level, shown in _LEVELS_SHOWN.items()} | {
    "TRACE": "debug",
    "FATAL": "error",
}
"""Levels of loggers by Kafka's names (KIP-412)."""


class ConfigChange(msgspec.Struct, frozen=True):
    """One config, the operation on it, and its value, which DELETE does not need."""

    name: str
    operation: ConfigOperation
    value: str | None


class ConfigResource(msgspec.Struct, frozen=True):
    """A topic, a broker or another thing with configs; a broker's name is its id, and '' are all brokers.

    `type` may be a number that is no ResourceType: such a resource is unknown.
    """

    type: int
    name: str


class ConfigAdmin:
    """Describes and alters configs. Every method raises KafkaError and StorageUnavailableError."""

    def __init__(
        self,
        topics: TopicRegistry,
        live: LiveSettings,
        store: BrokerConfigStore,
        groups: GroupConfigs,
        listening: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Take for `listening` what settings are in effect that follow from others where they are not given."""
        self._listening = listening
        self._topics = topics
        self._live = live
        self._store = store
        self._groups = groups
        # The same for all topics until a setting is altered: a request may ask for thousands.
        self._inherited = inherited_entries(live.layers)
        self._inherited_from = live.layers

    def refresh(self) -> None:
        """Read what others have altered: a client may alter a config and ask another worker for it at once."""
        self._live.refresh()
        self._topics.refresh()
        self._groups.refresh()

    def groups(self) -> list[str]:
        self._groups.refresh()
        return self._groups.groups()

    def describe(self, resource: ConfigResource) -> list[ConfigEntry]:
        """Return all configs of a resource by name, as of the last `refresh` or later.

        Raises KafkaError: INVALID_REQUEST (a resource that has no configs here, or another broker's),
        INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
        """
        match resource.type:
            case ResourceType.TOPIC:
                check_name(resource.name)
                topic = self._topics.get(resource.name)
                entries = with_overrides(self._of_every_topic(), topic.overrides, topic.named)
                tags = _slot_tags(topic)
                return sorted([*entries, slot_tags(tags)], key=_by_name) if tags else entries
            case ResourceType.BROKER if not resource.name:
                return cluster_entries(self._live.layers)
            case ResourceType.BROKER:
                self._check_own(resource.name)
                return [self._as_it_is(broker_entry) for broker_entry in broker_entries(self._live.layers)]
            case ResourceType.BROKER_LOGGER:
                self._check_own(resource.name)
                levels = logs.levels(self._live.settings)
                return logger_entries({name: _LEVELS_SHOWN[level] for name, level in levels.items()})
            case ResourceType.GROUP:
                _check_group(resource.name)
                return group_entries(self._live.layers, self._groups.overrides(resource.name))
        raise _without_configs(resource)

    def alter(
        self,
        resource: ConfigResource,
        changes: Sequence[ConfigChange],
        *,
        reset: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Change configs, all of `changes` or none; with `reset`, delete all that `changes` do not name.

        Raises KafkaError as `describe`, and INVALID_REQUEST and INVALID_CONFIG for changes that are refused.
        """
        _check_form(changes)
        self.refresh()
        match resource.type:
            case ResourceType.TOPIC:
                self._alter_topic(resource.name, changes, reset=reset, validate_only=validate_only)
            case ResourceType.BROKER:
                self._alter_broker(resource.name, changes, reset=reset, validate_only=validate_only)
            case ResourceType.BROKER_LOGGER if not reset:  # AlterConfigs cannot, as in Kafka
                self._check_own(resource.name)
                _check_loggers(changes, logs.levels(self._live.settings))
                altered_levels = partial(altered_loggers, changes=changes, layers=self._live.layers)
                self._replace_row(resource.name, altered_levels, validate_only=validate_only)
            case ResourceType.GROUP:
                _check_group(resource.name)
                change = partial(altered_group, changes=changes, reset=reset)
                self._groups.alter(resource.name, change, validate_only=validate_only)
            case _:
                raise _without_configs(resource)

    def _alter_topic(
        self, name: str, changes: Sequence[ConfigChange], *, reset: bool, validate_only: bool
    ) -> None:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_name(name)
        topic = self._topics.get(name)
        # All that was described can be set.
        as_described = (SLOT_TAGS.name, _slot_tags(topic) or None)
        changes = [item for item in changes if (item.name, item.value) != as_described]
        change = partial(altered_topic, changes=changes, layers=self._live.layers, reset=reset)
        if validate_only:
            change(topic.row)
        else:
            self._topics.alter(topic, change)

    def _alter_broker(
        self, name: str, changes: Sequence[ConfigChange], *, reset: bool, validate_only: bool
    ) -> None:
        if name:
            self._check_own(name)
        layer = THIS_BROKER if name else CLUSTER_WIDE
        change = partial(altered_broker, changes=changes, layers=self._live.layers, layer=layer, reset=reset)
        self._replace_row(name, change, validate_only=validate_only)

    def _replace_row(
        self, name: str, change: Callable[[Mapping[str, str]], dict[str, str]], *, validate_only: bool
    ) -> None:
        """Replace the settings of this broker, or with name "" those of all, by what `change` makes of them."""
        whose = str(self._live.layers.static.broker_id) if name else DEFAULT
        if validate_only:
            [row] = self._store.load(whose)
            change(row)
            return
        row = self._store.alter(whose, change)
        now = ", ".join(f"{key}={value}" for key, value in sorted(row.items()))
        _log.info("settings altered by a client", broker=name or "all", dynamic=now)
        self._live.refresh()

    def _of_every_topic(self) -> Sequence[ConfigEntry]:
        if self._inherited_from is not self._live.layers:
            self._inherited_from = self._live.layers
            self._inherited = inherited_entries(self._inherited_from)
        return self._inherited

    def _as_it_is(self, entry: ConfigEntry) -> ConfigEntry:
        """Return a setting of this broker with the value that it has in effect."""
        name = entry.definition.name
        value = self._listening.get(name)
        if value is None or entry.value == value:
            return entry
        synonyms = (Synonym(name, value, ConfigSource.STATIC), *entry.synonyms)
        return ConfigEntry(entry.definition, value, ConfigSource.STATIC, synonyms)

    def _check_own(self, name: str) -> None:
        own = self._live.settings.broker_id
        if not _ID.fullmatch(name):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
        if int(name) != own:
            message = f"Unexpected broker id, expected {own} or empty string, but received {name}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _slot_tags(topic: Topic) -> str:
    return "".join(partition.tag for partition in topic.partitions)


def _by_name(entry: ConfigEntry) -> str:
    return entry.definition.name


def _check_form(changes: Sequence[ConfigChange]) -> None:
    """Raise KafkaError INVALID_REQUEST if a config is named twice, or has no value where it needs one."""
    times = Counter(change.name for change in changes)
    if twice := sorted(name for name, count in times.items() if count > 1):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Named more than once: {', '.join(twice)}")
    without = [
        item.name for item in changes if item.value is None and item.operation is not ConfigOperation.DELETE
    ]
    if without:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for: {', '.join(without)}")


def altered(
    kind: str,
    row: Mapping[str, str],
    changes: Sequence[ConfigChange],
    definitions: Mapping[str, ConfigDef],
    present: Mapping[str, str],
    origin: str = "",
) -> dict[str, str]:
    """Return the values set on a topic, a group or a broker after `changes`.

    `present`: the values in effect, set there or inherited; APPEND and SUBTRACT start from them. Raises ConfigError,
    which names `origin`; KafkaError INVALID_CONFIG for an unknown name, and for APPEND or SUBTRACT on no list.
    """
    result = dict(row)
    for change in changes:
        if change.operation is ConfigOperation.DELETE:
            result.pop(change.name, None)
            continue
        definition = definitions.get(change.name)
        if definition is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown {kind} config name: {change.name}")
        value = change.value or ""
        if change.operation is not ConfigOperation.SET:
            _check_is_list(change, definition.type)
            value = _combined(present.get(change.name, ""), change)
        result[change.name] = definition.format(definition.parse(value, origin))
    return result


def altered_topic(
    row: TopicRow, changes: Sequence[ConfigChange], layers: Layers, *, reset: bool = False
) -> TopicRow:
    """Return a topic with its configs after `changes`; raises KafkaError INVALID_CONFIG for one that is refused.

    With `reset`, of the others only those stay that are fixed at creation. DELETE of a fixed config keeps its value,
    and is refused if the broker's differs.
    """
    before, settings = row.configs, layers.settings
    fixed = {name: value for name, value in before.items() if name in FIXED_AT_CREATION}
    present = _texts(inherited_entries(layers)) | before
    with _refused(ErrorCode.INVALID_CONFIG):
        result = altered("topic", fixed if reset else before, changes, TOPIC_CONFIGS, present)
    named = set() if reset else set(row.named)
    for change in changes:
        name = change.name
        if change.operation is not ConfigOperation.DELETE:
            _keep_fixed(name, before, result[name])
            named |= {name} & FIXED_AT_CREATION
        elif name in named:
            _keep_fixed(name, before, str(topic_config.value(name, {}, settings)))
            named.discard(name)
    result |= fixed
    if before.get(_ARCHIVED) == "true" and result.get(_ARCHIVED) != "true":
        message = f"{_ARCHIVED} cannot be switched off: consumers would lose what only the archive holds"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    topic_config.check_together(result, settings)
    return msgspec.structs.replace(row, configs=result, named=sorted(named))


def altered_group(row: GroupRow, changes: Sequence[ConfigChange], *, reset: bool = False) -> GroupRow:
    """Return the configs of a group after `changes`, with `reset` none but those that these name."""
    with _refused(ErrorCode.INVALID_CONFIG):
        return altered("group", {} if reset else row, changes, GROUP_CONFIGS, {})


def altered_broker(
    row: Mapping[str, str],
    changes: Sequence[ConfigChange],
    layers: Layers,
    layer: str,
    *,
    reset: bool = False,
) -> dict[str, str]:
    """Return the dynamic settings in `layer` after `changes`; with `reset`, only settings named by `changes`.

    Raises KafkaError: INVALID_CONFIG for APPEND or SUBTRACT on a value that is no list; INVALID_REQUEST, as Kafka, for
    an unknown setting, a setting that cannot be altered while brokers run, and a value out of range.
    """
    _check_names(changes)
    # What counts for a setting that is not set in this layer.
    if layer == CLUSTER_WIDE:
        below = Layers(settings=layers.static, static=layers.static)
    else:
        below = msgspec.structs.replace(layers, broker={})
    present = _texts(broker_entries(below)) | dict(row)
    with _refused(ErrorCode.INVALID_REQUEST):
        result = altered("broker", {} if reset else row, changes, DYNAMIC_CONFIGS, present, layer)
        known = {name: text for name, text in result.items() if name in DYNAMIC_CONFIGS}
        if layer == CLUSTER_WIDE:
            # It must be in order for brokers that have nothing of their own, and for this one.
            merge(layers.static, known, {})
            merge(layers.static, known, layers.broker)
        else:
            merge(layers.static, layers.cluster, known)
    return result


def _texts(entries: Iterable[ConfigEntry]) -> dict[str, str]:
    return {entry.definition.name: entry.value or "" for entry in entries}


@contextmanager
def _refused(code: ErrorCode) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise KafkaError(code, str(error)) from error


def altered_loggers(
    row: Mapping[str, str], changes: Sequence[ConfigChange], layers: Layers
) -> dict[str, str]:
    """Return the dynamic settings of a broker after `changes` of loggers, which `_check_loggers` has taken.

    Its log.levels goes if it has no more to say than what counts without it. Raises KafkaError INVALID_REQUEST.
    """
    before, below = (
        key_values(merge_valid(layers.static, layers.cluster, own)[0].settings.log_levels)
        for own in (row, {})
    )
    levels, settings = dict(before), []
    for change in changes:
        levels.pop(change.name, None)
        if change.name == logs.ROOT:
            settings.append(ConfigChange("log.level", ConfigOperation.SET, _LEVELS_TAKEN[change.value or ""]))
        elif change.operation is ConfigOperation.SET:
            levels[change.name] = _LEVELS_TAKEN[change.value or ""]
    text = ",".join(f"{name}={level}" for name, level in levels.items())
    operation = ConfigOperation.DELETE if levels == below else ConfigOperation.SET
    return altered_broker(row, [*settings, ConfigChange("log.levels", operation, text)], layers, THIS_BROKER)


def _check_loggers(changes: Sequence[ConfigChange], levels: Mapping[str, str]) -> None:
    """Raise KafkaError as Kafka does: INVALID_REQUEST (operation, root deleted), INVALID_CONFIG (name, level)."""
    for change in changes:
        if change.operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
            message = f"{change.operation.name} operation is not allowed for the BROKER_LOGGER resource"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if change.name not in levels:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
        if change.operation is ConfigOperation.SET:
            if change.value not in _LEVELS_TAKEN:
                message = (
                    f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log level."
                    f" Valid log levels are {', '.join(sorted(_LEVELS_TAKEN))}"
                )
                raise KafkaError(ErrorCode.INVALID_CONFIG, message)
        elif change.name == logs.ROOT:
            message = "Removing the log level of the root logger is not allowed"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_names(changes: Sequence[ConfigChange]) -> None:
    """Raise KafkaError if a config is set that clients cannot alter; as in Kafka a DELETE may name anything."""
    names = [change.name for change in changes if change.operation is not ConfigOperation.DELETE]
    for name in names:
        if name not in BROKER_CONFIGS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown broker config name: {name}")
    fixed = [name for name in names if name not in DYNAMIC_CONFIGS]
    if fixed:
        message = f"Cannot update these configs dynamically: {', '.join(fixed)}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _keep_fixed(name: str, configs: Mapping[str, str], value: str | None) -> None:
    if name in FIXED_AT_CREATION and value != configs.get(name):
        message = f"{name} is fixed when a topic is created; that of this topic is {configs.get(name)}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _check_is_list(change: ConfigChange, config_type: ConfigType) -> None:
    if config_type is not ConfigType.LIST:
        message = f"Can't {change.operation.name} to key {change.name} because its type is not LIST."
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _combined(present: str, change: ConfigChange) -> str:
    """Return a list with the missing parts appended, or with the given parts removed."""
    parts, given = listed(present), listed(change.value or "")
    if change.operation is ConfigOperation.APPEND:
        parts += [part for part in given if part not in parts]
    else:
        parts = [part for part in parts if part not in given]
    return ",".join(parts)


def _check_group(name: str) -> None:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")


def _without_configs(resource: ConfigResource) -> KafkaError:
    message = _WITHOUT_CONFIGS.get(resource.type, f"Unknown resource type {resource.type}")
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
