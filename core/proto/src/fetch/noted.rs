//! What is counted, until the owner takes it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::session::Counts;
use crate::noted::{Answered, Traffic, TrafficByTopic};
use crate::partition::Topic;
use crate::pipeline::Time;

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
    traffic: TrafficByTopic,
    /// Results of partitions with an error, by their code.
    pub failures: BTreeMap<i16, u64>,
    /// How many requests wait now; and the sessions.
    pub parked: usize,
    pub sessions: Counts,
}

impl Noted {
    /// What was sent, by topic.
    pub fn traffic(&self) -> impl Iterator<Item = &Traffic> {
        self.traffic.iter()
    }

    /// Count the time until now to the last answers, for writing them.
    pub(super) fn written(&mut self, count: usize, now: Time) {
        self.answered.iter_mut().rev().take(count).for_each(|answered| answered.written(now));
    }

    pub(super) fn send(&mut self, topic: &Arc<Topic>, records: u64, bytes: usize) {
        self.traffic.add(topic, records, bytes);
    }
}
