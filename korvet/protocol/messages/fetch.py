"""Fetch (key 1), versions 4-18, flexible from 12. A consumer reads record batches, or waits for them.

Version 4 brought transactions (KIP-98). 5 answers the log's start (KIP-107). 7 is incremental within a session
(KIP-227). 9 fences by leader epoch (KIP-320). 10 allows zstd (KIP-110). 11 may send the reader to a nearer replica
(KIP-392). 12 finds diverged logs (KIP-595). 13 names topics by id (KIP-516). 14 allows OFFSET_MOVED_TO_TIERED_STORAGE
(KIP-405). 15 moves the replica's id into a tagged struct (KIP-903). 16 may answer addresses of leaders (KIP-951). 17
and 18 carry more of the follower's state (KIP-853, KIP-1166), which no consumer sends.
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol import wire
from korvet.protocol.messages.produce import LeaderIdAndEpoch, NodeEndpoint
from korvet.protocol.schema import Api, Message, Part, Response, since
from korvet.protocol.wire import ZERO_UUID, int8, int16, int32, int64, string, uuid

UNLIMITED_BYTES = 0x7FFFFFFF
"""max_bytes of a request that carries none."""

HIGH_WATERMARK_UNSUPPORTED = 2**63 - 1
"""high_watermark of a follower that does not track it (KIP-1166), and of every consumer."""


class ReplicaState(Part, kw_only=True):
    """Which follower asks; consumers are -1."""

    replica_id: int32 = -1
    replica_epoch: int64 = -1


class FetchPartition(Part, kw_only=True):
    partition: int32
    current_leader_epoch: Annotated[int32, since(9, ignorable=True)] = -1
    fetch_offset: int64
    last_fetched_epoch: Annotated[int32, since(12)] = -1
    log_start_offset: Annotated[int64, since(5, ignorable=True)] = -1
    partition_max_bytes: int32
    replica_directory_id: Annotated[uuid, since(17, tag=0, ignorable=True)] = ZERO_UUID
    high_watermark: Annotated[int64, since(18, tag=1, ignorable=True)] = HIGH_WATERMARK_UNSUPPORTED


class FetchTopic(Part, kw_only=True):
    topic: Annotated[string, since(0, until=12, ignorable=True)] = ""
    topic_id: Annotated[uuid, since(13, ignorable=True)] = ZERO_UUID
    partitions: list[FetchPartition]


class ForgottenTopic(Part, kw_only=True):
    """Partitions that leave the session."""

    topic: Annotated[string, since(7, until=12, ignorable=True)] = ""
    topic_id: Annotated[uuid, since(13, ignorable=True)] = ZERO_UUID
    partitions: list[int32]


class FetchRequest(Message, kw_only=True):
    """Reads the given partitions, in the order given, until one of the limits is reached."""

    api = Api(key=1, versions=(4, 18), flexible=12)

    cluster_id: Annotated[string | None, since(12, tag=0, ignorable=True)] = None
    replica_id: Annotated[int32, since(0, until=14)] = -1
    replica_state: Annotated[ReplicaState | None, since(15, tag=1)] = None
    max_wait_ms: int32
    min_bytes: int32
    max_bytes: int32 = UNLIMITED_BYTES
    isolation_level: int8 = 0
    session_id: Annotated[int32, since(7, ignorable=True)] = 0
    session_epoch: Annotated[int32, since(7, ignorable=True)] = -1
    topics: list[FetchTopic]
    forgotten_topics_data: Annotated[list[ForgottenTopic], since(7)] = []
    rack_id: Annotated[string, since(11, ignorable=True)] = ""


class EpochEndOffset(Part, kw_only=True):
    """Where the reader's log and this one part."""

    epoch: int32 = -1
    end_offset: int64 = -1


class SnapshotId(Part, kw_only=True):
    """The snapshot that holds what the log no longer does (KIP-630)."""

    end_offset: int64 = -1
    epoch: int32 = -1


class AbortedTransaction(Part, kw_only=True):
    """A producer's aborted transaction: what a committed reader leaves out, from its first offset on."""

    producer_id: int64
    first_offset: int64


class PartitionData(Part, kw_only=True):
    """What was read of one partition. aborted_transactions is null for a reader of uncommitted records."""

    partition_index: int32
    error_code: int16 = 0
    high_watermark: int64
    last_stable_offset: int64 = -1
    log_start_offset: Annotated[int64, since(5, ignorable=True)] = -1
    diverging_epoch: Annotated[EpochEndOffset | None, since(12, tag=0)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, since(12, tag=1)] = None
    snapshot_id: Annotated[SnapshotId | None, since(12, tag=2)] = None
    aborted_transactions: list[AbortedTransaction] | None
    preferred_read_replica: Annotated[int32, since(11)] = -1
    records: wire.record_pieces | None


class FetchableTopicResponse(Part, kw_only=True):
    topic: Annotated[string, since(0, until=12, ignorable=True)] = ""
    topic_id: Annotated[uuid, since(13, ignorable=True)] = ZERO_UUID
    partitions: list[PartitionData]


class FetchResponse(Response, kw_only=True):
    """The records. With session_id 0 the reader names all its partitions again next time."""

    error_code: Annotated[int16, since(7, ignorable=True)] = 0
    session_id: Annotated[int32, since(7)] = 0
    responses: list[FetchableTopicResponse] = []
    node_endpoints: Annotated[list[NodeEndpoint], since(16, tag=0)] = []
