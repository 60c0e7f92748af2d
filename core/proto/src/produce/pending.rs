//! A request from its beginning to its answer, and the connections that requests come with.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::unverified::Unverified;
use super::{Outcome, PartitionData, Question, Request, RequestId, TopicData};
use crate::ErrorCode;
use crate::access::{Rights, Session};
use crate::append::Marker;
use crate::client::NodeId;
use crate::failure::{Failure, NotRun};
use crate::partition::Partition;
use crate::peer::PeerId;
use crate::pipeline::Time;
use crate::shared::Shared;

/// What is to be appended at a place.
#[derive(Clone, Debug)]
pub enum Asked {
    /// What a producer sent.
    Batch(Option<Shared>),
    /// The end of a transaction.
    Marker(Marker),
}

/// How far a place has come.
#[derive(Debug)]
pub(super) enum State {
    /// It is not known whether it may be appended.
    New,
    /// It is to be prepared and sent.
    Left,
    /// It is in a group.
    Sent,
    /// Redis refused to run it for a reason that ends: it is to be sent again, unless that was done too often.
    NotRun(NodeId, NotRun, Failure),
    /// It was not sent: for what was before it, or for another history of writes.
    Unsent {
        is_of_another_history: bool,
    },
    /// Entries of other clients of Redis are in the way.
    External,
    /// It opens a transaction, and is to be verified.
    Unverified(Unverified),
    /// It came before what it follows, which may have been sent again meanwhile.
    Early(Failure),
    /// Redis does not know the incarnation of the topic.
    Stale(Failure),
    Done(Outcome),
}

/// A batch of a request.
#[derive(Debug)]
pub(super) struct Place {
    pub asked: Asked,
    /// The topic in the request.
    pub topic: usize,
    pub index: i32,
    pub partition: Option<Arc<Partition>>,
    pub state: State,
    pub is_allowed: bool,
    pub is_insync: bool,
    /// How often its partition was asked for.
    pub asked_for: u8,
    /// The number of its transaction, for the next time that it is sent: that may be to another incarnation.
    pub number: Option<i64>,
    /// If it was to be verified.
    pub unverified: Option<Unverified>,
}

impl Place {
    pub fn new(asked: Asked, topic: usize, index: i32) -> Self {
        Self {
            asked,
            topic,
            index,
            partition: None,
            state: State::New,
            is_allowed: false,
            is_insync: false,
            asked_for: 0,
            number: None,
            unverified: None,
        }
    }

    /// Those of a request, whose frame has the batches.
    pub fn all_of(request: &Request, frame: &Shared) -> Vec<Self> {
        let mut places = Vec::with_capacity(request.partition_count());
        for (topic, data) in request.topics.iter().enumerate() {
            places.extend(data.partitions.iter().map(|partition| {
                let sent = partition.records.clone().map(|range| frame.part(range));
                let mut place = Self::new(Asked::Batch(sent), topic, partition.index);
                if data.name.is_too_long() {
                    place.refuse(Failure::rule(ErrorCode::UnknownTopicOrPartition, "no topic has so long a name"));
                }
                place
            }));
        }
        places
    }

    pub fn outcome(&self) -> Option<&Outcome> {
        if let State::Done(outcome) = &self.state { Some(outcome) } else { None }
    }

    /// How many bytes a producer sent for it.
    pub fn sent_bytes(&self) -> usize {
        if let Asked::Batch(Some(sent)) = &self.asked { sent.as_ref().len() } else { 0 }
    }

    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done(_))
    }

    pub fn refuse(&mut self, failure: Failure) {
        self.state = State::Done(Err(failure));
    }
}

/// What a request does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// May it be served, and where does it go?
    Admit,
    /// It is sent, as often as needed.
    Append,
    /// The times of duplicate batches were asked for.
    Times,
    /// So was what the replicas have.
    Confirm,
    /// So was the throttle by its client's quotas.
    Answer,
}

/// Whose a request is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    /// A client's: the number of its frame.
    Peer(PeerId, u64),
    /// Of the owner of all.
    Own,
}

/// How often a request was sent again, for what reason.
#[derive(Clone, Debug, Default)]
pub(super) struct Tries {
    pub external: u8,
    pub stale_epochs: u8,
    pub moves: u32,
    pub unsent: u8,
    pub is_early: bool,
    pub is_stale: bool,
    /// Until when moved slots are followed.
    pub until: Option<Time>,
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // none follows from another
pub(super) struct Pending {
    pub owner: Owner,
    pub request: Request,
    pub frame_bytes: usize,
    /// The memory of its topics and places, if there are several: each may be of a few bytes of its frame.
    pub held_bytes: usize,
    /// If requests are charged: whose it is, and how long it kept the worker busy.
    pub client_id: Option<String>,
    pub busy: Duration,
    pub places: Vec<Place>,
    pub stage: Stage,
    /// If it may have come long ago: after when.
    pub late: Option<Time>,
    /// Whether its transactional id was granted.
    pub is_id_allowed: bool,
    /// Batches that are in groups.
    pub under_way: usize,
    pub was_sent: bool,
    pub is_rerun: bool,
    pub tries: Tries,
    /// Questions, with the places that each is about.
    pub questions: Vec<(Question, Vec<usize>)>,
    pub throttle_ms: u32,
    pub throttle_reason: u32,
    pub times: Times,
}

impl Pending {
    pub fn new(owner: Owner, request: Request, places: Vec<Place>) -> Self {
        let of_topics = request.topics.len().saturating_sub(1) * size_of::<TopicData>();
        let of_places = places.len().saturating_sub(1) * (size_of::<PartitionData>() + size_of::<Place>());
        Self {
            owner,
            request,
            frame_bytes: 0,
            held_bytes: of_topics + of_places,
            client_id: None,
            busy: Duration::ZERO,
            places,
            stage: Stage::Admit,
            late: None,
            is_id_allowed: false,
            under_way: 0,
            was_sent: false,
            is_rerun: false,
            tries: Tries::default(),
            questions: Vec::new(),
            throttle_ms: 0,
            throttle_reason: 0,
            times: Times::default(),
        }
    }
}

/// When each stage began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub arrived: Time,
    pub begun: Time,
    pub sent: Time,
    pub answered: Time,
    pub confirmed: Time,
}

/// A connection of a client.
#[derive(Debug, Default)]
pub(super) struct Connection {
    pub session: Session,
    pub rights: Rights,
    /// Requests that are not answered, in their order.
    pub begun: VecDeque<RequestId>,
    /// `Producers::order` when the oldest of them began.
    pub order: u64,
    /// Whether none begins until all that have begun are answered.
    pub is_held: bool,
    /// The last that has begun, while it has questions before it is sent, and whether the next one waits for that.
    pub asks: Option<(RequestId, bool)>,
    /// The number of the frame for which it has to close: no later request begins, no later answer is sent.
    pub closes_at: Option<u64>,
    /// Whether its next request waits for room.
    pub waits_for_room: bool,
    /// Whether it is over, and is forgotten with its last request.
    pub is_over: bool,
}
