"""Dynamic settings over those of a broker's start: which may be altered, what they may be, and what counts then.

Knows the order of the layers (KIP-226): what was set for one broker, what was set for all of the cluster, what the
broker was started with. Not where dynamic settings are kept, nor who uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import msgspec

from korvet.config.settings import INT64_MAX, ConfigDef, ConfigKey, Settings, Value, rows
from korvet.config.sources import contradiction_in, parsed
from korvet.errors import ConfigError

CLUSTER_WIDE = "cluster-wide"
THIS_BROKER = "broker"
AT_START = "start"
"""The layers, as errors and log lines name them."""


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one broker: `settings` is what counts, the others are the layers that it is made of."""

    settings: Settings
    static: Settings
    cluster: Mapping[str, str] = {}
    broker: Mapping[str, str] = {}


def _throttle(name: str) -> ConfigKey:
    doc = (
        "Bytes a second that replicas move in Kafka while partitions are reassigned; without a meaning here."
    )
    return ConfigKey(name, "", int, INT64_MAX, (), ConfigDef(doc, 0, INT64_MAX, dynamic=True))


MEANINGLESS = tuple(
    _throttle(name)
    for name in (
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
)
"""What Kafka's tools set and delete at brokers and no setting stands for: it is taken, kept and listed."""


@cache
def dynamic_rows() -> dict[str, ConfigKey]:
    """Return what may be altered while brokers run, by name. A row without an attribute has no meaning here."""
    return {row.name: row for row in (*rows(), *MEANINGLESS) if row.about.dynamic}


def checked(name: str, text: str, layer: str) -> str:
    """Return the text of a dynamic setting as it is to be kept; raises ConfigError, saying what is wrong."""
    row = dynamic_rows().get(name)
    if row is None:
        raise ConfigError(f"{name} is no setting that can be altered while brokers run")
    return row.shown(parsed(row, text, layer))


def merge(static: Settings, cluster: Mapping[str, str], broker: Mapping[str, str]) -> Layers:
    """Return the layers over each other; raises ConfigError for the first thing that cannot be so."""
    given: dict[str, Value] = {}
    origins = {row.name: AT_START for row in rows()}
    for layer, values in ((CLUSTER_WIDE, cluster), (THIS_BROKER, broker)):
        for name, text in values.items():
            checked(name, text, layer)
            row = dynamic_rows()[name]
            if row.attribute:
                given[row.attribute] = parsed(row, text, layer)
            origins[name] = layer
    settings = msgspec.structs.replace(static, **given)
    if contradiction := contradiction_in(settings):
        raise ConfigError(contradiction.told(origins))
    return Layers(settings=settings, static=static, cluster=dict(cluster), broker=dict(broker))


def merge_valid(
    static: Settings, cluster: Mapping[str, str], broker: Mapping[str, str]
) -> tuple[Layers, list[str]]:
    """Lay as much as is in order, one value after the other, and say of the rest why it is left out.

    What is kept may be another version's: a setting that this one does not know must not keep it from starting.
    """
    kept: dict[str, dict[str, str]] = {CLUSTER_WIDE: {}, THIS_BROKER: {}}
    problems = []
    layers = merge(static, {}, {})
    for layer, values in ((CLUSTER_WIDE, cluster), (THIS_BROKER, broker)):
        # All at once where that goes: two settings may contradict each other while only one of them is there.
        try:
            layers = merge(static, **_as_arguments(kept | {layer: dict(values)}))
        except ConfigError:
            pass
        else:
            kept[layer] = dict(values)
            continue
        for name, text in sorted(values.items()):
            try:
                layers = merge(static, **_as_arguments(kept | {layer: kept[layer] | {name: text}}))
            except ConfigError as error:
                problems.append(str(error))
            else:
                kept[layer][name] = text
    return layers, problems


def _as_arguments(kept: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    return {"cluster": kept[CLUSTER_WIDE], "broker": kept[THIS_BROKER]}
