"""The configs of a group (KIP-848): each inherits definition and default from a setting of the broker."""

from __future__ import annotations

from msgspec.structs import replace

from korvet.config.settings import SETTINGS

SESSION_TIMEOUT_MS = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_MS = "consumer.heartbeat.interval.ms"

LIMITS = {
    SESSION_TIMEOUT_MS: ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    HEARTBEAT_INTERVAL_MS: (
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
}
"""The settings with the least and the largest value of a config."""

_DOCS = {
    SESSION_TIMEOUT_MS: "Session timeout of the group's members.",
    HEARTBEAT_INTERVAL_MS: "Pause between two heartbeats that the group's members are asked for.",
}

GROUP_CONFIGS = {
    name: replace(
        SETTINGS[f"group.{name}"], name=name, doc=_DOCS[name], inherits=f"group.{name}", dynamic=True
    )
    for name in sorted(LIMITS)
}
"""The definitions by name, in order of the names."""
