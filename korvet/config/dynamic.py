"""Dynamic settings over those of a broker's start: the layers of KIP-226, and the settings that result from them.

A value set for one broker counts before one set for the whole cluster, and that before one given at the start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from korvet.config import sources
from korvet.config.broker_configs import DYNAMIC_CONFIGS
from korvet.config.definition import ConfigDef, Value
from korvet.config.settings import SETTINGS, Settings
from korvet.errors import ConfigError

CLUSTER_WIDE = "cluster-wide"
THIS_BROKER = "broker"
AT_START = "start"
"""The layers, as errors and log lines name them."""


DEFAULT = "default"
"""Name of the row in Redis that counts for all brokers; every other row is named by a broker's id."""


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one broker: `settings` are in effect, and made of the other layers."""

    settings: Settings
    static: Settings
    cluster: Mapping[str, str] = {}
    broker: Mapping[str, str] = {}


def altered(layers: Layers) -> dict[str, str]:
    """Return the settings that clients have altered, and for each the layer that counts."""
    every = dict.fromkeys(layers.cluster, CLUSTER_WIDE) | dict.fromkeys(layers.broker, THIS_BROKER)
    return {name: layer for name, layer in every.items() if name in SETTINGS}


def overridden(layers: Layers, origins: Mapping[str, str]) -> Iterator[tuple[ConfigDef, str]]:
    """Yield the settings that have a value of the start with no effect, for clients altered them, and the layer.

    `origins` says where the values of the start come from (BrokerConfig).
    """
    for name, layer in sorted(altered(layers).items()):
        definition = SETTINGS[name]
        same = definition.value(layers.settings) == definition.value(layers.static)
        if origins[name] != sources.DEFAULT and not same:
            yield definition, layer


def _parse(name: str, text: str, layer: str) -> tuple[ConfigDef, Value]:
    definition = DYNAMIC_CONFIGS.get(name)
    if definition is None:
        raise ConfigError(f"{name} is not a setting that can be altered while brokers run")
    return definition, definition.parse(text, layer)


def merge(static: Settings, cluster: Mapping[str, str], broker: Mapping[str, str]) -> Layers:
    """Return the layers over each other; raises ConfigError for the first value that is out of range."""
    given: dict[str, Any] = {}
    origins = dict.fromkeys(SETTINGS, AT_START)
    for layer, values in ((CLUSTER_WIDE, cluster), (THIS_BROKER, broker)):
        for name, text in values.items():
            definition, value = _parse(name, text, layer)
            if definition.attribute:
                given[definition.attribute] = value
            origins[name] = layer
    settings = dataclasses.replace(static, **given)
    sources.check_together(settings, origins)
    return Layers(settings=settings, static=static, cluster=dict(cluster), broker=dict(broker))


def merge_valid(
    static: Settings, cluster: Mapping[str, str], broker: Mapping[str, str]
) -> tuple[Layers, list[str]]:
    """Merge all values that are in order, and return with the layers why each other one is left out.

    What is kept may be another version's: a setting that this one does not know must not keep it from starting.
    """
    problems = []
    layers = merge(static, {}, {})
    for layer, values in (("cluster", cluster), ("broker", broker)):
        below = {"cluster": layers.cluster, "broker": layers.broker}
        # All at once first: two settings may contradict each other while only one of them is there.
        try:
            layers = merge(static, **below | {layer: values})
        except ConfigError:
            for name, text in sorted(values.items()):
                kept = getattr(layers, layer)
                try:
                    layers = merge(static, **below | {layer: kept | {name: text}})
                except ConfigError as error:
                    problems.append(str(error))
    return layers, problems
