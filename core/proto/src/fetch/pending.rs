//! A request from its beginning to its answer.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::session::Bounds;
use super::wait::{LogId, ReaderId, Seen};
use super::{PartitionData, Question, Request};
use crate::ErrorCode;
use crate::client::NodeId;
use crate::failure::Failure;
use crate::log::{Aborted, Collector, EpochStart, Epochs, Found, NO_EPOCH, Remote};
use crate::partition::{Partition, TopicName};
use crate::peer::PeerId;
use crate::pipeline::Time;
use crate::shared::Piece;

/// What a request does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// May it be served, and which partitions are these?
    Admit,
    /// It reads.
    Read,
    /// It has read, and waits for more unless that is enough.
    Wait,
    /// It looks whether anything has come that nobody announced.
    Search,
    /// All is read; the throttle by its client's quotas may have been asked for.
    Answer,
}

/// The result of a partition. Bounds are -1 with an error, as in Apache Kafka.
#[derive(Debug)]
pub(super) struct Outcome {
    pub error: Option<ErrorCode>,
    pub bounds: Bounds,
    /// The log has no record of the client's last epoch at its position, but ends there (KIP-595).
    pub diverging: Option<EpochStart>,
    /// `None` if all records are asked for.
    pub aborted: Option<Vec<Aborted>>,
    pub pieces: Vec<Piece>,
    /// As the limits count them, without compression on the way.
    pub bytes: usize,
    pub records: u64,
    /// It has records, and the log has more than limits let it have.
    pub is_at_limit: bool,
    /// It comes from the remote tier, or is to be asked for again because that has not answered.
    pub is_remote: bool,
    /// The log goes on past the high watermark, and nobody announces that replicas have more of it.
    pub is_withheld: bool,
}

impl Default for Outcome {
    fn default() -> Self {
        Self {
            error: None,
            bounds: Bounds::UNKNOWN,
            diverging: None,
            aborted: None,
            pieces: Vec::new(),
            bytes: 0,
            records: 0,
            is_at_limit: false,
            is_remote: false,
            is_withheld: false,
        }
    }
}

impl Outcome {
    /// The result of a partition that was not read.
    pub fn refused(code: ErrorCode) -> Self {
        Self { error: Some(code), aborted: Some(Vec::new()), ..Self::default() }
    }

    /// The result of a partition that could not be read.
    pub fn failed(failure: &Failure) -> Self {
        Self { error: Some(failure.answered()), ..Self::default() }
    }

    /// Whether this ends a wait: waiting brings nothing more.
    pub fn ends_wait(&self) -> bool {
        self.error.is_some() || self.is_remote || self.diverging.is_some()
    }
}

/// How far the read of a place has come.
#[derive(Debug, Default)]
pub(super) enum Step {
    /// It is not under way.
    #[default]
    Idle,
    /// Its reply is awaited.
    Sent,
    /// What was read ahead for it is awaited; these are the bounds of now.
    Ahead(Box<Found>),
    /// It was read. `is_unsettled`: entries of other clients of Redis may belong where nothing is.
    Found { found: Box<Found>, is_unsettled: bool, is_limited: bool },
    /// The topic has another incarnation.
    Stale,
}

/// A read of a place under way.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // none follows from another
pub(super) struct Reading {
    pub step: Step,
    pub offset: i64,
    pub room: i64,
    pub is_committed: bool,
    pub collector: Option<Collector>,
    pub entries: u32,
    /// How often it was read; and how often that has brought nothing, one time after the other.
    pub rounds: u32,
    pub vain: u32,
    /// How often it was sent again since the last round.
    pub tries: u8,
    /// Where it was sent, and to which history.
    pub sent_to: Option<(NodeId, Arc<str>)>,
    /// Whether the log has taken in what other clients of Redis have written.
    pub is_settled: bool,
    /// Whether it was read again because Redis has another history.
    pub is_again: bool,
    /// The leader epoch of the log's node, once it was compared with what the client knows, or why it is not known.
    pub epoch: Option<Result<i32, Failure>>,
    /// What is read goes into the result; else only the bounds do.
    pub is_taking: bool,
    pub is_bounded: bool,
    pub is_at_end: bool,
    /// Only whether there is anything is asked: a transaction was open at the offset, or others fill the round.
    pub is_probing: bool,
    pub has_more: bool,
    pub is_done: bool,
    pub remote: Option<(Remote, Epochs)>,
}

/// A partition of a request.
#[derive(Debug)]
pub(super) struct Place {
    pub name: TopicName,
    pub asked: PartitionData,
    /// By which its reader knows it: in a session that of the session.
    pub key: u64,
    pub partition: Option<Arc<Partition>>,
    /// Whether it was asked for by another incarnation of the topic.
    pub is_renewed: bool,
    pub log: Option<LogId>,
    pub seen: Seen,
    pub outcome: Outcome,
    /// Elsewhere: what waits is not being read, and there may be much of it.
    pub reading: Option<Box<Reading>>,
    /// Whether its outcome is what it stays: it may not be read, or there is no such partition.
    pub is_refused: bool,
    /// Whether it is among those that are to be read, or are.
    is_due: bool,
    /// How often its partition was asked for.
    pub tries: u8,
}

impl Place {
    pub fn new(name: TopicName, asked: PartitionData, key: u64) -> Self {
        Self {
            name,
            asked,
            key,
            partition: None,
            is_renewed: false,
            log: None,
            seen: Seen::default(),
            outcome: Outcome::default(),
            reading: None,
            is_refused: false,
            is_due: false,
            tries: 0,
        }
    }

    pub fn refuse(&mut self, code: ErrorCode) {
        (self.outcome, self.reading, self.is_refused) = (Outcome::refused(code), None, true);
    }

    /// Begin to read it, in the place of what was read of it before.
    pub fn begin(&mut self, is_committed: bool) {
        self.outcome = Outcome { aborted: is_committed.then(Vec::new), ..Outcome::default() };
        self.reading = Some(Box::new(Reading {
            step: Step::Idle,
            offset: self.asked.fetch_offset,
            room: self.asked.partition_max_bytes.into(),
            is_committed,
            collector: None,
            entries: 0,
            rounds: 0,
            vain: 0,
            tries: 0,
            sent_to: None,
            is_settled: false,
            is_again: false,
            epoch: None,
            is_taking: false,
            is_bounded: false,
            is_at_end: false,
            is_probing: false,
            has_more: false,
            is_done: false,
            remote: None,
        }));
    }

    /// Read another incarnation of its topic from now on. What was read of the one before is served alone.
    pub fn renew(&mut self, is_committed: bool) {
        if self.outcome.bytes == 0 {
            return self.begin(is_committed);
        }
        if let Some(reading) = &mut self.reading {
            (reading.is_done, reading.step) = (true, Step::Idle);
        }
    }

    /// End its read with an error; what was read before that is served, and the next fetch has the error.
    pub fn fail(&mut self, failure: &Failure) {
        if let Some(reading) = &mut self.reading {
            (reading.is_done, reading.step) = (true, Step::Idle);
        }
        if self.outcome.bytes == 0 {
            self.outcome = Outcome::failed(failure);
        }
    }

    /// Make batches of what was taken of it, for its result.
    pub fn finish(&mut self) {
        let collector = self.reading.as_mut().and_then(|reading| reading.collector.take());
        let is_wanted = self.outcome.error.is_none() && !self.outcome.is_remote;
        let Some(collector) = collector.filter(|_| is_wanted) else { return };
        let next_offset = collector.next_offset();
        self.outcome.records = collector.record_count();
        match collector.finish() {
            Ok(pieces) => self.outcome.pieces = pieces,
            Err(error) => {
                self.outcome.bytes = 0;
                self.fail(&Failure::rule(ErrorCode::UnknownServerError, error.to_string()));
            }
        }
        if let Some(aborted) = &mut self.outcome.aborted {
            aborted.retain(|transaction| transaction.first_offset < next_offset);
        }
    }

    /// Where ends what such a reader may read.
    pub fn readable_end(&self, is_committed: bool) -> i64 {
        if is_committed { self.outcome.bounds.last_stable_offset } else { self.outcome.bounds.high_watermark }
    }

    /// Whether it was read at the end of what may be read, and there was nothing: an append announces what comes there.
    pub fn is_quiet(&self, is_committed: bool) -> bool {
        let Outcome { error, pieces, diverging, is_remote, is_withheld, .. } = &self.outcome;
        let has_news = error.is_some() || !pieces.is_empty() || diverging.is_some() || *is_remote || *is_withheld;
        self.partition.is_some() && !has_news && self.readable_end(is_committed) == self.asked.fetch_offset
    }

    /// The leader epoch that the client knows; `NO_EPOCH`: it gives none.
    pub fn known_epoch(&self) -> i32 {
        self.asked.current_leader_epoch.max(NO_EPOCH)
    }
}

/// What a question is about.
#[derive(Clone, Debug)]
pub(super) enum About {
    Request,
    Topic(TopicName),
    Place(usize),
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // none follows from another
pub(super) struct Pending {
    pub peer: PeerId,
    /// That of its frame.
    pub number: u64,
    pub request: Request,
    pub session: Option<i32>,
    pub stage: Stage,
    pub places: Vec<Place>,
    /// By their keys, in a session.
    pub by_key: HashMap<u64, usize>,
    /// Whether the client may be a broker that follows others, once it is decided.
    pub follower: Option<Result<(), ErrorCode>>,
    /// Whether each topic that was asked for may be read, where not all may be.
    pub judged: BTreeMap<TopicName, Option<ErrorCode>>,
    /// Places that are to be read, or are, in their order.
    pub due: Vec<usize>,
    pub questions: Vec<(Question, About)>,
    /// Reads that have no outcome yet.
    pub under_way: usize,
    /// What it may take in all, and from when on it is enough.
    pub bytes_max: usize,
    pub bytes_min: usize,
    /// What it may still take in this stage.
    pub left: i64,
    /// What it has of the memory for answers.
    pub reserved: usize,
    pub wait: Duration,
    pub deadline: Option<Time>,
    /// Whether it is answered without a wait: something was wrong that is answered at once.
    pub is_hasty: bool,
    /// How many places it had when it was parked, if it is.
    pub parked_places: Option<usize>,
    /// When it is to be looked at though nothing has happened.
    pub timer: Option<Time>,
    /// Who waits: its own reader, or that of its session.
    pub reader: Option<ReaderId>,
    /// Why it is refused as a whole.
    pub refusal: Option<ErrorCode>,
    pub client_id: Option<String>,
    /// What its client's quota lets it read, if it was asked for; and whether the answer was charged.
    pub is_limited: bool,
    pub is_charged: bool,
    pub busy: Duration,
    pub throttle: (u32, u32),
    pub response: Vec<Piece>,
    pub times: Times,
}

impl Pending {
    pub fn new(peer: PeerId, number: u64, request: Request) -> Self {
        Self {
            peer,
            number,
            request,
            session: None,
            stage: Stage::Admit,
            places: Vec::new(),
            by_key: HashMap::new(),
            follower: None,
            judged: BTreeMap::new(),
            due: Vec::new(),
            questions: Vec::new(),
            under_way: 0,
            bytes_max: 0,
            bytes_min: 0,
            left: 0,
            reserved: 0,
            wait: Duration::ZERO,
            deadline: None,
            is_hasty: false,
            parked_places: None,
            timer: None,
            reader: None,
            refusal: None,
            client_id: None,
            is_limited: false,
            is_charged: false,
            busy: Duration::ZERO,
            throttle: (0, 0),
            response: Vec::new(),
            times: Times::default(),
        }
    }

    /// Bytes of all results.
    pub fn bytes(&self) -> usize {
        self.places.iter().map(|place| place.outcome.bytes).sum()
    }

    /// How many bytes count for what it wants at least. Kafka cuts the last batch to fill a limit: a partition at its limit
    /// counts as that.
    pub fn counted_bytes(&self) -> usize {
        let counted = |place: &Place| {
            let limit = if place.outcome.is_at_limit { place.asked.partition_max_bytes } else { 0 };
            place.outcome.bytes.max(usize::try_from(limit).unwrap_or(0))
        };
        self.places.iter().map(counted).sum()
    }

    /// Have a place read, after those that are to be read already.
    pub fn add_due(&mut self, index: usize) {
        if let Some(place) = self.places.get_mut(index) {
            if !std::mem::replace(&mut place.is_due, true) {
                self.due.push(index);
            }
        }
    }

    /// Have no place read.
    pub fn clear_due(&mut self) {
        for index in self.due.drain(..) {
            if let Some(place) = self.places.get_mut(index) {
                place.is_due = false;
            }
        }
    }

    /// Note that a read has its outcome, which took the time until now.
    pub fn end_one(&mut self, spent: Spent, now: Time) {
        self.under_way = self.under_way.saturating_sub(1);
        self.times.end(spent, now);
    }
}

/// What the time of a request goes to, as `Answered` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spent {
    Queue,
    Decode,
    Redis,
    Wait,
    Encode,
}

/// A stopwatch for the parts of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub arrived: Time,
    pub at: Time,
    pub stages: [Duration; 5],
}

impl Times {
    /// Count the time until now.
    pub fn end(&mut self, spent: Spent, now: Time) {
        if let Some(stage) = self.stages.get_mut(spent as usize) {
            *stage += now.saturating_sub(self.at);
        }
        self.at = self.at.max(now);
    }
}
