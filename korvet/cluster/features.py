"""The features of the cluster (KIP-584): levels that all brokers settle on, in Redis and in this worker.

`transaction.version`: at level 2 clients use the second protocol of transactions (KIP-890): the epoch of a producer
rises with each transaction, and partitions join one by being written to. Below it clients add partitions by requests of
their own. `group.version`: at level 1 groups may use the consumer protocol (KIP-848). `share.version`: at level 1 there
are share groups (KIP-932). `streams.version`: at level 1 there are streams groups (KIP-1071). `korvet.format`: the
highest format of data that brokers write (data_format.py); it is never lowered. The other features change nothing here.
Clients conclude Kafka's version from `metadata.version` (KIP-778), and `kafka-features upgrade
--release-version` sets all features of a release. A cluster on which nothing was set has every feature at its highest
level, and `korvet.format` at that of its first broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from korvet.cluster import data_format
from korvet.cluster.data_format import FIELDS, OWN, READABLE_FORMAT_MIN, DataFormat
from korvet.cluster.rows import RowStore
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.types import FeatureUpgradeType
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import errors_about, parsed

_FINALIZE = scripts.get("broker/finalize")

FEED_MEMBER = "/features"
"""Member of the change feed that stands for a change of features: no topic can have that name."""

TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
SHARE_VERSION = "share.version"
STREAMS_VERSION = "streams.version"
KORVET_FORMAT = "korvet.format"


class SupportedLevels(NamedTuple):
    """The lowest and highest level of a feature, and the lowest one that a downgrade may set."""

    lowest: int
    highest: int
    downgrade_lowest: int = 0


SUPPORTED: Mapping[str, SupportedLevels] = {
    "eligible.leader.replicas.version": SupportedLevels(0, 1),
    GROUP_VERSION: SupportedLevels(0, 1),
    # Records that were written in a format stay in it.
    KORVET_FORMAT: SupportedLevels(READABLE_FORMAT_MIN, OWN.format, downgrade_lowest=OWN.format),
    "kraft.version": SupportedLevels(0, 1, downgrade_lowest=1),
    # 3.3-IV3 to 4.2-IV1; below 4.0-IV1 Kafka's metadata has fewer fields, and it refuses to lose them.
    "metadata.version": SupportedLevels(7, 29, downgrade_lowest=23),
    SHARE_VERSION: SupportedLevels(0, 1),
    STREAMS_VERSION: SupportedLevels(0, 1),
    TRANSACTION_VERSION: SupportedLevels(0, 2),
}
"""The features of Kafka 4.2, with its levels, and Korvet's own; one at level 0 is off."""

_UNSUPPORTED = SupportedLevels(0, 0)

_ALL_FAILED = "The update failed for all features since the following feature had an error: "

_ROW = "finalized"
"""Name of the one row: so several features change together or not at all."""

Levels = dict[str, int]
"""Levels by feature; also those of features that only another version of Korvet knows."""


class FeatureUpdate(NamedTuple):
    """The new level of a feature; `kind` is a number that may be no FeatureUpgradeType."""

    level: int
    kind: int


class Features:
    """The features of one namespace.

    What reads or writes Redis raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis, self._keys = redis, keys
        self._rows = RowStore(redis, keys, keys.features, FEED_MEMBER, Levels)
        self._levels: Levels = {}
        self._seen: tuple[bytes | None, bytes | None] | None = None

    def refresh(self) -> None:
        """Read Redis if features have changed, which one small command finds out."""
        seen = self._rows.changed()
        if seen != self._seen:
            [row] = self._rows.load(_ROW)
            self._levels, self._seen = {**(row or {}), KORVET_FORMAT: self._format()}, seen

    @property
    def epoch(self) -> int:
        """A number that rises with every change: clients ignore levels that come with a lower one."""
        changed, dropped = self._seen or (None, None)
        return int(float(changed or dropped or 0))

    @property
    def finalized(self) -> dict[str, int]:
        """The level of each supported feature; what a later version has set beyond it counts as the highest here."""
        return {
            name: max(supported.lowest, min(self._levels.get(name, supported.highest), supported.highest))
            for name, supported in SUPPORTED.items()
        }

    def update(self, updates: Mapping[str, FeatureUpdate], *, validate_only: bool = False) -> None:
        """Change features, all or none, or only find out whether they could be; they count here when it returns.

        Raises KafkaError INVALID_UPDATE_VERSION as Kafka does: a feature or level that is not supported, here or by a
        live broker; a downgrade that is not said to be one, or an upgrade that is.
        """
        format_before = {KORVET_FORMAT: self._format()} if KORVET_FORMAT in updates else {}

        def updated(row: Levels | None) -> Levels:
            levels = {**(row or {}), **format_before}
            for name, update in updates.items():
                supported = SUPPORTED.get(name, _UNSUPPORTED)
                _check(name, levels.get(name, supported.highest), update, supported)
            return {**levels, **{name: update.level for name, update in updates.items()}}

        if validate_only or format_before:
            updated(self._rows.load(_ROW)[0])
        if format_before and (level := updates[KORVET_FORMAT].level) > format_before[KORVET_FORMAT]:
            # After all else was validated, for it cannot be lowered; the row announces it to other workers.
            self._raise_format(level, validate_only=validate_only)
        if not validate_only:
            self._rows.alter(_ROW, updated)
            self.refresh()

    def _format(self) -> int:
        stored = stored_format(self._redis, self._keys)
        return stored.format if stored else OWN.format

    def _raise_format(self, level: int, *, validate_only: bool) -> None:
        raised = OWN.at(level)
        mode = "validate" if validate_only else "set"
        args = raised.version, level, raised.reader, raised.writer, mode
        with errors_about(self._keys.brokers):
            reply = self._redis.script(_FINALIZE, (self._keys.brokers, self._keys.data_format), args)
        match cast("list[bytes | int]", reply):
            case [bytes() as broker, bytes() as version, int() as highest]:
                problem = "does not support this feature."
                if highest:
                    problem = (
                        f"(Korvet {version.decode(errors='replace')}) only supports versions up to {highest}."
                    )
                raise _invalid(KORVET_FORMAT, level, f"Broker {broker.decode(errors='replace')} {problem}")


def stored_format(redis: Redis, keys: Keys) -> DataFormat | None:
    """Return who wrote the data in Redis, None if there is none.

    Raises KafkaError KAFKA_STORAGE_ERROR if that is malformed, and StorageUnavailableError.
    """
    reply = redis.call("HMGET", keys.data_format, *FIELDS)
    stored = parsed(keys.data_format, "a format of data", reply, data_format.read)
    if isinstance(stored, KafkaError):
        raise stored
    return stored


def _check(name: str, before: int, update: FeatureUpdate, supported: SupportedLevels) -> None:
    downgrade = update.kind in (FeatureUpgradeType.SAFE_DOWNGRADE, FeatureUpgradeType.UNSAFE_DOWNGRADE)
    problem = ""
    if not downgrade and update.kind != FeatureUpgradeType.UPGRADE:
        problem = "The controller does not support the given upgrade type."
    elif update.level < 0:
        problem = "A feature version cannot be less than 0."
    elif not supported.lowest <= update.level <= supported.highest:
        problem = (
            f"Korvet only supports versions {supported.lowest}-{supported.highest}"
            if supported.highest
            else "Korvet does not support this feature."
        )
    elif not supported.highest:
        problem = f"Feature {name} not found."
    elif update.level < before and not downgrade:
        problem = (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe"
            " downgrade."
        )
    elif update.level < before and update.level < supported.downgrade_lowest:
        problem = f"Can't downgrade the version of this feature below {supported.downgrade_lowest}."
    elif update.level > before and downgrade:
        problem = "Can't downgrade to a newer version."
    if problem:
        raise _invalid(name, update.level, problem)


def _invalid(name: str, level: int, problem: str) -> KafkaError:
    message = f"Invalid update version {level} for feature {name}. {problem}"
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"{_ALL_FAILED}{message}")
