"""The configs of groups (KIP-848, KIP-932, KIP-1071): most inherit definition and default from a setting."""

from __future__ import annotations

from msgspec.structs import replace

from korvet.config import values
from korvet.config.definition import ConfigDef
from korvet.config.settings import SETTINGS

SESSION_TIMEOUT_MS = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_MS = "consumer.heartbeat.interval.ms"
LOCK_DURATION_MS = "share.record.lock.duration.ms"
OFFSET_RESET = "share.auto.offset.reset"
ISOLATION_LEVEL = "share.isolation.level"
SHARE_SESSION_TIMEOUT_MS = "share.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL_MS = "share.heartbeat.interval.ms"

STREAMS_SESSION_TIMEOUT_MS = "streams.session.timeout.ms"
STREAMS_HEARTBEAT_INTERVAL_MS = "streams.heartbeat.interval.ms"
NUM_STANDBY_REPLICAS = "streams.num.standby.replicas"
STREAMS_INITIAL_REBALANCE_DELAY_MS = "streams.initial.rebalance.delay.ms"

TIMES = (
    (SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS),
    (SHARE_SESSION_TIMEOUT_MS, SHARE_HEARTBEAT_INTERVAL_MS),
    (STREAMS_SESSION_TIMEOUT_MS, STREAMS_HEARTBEAT_INTERVAL_MS),
)
"""Of each type of group the session timeout, and the pause between heartbeats, which must be less."""

_DOCS = {
    SESSION_TIMEOUT_MS: "Session timeout of the group's members.",
    HEARTBEAT_INTERVAL_MS: "Pause between two heartbeats that the group's members are asked for.",
    LOCK_DURATION_MS: "How long a member of the share group has a record that it has acquired.",
    SHARE_SESSION_TIMEOUT_MS: "Session timeout of the members of a share group.",
    SHARE_HEARTBEAT_INTERVAL_MS: "Pause between two heartbeats that the members of a share group are asked for.",
    STREAMS_SESSION_TIMEOUT_MS: "Session timeout of the members of a streams group.",
    STREAMS_HEARTBEAT_INTERVAL_MS: "Pause between two heartbeats that the members of a streams group are asked for.",
    NUM_STANDBY_REPLICAS: "Standby tasks of each stateful task of a streams group.",
    STREAMS_INITIAL_REBALANCE_DELAY_MS: "How long the first assignment of a streams group waits for more members.",
}


def _limit(word: str, name: str) -> str | None:
    kind, _, rest = name.partition(".")
    setting = f"group.{kind}.{word}.{rest.removeprefix('num.')}"
    return setting if setting in SETTINGS else None


LIMITS = {name: (_limit("min", name), _limit("max", name)) for name in _DOCS}
"""The settings with the least and the largest value of a config, if there are such."""

_OWN = (
    ConfigDef(
        "Where a share group begins in a partition: earliest, latest, or by_duration: and the time before now, in the "
        "form of ISO 8601 (PnDTnHnMn.nS).",
        name=OFFSET_RESET,
        form=values.share_reset,
        default=values.LATEST,
        dynamic=True,
    ),
    ConfigDef(
        "Whether a share group gets records of transactions that are open, or were aborted.",
        name=ISOLATION_LEVEL,
        choices=("read_committed", "read_uncommitted"),
        default="read_uncommitted",
        dynamic=True,
    ),
)

_INHERITED = (
    replace(SETTINGS[f"group.{name}"], name=name, doc=_DOCS[name], inherits=f"group.{name}", dynamic=True)
    for name in LIMITS
)

GROUP_CONFIGS = {item.name: item for item in sorted((*_INHERITED, *_OWN), key=lambda item: item.name)}
"""The definitions by name, in order of the names."""
