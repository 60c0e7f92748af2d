//! What is counted, until the owner takes it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Appended;
use crate::ErrorCode;
use crate::failure::{Failure, FailureKind};
use crate::noted::{Answered, Traffic, TrafficByTopic};
use crate::partition::Topic;
use crate::pipeline::Time;

/// What has happened since it was last taken.
#[derive(Debug, Default)]
pub struct Noted {
    /// Requests that have begun, and their bytes with their sizes; and how many have ended.
    pub begun: u64,
    #[allow(missing_docs)]
    pub received_bytes: u64,
    #[allow(missing_docs)]
    pub ended: u64,
    /// Those of their responses.
    pub sent_bytes: u64,
    #[allow(missing_docs)]
    pub answered: Vec<Answered>,
    /// How long scripts took, by the layout of the partition: batch, record.
    pub round_trips: [Vec<Duration>; 2],
    /// Refusals by those scripts, by their code.
    pub script_errors: [BTreeMap<i16, u64>; 2],
    /// Batches that were not appended, by their code.
    pub failures: BTreeMap<i16, u64>,
    /// Those of them for which Redis was away, slow or full, and the words about the first.
    pub away: u64,
    #[allow(missing_docs)]
    pub away_text: Option<String>,
    /// Whether any request had no failure.
    pub has_success: bool,
    traffic: TrafficByTopic,
}

impl Noted {
    /// What was sent, by topic.
    pub fn traffic(&self) -> impl Iterator<Item = &Traffic> {
        self.traffic.iter()
    }

    /// Count the time until now to the last answers, for making them.
    pub(super) fn written(&mut self, count: usize, now: Time) {
        self.answered.iter_mut().rev().take(count).for_each(|answered| answered.written(now));
    }

    pub(super) fn append(&mut self, topic: &Arc<Topic>, records: u32, bytes: usize) {
        self.traffic.add(topic, records.into(), bytes);
    }

    pub(super) fn outcomes<'a>(&mut self, outcomes: impl Iterator<Item = &'a Result<Appended, Failure>>) {
        let mut has_failed = false;
        for failure in outcomes.filter_map(|outcome| outcome.as_ref().err()) {
            *self.failures.entry(failure.code as i16).or_default() += 1;
            // One that was refused for want of room was not tried.
            has_failed |= failure.kind != FailureKind::NoRoom;
            if failure.kind != FailureKind::NoRoom
                && matches!(failure.code, ErrorCode::KafkaStorageError | ErrorCode::RequestTimedOut)
            {
                self.away += 1;
                self.away_text.get_or_insert_with(|| failure.message.clone());
            }
        }
        self.has_success |= !has_failed;
    }
}
