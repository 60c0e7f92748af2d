"""The configs of a broker as clients know them: every setting, and configs of Kafka that have no effect here."""

from __future__ import annotations

from korvet.config.definition import INT64_MAX, ConfigDef
from korvet.config.settings import SETTINGS
from korvet.protocol.types import ConfigType


def _throttle(name: str) -> ConfigDef:
    return ConfigDef(
        "Bytes a second that replicas move in Kafka while partitions are reassigned. Has no effect here.",
        most=INT64_MAX,
        name=name,
        type=ConfigType.LONG,
        default=INT64_MAX,
        dynamic=True,
    )


WITHOUT_EFFECT = {
    name: _throttle(name)
    for name in (
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
}
"""Kafka's tools set and delete these at brokers: they are accepted, kept and listed."""

_PROTOCOL_VERSION = ConfigDef(
    "Version of Kafka whose protocol brokers speak: the highest level of `metadata.version`. Cannot be set.",
    name="inter.broker.protocol.version",
    default="4.2-IV1",
)
"""Of Kafka before 4.0: tools conclude from it what they may ask, as kafka-ui, which without it uses AlterConfigs."""

BROKER_CONFIGS = dict(
    sorted((SETTINGS | WITHOUT_EFFECT | {_PROTOCOL_VERSION.name: _PROTOCOL_VERSION}).items())
)
"""All that a broker describes to clients, by name."""

DYNAMIC_CONFIGS = {name: each for name, each in BROKER_CONFIGS.items() if each.dynamic}
"""Those that clients may alter while brokers run."""
