"""The errors of the admin client. All are AdminError.

What a broker refused is a BrokerError with Kafka's error code. The codes that programs most often tell apart have a
class of their own, listed in `_CLASSES`.
"""

from __future__ import annotations

from korvet.errors import ErrorCode

# Errors that another attempt may get past: Kafka's retriable errors, as far as administration meets them.
_RETRIABLE = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        # The transaction before is being ended.
        ErrorCode.CONCURRENT_TRANSACTIONS,
        # Of produced records: those that were appended are not appended again.
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)


# What a code means, for brokers and requests that have no message.
_SENTENCES = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this user may not do that in the cluster",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "its coordinator is not available now",
    ErrorCode.CORRUPT_MESSAGE: "the batch at this offset is damaged",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "this user may not do that with the group",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "a member of the group is subscribed to the topic",
    ErrorCode.INVALID_CONFIG: "a config is unknown, or its value is not allowed",
    ErrorCode.INVALID_REPLICATION_FACTOR: "the cluster has fewer brokers, or it is no valid number",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "no topic can have this name",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker cannot read or write what it has stored",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader now",
    ErrorCode.NON_EMPTY_GROUP: "the group has members",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "the partition is not being moved",
    ErrorCode.NOT_CONTROLLER: "another broker is the controller",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the log does not have this offset",
    ErrorCode.REQUEST_TIMED_OUT: "the broker did not finish in time",
    ErrorCode.SECURITY_DISABLED: "the cluster has no authorizer",
    ErrorCode.TOPIC_ALREADY_EXISTS: "there is a topic of this name",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this user may not do that with the topic",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user may not use the transactional id",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "there is no such transactional id",
    ErrorCode.UNKNOWN_SERVER_ERROR: "the broker failed: its log says why",
    ErrorCode.UNKNOWN_TOPIC_ID: "no topic has this id",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition",
    ErrorCode.UNSUPPORTED_VERSION: "the broker is too old for this, or has the feature switched off",
}


class AdminError(Exception):
    """A request failed.

    `retriable`: the same request may succeed later.
    `next_offset`: where to continue after a batch that does not decode; None with any other error.
    """

    retriable: bool = False

    def __init__(self, message: str, next_offset: int | None = None) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class ConnectionFailedError(AdminError):
    """No broker was reached, or the connection was lost or silent. The request may have been executed or not."""

    retriable = True


class UnresolvedError(ConnectionFailedError):
    """The name of a broker has no address."""


class BadAnswerError(AdminError):
    """The peer does not speak Kafka's protocol, or broke it."""


class AuthenticationFailedError(AdminError):
    """The broker does not accept who this client says it is, or has not shown to this client who it is itself."""


class AnswerTooLargeError(AdminError):
    """The response, or one batch in it, exceeds the caller's limit."""


class UnreadableBatchError(AdminError):
    """A batch of a log does not decode: its producer wrote it so."""


class UnsupportedError(AdminError):
    """The broker does not serve the API, or not in a version that can carry the request."""


class BrokerError(AdminError):
    """A broker refused: `code` is why, `message` its own words, if any; `subject` names what was refused.

    If it has no words its text says what the code means.
    """

    def __init__(self, code: ErrorCode, message: str = "", subject: str = "") -> None:
        said = message or _SENTENCES.get(code, "")
        super().__init__(": ".join(filter(None, (subject, code.name, said))))
        self.code = code
        self.message = message
        self.retriable = code in _RETRIABLE


class UnknownTopicOrPartitionError(BrokerError):
    """The topic does not exist, or does not have this partition."""


class UnknownTopicIdError(BrokerError):
    """No topic has this id."""


class TopicExistsError(BrokerError):
    """A topic of this name exists. After a lost connection the same request may have created it."""


class OffsetOutOfRangeError(BrokerError):
    """The log does not have this offset."""


class GroupIdNotFoundError(BrokerError):
    """The group does not exist."""


class ElectionNotNeededError(BrokerError):
    """The partition already has the leader that it would get."""


_CLASSES: dict[ErrorCode, type[BrokerError]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicOrPartitionError,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopicIdError,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicExistsError,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRangeError,
    ErrorCode.GROUP_ID_NOT_FOUND: GroupIdNotFoundError,
    ErrorCode.ELECTION_NOT_NEEDED: ElectionNotNeededError,
}


def broker_error(code: ErrorCode, message: str = "", subject: str = "") -> BrokerError:
    """Return the error of a code, in its own class if it has one."""
    return _CLASSES.get(code, BrokerError)(code, message, subject)


def error_in(code: int, message: str | None = None, subject: str = "") -> BrokerError | None:
    """Return the error of a code in a response; None for NONE.

    An unknown code becomes UNKNOWN_SERVER_ERROR with the number in its message.
    """
    if code == ErrorCode.NONE:
        return None
    try:
        known = ErrorCode(code)
    except ValueError:
        return broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, f"error {code} {message or ''}".rstrip(), subject)
    return broker_error(known, message or "", subject)


def raise_error_in(code: int, message: str | None = None) -> None:
    """Raise the error of a code in a response, if it is one."""
    error = error_in(code, message)
    if error is not None:
        raise error
