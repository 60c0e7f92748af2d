//! What a client may do, as far as its worker was asked for it.

use std::collections::HashSet;

use crate::partition::{NAME_BYTES_MAX, TopicName};
use crate::pipeline::Time;

/// Rights of a client that are known; beyond it all are asked for again. A right to all topics has names that no topic has.
const RIGHTS_MAX: usize = 10_000;

/// What holds for all requests of a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Session {
    /// Whether it may do everything.
    pub may_all: bool,
    /// When it ends, unless its client logs in again.
    pub ends_at: Option<Time>,
}

/// A right to do what a request does: Produce writes, Fetch reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Right {
    /// To a topic.
    Topic(Box<str>),
    /// To the topic of an id; it goes with the incarnation.
    TopicId([u8; 16]),
    /// To a transactional id.
    TransactionalId(Box<str>),
    /// To the cluster: of brokers, which follow others.
    Cluster,
}

impl From<&TopicName> for Right {
    fn from(name: &TopicName) -> Self {
        match name {
            TopicName::Name(name) => Self::Topic((&**name).into()),
            TopicName::Id(id) => Self::TopicId(*id),
        }
    }
}

/// The rights that a client is known to have.
#[derive(Debug, Default)]
pub struct Rights {
    topics: HashSet<Box<str>>,
    topic_ids: HashSet<[u8; 16]>,
    transactional_ids: HashSet<Box<str>>,
    has_cluster: bool,
}

impl Rights {
    /// Note a right; one with a long name is asked for each time, for who chooses its names could fill the memory.
    pub fn grant(&mut self, right: Right) {
        if matches!(&right, Right::Topic(name) | Right::TransactionalId(name) if name.len() > NAME_BYTES_MAX) {
            return;
        }
        if self.topics.len() + self.topic_ids.len() + self.transactional_ids.len() >= RIGHTS_MAX {
            self.forget();
        }
        match right {
            Right::Topic(name) => drop(self.topics.insert(name)),
            Right::TopicId(id) => drop(self.topic_ids.insert(id)),
            Right::TransactionalId(id) => drop(self.transactional_ids.insert(id)),
            Right::Cluster => self.has_cluster = true,
        }
    }

    /// Whether it has that to a topic.
    pub fn has_topic(&self, name: &TopicName) -> bool {
        match name {
            TopicName::Name(name) => self.topics.contains(&**name),
            TopicName::Id(id) => self.topic_ids.contains(id),
        }
    }

    /// Whether it has that to a transactional id.
    pub fn has_transactional_id(&self, id: &str) -> bool {
        self.transactional_ids.contains(id)
    }

    /// Whether it has that to the cluster.
    pub fn has_cluster(&self) -> bool {
        self.has_cluster
    }

    /// Forget all: they may have been taken back.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}
