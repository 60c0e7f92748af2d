"""Configs as DescribeConfigs reports them: the value in effect, and the places that it may come from (KIP-226)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from korvet.config.broker_configs import BROKER_CONFIGS, DYNAMIC_CONFIGS, ONLY_IF_SET, OTHER_UNITS
from korvet.config.definition import ConfigDef
from korvet.config.dynamic import Layers
from korvet.config.group_configs import GROUP_CONFIGS
from korvet.config.topic_configs import FIXED_AT_CREATION, SLOT_TAGS, TOPIC_CONFIGS
from korvet.protocol.types import ConfigSource, ConfigType


class Synonym(msgspec.Struct, frozen=True):
    """One place: the name and the value that the config has there; None for a sensitive value."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(msgspec.Struct, frozen=True):
    """A config, its value in effect (None for a sensitive one), and where that comes from.

    `synonyms` has the places with a value as Kafka lists them, the one in effect first: none for a default that is no
    setting of brokers, or one in other units (OTHER_UNITS).
    """

    definition: ConfigDef
    value: str | None
    source: ConfigSource
    synonyms: tuple[Synonym, ...] = ()


def broker_entries(layers: Layers) -> list[ConfigEntry]:
    """Return all settings of a broker by name."""
    entries = [broker_entry(definition, layers) for definition in BROKER_CONFIGS.values()]
    return [entry for entry in entries if entry.synonyms or entry.definition.name not in ONLY_IF_SET]


def broker_entry(definition: ConfigDef, layers: Layers) -> ConfigEntry:
    """Return one setting of a broker.

    A setting that was given at the start with its default's value does not differ from one that was not given.
    """
    name = definition.name
    synonyms = []
    if name in layers.broker:
        synonyms.append(_synonym(definition, layers.broker[name], ConfigSource.BROKER))
    if name in layers.cluster:
        synonyms.append(_synonym(definition, layers.cluster[name], ConfigSource.CLUSTER))
    if (given := definition.value(layers.static)) != definition.default:
        synonyms.append(_synonym(definition, definition.format(given), ConfigSource.STATIC))
    default = _synonym(definition, definition.format(definition.default), ConfigSource.DEFAULT)
    first = (*synonyms, default)[0]
    if name in OTHER_UNITS:
        synonyms += [Synonym(*OTHER_UNITS[name], ConfigSource.DEFAULT)] if synonyms else []
    elif name not in ONLY_IF_SET:
        synonyms.append(default)
    return ConfigEntry(definition, first.value, first.source, tuple(synonyms))


def cluster_entries(layers: Layers) -> list[ConfigEntry]:
    """Return what was set for all brokers, by name, and nothing of any broker's own."""
    return [
        _set(item, layers.cluster[name], ConfigSource.CLUSTER)
        for name, item in DYNAMIC_CONFIGS.items()
        if name in layers.cluster
    ]


def inherited_entries(layers: Layers) -> tuple[ConfigEntry, ...]:
    return tuple(_inherited(definition, layers) for definition in TOPIC_CONFIGS.values())


def _inherited(definition: ConfigDef, layers: Layers) -> ConfigEntry:
    if definition.inherits:
        setting = broker_entry(BROKER_CONFIGS[definition.inherits], layers)
        return msgspec.structs.replace(setting, definition=definition)
    return ConfigEntry(definition, definition.format(definition.default), ConfigSource.DEFAULT)


def with_overrides(
    inherited: Sequence[ConfigEntry], overrides: Mapping[str, str], named: Sequence[str]
) -> list[ConfigEntry]:
    """Return the entries of a topic with `overrides`; entries without one are the same objects as in `inherited`.

    Overrides that are fixed at creation and not `named` are no entries of the topic's own: a client that copies a
    topic, or deletes all that is set on it, must leave them out.
    """
    return [
        _with_override(entry, overrides[name], named)
        if (name := entry.definition.name) in overrides
        else entry
        for entry in inherited
    ]


def _with_override(inherited: ConfigEntry, text: str, named: Sequence[str]) -> ConfigEntry:
    definition = inherited.definition
    if definition.name not in FIXED_AT_CREATION or definition.name in named:
        return _set(definition, text, ConfigSource.TOPIC, *inherited.synonyms)
    return inherited if text == inherited.value else ConfigEntry(definition, text, ConfigSource.DEFAULT)


def group_entries(layers: Layers, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return every group config by name, as it is on a group with `overrides`; Kafka 4.2 lists one synonym of each."""
    return [
        _set(item, overrides[name], ConfigSource.GROUP)
        if name in overrides
        else _set(item, _inherited(item, layers).value or "", ConfigSource.DEFAULT)
        for name, item in GROUP_CONFIGS.items()
    ]


def logger_entries(levels: Mapping[str, str]) -> list[ConfigEntry]:
    definition = ConfigDef(
        "Lowest level of the lines that the logger writes.", type=ConfigType.UNKNOWN, dynamic=True
    )
    return [
        ConfigEntry(msgspec.structs.replace(definition, name=name), level, ConfigSource.LOGGER)
        for name, level in levels.items()
    ]


def slot_tags(tags: str) -> ConfigEntry:
    """Return the entry with the slot tags of a topic's partitions.

    As a default: clients that set again what they found set on a topic must leave it out.
    """
    return ConfigEntry(SLOT_TAGS, tags, ConfigSource.DEFAULT)


def _set(definition: ConfigDef, text: str, source: ConfigSource, *others: Synonym) -> ConfigEntry:
    """Return the entry of a config that is set to `text`; `others` are the places that counted without it."""
    first = _synonym(definition, text, source)
    return ConfigEntry(definition, first.value, source, (first, *others))


def _synonym(definition: ConfigDef, text: str, source: ConfigSource) -> Synonym:
    return Synonym(definition.name, None if definition.secret else text, source)
