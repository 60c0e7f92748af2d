"""A typed admin client that speaks Kafka's wire protocol: to Korvet, and to any other Kafka broker.

    >>> from korvet.admin import AdminClient, TopicPartition
    >>> with AdminClient("127.0.0.1:9092", timeout=10) as admin:
    ...     admin.topics.delete_records({TopicPartition("orders", 0): 7})
    ...     admin.offsets.alter("billing", {TopicPartition("orders", 0): 7})
    {TopicPartition(topic='orders', partition=0): 7}
    {TopicPartition(topic='orders', partition=0): None}

Questions about many topics, partitions, groups or brokers are answered for each: with the value, or with the AdminError
that kept it from being told; `settled` makes an exception of the first of these. Its modules:

    errors        one class for each error that a caller may tell apart
    deadline      until when a question may take, and the pauses between its tries
    connection    one connection: frames, versions, limits
    topology      brokers, partitions, leaders
    names         names that nobody can be asked about
    outcomes      answers and errors, for each thing that was asked about
    client        which broker to ask, and when to ask again
    topics        list, describe, create, grow and delete topics, and delete records
    topic_types   topics as they are told, and as they are asked for
    topic_id      the id that tells topics of one name apart
    configs       describe and change settings
    config_types  settings, what they belong to, and what can be done to them
    partitions    where they lie and move to, who leads them, what they hold, who writes to them
    cluster       brokers, and what they speak
    groups        list, describe and delete consumer groups
    assignment    the bytes in which consumers tell each other what they read
    offsets       committed offsets, and offsets of the logs
    records       a look into the logs
    reset         what moving a group's offsets comes to
    lag           how far a group is behind, as far as offsets tell it
    progress      how far groups have come in each partition
    metrics       how far it is behind, as a broker of Korvet has counted it
    producer      record batches to their partitions, each appended once
"""

from korvet.admin.client import AdminClient
from korvet.admin.cluster import ApiVersions, BrokerNode, ClusterDescription, FeatureLevels, Features
from korvet.admin.errors import AdminError, BrokerError
from korvet.admin.groups import Group, GroupDescription, Member
from korvet.admin.offsets import EARLIEST, LATEST, CommittedOffset, LogOffset
from korvet.admin.partitions import LogDir, LogSize, Producer, Reassignment
from korvet.admin.records import LogRecord, Piece
from korvet.admin.topics import (
    CreatedTopic,
    NewPartitions,
    NewTopic,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from korvet.admin.types import (
    Append,
    Change,
    Config,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    Delete,
    Resource,
    ResourceType,
    Set,
    Subtract,
    TopicId,
    TopicPartition,
    Topology,
    settled,
)

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
    "CommittedOffset",
    "Config",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "CreatedTopic",
    "Delete",
    "FeatureLevels",
    "Features",
    "Group",
    "GroupDescription",
    "LogDir",
    "LogOffset",
    "LogRecord",
    "LogSize",
    "Member",
    "NewPartitions",
    "NewTopic",
    "PartitionDescription",
    "Piece",
    "Producer",
    "Reassignment",
    "Resource",
    "ResourceType",
    "Set",
    "Subtract",
    "TopicDescription",
    "TopicId",
    "TopicListing",
    "TopicPartition",
    "Topology",
    "settled",
]
