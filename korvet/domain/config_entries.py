"""A config as clients are told of it: its value, and the chain of places that it may come from (KIP-226).

Knows the layers of a broker's settings and the numbers of DescribeConfigs; nothing of topics, Redis or messages.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from korvet.config import Layers, Row, rows
from korvet.config.layers import dynamic_rows
from korvet.domain.topic_config_table import INT_MAX, ConfigType


class ConfigSource(IntEnum):
    """Where a value comes from (DescribeConfigs and CreateTopics, `config_source`)."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class Synonym(msgspec.Struct, frozen=True):
    """One place: the name and the value that it has there; a sensitive value is None."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A config as it stands. Of its synonyms the first one counts; those behind it would if it were not there."""

    name: str
    synonyms: tuple[Synonym, ...]
    type: ConfigType
    documentation: str
    read_only: bool = False
    sensitive: bool = False

    @property
    def value(self) -> str | None:
        """The value that counts; None where it is sensitive."""
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        """Where that comes from."""
        return self.synonyms[0].source


def listed(text: str) -> list[str]:
    """Return the parts of a list with commas between."""
    return [part.strip() for part in text.split(",")] if text else []


def chain(row: Row, layers: Layers) -> tuple[Synonym, ...]:
    """Return where the value of a setting comes from, what counts first.

    A setting that was given to the broker as it is by default is not told apart from one that was not given.
    """
    texts = []
    if row.name in layers.broker:
        texts.append((layers.broker[row.name], ConfigSource.DYNAMIC_BROKER_CONFIG))
    if row.name in layers.cluster:
        texts.append((layers.cluster[row.name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG))
    if row.attribute and row.of(layers.static) != row.default:
        texts.append((row.shown(row.of(layers.static)), ConfigSource.STATIC_BROKER_CONFIG))
    texts.append((row.shown(row.default), ConfigSource.DEFAULT_CONFIG))
    return tuple(Synonym(row.name, _told(row, text), source) for text, source in texts)


def _told(row: Row, text: str) -> str | None:
    if row.about.secret:
        return None
    return ",".join(listed(text)) if row.is_list else text


def broker_entries(layers: Layers) -> list[ConfigEntry]:
    """Return all settings of a broker by name."""
    every = {row.name: row for row in rows()} | dynamic_rows()
    return [_entry(row, chain(row, layers)) for _, row in sorted(every.items())]


def cluster_entries(layers: Layers) -> list[ConfigEntry]:
    """Return what was set for all brokers, by name, and nothing of any broker's own."""
    found = []
    for name, row in sorted(dynamic_rows().items()):
        if name in layers.cluster:
            synonym = Synonym(name, _told(row, layers.cluster[name]), _OF_CLUSTER)
            found.append(_entry(row, (synonym,)))
    return found


_OF_CLUSTER = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG


def _entry(row: Row, synonyms: tuple[Synonym, ...]) -> ConfigEntry:
    return ConfigEntry(
        name=row.name,
        synonyms=synonyms,
        type=_type(row),
        documentation=row.about.doc,
        read_only=not row.about.dynamic,
        sensitive=row.about.secret,
    )


def _type(row: Row) -> ConfigType:
    if row.about.secret:
        return ConfigType.PASSWORD
    if row.is_list:
        return ConfigType.LIST
    if row.kind is int:
        return ConfigType.INT if row.about.most <= INT_MAX else ConfigType.LONG
    return {bool: ConfigType.BOOLEAN, float: ConfigType.DOUBLE, str: ConfigType.STRING}[row.kind]
