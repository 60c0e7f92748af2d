"""What can go wrong with a question to a Kafka broker: one class for each error that a caller may want to tell apart.

Knows Kafka's codes and which of them are worth another try; nothing of sockets or messages. Everything raised is an
AdminError. What a broker refused is a `BrokerError`, of a class of its own where one is declared here.
"""

from __future__ import annotations

from typing import ClassVar

from korvet.errors import ErrorCode

# What may be gone a moment later: Kafka's retriable errors, as far as administration meets them.
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
        # Of produced records: those that were appended are not appended again.
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)


class AdminError(Exception):
    """A question was not answered as it should be.

    `retriable`: the same question may be answered later. `ends_connection`: what comes next on the connection cannot
    be told.
    """

    retriable: bool = False
    ends_connection: bool = False


class ConnectionFailedError(AdminError):
    """No broker was reached, or the connection was lost or silent: what was asked may have been done or not."""

    retriable = True
    ends_connection = True


class BadAnswerError(AdminError):
    """What answered does not speak Kafka's protocol, or broke it."""

    ends_connection = True


class AnswerTooLargeError(AdminError):
    """The answer is larger than whoever asks wants to hold.

    `next_offset` is where the log goes on behind the batch that is too large; None where that is not known.
    """

    ends_connection = True

    def __init__(self, message: str, next_offset: int | None = None) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class UnsupportedError(AdminError):
    """The broker does not serve the API, or none of its versions can carry what was asked."""


class BrokerError(AdminError):
    """A broker said no: `code` is why, `message` its own words where it had any."""

    _classes: ClassVar[dict[ErrorCode, type[BrokerError]]] = {}

    def __init_subclass__(cls, *, code: ErrorCode) -> None:
        super().__init_subclass__()
        cls._classes[code] = cls

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message
        self.retriable = code in _RETRIABLE

    @classmethod
    def of(cls, code: int, message: str | None = None) -> BrokerError | None:
        """Return the error of a code as it came over the wire; None for NONE.

        A code that is not known here becomes UNKNOWN_SERVER_ERROR with the number in its message.
        """
        if code == ErrorCode.NONE:
            return None
        try:
            known = ErrorCode(code)
        except ValueError:
            return cls(ErrorCode.UNKNOWN_SERVER_ERROR, f"error {code} {message or ''}".rstrip())
        return cls._classes.get(known, BrokerError)(known, message or "")


def error_of(code: ErrorCode, message: str) -> BrokerError:
    """Return the error that a broker would answer with; the client says it where it knows it without asking."""
    error = BrokerError.of(code, message)
    if error is None:
        raise ValueError("NONE is no error")
    return error


class GroupIdNotFoundError(BrokerError, code=ErrorCode.GROUP_ID_NOT_FOUND):
    """There is no such group."""


class NonEmptyGroupError(BrokerError, code=ErrorCode.NON_EMPTY_GROUP):
    """The group has members."""


class InvalidGroupIdError(BrokerError, code=ErrorCode.INVALID_GROUP_ID):
    """No group can be named so."""


class UnknownMemberIdError(BrokerError, code=ErrorCode.UNKNOWN_MEMBER_ID):
    """Offsets were given for a group that has members: only they may commit."""


class UnknownTopicOrPartitionError(BrokerError, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
    """There is no such topic, or it has no such partition."""


class InvalidTopicError(BrokerError, code=ErrorCode.INVALID_TOPIC_EXCEPTION):
    """No topic can be named so."""


class OffsetMetadataTooLargeError(BrokerError, code=ErrorCode.OFFSET_METADATA_TOO_LARGE):
    """The note beside a committed offset is longer than the broker takes."""


class GroupSubscribedToTopicError(BrokerError, code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
    """Members of the group read the topic: what they have committed of it is not deleted."""


class UnknownTopicIdError(BrokerError, code=ErrorCode.UNKNOWN_TOPIC_ID):
    """No topic has this id, or none any more."""


class TopicExistsError(BrokerError, code=ErrorCode.TOPIC_ALREADY_EXISTS):
    """There is a topic of this name; a lost connection may have hidden that this very question made it."""


class InvalidPartitionsError(BrokerError, code=ErrorCode.INVALID_PARTITIONS):
    """A topic cannot have so many partitions, or not fewer than it has."""


class InvalidReplicationFactorError(BrokerError, code=ErrorCode.INVALID_REPLICATION_FACTOR):
    """A partition cannot have so many replicas."""


class InvalidReplicaAssignmentError(BrokerError, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT):
    """Partitions cannot lie on these brokers."""


class InvalidConfigError(BrokerError, code=ErrorCode.INVALID_CONFIG):
    """There is no such setting, it cannot be changed, or not to this value."""


class InvalidRequestError(BrokerError, code=ErrorCode.INVALID_REQUEST):
    """What was asked makes no sense."""


class PolicyViolationError(BrokerError, code=ErrorCode.POLICY_VIOLATION):
    """The cluster has a rule against it."""


class TopicDeletionDisabledError(BrokerError, code=ErrorCode.TOPIC_DELETION_DISABLED):
    """The cluster deletes no topics."""


class OffsetOutOfRangeError(BrokerError, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """The log has no such offset."""


class NotControllerError(BrokerError, code=ErrorCode.NOT_CONTROLLER):
    """The broker takes no changes: another one does, or none now."""


class BrokerNotAvailableError(BrokerError, code=ErrorCode.BROKER_NOT_AVAILABLE):
    """The cluster has no such broker now."""


class RequestTimedOutError(BrokerError, code=ErrorCode.REQUEST_TIMED_OUT):
    """The cluster was not done in time: what was asked may still happen."""


class ReassignmentInProgressError(BrokerError, code=ErrorCode.REASSIGNMENT_IN_PROGRESS):
    """The partitions are being moved."""


class NoReassignmentInProgressError(BrokerError, code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
    """The partition is not being moved: there is nothing to give up."""


class ElectionNotNeededError(BrokerError, code=ErrorCode.ELECTION_NOT_NEEDED):
    """The partition has the leader already that it would get."""


class PreferredLeaderNotAvailableError(BrokerError, code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE):
    """The broker that is to lead the partition is away."""


class EligibleLeadersNotAvailableError(BrokerError, code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE):
    """No broker that could lead the partition is there."""


class TopicAuthorizationFailedError(BrokerError, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
    """The caller may not do this to the topic."""


class ClusterAuthorizationFailedError(BrokerError, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
    """The caller may not do this to the cluster."""


class LeaderNotAvailableError(BrokerError, code=ErrorCode.LEADER_NOT_AVAILABLE):
    """The partition has no leader now."""
