"""Values of the protocol that are no messages of their own: numbers that have names, and a topic's partition."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition of the topic that has this name now."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


ACKS_ALL = -1
"""Produce, `acks`: answer when all in-sync replicas have the records."""

UNKNOWN_OPERATIONS = -(2**31)
"""`..._authorized_operations` of a response whose request did not ask for them (KIP-430)."""


class IsolationLevel(IntEnum):
    """Fetch and ListOffsets, `isolation_level` (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class SpecialTimestamp(IntEnum):
    """ListOffsets, `timestamp`: the negative ones ask for an offset by its role in the log."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class CoordinatorType(IntEnum):
    """FindCoordinator, `key_type`."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class ElectionType(IntEnum):
    """ElectLeaders, `election_type`: the first replica of the assignment, or any live one if none is in sync."""

    PREFERRED = 0
    UNCLEAN = 1


class ResourceType(IntEnum):
    """What has configs (`resource_type`)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class AclResourceType(IntEnum):
    """What an ACL is about (`resource_type`, KIP-11). ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name in an ACL stands for resources (`pattern_type`, KIP-290). ANY and MATCH are for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What an ACL allows or denies (`operation`). ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermissionType(IntEnum):
    """Whether an ACL allows or denies (`permission_type`). ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class ScramMechanism(IntEnum):
    """DescribeUserScramCredentials and AlterUserScramCredentials, `mechanism` (KIP-554)."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """Its name in SaslHandshake."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The name of its hash function in hashlib."""
        return self.name.removeprefix("SCRAM_").replace("_", "").lower()


class FeatureUpgradeType(IntEnum):
    """UpdateFeatures, `upgrade_type` (KIP-778); a downgrade that is safe loses nothing."""

    UNKNOWN = 0
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class ConfigOperation(IntEnum):
    """IncrementalAlterConfigs, `config_operation`; the last two are for configs that are lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigSource(IntEnum):
    """Where the value of a config comes from (KIP-226); Kafka's own names are in the comments."""

    UNKNOWN = -1
    TOPIC = 1  # DYNAMIC_TOPIC_CONFIG
    BROKER = 2  # DYNAMIC_BROKER_CONFIG
    CLUSTER = 3  # DYNAMIC_DEFAULT_BROKER_CONFIG
    STATIC = 4  # STATIC_BROKER_CONFIG
    DEFAULT = 5  # DEFAULT_CONFIG
    LOGGER = 6  # DYNAMIC_BROKER_LOGGER_CONFIG
    CLIENT_METRICS = 7  # CLIENT_METRICS_CONFIG
    GROUP = 8  # GROUP_CONFIG


class ConfigType(IntEnum):
    """The type of a config's value (KIP-569)."""

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
