"""Kafka's table "Operations and Resources on Protocols", and what its broker asks for beyond it.

Transcribed from docs/security/authorization-and-acls.md of Apache Kafka 4.2 (Authorization Primitives).
"""

from __future__ import annotations

_BROKERS_ONLY = "ClusterAction Cluster"

DOCUMENTED: dict[int, set[str]] = {
    0: {"Write TransactionalId", "IdempotentWrite Cluster", "Write Topic"},
    1: {"ClusterAction Cluster", "Read Topic"},
    2: {"Describe Topic"},
    3: {"Describe Topic", "Create Cluster", "Create Topic"},
    **{key: {_BROKERS_ONLY} for key in range(4, 8)},
    8: {"Read Group", "Read Topic"},
    9: {"Describe Group", "Describe Topic"},
    10: {"Describe Group", "Describe TransactionalId"},
    11: {"Read Group"},
    12: {"Read Group"},
    13: {"Read Group"},
    14: {"Read Group"},
    15: {"Describe Group"},
    16: {"Describe Cluster", "Describe Group"},
    17: set(),
    18: set(),
    19: {"Create Cluster", "Create Topic"},
    20: {"Delete Topic"},
    21: {"Delete Topic"},
    22: {"Write TransactionalId", "IdempotentWrite Cluster"},
    23: {"ClusterAction Cluster", "Describe Topic"},
    24: {"Write TransactionalId", "Write Topic"},
    25: {"Write TransactionalId", "Read Group"},
    26: {"Write TransactionalId"},
    27: {"Alter Cluster", "ClusterAction Cluster"},
    28: {"Write TransactionalId", "Read Group", "Read Topic"},
    29: {"Describe Cluster"},
    30: {"Alter Cluster"},
    31: {"Alter Cluster"},
    32: {"DescribeConfigs Cluster", "DescribeConfigs Topic"},
    33: {"AlterConfigs Cluster", "AlterConfigs Topic"},
    34: {"Alter Cluster"},
    35: {"Describe Cluster"},
    36: set(),
    37: {"Alter Topic"},
    38: {"CreateTokens User"},
    39: set(),
    40: set(),
    41: {"Describe DelegationToken", "DescribeTokens User"},
    42: {"Delete Group"},
    43: {"ClusterAction Cluster"},
    44: {"AlterConfigs Cluster", "AlterConfigs Topic"},
    45: {"Alter Cluster"},
    46: {"Describe Cluster"},
    47: {"Delete Group", "Read Topic"},
    48: {"DescribeConfigs Cluster"},
    49: {"AlterConfigs Cluster"},
    50: {"Describe Cluster"},
    51: {"Alter Cluster"},
    **{key: {_BROKERS_ONLY} for key in (52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73)},
    55: {"Describe Cluster"},
    57: {"Alter Cluster"},
    60: {"Describe Cluster"},
    61: {"Read Topic"},
    64: {"Alter Cluster"},
    65: {"Describe TransactionalId"},
    66: {"Describe TransactionalId"},
    68: {"Read Group"},
    69: {"Describe Group"},
    71: set(),
    72: set(),
    74: {"DescribeConfigs Cluster"},
    75: {"Describe Topic"},
    76: {"Read Group"},
    77: {"Describe Group"},
    78: {"Read Group", "Read Topic"},
    79: {"Read Group", "Read Topic"},
    **{key: {_BROKERS_ONLY} for key in range(83, 88)},
    88: {"Read Group", "Describe Topic", "Create Topic"},
    89: {"Describe Group", "Describe Topic"},
    90: {"Describe Group", "Describe Topic"},
    91: {"Read Group", "Read Topic"},
    92: {"Delete Group", "Read Topic"},
}
"""By API key."""

BEYOND: dict[int, set[str]] = {
    3: {"Describe Cluster"},  # for cluster_authorized_operations (KafkaApis.handleTopicMetadataRequest)
    10: {"ClusterAction Cluster"},  # for share groups (KafkaApis.getCoordinator)
    68: {"Describe Topic"},  # for the topics that are named (KafkaApis.handleConsumerGroupHeartbeat)
    69: {"Describe Topic"},  # for those in the response (KafkaApis.handleConsumerGroupDescribe)
    76: {"Describe Topic"},  # as for 68 (KafkaApis.handleShareGroupHeartbeat)
    77: {"Describe Topic"},  # as for 69 (KafkaApis.handleShareGroupDescribe)
    19: {"DescribeConfigs Topic"},  # for the configs in the response (ControllerApis.handleCreateTopics)
    20: {
        "Delete Cluster",
        "Describe Topic",
    },  # in place of all topics, and before (ControllerApis.handleDeleteTopics)
    22: {"Write Topic"},  # of any topic (KIP-679)
    24: {"ClusterAction Cluster"},  # of brokers (KafkaApis.handleAddPartitionsToTxnRequest)
    32: {"DescribeConfigs Group"},  # KIP-848
    33: {"AlterConfigs Group"},
    43: {"Alter Cluster"},  # what ControllerApis.handleElectLeaders asks for
    44: {"AlterConfigs Group"},
    88: {"Create Cluster"},  # in place of all internal topics (KafkaApis.handleStreamsGroupHeartbeat)
    65: {"Describe Topic"},  # for the topics of transactions (KafkaApis.handleDescribeTransactionsRequest)
}
"""What Kafka's code asks for and the table does not have."""

NOT_ASKED: dict[int, set[str]] = {
    0: {"IdempotentWrite Cluster"},  # since KIP-679 a right to write is enough
    38: {"CreateTokens User"},  # not before tokens are enabled
    41: {"Describe DelegationToken", "DescribeTokens User"},
    43: {"ClusterAction Cluster"},
}
"""What the table has and Kafka's code does not ask for, or only of brokers."""
