"""Configs as DescribeConfigs reports them: the value in effect, and the places that it may come from (KIP-226)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from korvet.config.broker_configs import BROKER_CONFIGS, DYNAMIC_CONFIGS
from korvet.config.definition import ConfigDef
from korvet.config.dynamic import Layers
from korvet.config.group_configs import GROUP_CONFIGS
from korvet.config.topic_configs import FIXED_AT_CREATION, SLOT_TAGS, TOPIC_CONFIGS
from korvet.protocol.types import ConfigSource


class Synonym(msgspec.Struct, frozen=True):
    """One place: the name and the value that the config has there; None for a sensitive value."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(msgspec.Struct, frozen=True):
    """A config and its synonyms: the first one is in effect, and each other one would be without those before it."""

    definition: ConfigDef
    synonyms: tuple[Synonym, ...]


def broker_entries(layers: Layers) -> list[ConfigEntry]:
    """Return all settings of a broker by name."""
    return [ConfigEntry(each, synonyms(each, layers)) for each in BROKER_CONFIGS.values()]


def cluster_entries(layers: Layers) -> list[ConfigEntry]:
    """Return what was set for all brokers, by name, and nothing of any broker's own."""
    return [
        ConfigEntry(each, (_synonym(each, layers.cluster[name], ConfigSource.CLUSTER),))
        for name, each in DYNAMIC_CONFIGS.items()
        if name in layers.cluster
    ]


def inherited_entries(layers: Layers) -> tuple[ConfigEntry, ...]:
    """Return every topic config by name, as it is on a topic on which none is set."""
    return tuple(
        ConfigEntry(each, synonyms(BROKER_CONFIGS[each.inherits] if each.inherits else each, layers))
        for each in TOPIC_CONFIGS.values()
    )


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
        return ConfigEntry(definition, (_synonym(definition, text, ConfigSource.TOPIC), *inherited.synonyms))
    if text == inherited.synonyms[0].value:
        return inherited
    return ConfigEntry(definition, (_synonym(definition, text, ConfigSource.DEFAULT),))


def group_entries(layers: Layers, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return every group config by name, as it is on a group with `overrides`."""
    return [
        ConfigEntry(
            each,
            (
                *((_synonym(each, overrides[name], ConfigSource.GROUP),) if name in overrides else ()),
                *synonyms(BROKER_CONFIGS[each.inherits] if each.inherits else each, layers),
            ),
        )
        for name, each in GROUP_CONFIGS.items()
    ]


def slot_tags(tags: str) -> ConfigEntry:
    """Return the entry with the slot tags of a topic's partitions.

    As a default: clients that set again what they found set on a topic must leave it out.
    """
    return ConfigEntry(SLOT_TAGS, (_synonym(SLOT_TAGS, tags, ConfigSource.DEFAULT),))


def synonyms(definition: ConfigDef, layers: Layers) -> tuple[Synonym, ...]:
    """Return the places that the value of a setting comes from, the one in effect first.

    A setting that was given at the start with its default's value does not differ from one that was not given.
    """
    found = []
    if definition.name in layers.broker:
        found.append((layers.broker[definition.name], ConfigSource.BROKER))
    if definition.name in layers.cluster:
        found.append((layers.cluster[definition.name], ConfigSource.CLUSTER))
    if (given := definition.value(layers.static)) != definition.default:
        found.append((definition.format(given), ConfigSource.STATIC))
    found.append((definition.format(definition.default), ConfigSource.DEFAULT))
    return tuple(_synonym(definition, text, source) for text, source in found)


def _synonym(definition: ConfigDef, text: str, source: ConfigSource) -> Synonym:
    return Synonym(definition.name, None if definition.secret else text, source)
