//! Why something is refused: Kafka's error code for the client, and a sentence for whoever reads it. A client that does
//! not keep to the protocol gets no code, for its connection is closed.

use std::borrow::Cow;
use std::fmt;

/// Kafka's error codes that an append or a read, or what it needs, can be refused with
/// (org.apache.kafka.common.protocol.Errors).
///
/// A producer sends a batch again after `CorruptMessage`, and not after the others that say what is wrong with a batch:
/// so that one is for bytes that the network may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum ErrorCode {
    /// Anything that has no code of its own, a fault of the broker among them.
    UnknownServerError = -1,
    /// The log does not have the offset, nor does it end there.
    OffsetOutOfRange = 1,
    /// The CRC does not match, or the header cannot be one.
    CorruptMessage = 2,
    /// There is no such topic or partition.
    UnknownTopicOrPartition = 3,
    /// Another broker, or one that has been started since, is to be asked.
    NotLeaderOrFollower = 6,
    /// Whether it was done is not known.
    RequestTimedOut = 7,
    /// The batch, or what it decompresses to, is larger than allowed.
    MessageTooLarge = 10,
    /// The coordinator is away.
    CoordinatorNotAvailable = 15,
    /// A broker that is not the coordinator was asked.
    NotCoordinator = 16,
    /// No topic can have this name.
    InvalidTopicException = 17,
    /// Too few servers are in sync, and nothing was written.
    NotEnoughReplicas = 19,
    /// It was written, and too few servers have it.
    NotEnoughReplicasAfterAppend = 20,
    /// The acks are none of 0, 1 and -1.
    InvalidRequiredAcks = 21,
    /// The client may not write to the topic.
    TopicAuthorizationFailed = 29,
    /// The client may not do this in the cluster.
    ClusterAuthorizationFailed = 31,
    /// The time of a record is out of the topic's range, or its type may not be set by a producer.
    InvalidTimestamp = 32,
    /// The request cannot be right.
    InvalidRequest = 42,
    /// The sequence of a batch is not the one that comes next.
    OutOfOrderSequenceNumber = 45,
    /// A later epoch of the producer has begun, or it has an id and no epoch.
    InvalidProducerEpoch = 47,
    /// The producer is at another transaction, or at none.
    InvalidTxnState = 48,
    /// The transactional id has another producer id.
    InvalidProducerIdMapping = 49,
    /// The last transaction has not ended everywhere.
    ConcurrentTransactions = 51,
    /// The client may not write to the transactional id.
    TransactionalIdAuthorizationFailed = 53,
    /// Redis is away or refuses, or holds what Korvet cannot have written.
    KafkaStorageError = 56,
    /// There is no such session of fetches, or it is of another connection.
    FetchSessionIdNotFound = 70,
    /// The session of fetches is in another epoch.
    InvalidFetchSessionEpoch = 71,
    /// A later leader epoch has begun than the client knows.
    FencedLeaderEpoch = 74,
    /// The client knows a later leader epoch.
    UnknownLeaderEpoch = 75,
    /// No codec has this number, or the version of the request does not know the codec.
    UnsupportedCompressionType = 76,
    /// The batch is not what its header says, or a producer may not write it.
    InvalidRecord = 87,
    /// A later epoch of the transactional id has begun.
    ProducerFenced = 90,
    /// No topic has this id.
    UnknownTopicId = 100,
    /// The session of fetches names its topics in the other way: by their ids, or by their names.
    FetchSessionTopicIdError = 106,
    /// The producer has to abort its transaction (KIP-890).
    TransactionAbortable = 120,
}

impl ErrorCode {
    const ALL: [Self; 34] = [
        Self::UnknownServerError,
        Self::OffsetOutOfRange,
        Self::CorruptMessage,
        Self::UnknownTopicOrPartition,
        Self::NotLeaderOrFollower,
        Self::RequestTimedOut,
        Self::MessageTooLarge,
        Self::CoordinatorNotAvailable,
        Self::NotCoordinator,
        Self::InvalidTopicException,
        Self::NotEnoughReplicas,
        Self::NotEnoughReplicasAfterAppend,
        Self::InvalidRequiredAcks,
        Self::TopicAuthorizationFailed,
        Self::ClusterAuthorizationFailed,
        Self::InvalidTimestamp,
        Self::InvalidRequest,
        Self::OutOfOrderSequenceNumber,
        Self::InvalidProducerEpoch,
        Self::InvalidTxnState,
        Self::InvalidProducerIdMapping,
        Self::ConcurrentTransactions,
        Self::TransactionalIdAuthorizationFailed,
        Self::KafkaStorageError,
        Self::FetchSessionIdNotFound,
        Self::InvalidFetchSessionEpoch,
        Self::FencedLeaderEpoch,
        Self::UnknownLeaderEpoch,
        Self::UnsupportedCompressionType,
        Self::InvalidRecord,
        Self::ProducerFenced,
        Self::UnknownTopicId,
        Self::FetchSessionTopicIdError,
        Self::TransactionAbortable,
    ];

    /// The error with a number, if it is one of these.
    pub fn of(number: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|code| *code as i16 == number)
    }
}

/// A batch is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What the client is told.
    pub code: ErrorCode,
    /// What a person is told.
    pub message: Cow<'static, str>,
}

impl Refusal {
    /// A refusal with INVALID_RECORD.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InvalidRecord, message)
    }

    /// A refusal with any code.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// The same for a batch of the log: its records were right when it was stored.
    #[must_use]
    pub fn of_stored(self) -> Self {
        match self.code {
            ErrorCode::InvalidRecord => Self { code: ErrorCode::CorruptMessage, ..self },
            _ => self,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.code, self.message)
    }
}

impl std::error::Error for Refusal {}

/// A peer broke the protocol: no request can be read, and its connection has to close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(Cow<'static, str>);

impl Malformed {
    /// Broken in a way that the sentence says.
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}
