//! Counts of the requests of producers and of consumers, until the owner takes them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::partition::Topic;
use crate::pipeline::Time;

/// How long an answered request took, and its stages: waiting for its turn, reading and checking it, until Redis' answers
/// were read, waiting for what others do, making the response. And the error of the whole response of a fetch, 0 without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Answered {
    pub whole: Duration,
    pub stages: [Duration; 5],
    pub error: i16,
    /// Until when they are.
    pub until: Time,
}

impl Answered {
    /// Count the time until now, for writing the answer.
    pub(crate) fn written(&mut self, now: Time) {
        let took = now.saturating_sub(self.until);
        let [.., encode] = &mut self.stages;
        *encode += took;
        (self.whole, self.until) = (self.whole + took, now);
    }
}

/// Records of a topic that clients have sent or got.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Traffic {
    pub topic: Arc<Topic>,
    pub records: u64,
    pub bytes: u64,
}

/// The traffic of each topic, by where the topic lies in memory.
#[derive(Debug, Default)]
pub(crate) struct TrafficByTopic(HashMap<usize, Traffic>);

impl TrafficByTopic {
    pub fn iter(&self) -> impl Iterator<Item = &Traffic> {
        self.0.values()
    }

    pub fn add(&mut self, topic: &Arc<Topic>, records: u64, bytes: usize) {
        let new = || Traffic { topic: Arc::clone(topic), records: 0, bytes: 0 };
        let traffic = self.0.entry(Arc::as_ptr(topic) as usize).or_insert_with(new);
        traffic.records += records;
        traffic.bytes += bytes as u64;
    }
}
