"""The configs of groups in Redis and in this worker: a row for each group on which one is set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from korvet.cluster.rows import RowStore
from korvet.config import values
from korvet.config.definition import Value
from korvet.config.group_configs import (
    GROUP_CONFIGS,
    ISOLATION_LEVEL,
    LIMITS,
    LOCK_DURATION_MS,
    NUM_STANDBY_REPLICAS,
    OFFSET_RESET,
    STREAMS_INITIAL_REBALANCE_DELAY_MS,
    TIMES,
)
from korvet.config.settings import SETTINGS, Settings
from korvet.errors import ConfigError, ErrorCode, KafkaError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys, decode_group_id, encode_group_id

FEED_MEMBER = "/groups"
"""Member of the change feed that stands for a change of a group's configs: no topic can have that name."""

GroupRow = dict[str, str]


class SharePolicy(NamedTuple):
    """What the configuration says for one group.

    `lock_ms` is how long a member has what it acquired; `delivery_limit` is how often a record is delivered at most;
    with `in_flight_max` records of a partition delivered or to be delivered again, no others are.
    """

    lock_ms: int
    delivery_limit: int
    in_flight_max: int

    @property
    def throttled_from(self) -> int:
        """Deliveries after which a record is delivered with fewer others, so one that fails archives no neighbours."""
        return max(2, (self.delivery_limit + 1) // 2)


class GroupConfigs:
    """The configs of the groups of one namespace.

    What reads or writes Redis raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(self, redis: Redis, keys: Keys, settings: Settings) -> None:
        self._rows = RowStore(redis, keys, keys.group_configs, FEED_MEMBER, GroupRow)
        self._settings = settings
        self._by_group: dict[str, GroupRow] = {}

    def refresh(self) -> None:
        """Read Redis if configs of groups have changed, which one small command finds out."""
        rows = self._rows.load_if_changed()
        if rows is not None:
            self._by_group = {decode_group_id(name): row for name, row in rows.items()}

    def groups(self) -> list[str]:
        return sorted(self._by_group)

    def overrides(self, group: str) -> Mapping[str, str]:
        """Return the configs that are set on a group; a name may be one of another version of Korvet."""
        return self._by_group.get(group, {})

    def session_ms(self, group: str, kind: str) -> int:
        return self._value(group, f"{kind}.session.timeout.ms")

    def heartbeat_ms(self, group: str, kind: str) -> int:
        return self._value(group, f"{kind}.heartbeat.interval.ms")

    def standbys(self, group: str) -> int:
        return self._value(group, NUM_STANDBY_REPLICAS)

    def initial_rebalance_delay_ms(self, group: str) -> int:
        return self._value(group, STREAMS_INITIAL_REBALANCE_DELAY_MS)

    def share_policy(self, group: str) -> SharePolicy:
        return SharePolicy(
            self._value(group, LOCK_DURATION_MS),
            self._settings.group_share_delivery_count_limit,
            self._settings.group_share_partition_max_record_locks,
        )

    def share_reset(self, group: str) -> str | int:
        """Return where a share group begins in a partition, as Redis has it now (values.parse_share_reset).

        Another worker may have set it a moment ago, and a group begins once.
        """
        self.refresh()
        return values.parse_share_reset(str(self._effective(group, OFFSET_RESET)))

    def is_committed(self, group: str) -> bool:
        return self._effective(group, ISOLATION_LEVEL) == "read_committed"

    def alter(
        self, group: str, change: Callable[[GroupRow], GroupRow], *, validate_only: bool = False
    ) -> None:
        """Replace the configs of a group by what `change` returns for them, or only find out whether it could be.

        Raises KafkaError INVALID_CONFIG, and what `change` raises.
        """
        name = encode_group_id(group)

        def altered(row: GroupRow | None) -> GroupRow | None:
            changed = change(dict(row or {}))
            self._check(changed)
            return changed or None

        if validate_only:
            altered(self._rows.load(name)[0])
            return
        self._rows.alter(name, altered)
        self.refresh()

    def _value(self, group: str, name: str, row: Mapping[str, str] | None = None) -> int:
        return int(self._effective(group, name, row))

    def _effective(self, group: str, name: str, row: Mapping[str, str] | None = None) -> Value:
        definition = GROUP_CONFIGS[name]
        text = (self.overrides(group) if row is None else row).get(name)
        try:
            return definition.value(self._settings) if text is None else definition.parse(text)
        except ConfigError:  # a row that another version has written
            return definition.value(self._settings)

    def _check(self, row: GroupRow) -> None:
        """Raise KafkaError INVALID_CONFIG for a value out of its limits, or values that contradict each other."""
        for name, (least, most) in LIMITS.items():
            value = self._value("", name, row)
            for limit, word, refused in (
                (least, "greater", least and value < self._limit(least)),
                (most, "less", most and value > self._limit(most)),
            ):
                if name in row and refused:
                    raise _invalid(f"{name} must be {word} than or equal to {limit}")
        for session, heartbeat in TIMES:
            if self._value("", session, row) <= self._value("", heartbeat, row):
                raise _invalid(f"{session} must be greater than {heartbeat}")

    def _limit(self, setting: str) -> int:
        return int(SETTINGS[setting].value(self._settings))


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)
