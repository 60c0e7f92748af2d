"""Settings as a cluster tells them, what they belong to, and what can be done to them."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec


class ResourceType(IntEnum):
    """What can have settings, by its number on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(NamedTuple):
    """Something that has settings: a topic by its name, a broker by its id."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower().replace('_', '-')} {self.name or 'default'}"

    @classmethod
    def topic(cls, name: str) -> Resource:
        """Return a topic."""
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int) -> Resource:
        """Return one broker, with what is set for it alone."""
        return cls(ResourceType.BROKER, str(broker_id))

    @classmethod
    def cluster(cls) -> Resource:
        """Return what is set for all brokers, where one has nothing of its own."""
        return cls(ResourceType.BROKER, "")

    @classmethod
    def group(cls, group_id: str) -> Resource:
        """Return a group."""
        return cls(ResourceType.GROUP, group_id)


class ConfigSource(IntEnum):
    """Where a value comes from, by its number on the wire (KIP-226)."""

    UNKNOWN = -1
    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigType(IntEnum):
    """What a value is, by its number on the wire (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSynonym(msgspec.Struct, frozen=True):
    """A place where the value of a setting may come from, by the name that it has there."""

    name: str
    value: str | None
    source: ConfigSource


class Config(msgspec.Struct, frozen=True):
    """A setting. `value` is None where it is sensitive.

    `synonyms` are where a value is given, the one that counts first; `documentation` and they only where they were
    asked for.
    """

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: ConfigType = ConfigType.UNKNOWN
    documentation: str | None = None
    synonyms: list[ConfigSynonym] = []

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it."""
        return self.source is ConfigSource.DEFAULT


class Set(msgspec.Struct, frozen=True):
    """Gives a setting this value."""

    value: str


class Delete(msgspec.Struct, frozen=True):
    """Lets a setting go back to what counts without it."""


class Append(msgspec.Struct, frozen=True):
    """Adds to a setting that is a list; several with commas between. What is in it already stays once."""

    value: str


class Subtract(msgspec.Struct, frozen=True):
    """Takes from a setting that is a list; several with commas between."""

    value: str


Change = Set | Delete | Append | Subtract


def changed(value: str | None, change: Change) -> str | None:
    """Return what a value comes to by a change; None where it is deleted, or is not there."""
    if isinstance(change, Set):
        return change.value
    if isinstance(change, Delete):
        return None
    present = _words(value or "")
    if isinstance(change, Append):
        return ",".join(dict.fromkeys([*present, *_words(change.value)]))
    return ",".join(word for word in present if word not in _words(change.value))


def source_of(number: int) -> ConfigSource:
    """Return a source as it came over the wire; UNKNOWN for one that a later Kafka has."""
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN


def type_of(number: int) -> ConfigType:
    """Return a type as it came over the wire; UNKNOWN for one that a later Kafka has."""
    try:
        return ConfigType(number)
    except ValueError:
        return ConfigType.UNKNOWN


def _words(value: str) -> list[str]:
    return [word for each in value.split(",") if (word := each.strip())]
