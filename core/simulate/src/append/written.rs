//! What each incarnation of a partition has ever had, and what of it was lost.

use std::collections::BTreeMap;

use super::model::Log;
use super::topics::{TopicOf, Which, stored};

/// A record that was in a log.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// "": a marker.
    pub value: String,
    /// The producer, if it is of a transaction.
    pub transactional: Option<i64>,
    pub is_lost: bool,
}

/// What an incarnation of a partition has had.
#[derive(Clone, Debug, Default)]
pub(super) struct Had {
    pub records: BTreeMap<i64, Vec<Held>>,
    /// Up to where it is noted, and where the first open transaction began then.
    end: i64,
    open: Option<i64>,
    /// The largest start it had.
    pub start: i64,
    /// How often it has lost its end.
    pub cuts: usize,
}

impl Had {
    /// Whether a record was at an offset, and was lost.
    pub fn has_lost(&self, offset: i64, value: &str) -> bool {
        let held = self.records.get(&offset);
        held.is_some_and(|held| held.iter().any(|held| held.value == value && held.is_lost))
    }

    /// Take in what a log has got. Returns whether its ends are others than before.
    fn note(&mut self, log: &Log, of: TopicOf) -> bool {
        let Some(state) = &log.state else { return false };
        self.start = self.start.max(state.log.start);
        let is_other = std::mem::replace(&mut self.open, state.open) != state.open;
        if state.log.next <= self.end {
            return is_other;
        }
        for record in stored(log, of.layout, self.end) {
            let held = Held { value: record.value, transactional: record.transactional, is_lost: false };
            self.records.entry(record.offset).or_default().push(held);
        }
        self.end = state.log.next;
        true
    }

    /// The log ends there now. Returns whether that is earlier than before.
    fn cut(&mut self, end: i64) -> bool {
        if end >= self.end {
            return false;
        }
        for held in self.records.range_mut(end..).flat_map(|(_, held)| held) {
            held.is_lost = true;
        }
        (self.end, self.cuts) = (end, self.cuts + 1);
        true
    }
}

/// What all of them have had.
#[derive(Debug, Default)]
pub(super) struct Written(BTreeMap<(Which, u8), Had>);

impl Written {
    pub fn of(&mut self, which: Which, incarnation: u8) -> &mut Had {
        self.0.entry((which, incarnation)).or_default()
    }

    /// Whether a log has anything that is not lost in a range.
    pub fn has_any(&self, which: Which, incarnation: u8, range: std::ops::Range<i64>) -> bool {
        let had = self.0.get(&(which, incarnation)).filter(|_| !range.is_empty());
        had.is_some_and(|had| had.records.range(range).any(|(_, held)| held.iter().any(|held| !held.is_lost)))
    }

    pub fn note(&mut self, which: Which, of: TopicOf, log: &Log) -> bool {
        self.of(which, of.incarnation).note(log, of)
    }

    /// A failover has put a log in the place of another. Returns where it was cut, if it was.
    pub fn cut(&mut self, which: Which, of: TopicOf, after: Option<&Log>) -> Option<i64> {
        let end = after.and_then(|log| log.state.as_ref()).map_or(0, |state| state.log.next);
        self.of(which, of.incarnation).cut(end).then_some(end)
    }
}
