"""The errors of Korvet: Kafka's error codes, and the kinds of failure.

    KafkaError                a rule said no: the client gets its code
    StorageUnavailableError   the same for a Redis that is away
    AuthenticationError       the same for a client that is not who it claims to be
    ProtocolError             a peer broke the protocol: its connection is closed
    ConfigError               an operator's mistake: the process ends
    LakeError                 an archive that cannot be used

Source of the codes: the Kafka protocol guide, "Error Codes", as of Apache Kafka 4.2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Self, TypeVar

import korvet_core

T = TypeVar("T")


class ErrorCode(IntEnum):
    """Kafka's error codes by their names on the wire (int16)."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


MESSAGE_LENGTH_MAX = 1000
"""Characters of a message: many quote what a peer sent, and a response's text has no more than 32767 bytes."""


_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_BRANCH = "\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS}"


class KafkaError(Exception):
    """A rule said no: the client gets `code`, and `message` if its response has room for one."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        if len(message) > MESSAGE_LENGTH_MAX:
            message = message[: MESSAGE_LENGTH_MAX - 3] + "..."
        super().__init__(f"{code.name} {message}".rstrip())
        self.code = code
        self.message = message

    def without_frames(self) -> Self:
        """Return this error without its cause and the frames they came through, and all that these keep in memory.

        A frame that holds the error which holds it is a circle, and each frame holds its callers, up to a connection
        with its requests: they would stay until the garbage collector comes. So an error that is kept has no frames.
        """
        error: BaseException | None = self
        while error is not None:
            following = error.__cause__ or error.__context__
            error.__cause__ = error.__context__ = error.__traceback__ = None
            error = following
        return self


def refuse_first(code: ErrorCode, *problems: tuple[object, str]) -> None:
    """Raise KafkaError with the text of the first problem that there is, if there is any."""
    for is_there, text in problems:
        if is_there:
            raise KafkaError(code, text)


def or_raise(outcome: T | KafkaError) -> T:
    """Return the outcome, or raise the error that stands in its place."""
    if isinstance(outcome, KafkaError):
        raise outcome
    return outcome


class RecordsRefusedError(KafkaError):
    """A batch is refused for some of its records; `records` names them by index, each with its error (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, records: Sequence[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.records = records


class StorageUnavailableError(KafkaError):
    """Redis is away, slow or refusing, and a retry is right. Nothing was done, unless it is an OutcomeUnknownError."""

    was_prevented = False
    """Whether it stands in the place of a reply: the request was not sent, or not answered."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class NodeAwayError(StorageUnavailableError):
    """The node of a Redis Cluster that has the keys is away: nothing was done."""


def partition_code(error: KafkaError) -> ErrorCode:
    """Return the code for one partition: with NOT_LEADER_OR_FOLLOWER clients ask for its leader again, and wait."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if isinstance(error, NodeAwayError) else error.code


class OutcomeUnknownError(StorageUnavailableError):
    """A request was sent to Redis, and its reply did not come: it was done or not, or will be yet."""


class LeaseEndedError(StorageUnavailableError):
    """A script came after the end of its sender's lease (lua/shared/lease.lua): nothing was written."""


class AppendUnknownError(KafkaError):
    """A batch was sent to Redis, and no reply came. `idempotent`: its producer finds out by sending it again.

    Not KAFKA_STORAGE_ERROR: librdkafka then takes the batch for not written.
    """

    def __init__(self, message: str, *, idempotent: bool) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)
        self.idempotent = idempotent


class AuthenticationError(KafkaError):
    """A client did not authenticate: `reason` is for the log, and the client gets `message`.

    Without a message it gets Kafka's sentence, which says nothing of what was wrong. `user` is whom it claimed to be.
    """

    def __init__(self, reason: str, message: str = "", *, user: str = "") -> None:
        super().__init__(ErrorCode.SASL_AUTHENTICATION_FAILED, message)
        self.reason = reason
        self.user = user


ProtocolError = korvet_core.ProtocolError
"""The connection has to close, with a log line: a broken protocol, or something that no response can say."""


class ConfigError(Exception):
    """A setting, a flag or the server given to Korvet cannot be used: one line, and a non-zero exit."""


class LakeError(Exception):
    """The lake cannot be used: no table, no access, or a table that is not of this topic. The message says which.

    The message is made one line: errors of deltalake are trees, in colours.
    """

    def __init__(self, message: str) -> None:
        branches = _COLOURS.sub("", message).split(_BRANCH)
        super().__init__(": ".join(" ".join(branch.split()) for branch in branches))
