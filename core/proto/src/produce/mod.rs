//! Requests of producers, from their frames to their answers.
//!
//! Theory of operation. A [`Producers`] serves Produce for the clients of one worker. It is given requests
//! ([`Producers::begin`]) and the replies to its scripts ([`Producers::replied`]). It says what to send
//! ([`Producers::next_send`]) and what to answer ([`Event::Answer`]).
//!
//! * A request has a place for each of its batches. A batch is checked, and joins the group of its node: the batches that
//!   come in one turn of the owner's loop go to a node together, and those of one partition in one call of a script.
//! * What decides on an append and may change while it is under way is decided by the script, in Redis: sequences, epochs,
//!   transactions, offsets. Nothing of a partition's state is kept here.
//! * The owner puts the data of decisions here: partitions, rights, leader epochs, backpressure. Missing data is asked for:
//!   the request waits with its questions ([`Producers::questions`]) until they are decided on.
//! * A batch that was refused for a reason that ends is sent again: an epoch has begun, a slot has moved, entries of other
//!   clients are in the way, a transaction is to be verified. It must not be overtaken by what its producer sent after it. So
//!   that is done in the turn of its request, after all before it are answered, and no request of the connection begins
//!   until all that have begun are answered.
//! * What was sent and got no reply may be written or not. An idempotent producer finds out by sending it again, with all
//!   that came after it, so its connection is closed. An error would not do: the next batch, which is on its way, would be
//!   out of sequence, and librdkafka would take a new epoch and write again what is written.
//!
//! Times count from any beginning; `now_ms` is a wall clock. Sources: KIP-98, KIP-360 and KIP-890 for producers and
//! transactions, KIP-219 for throttles, KIP-467 for the errors of records.

mod answer;
mod flow;
mod group;
mod noted;
mod pending;
mod replied;
mod request;
mod response;
mod settle;
mod unverified;

use std::sync::Arc;
use std::time::Duration;

use crate::access::Right;
use crate::client::NodeId;
use crate::failure::Failure;
use crate::partition::{Partition, TopicName};
use crate::peer::PeerId;
use crate::pipeline::Time;
use crate::slab::Id;

pub use flow::Producers;
pub use group::Sending;
pub use noted::Noted;
pub use pending::Asked;
pub use replied::End;
pub use request::{PartitionData, Request, TopicData, VERSIONS, read};
pub use response::{Written, write};

/// The number of a request.
pub type RequestId = Id;
/// The number of a group of calls.
pub type GroupId = Id;

/// A text of a script in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ScriptText {
    pub source: String,
    pub sha: String,
}

/// A script that appends, and its text for a Redis whose memory is full.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Script {
    pub text: ScriptText,
    pub when_full: ScriptText,
}

/// The limits of a worker, and what is the same for all of its requests.
#[derive(Clone, Debug)]
pub struct Options {
    /// A batch has at most so many bytes uncompressed, and so many of one request are prepared before they are sent.
    pub plain_bytes_max: usize,
    /// No request begins while what was made of others takes more.
    pub held_bytes_max: usize,
    /// How long what was refused for a reason that ends is sent again.
    pub timeout: Duration,
    /// Whether Redis is a cluster.
    pub is_cluster: bool,
    /// How many replicas have to have an append with acks=all, if its topic wants no more (setting replicas).
    pub replicas: u32,
}

/// How full a node is, and what follows for what is written to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Clients wait for so long after a request.
    pub throttle_ms: u32,
    /// Why nothing is written.
    pub refusal: Option<String>,
    /// When another reading is due, and until when this one counts.
    pub due: Time,
    #[allow(missing_docs)]
    pub until: Time,
}

/// What one script wrote, or had written before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The offset of the first record.
    pub base_offset: i64,
    /// The log's start, as responses report it.
    pub log_start: i64,
    /// Whether it was there before.
    pub is_duplicate: bool,
    /// What ever came into the log in bytes as stored, if a row of its index was written.
    pub row_bytes: u64,
    /// The time that its records got instead of their own, in milliseconds; -1 if they kept theirs.
    pub timestamp: i64,
    /// Which node has it, in which history.
    pub node: NodeId,
    #[allow(missing_docs)]
    pub history: Arc<str>,
}

/// What becomes of a batch.
pub type Outcome = Result<Appended, Failure>;

/// What has happened, in order.
#[derive(Debug)]
pub enum Event {
    /// The response to a frame, empty for acks=0; then the client is muted for `throttle`, for `reason`.
    #[allow(missing_docs)]
    Answer { peer: PeerId, number: u64, response: Vec<u8>, throttle: Duration, reason: u32 },
    /// The connection has to close after the answers before this one. `is_unanswered`: it is for its client to find out
    /// what became of a batch.
    #[allow(missing_docs)]
    Close { peer: PeerId, text: String, is_unanswered: bool },
    /// A request has questions.
    #[allow(missing_docs)]
    Asked { request: RequestId, peer: Option<PeerId> },
    /// `Producers::append` has its outcomes.
    #[allow(missing_docs)]
    Done { request: RequestId },
    /// Something that is sent to a node waits for its leader epoch: `put_epoch` or `no_epoch` is to be called.
    #[allow(missing_docs)]
    WantsEpoch { node: NodeId },
    /// The reading of how full a node is has become old: `put_pressure` is to be called, soon.
    #[allow(missing_docs)]
    WantsPressure { node: NodeId },
    /// A node refused for want of memory.
    #[allow(missing_docs)]
    MemoryFull { node: NodeId },
    /// No master has the slot of a partition: the map of the cluster is to be read again.
    WantsMap,
    /// The index of a log has a new row.
    #[allow(missing_docs)]
    Row { partition: Arc<Partition> },
    /// A log has got an end.
    #[allow(missing_docs)]
    Appended { partition: Arc<Partition>, end: i64 },
    /// A script gave so many external entries other ids, or in layout batch removed them.
    #[allow(missing_docs)]
    Moved { partition: Arc<Partition>, count: u32 },
    /// A peer whose next request had to wait for room, or for questions, may begin.
    #[allow(missing_docs)]
    Room { peer: PeerId },
    /// `take_noted` has something, after it had nothing.
    Noted,
}

/// What a request wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// May it be served though it comes late? Go, or why not.
    #[allow(missing_docs)]
    Late { came_after: Time },
    /// Has the client a right? Go, or why not.
    Right(Right),
    /// Which partition is this? Go once it was put, or why there is none. `is_stale`: Redis does not know the incarnation
    /// that was put.
    #[allow(missing_docs)]
    Topic { name: TopicName, index: i32, is_stale: bool },
    /// Are so many replicas in sync? Go, or why not.
    #[allow(missing_docs)]
    InSync { partition: Arc<Partition> },
    /// Which number has the transaction of a producer, which is to have these partitions? Its number, or why not.
    #[allow(missing_docs)]
    Verify { transactional_id: String, version: i16, producer_id: i64, epoch: i16, partitions: Vec<Arc<Partition>> },
    /// Entries of other clients of Redis are in the way: go once the log has them, or why it has not.
    #[allow(missing_docs)]
    External { partition: Arc<Partition> },
    /// Redis knows a later leader epoch: go once the node's epoch was put.
    #[allow(missing_docs)]
    Stale { node: NodeId, later: Option<i32> },
    /// Slots have moved, or are moving, by these error replies: go once it is known where to, or after a pause that
    /// grows with the attempt.
    #[allow(missing_docs)]
    Elsewhere { replies: Vec<String>, attempt: u32 },
    /// Which time has the record at an offset? The time, -1 if it is not known.
    #[allow(missing_docs)]
    TimeAt { partition: Arc<Partition>, offset: i64 },
    /// Have so many replicas all that was written to a node in a history until now? Go, or why not.
    #[allow(missing_docs)]
    Confirm { node: NodeId, history: Arc<str>, replicas: u32 },
    /// Has everybody else had a turn? So much of the request was looked at that others are to be served before the rest.
    Rest,
    /// How long has the client to wait by its quotas, for a request of so many bytes that kept the worker busy for so long?
    #[allow(missing_docs)]
    Charge { client_id: Option<String>, bytes: usize, busy: Duration },
}

/// The answer to a question.
#[derive(Clone, Debug)]
pub enum Decision {
    /// Go on.
    Go,
    /// The number of a transaction, or a time in milliseconds.
    Number(i64),
    /// A throttle in milliseconds, and a number of the owner that says for what.
    Throttle(u32, u32),
    /// What the client gets instead.
    Refuse(Failure),
}
