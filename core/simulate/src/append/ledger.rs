//! The facts to reconcile: answers to producers, records of readers, and the logs in the end.

use std::collections::{BTreeMap, BTreeSet};

use super::model::Log;
use super::producer::{Acknowledged, FIRST_PRODUCER_ID, Kind, Producer};
use super::redis::Servers;
use super::topics::{Stored, TopicOf, Which, committed, epochs, stored, stream};
use super::transactions::Ends;
use super::worker::Worker;
use super::written::Had;

/// A record as it was sent.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub kind: Kind,
    pub producer: usize,
    /// Its place among those of its producer.
    pub number: usize,
    /// The connection by which it was last sent.
    pub link: u64,
    /// Of its transaction.
    pub transaction: Option<i64>,
}

/// Where a record was acknowledged.
#[derive(Clone, Copy, Debug)]
struct At {
    which: Which,
    incarnation: u8,
    offset: i64,
}

/// A reader of a partition from its beginning, which cuts what it has as KIP-320 says.
#[derive(Clone, Debug, Default)]
struct Reader {
    incarnation: u8,
    records: Vec<Stored>,
    next: i64,
    epoch: i64,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub failure: Option<String>,
    pub sent: BTreeMap<String, Sent>,
    acknowledged: BTreeMap<String, At>,
    /// Records of which it is not known to which incarnation of a partition an acknowledgement belongs.
    uncertain: BTreeSet<String>,
    readers: BTreeMap<Which, Reader>,
    /// Partitions that may have forgotten a producer: they take any sequence of it, so that its batches in flight may be
    /// written in another order, or again in its next epoch. So it is in Kafka.
    forgotten: BTreeSet<(usize, Which)>,
    /// Acknowledged records of which all replicas have to have each.
    pub count: usize,
}

fn producer_of(producer_id: &str) -> usize {
    producer_id.parse::<i64>().map_or(0, |id| id - FIRST_PRODUCER_ID) as usize
}

fn shown(records: &[Stored]) -> String {
    let shown = |record: &Stored| format!("{}:{}", record.offset, record.value);
    records.iter().map(shown).collect::<Vec<_>>().join(" ")
}

impl Ledger {
    pub fn fail(&mut self, text: impl Into<String>) {
        if self.failure.is_none() {
            self.failure = Some(text.into());
        }
    }

    /// Whether a partition may have forgotten a producer.
    pub fn is_forgotten(&self, producer: usize, which: Which) -> bool {
        self.forgotten.contains(&(producer, which))
    }

    pub fn note_link(&mut self, values: &[String], link: u64) {
        for value in values {
            if let Some(sent) = self.sent.get_mut(value) {
                sent.link = link;
            }
        }
    }

    /// Note what a producer has heard, while a log is as it is.
    pub fn acknowledge(
        &mut self,
        (which, values, base): Acknowledged,
        of: TopicOf,
        (log, had): (Option<&Log>, &Had),
        acks: i16,
    ) {
        let held = log.map(|log| stored(log, of.layout, base)).unwrap_or_default();
        for (offset, value) in (base..).zip(values) {
            self.count += 1;
            if self.uncertain.contains(&value) {
                continue;
            }
            // It may have been written again, at the same offset.
            let is_held = held.iter().any(|record| record.offset == offset && record.value == value);
            let was_there = had.has_lost(offset, &value);
            let producer = self.sent.get(&value).map_or(0, |sent| sent.producer);
            let is_lost = !is_held && (was_there || self.forgotten.contains(&(producer, which)));
            if is_lost && was_there && acks == -1 && of.replicas > 0 {
                self.fail(format!("{value} is acknowledged at {which:?} {offset}, which no replica had"));
            }
            if !is_lost {
                self.acknowledged.insert(value, At { which, incarnation: of.incarnation, offset });
            }
        }
    }

    /// Note what a failover takes: records that the replica does not have.
    pub fn lose(&mut self, which: Which, of: TopicOf, before: &Log, after: Option<&Log>, acks: &[i16]) {
        let state = after.and_then(|log| log.state.as_ref());
        for (id, row) in before.state.iter().flat_map(|state| &state.producers) {
            if state.and_then(|state| state.producers.get(id)) != Some(row) {
                // Also if what it wrote last is trimmed already: its marker, for one.
                self.forgotten.insert((producer_of(&String::from_utf8_lossy(id)), which));
            }
        }
        let start = state.map_or(0, |state| state.log.start);
        let kept: BTreeSet<(i64, String)> = after
            .map(|log| stored(log, of.layout, 0).into_iter().map(|record| (record.offset, record.value)).collect())
            .unwrap_or_default();
        let is_lost = |value: &String, at: &At| {
            let is_here = at.which == which && at.incarnation == of.incarnation && at.offset >= start;
            is_here && !kept.contains(&(at.offset, value.clone()))
        };
        let (lost, left) =
            std::mem::take(&mut self.acknowledged).into_iter().partition(|(value, at)| is_lost(value, at));
        let lost: BTreeMap<String, At> = lost;
        self.acknowledged = left;
        for (value, At { offset, .. }) in lost {
            let producer = self.sent.get(&value).map_or(0, |sent| sent.producer);
            if of.replicas > 0 && acks[producer] == -1 {
                self.fail(format!("{value} was acknowledged at {which:?} {offset}, and no replica has it"));
            }
        }
    }

    /// Note that a partition is another one. What is not acknowledged may be in the one before.
    pub fn create_again(&mut self, which: Which, producers: &[Producer]) {
        for producer in producers {
            self.forgotten.insert((producer.number, which));
            let queue = producer.queues.get(&which);
            self.uncertain.extend(queue.iter().flat_map(|queue| &queue.batches).flat_map(|batch| batch.values.clone()));
        }
    }

    /// Let the reader of a partition go on.
    pub fn read(&mut self, which: Which, of: TopicOf, log: &Log) {
        let Some(state) = &log.state else { return };
        let reader = self.readers.entry(which).or_default();
        if reader.incarnation != of.incarnation {
            *reader = Reader { incarnation: of.incarnation, ..Reader::default() };
        }
        let epochs = epochs(log);
        let end = epochs.range(reader.epoch + 1..).next().map_or(state.log.next, |(_, from)| *from);
        if end < reader.next {
            reader.records.retain(|record| record.offset < end);
            reader.next = end;
        }
        let more = stored(log, of.layout, reader.next);
        if let Some(last) = more.last() {
            reader.next = last.offset + 1;
            reader.epoch =
                epochs.iter().filter(|(_, from)| **from <= last.offset).map(|(epoch, _)| *epoch).max().unwrap_or(0);
        }
        reader.records.extend(more);
    }

    /// Check all partitions, once everything has settled.
    pub fn check(&mut self, topics: &[TopicOf], servers: &Servers, ends: &Ends, workers: &[Worker]) {
        for (topic, of) in topics.iter().enumerate() {
            for index in 0..of.partitions {
                let which = (topic, index);
                let Some(log) = servers.log(&stream(which)) else {
                    self.fail(format!("{which:?} is gone"));
                    continue;
                };
                self.read(which, *of, log);
                self.check_reader(which, *of, log);
                self.check_log(which, *of, log, workers);
                self.check_transactions(which, *of, log, ends);
            }
        }
    }

    fn check_reader(&mut self, which: Which, of: TopicOf, log: &Log) {
        let held = stored(log, of.layout, 0);
        let Some(reader) = self.readers.get(&which) else { return };
        let first = held.first().map_or(i64::MAX, |record| record.offset);
        let seen: Vec<Stored> = reader.records.iter().filter(|record| record.offset >= first).cloned().collect();
        if seen != held {
            let text = format!("a reader of {which:?} has {}\nand the log {}", shown(&seen), shown(&held));
            self.fail(text);
        }
    }

    /// What was acknowledged is there once, nothing is there twice, and each producer's records are in their order.
    fn check_log(&mut self, which: Which, of: TopicOf, log: &Log, workers: &[Worker]) {
        let start = log.state.as_ref().map_or(0, |state| state.log.start);
        let held = stored(log, of.layout, 0);
        let mut offsets: BTreeMap<&str, i64> = BTreeMap::new();
        let mut last: BTreeMap<(usize, u64), usize> = BTreeMap::new();
        for record in held.iter().filter(|record| !record.value.is_empty()) {
            let Some(sent) = self.sent.get(&record.value).cloned() else { continue };
            if sent.kind != Kind::Plain && self.forgotten.contains(&(sent.producer, which)) {
                offsets.insert(&record.value, record.offset);
                continue;
            }
            if let Some(other) = offsets.insert(&record.value, record.offset) {
                let text = format!("{} is at {other} and at {} of {which:?}", record.value, record.offset);
                return self.fail(text);
            }
            // A plain producer's are in the order of one connection.
            let link = if sent.kind == Kind::Plain { sent.link } else { 0 };
            let before = last.get(&(sent.producer, link)).copied().unwrap_or(0);
            last.insert((sent.producer, link), before.max(sent.number));
            let other = format!("p{}.{before}", sent.producer);
            let may_be = || workers.iter().any(|worker| worker.order.may_overtake(&other, &record.value));
            if before > sent.number && !(sent.kind == Kind::Plain && may_be()) {
                let text = format!("{} comes after {other} in {which:?}: {}", record.value, shown(&held));
                return self.fail(text);
            }
        }
        let missing = self.acknowledged.iter().find(|(value, at)| {
            let is_here = at.which == which && at.incarnation == of.incarnation && at.offset >= start;
            is_here && offsets.get(value.as_str()) != Some(&at.offset)
        });
        if let Some((value, at)) = missing {
            let text = format!("{value} was acknowledged at {} of {which:?}, which has {}", at.offset, shown(&held));
            self.fail(text);
        }
    }

    /// All of a transaction is seen, or nothing.
    fn check_transactions(&mut self, which: Which, of: TopicOf, log: &Log, ends: &Ends) {
        let is_kept = |id: &str| !self.forgotten.contains(&(producer_of(id), which));
        if log.open.sorted().into_iter().any(|(_, id)| is_kept(id)) {
            return self.fail(format!("a transaction is open in {which:?}: {:?}", log.open));
        }
        let seen: BTreeSet<String> = committed(log, of.layout).into_iter().map(|record| record.value).collect();
        let start = log.state.as_ref().map_or(0, |state| state.log.start);
        // What lies after a transaction without an end is not seen yet.
        let end = log.state.as_ref().and_then(|state| state.open).unwrap_or(i64::MAX);
        for record in stored(log, of.layout, start).into_iter().filter(|record| record.offset < end) {
            let Some(sent) = self.sent.get(&record.value) else { continue };
            let is_kept = !self.forgotten.contains(&(sent.producer, which));
            let Some(number) = sent.transaction.filter(|_| is_kept) else { continue };
            let commits = ends.get(&(sent.producer, number)).copied().unwrap_or_default();
            if commits != seen.contains(&record.value) {
                let end = if commits { "committed" } else { "not committed" };
                let text =
                    format!("{} of the transaction {number}, which is {end}, is wrong in {which:?}", record.value);
                return self.fail(text);
            }
        }
    }
}
