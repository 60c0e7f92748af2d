//! Checks of the records that consumers have read.
//!
//! Each answer is compared with the history of the logs: a record that a reader gets was there, no record is skipped,
//! offsets rise, and no record is shown if replicas lack it or its transaction has no commit.
//! Where nothing disturbs, a reader is soon at the end of its log, and in the end it has what the log has. Two things
//! are not asked for: of a client that says no leader epochs (below version 9) nothing after its log was cut, and nothing
//! about the transactions of a producer whose row was lost or has expired.

use std::time::Duration;

use super::consumer::{InFlight, Seen};
use super::model::Log;
use super::producer::FIRST_PRODUCER_ID;
use super::redis::Servers;
use super::topics::{Stored, Which, committed, stored, stream};
use super::world::World;

/// How long readers may take to the ends of their logs.
const READERS_TIME: Duration = Duration::from_secs(6);

/// The log of a partition, if it is there.
pub(super) fn read_log(servers: &Servers, which: Which) -> Option<&Log> {
    servers.log(&stream(which)).filter(|log| log.state.is_some())
}

impl World {
    /// What is wrong with the records from a position up to the next one, if anything is.
    pub fn wrong_records(
        &mut self,
        consumer: usize,
        in_flight: &InFlight,
        (which, seen): (Which, &Seen),
        (position, next): (i64, i64),
        records: &[(i64, String)],
    ) -> Option<String> {
        let (of, is_committed) = (self.topics[which.0], self.consumers[consumer].is_committed);
        let is_of_now = seen.incarnation == of.incarnation;
        let had = self.written.of(which, seen.incarnation);
        let mut last = seen.records.last().map_or(i64::MIN, |(offset, _)| *offset);
        for (offset, value) in records {
            if *offset <= last || *offset < position {
                return Some(format!("gets {value} at {offset} after {last}"));
            }
            last = *offset;
            let Some(held) = had.records.get(offset).and_then(|held| held.iter().find(|held| held.value == *value))
            else {
                return Some(format!("gets {value} at {offset}, where it never was"));
            };
            let sent = self.ledger.sent.get(value).filter(|_| is_committed && held.transactional.is_some());
            if let Some((producer, number)) = sent.and_then(|sent| Some((sent.producer, sent.transaction?))) {
                let commits = self.coordinator.ends.get(&(producer, number));
                if commits != Some(&true) && !self.ledger.is_forgotten(producer, which) {
                    return Some(format!("gets {value} of the transaction {number}: its end is {commits:?}"));
                }
            }
        }
        if of.replicas > 0 && is_of_now && !records.is_empty() {
            let home = self.servers.home(&stream(which));
            let replica = self.servers.hosts[home].replica.logs.get(stream(which).as_bytes());
            let end = replica.and_then(|log| log.state.as_ref()).map_or(0, |state| state.log.next);
            if last >= end {
                return Some(format!("gets {last}, and replicas end at {end}"));
            }
        }
        // After a cut the log may have others in the places of those that were read.
        if seen.is_blind || in_flight.cuts.get(&which) != Some(&had.cuts) {
            return None;
        }
        let mut got = records.iter().map(|(offset, _)| *offset).peekable();
        for (offset, held) in had.records.range(position..next) {
            if got.next_if_eq(offset).is_some() || *offset < had.start {
                continue;
            }
            let is_missing = held.iter().filter(|held| !held.is_lost && !held.value.is_empty()).find(|held| {
                let sent = self.ledger.sent.get(&held.value).filter(|_| is_committed && held.transactional.is_some());
                let of = sent.and_then(|sent| Some((sent.producer, sent.transaction?)));
                of.is_none_or(|of| {
                    self.coordinator.ends.get(&of) != Some(&false) && !self.ledger.is_forgotten(of.0, which)
                })
            });
            if let Some(held) = is_missing {
                return Some(format!("goes on at {next}, and does not get {} at {offset}", held.value));
            }
        }
        None
    }

    // --- what happens to logs

    /// Take in what the logs have got.
    pub fn note_logs(&mut self) {
        for (topic, of) in self.topics.iter().enumerate() {
            for index in 0..of.partitions {
                if let Some(log) = self.servers.log(&stream((topic, index))) {
                    if self.written.note((topic, index), *of, log) {
                        self.changed_at = self.now;
                    }
                }
            }
        }
    }

    /// A failover has put a log in the place of another.
    pub fn note_cut(&mut self, which: Which) {
        let of = self.topics[which.0];
        let Some(end) = self.written.cut(which, of, self.servers.log(&stream(which))) else { return };
        self.trace(|| format!("{which:?} is cut at {end}"));
        let mut failure = None;
        for consumer in &mut self.consumers {
            let is_old = !consumer.knows_epochs();
            let Some(part) = consumer.parts.get_mut(&which) else { continue };
            if part.seen.incarnation != of.incarnation {
                continue;
            }
            let is_past = part.position.is_some_and(|position| position > end);
            if of.replicas > 0 {
                if is_past && part.seen.records.last().is_some_and(|(offset, _)| *offset >= end) {
                    failure = Some(format!("consumer {} has read {which:?} past {end}", consumer.number));
                }
            } else {
                // It does not say which epoch it knows: nobody finds out that its position is of another history.
                part.seen.is_blind |= is_old || is_past && part.last_epoch < 0;
            }
        }
        if let Some(text) = failure {
            self.ledger.fail(format!("{text}, which no replica has"));
        }
    }

    // --- the end

    /// Where nothing disturbs any more, and nothing has changed for a while, all readers are at the ends of their logs.
    pub fn watch_readers(&mut self) {
        if self.now > self.changed_at + READERS_TIME && self.watched_at < self.changed_at {
            self.watched_at = self.changed_at;
            if let Some(text) = self.first_behind() {
                self.ledger.fail(text);
            }
        }
    }

    /// The first reader that is not at the end of its log.
    fn first_behind(&self) -> Option<String> {
        for consumer in &self.consumers {
            for (which, part) in &consumer.parts {
                let Some(state) = read_log(&self.servers, *which).and_then(|log| log.state.as_ref()) else { continue };
                let end = if consumer.is_committed { state.open.unwrap_or(state.log.next) } else { state.log.next };
                let incarnation = self.topics[which.0].incarnation;
                let is_behind = |position: i64| self.written.has_any(*which, incarnation, position..end);
                if part.position.is_none_or(is_behind) {
                    let (number, position) = (consumer.number, part.position);
                    return Some(format!("consumer {number} waits at {position:?} of {which:?}, which ends at {end}"));
                }
            }
        }
        None
    }

    /// Check that each reader has what its log has.
    pub fn check_readers(&mut self) {
        let mut failure = None;
        for consumer in &self.consumers {
            for (which, part) in &consumer.parts {
                let of = self.topics[which.0];
                let Seen { incarnation, since, records, is_blind } = &part.seen;
                let from = self.written.of(*which, *incarnation).start.max(*since);
                let Some(log) = read_log(&self.servers, *which).filter(|_| *incarnation == of.incarnation && !is_blind)
                else {
                    continue;
                };
                let held = if consumer.is_committed { committed(log, of.layout) } else { stored(log, of.layout, from) };
                let is_certain = |producer: i64| {
                    let producer = (producer - FIRST_PRODUCER_ID) as usize;
                    !self.ledger.is_forgotten(producer, *which)
                };
                let is_certain_value = |value: &str| {
                    let sent = self.ledger.sent.get(value).filter(|sent| sent.transaction.is_some());
                    !consumer.is_committed || sent.is_none_or(|sent| !self.ledger.is_forgotten(sent.producer, *which))
                };
                // A transaction whose marker was lost is open again.
                let open = log.state.as_ref().and_then(|state| state.open).filter(|_| consumer.is_committed);
                let end = part.position.unwrap_or_default().min(open.unwrap_or(i64::MAX));
                let is_held = |record: &Stored| {
                    let is_sure = !consumer.is_committed || record.transactional.is_none_or(is_certain);
                    (from..end).contains(&record.offset) && !record.value.is_empty() && is_sure
                };
                let held: Vec<(i64, String)> =
                    held.into_iter().filter(is_held).map(|record| (record.offset, record.value)).collect();
                let is_seen = |record: &&(i64, String)| (from..end).contains(&record.0) && is_certain_value(&record.1);
                let seen: Vec<(i64, String)> = records.iter().filter(is_seen).cloned().collect();
                if seen != held {
                    let number = consumer.number;
                    failure = Some(format!("consumer {number} has of {which:?} {seen:?}\nand the log {held:?}"));
                }
            }
        }
        if let Some(text) = failure {
            self.ledger.fail(text);
        }
    }
}
