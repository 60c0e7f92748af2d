//! Why an append is not taken, and what the error replies of Redis say of a call.
//!
//! Source of the words of Redis: the shared error objects of Redis and Valkey (`createSharedObjects`), and the replies
//! of Redis Cluster and of the access control list.

use std::io;

use crate::{ErrorCode, Refusal};

/// A batch is not in the log, or it is not known to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Kafka's.
    pub code: ErrorCode,
    /// A sentence for people.
    pub message: String,
    /// Records for which the batch is refused, by their places in it, each with a sentence (KIP-467).
    pub records: Vec<(i32, String)>,
    #[allow(missing_docs)]
    pub kind: FailureKind,
}

/// Whose a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// A rule said no, and will again.
    Rule,
    /// Redis is away, slow or refusing: nothing was written, and a retry is right.
    Unavailable,
    /// The same of the node of a cluster that has the keys.
    NodeAway,
    /// Redis is so full that nothing was tried.
    NoRoom,
    /// The call was sent, and its reply did not come: it was done or not, or will be yet.
    Unknown {
        /// Whether the producer finds out by sending it again.
        is_idempotent: bool,
    },
    /// Redis is at its maxmemory: nothing was written.
    MemoryFull,
}

impl Failure {
    /// A rule said no.
    pub fn rule(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(code, message, FailureKind::Rule)
    }

    /// Redis is away, slow or refusing.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::KafkaStorageError, message, FailureKind::Unavailable)
    }

    /// What a client gets: after `NotLeaderOrFollower` it asks for the leader of the partition again, and waits.
    pub fn answered(&self) -> ErrorCode {
        if self.kind == FailureKind::NodeAway { ErrorCode::NotLeaderOrFollower } else { self.code }
    }

    /// A failure without records.
    pub fn new(code: ErrorCode, message: impl Into<String>, kind: FailureKind) -> Self {
        Self { code, message: message.into(), records: Vec::new(), kind }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::rule(refusal.code, refusal.message)
    }
}

impl From<io::Error> for Failure {
    /// An error of a codec, which writes to memory, is a bug in it.
    fn from(error: io::Error) -> Self {
        Self::rule(ErrorCode::UnknownServerError, format!("a codec failed: {error}"))
    }
}

/// A call that Redis answered with an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    /// Why it was not run, if the reason ends: then it is to be sent again.
    pub not_run: Option<NotRun>,
    /// What its batches get, unless it is sent again.
    pub failure: Failure,
}

/// Why a script was not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRun {
    /// A later leader epoch than the call's has begun in the log.
    Stale {
        /// That epoch.
        later: Option<i32>,
    },
    /// The node does not have the slot, or is moving it.
    Elsewhere {
        /// The error reply: MOVED, ASK or TRYAGAIN.
        text: String,
    },
    /// The node does not have the script.
    Missing,
}

/// Begins the answer to EXEC if Redis refuses EXEC alone; the error follows.
const ABORTED: &str = "EXECABORT Transaction discarded because of: ";

/// What an error reply, without its `-`, says of a call that appends to `stream`.
pub fn call_failure(error: &str, stream: &str) -> CallFailure {
    let error = error.strip_prefix(ABORTED).unwrap_or(error);
    let (word, message) = error.split_once(' ').unwrap_or((error, ""));
    let not_run = match word {
        "NOSCRIPT" => Some(NotRun::Missing),
        "MOVED" if !is_address(message) => None,
        "MOVED" | "ASK" | "TRYAGAIN" => Some(NotRun::Elsewhere { text: error.to_owned() }),
        "NOT_LEADER_OR_FOLLOWER" => Some(NotRun::Stale { later: later_epoch(message) }),
        _ => None,
    };
    let failure = match (unavailable(word), code_of(word)) {
        (Some(reason), _) => {
            let kind = if word == "OOM" { FailureKind::MemoryFull } else { FailureKind::Unavailable };
            Failure::new(ErrorCode::KafkaStorageError, format!("Redis refused: {reason} ({error})"), kind)
        }
        (None, Some(code)) => Failure::rule(code, message),
        (None, None) => {
            Failure::rule(ErrorCode::KafkaStorageError, format!("{stream}: Redis answered {}", error.trim_end()))
        }
    };
    CallFailure { not_run, failure }
}

/// What batches get if a script answered with something else than it may.
pub fn malformed_answer(stream: &str) -> Failure {
    Failure::rule(ErrorCode::KafkaStorageError, format!("{stream}: the answer of an append script is malformed"))
}

/// The error of a script, which begins with its name.
fn code_of(word: &str) -> Option<ErrorCode> {
    match word {
        "UNKNOWN_TOPIC_OR_PARTITION" => Some(ErrorCode::UnknownTopicOrPartition),
        "NOT_LEADER_OR_FOLLOWER" => Some(ErrorCode::NotLeaderOrFollower),
        "KAFKA_STORAGE_ERROR" => Some(ErrorCode::KafkaStorageError),
        _ => None,
    }
}

/// Why the server refuses, if it is for its state: the same command can succeed later, or after an operator has acted.
fn unavailable(word: &str) -> Option<&'static str> {
    Some(match word {
        "LOADING" => "it is still loading its data",
        "MASTERDOWN" => "it is a replica that has lost its master",
        "READONLY" => "it is a read-only replica",
        "OOM" => "its memory is full (maxmemory)",
        "CLUSTERDOWN" => "the Redis cluster is down",
        "BUSY" | "UNKILLABLE" => "a script blocks it",
        "NOREPLICAS" => "it has too few replicas to accept writes (min-replicas-to-write)",
        "MISCONF" => "it cannot persist its data and refuses writes",
        "TRYAGAIN" | "ASK" => "it is moving the keys to another node",
        "MOVED" => "another node of the cluster has the keys",
        "NOAUTH" => "it wants credentials: redis.url has none",
        "NOPERM" => "the Redis user may not do this",
        "WRONGPASS" => "it refuses the credentials of redis.url",
        _ => return None,
    })
}

/// Whether MOVED says where to: `<slot> <host>:<port>`.
fn is_address(message: &str) -> bool {
    let address = message.split_once(' ').filter(|(slot, _)| slot.parse::<u16>().is_ok());
    let port = address.and_then(|(_, address)| address.rsplit_once(':'));
    port.is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// The epoch that lua/shared/leader_epoch.lua found in a log.
fn later_epoch(message: &str) -> Option<i32> {
    let (_, after) = message.rsplit_once(" has leader epoch ")?;
    let (epoch, _) = after.split_once(", not ")?;
    epoch.parse().ok()
}
