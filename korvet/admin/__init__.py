"""A typed admin client that speaks Kafka's wire protocol: to Korvet, and to Apache Kafka 4.

    >>> from korvet.admin import AdminClient, TopicPartition
    >>> with AdminClient("127.0.0.1:9092", timeout=10) as admin:
    ...     admin.topics.delete_records({TopicPartition("orders", 0): 7})
    ...     admin.offsets.alter("billing", {TopicPartition("orders", 0): 7})
    {TopicPartition(topic='orders', partition=0): 7}
    {TopicPartition(topic='orders', partition=0): None}

Requests about many topics, partitions, groups or brokers return an outcome for each: the value, or the AdminError of
its failure; `settled` raises the first of these errors.
"""

from korvet.admin.client import AdminClient
from korvet.admin.cluster import (
    ApiVersions,
    BrokerNode,
    ClusterDescription,
    ClusterFeatures,
    FeatureLevels,
    LogDir,
    LogSize,
    Producer,
    Reassignment,
)
from korvet.admin.configs import Append, Change, Config, ConfigSynonym, Delete, Set, Subtract
from korvet.admin.errors import AdminError, BrokerError
from korvet.admin.groups import Group, GroupDescription, Member
from korvet.admin.offsets import EARLIEST, LATEST, CommittedOffset, LogOffset
from korvet.admin.topics import (
    CreatedTopic,
    NewPartitions,
    NewTopic,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from korvet.admin.types import (
    ConfigSource,
    ConfigType,
    LogRecord,
    LogSlice,
    QuotaFilter,
    Resource,
    ResourceType,
    TopicId,
    TopicPartition,
    Topology,
    settled,
)
from korvet.protocol.types import FeatureUpgradeType, ScramMechanism

__all__ = [
    "EARLIEST",
    "LATEST",
    "AdminClient",
    "AdminError",
    "ApiVersions",
    "Append",
    "BrokerError",
    "BrokerNode",
    "Change",
    "ClusterDescription",
    "ClusterFeatures",
    "CommittedOffset",
    "Config",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "CreatedTopic",
    "Delete",
    "FeatureLevels",
    "FeatureUpgradeType",
    "Group",
    "GroupDescription",
    "LogDir",
    "LogOffset",
    "LogRecord",
    "LogSize",
    "LogSlice",
    "Member",
    "NewPartitions",
    "NewTopic",
    "PartitionDescription",
    "Producer",
    "QuotaFilter",
    "Reassignment",
    "Resource",
    "ResourceType",
    "ScramMechanism",
    "Set",
    "Subtract",
    "TopicDescription",
    "TopicId",
    "TopicListing",
    "TopicPartition",
    "Topology",
    "settled",
]
