//! Requests of consumers, from their frames to their answers.
//!
//! Theory of operation. A [`Consumers`] serves Fetch for the clients of one worker. It is given requests
//! ([`Consumers::begin`]), the replies to its reads ([`Consumers::replied`]), announcements of appends
//! ([`Consumers::announced`]) and the time ([`Consumers::tick`]). It says what to send ([`Consumers::next_send`]), to which
//! logs to listen, and what to answer ([`Event`]).
//!
//! * A request has a place for each of its partitions. It reads all of them, in rounds within one budget of bytes, and is
//!   answered if that is enough. Else it is parked: an append wakes it, or the end of its time.
//! * At that end it looks for what nobody has announced: a wake-up may be lost, and other clients of Redis announce nothing.
//! * A session (KIP-227) keeps its partitions from one request to the next, and what was seen of them: one at whose end
//!   nothing has been announced since is not read again.
//! * What comes next is read ahead for the next request of a consumer that catches up.
//! * The owner puts the data of decisions here: partitions, rights, leader epochs. Missing data is asked for: the request
//!   waits with its questions ([`Consumers::questions`]) until they are decided on. So it is with what only others know: what
//!   replicas have confirmed, and what the remote tier holds.
//! * A connection has one request here at a time.
//!
//! Files: `pending` has a request, `flow` its way, `settle` its questions, `plan` what to read next, `reads` what is on its
//! way, `replies` what comes back, `take` its use, `ahead` the pieces read ahead, `parking` the wait, `wait` the logs that
//! are listened to, `search` the look for what nobody announced, `answer` the end, `session` the sessions.
//!
//! Times count from any beginning. Sources: KIP-74 for limits, KIP-98 for transactions, KIP-227 for sessions, KIP-320 and
//! KIP-595 for leader epochs, KIP-405 for the remote tier, KIP-219 for throttles.

mod ahead;
mod answer;
mod flow;
mod noted;
mod parking;
mod pending;
mod plan;
mod reads;
mod replies;
mod request;
mod response;
mod search;
pub mod session;
mod settle;
mod take;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use crate::access::Right;
use crate::client::NodeId;
use crate::failure::Failure;
use crate::log::{Epochs, Remote};
use crate::partition::{Partition, TopicName};
use crate::peer::PeerId;
use crate::shared::{Piece, Shared};
use crate::slab::Id;

pub use flow::Consumers;
pub use noted::Noted;
pub use reads::Sending;
pub use request::{ForgottenTopic, NAMED_MAX, PartitionData, Request, TopicData, VERSIONS, read};
pub use response::{Header, PartitionResult, write};

/// The number of a request.
pub type RequestId = Id;
/// The number of reads that are sent together.
pub type GroupId = Id;

/// The limits of a worker, and what is the same for all of its requests.
#[derive(Clone, Debug)]
pub struct Options {
    /// A value has at most so many bytes uncompressed.
    pub plain_bytes_max: usize,
    /// What the records of all answers may take that are not written yet.
    pub held_bytes_max: usize,
    /// How many sessions there may be.
    pub sessions_max: usize,
    /// Of the ids of sessions: any number.
    pub seed: u64,
    /// Whether Redis is a cluster.
    pub is_cluster: bool,
    /// How many replicas have to have what consumers see, if its topic wants no more (setting replicas).
    pub replicas: u32,
    /// For how long a log is listened to that nobody reads.
    pub linger: Duration,
    /// A request waits no longer than its connection may say nothing: whether the peer is gone shows when it is answered.
    pub wait_max: Option<Duration>,
}

/// What has happened, in order.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Event {
    /// The response to a frame; then the client is muted for `throttle`, for `reason`.
    Answer { peer: PeerId, number: u64, response: Vec<Piece>, throttle: Duration, reason: u32 },
    /// The connection has to close.
    Close { peer: PeerId, text: String },
    /// A request has questions.
    Asked { request: RequestId, peer: PeerId },
    /// The next request of a peer may begin.
    Room { peer: PeerId },
    /// A log is to be listened to: `live` or `failed` is to be called.
    Listen { partition: Arc<Partition> },
    /// It is not any more.
    Unlisten { partition: Arc<Partition> },
    /// A log was read that ends there, in the leader epoch of its node.
    Seen { partition: Arc<Partition>, epoch: i32, end: i64, epochs: Epochs },
    /// Entries that are no batches lie among those of a log, and are not served.
    Foreign { partition: Arc<Partition>, count: u32 },
    /// The value of a record does not decompress, and is served as it is stored.
    Damaged { partition: Arc<Partition>, offset: i64, encoding: String },
    /// No master has the slot of a partition: the map of the cluster is to be read again.
    WantsMap,
    /// `take_timer` is to be called.
    Timer,
    /// `take_noted` has something, after it had nothing.
    Noted,
}

/// What a request wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Question {
    /// Has the client a right? Go, or why not.
    Right(Right),
    /// Which partition is this? Go once it was put, or why there is none. `is_stale`: Redis does not know the incarnation
    /// that was put.
    Topic { name: TopicName, index: i32, is_stale: bool },
    /// How many bytes may the client read at once by its quota? A number.
    Limit { client_id: Option<String> },
    /// Which leader epoch has the node of a partition, of which the client knows one (-1: none) and the log another? Its
    /// number, or why the client's is not right.
    Epoch { partition: Arc<Partition>, known: i32, last: i32 },
    /// Entries of other clients of Redis may belong where nothing is: go once the log has them up to past the offset, a
    /// number if that takes longer, or why it does not take them.
    External { partition: Arc<Partition>, offset: i64 },
    /// Up to where do so many replicas have a log that was read in this history and ends there? Bounds, -1 if that is not
    /// known; go to read it again if the node has another history. `shown` is up to where something is to be shown; of a
    /// committed read the transactions below count too.
    Watermark {
        partition: Arc<Partition>,
        node: Option<NodeId>,
        history: Arc<str>,
        end: i64,
        stable: i64,
        shown: i64,
        is_committed: bool,
    },
    /// What has the remote tier from an offset on? Batches, nothing yet, or why not. `waits`: the answer may be waited for.
    Remote {
        partition: Arc<Partition>,
        remote: Remote,
        epochs: Epochs,
        offset: i64,
        bytes_max: i64,
        is_first: bool,
        waits: bool,
        readable_end: i64,
    },
    /// How long has the client to wait by its quotas, for an answer of so many bytes that kept the worker busy for so long?
    Charge { client_id: Option<String>, bytes: usize, busy: Duration },
}

/// The answer to a question.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Decision {
    /// Go on.
    Go,
    Number(i64),
    /// Up to where replicas have a log, and its last stable offset up to there.
    Bounds {
        high_watermark: i64,
        stable: i64,
    },
    /// Batches of the remote tier, and whether it has more of them.
    Batches {
        bytes: Shared,
        records: u64,
        has_more: bool,
    },
    /// The remote tier has not answered yet.
    Later,
    /// A throttle in milliseconds, and a number of the owner that says for what.
    Throttle(u32, u32),
    /// What the client gets instead.
    Refuse(Failure),
}
