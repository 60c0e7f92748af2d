//! What is counted, until the owner takes it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::session::Counts;
use crate::partition::Topic;
use crate::pipeline::Time;

/// How long an answered request took, and its stages: waiting for its turn, reading and checking it, until Redis' answers
/// were read, waiting for what others do, making the response. And the error of the whole response, 0 without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Answered {
    pub whole: Duration,
    pub stages: [Duration; 5],
    pub error: i16,
    /// Until when they are.
    pub until: Time,
}

/// What consumers were sent of a topic.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Traffic {
    pub topic: Arc<Topic>,
    pub records: u64,
    pub bytes: u64,
}

/// What has happened since it was last taken.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct Noted {
    /// Requests that have begun, and their bytes with their sizes; and how many have ended.
    pub begun: u64,
    pub received_bytes: u64,
    pub ended: u64,
    /// Those of their responses.
    pub sent_bytes: u64,
    pub answered: Vec<Answered>,
    /// How long reads took.
    pub round_trips: Vec<Duration>,
    /// Requests that were refused because Redis was away, and the words about the first.
    pub away: u64,
    pub away_text: Option<String>,
    traffic: HashMap<usize, Traffic>,
    /// Results of partitions with an error, by their code.
    pub failures: BTreeMap<i16, u64>,
    /// How many requests wait now; and the sessions.
    pub parked: usize,
    pub sessions: Counts,
}

impl Noted {
    /// What was sent, by topic.
    pub fn traffic(&self) -> impl Iterator<Item = &Traffic> {
        self.traffic.values()
    }

    /// Count the time until now to the last answers, for writing them.
    pub(super) fn written(&mut self, count: usize, now: Time) {
        for Answered { whole, stages: [.., encode], until, .. } in self.answered.iter_mut().rev().take(count) {
            let took = now.saturating_sub(*until);
            (*whole, *encode, *until) = (*whole + took, *encode + took, now);
        }
    }

    pub(super) fn send(&mut self, topic: &Arc<Topic>, records: u64, bytes: usize) {
        let new = || Traffic { topic: Arc::clone(topic), records: 0, bytes: 0 };
        let traffic = self.traffic.entry(Arc::as_ptr(topic) as usize).or_insert_with(new);
        traffic.records += records;
        traffic.bytes += bytes as u64;
    }
}
