//! A read of a log: its commands, and what their replies are.

use std::collections::HashMap;
use std::sync::Arc;

use super::entries::put_id_of_end;
use super::found::Found;
use super::state::{listed, malformed, parsed};
use super::{Aborted, STATE_FIELDS, State};
use crate::ErrorCode;
use crate::failure::Failure;
use crate::partition::{Layout, Partition};
use crate::resp::{Element, Elements, put_argument, put_count, put_integer};
use crate::shared::Shared;

/// Logs that are compacted, or have aborted transactions, and are known; all are forgotten beyond it, at the price of a
/// second read each.
const KNOWN_MAX: usize = 100_000;
/// How many times more rows of aborted transactions are read, if those that were read do not cover the first entry.
const ABORTED_FACTOR: u32 = 8;

/// A read of the entries from `offset` on.
#[derive(Clone, Debug)]
pub struct Read {
    #[allow(missing_docs)]
    pub partition: Arc<Partition>,
    #[allow(missing_docs)]
    pub offset: i64,
    /// How many entries it may find; 0: it asks for the bounds alone.
    pub entries_max: u32,
    /// Entries that begin here or later are not read. It must lie between two entries.
    pub end: Option<i64>,
    /// Whether it finds only what lies below the last stable offset, and which of it was aborted (read_committed).
    pub is_committed: bool,
    /// How many rows of aborted transactions a committed read asks for. It finds no more than these say something about.
    pub aborted_max: u32,
}

/// How a read was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The compacted stream that it looks in, `None`: the stream that is appended to.
    segment: Option<usize>,
    asks_entries: bool,
    asks_aborted: bool,
}

/// What the reply to a read is.
#[derive(Debug)]
pub enum Outcome {
    #[allow(missing_docs)]
    Found(Found),
    /// Nothing was found, and entries of other clients of Redis may belong there: it is to be read again once the log has
    /// taken them in.
    Unsettled(Found),
    /// This is to be read instead.
    Again(Read),
    #[allow(missing_docs)]
    Refused(Failure),
}

/// What is known of logs that are compacted, or have aborted transactions, by the last replies. It may be out of date:
/// the state that comes with a reply says whether the right question was asked.
#[derive(Debug, Default)]
pub struct Known {
    logs: HashMap<Box<str>, Log>,
}

/// What is known of a log.
#[derive(Debug)]
struct Log {
    /// What is known of a topic means nothing for the next one of its name.
    topic_id: Box<str>,
    /// The compacted stream that holds what lies below an offset.
    compacted: Option<(usize, i64)>,
    /// The offset of the last marker that aborted a transaction, -1 without one.
    last_aborted: i64,
}

impl Known {
    fn get(&self, partition: &Partition) -> Option<&Log> {
        if self.logs.is_empty() {
            return None;
        }
        self.logs.get(&*partition.keys.stream).filter(|log| log.topic_id == partition.topic.id_text)
    }

    fn learn(&mut self, partition: &Partition, state: &State) {
        let stream = &*partition.keys.stream;
        if state.segment.is_none() && state.last_aborted < 0 {
            if !self.logs.is_empty() {
                self.logs.remove(stream);
            }
            return;
        }
        let compacted = state.segment.map(|segment| (segment, state.compacted_end));
        if let Some(log) = self.logs.get_mut(stream).filter(|log| log.topic_id == partition.topic.id_text) {
            (log.compacted, log.last_aborted) = (compacted, state.last_aborted);
            return;
        }
        if self.logs.len() >= KNOWN_MAX {
            self.logs.clear();
        }
        let topic_id = partition.topic.id_text.clone();
        self.logs.insert(stream.into(), Log { topic_id, compacted, last_aborted: state.last_aborted });
    }
}

impl Read {
    /// How often a read is sent before [`Read::misled`]. Each time but two it has met the end of a pass of compaction, or
    /// as many entries of other clients of Redis as it may read.
    pub const TRIES_MAX: u32 = 11;

    /// Add the commands, of which the last has the reply; returns how many they are.
    pub fn put(&self, known: &Known, text: &mut Vec<u8>) -> (usize, Sent) {
        let Self { partition, offset, .. } = self;
        let keys = &partition.keys;
        let log = known.get(partition);
        let asks_entries = self.entries_max > 0;
        let segment = log.and_then(|log| log.compacted).filter(|(_, end)| offset < end).map(|(segment, _)| segment);
        let has_aborted = log.is_some_and(|log| log.last_aborted >= *offset);
        let sent = Sent { segment, asks_entries, asks_aborted: asks_entries && self.is_committed && has_aborted };
        if sent.is_block() {
            put_command(text, 1, "MULTI");
        }
        put_command(text, 2 + STATE_FIELDS.len(), "HMGET");
        put_argument(text, keys.state.as_bytes());
        for field in STATE_FIELDS {
            put_argument(text, field.as_bytes());
        }
        if asks_entries {
            self.put_range(segment, text);
        }
        if sent.asks_aborted {
            // In one transaction with the entries: trimming and compaction delete both.
            put_command(text, 7, "ZRANGEBYSCORE");
            put_argument(text, keys.aborted.as_bytes());
            put_integer(text, *offset);
            put_argument(text, b"+inf");
            put_argument(text, b"LIMIT");
            put_integer(text, 0);
            put_integer(text, i64::from(self.aborted_max));
        }
        if sent.is_block() {
            put_command(text, 1, "EXEC");
        }
        (sent.parts() + if sent.is_block() { 2 } else { 0 }, sent)
    }

    fn put_range(&self, segment: Option<usize>, text: &mut Vec<u8>) {
        let Partition { keys, layout, .. } = &*self.partition;
        let compacted = segment.and_then(|segment| keys.compacted.get(segment));
        put_command(text, 6, "XRANGE");
        put_argument(text, compacted.unwrap_or(&keys.stream).as_bytes());
        // Exclusive of the entry before: between two milliseconds lie ids without an offset, and a read from behind these
        // would miss entries still to come into the log.
        put_id_of_end(text, b"(", self.offset, *layout);
        match self.end {
            Some(end) => put_id_of_end(text, b"", end, *layout),
            None => put_argument(text, b"+"),
        }
        put_argument(text, b"COUNT");
        put_integer(text, i64::from(self.entries_max));
    }

    /// What the reply to the last of the commands is.
    pub fn outcome(&self, sent: Sent, reply: &Shared, known: &mut Known) -> Outcome {
        self.try_outcome(sent, reply, known).unwrap_or_else(Outcome::Refused)
    }

    /// The failure of a read that was sent so often in vain.
    pub fn misled(&self) -> Failure {
        let stream = &self.partition.keys.stream;
        let message = format!("{stream}: passes of compaction end faster than the log can be read");
        Failure::rule(ErrorCode::KafkaStorageError, message)
    }

    fn try_outcome(&self, sent: Sent, reply: &Shared, known: &mut Known) -> Result<Outcome, Failure> {
        let partition = &self.partition;
        let stream = &*partition.keys.stream;
        let mut elements = Elements::of(reply.as_ref());
        if sent.is_block() && listed(stream, elements.next())? != sent.parts() {
            return Err(malformed(stream, "the answer to EXEC"));
        }
        let state = State::read(partition, &mut elements)?;
        known.learn(partition, &state);
        let mut found = Found::new(self, &state);
        if !sent.asks_entries {
            return Ok(self.settled(found, &state, 0));
        }
        let segment = state.segment.filter(|_| self.offset < state.compacted_end);
        if segment != sent.segment {
            return Ok(Outcome::Again(self.clone()));
        }
        if state.remote().is_some_and(|remote| self.offset < remote.end) {
            return Ok(Outcome::Found(found));
        }
        let count = listed(stream, elements.next())?;
        let begin = reply.as_ref().len() - elements.left().len();
        let is_page_full = count >= self.entries_max as usize;
        let is_full = is_page_full || (segment.is_some() && state.compacted_end < state.end);
        found.take_page(reply.part(begin..reply.as_ref().len()), count, is_full)?;
        let passed = if count == 0 {
            // Nothing is left from here to the end of the compacted part: what comes next lies after it.
            segment.map(|_| state.compacted_end)
        } else if is_page_full && partition.layout == Layout::Batch && !found.has_first() {
            // All are entries of other clients, between batches.
            found.last_end()
        } else {
            None
        };
        if let Some(offset) = passed.filter(|passed| *passed <= state.end) {
            return Ok(Outcome::Again(Self { offset, ..self.clone() }));
        }
        if self.is_committed {
            let rows = if sent.asks_aborted { Some(self.aborted(&mut elements, count)?) } else { None };
            if let Some(again) = self.limit(&mut found, &state, rows.as_deref()) {
                return Ok(Outcome::Again(again));
            }
        }
        Ok(self.settled(found, &state, count))
    }

    /// What was found, after entries of which `count` came.
    fn settled(&self, found: Found, state: &State, count: usize) -> Outcome {
        let is_settled = self.partition.layout == Layout::Batch || found.has_first();
        if is_settled || !(count > 0 || state.is_moving || self.offset > state.end) {
            return Outcome::Found(found);
        }
        Outcome::Unsettled(found)
    }

    /// Limit a committed read to the records below the last stable offset. Returns another read if more must be known of
    /// the aborted transactions.
    fn limit(&self, found: &mut Found, state: &State, rows: Option<&[Row]>) -> Option<Self> {
        if state.open.is_some() {
            found.show_until(found.stable_offset());
        }
        if !found.holds_any() || state.last_aborted < self.offset {
            return None;
        }
        let Some(rows) = rows else { return Some(self.clone()) };
        if let Some(last) = rows.last().filter(|_| rows.len() >= self.aborted_max as usize) {
            found.show_until(last.stable);
            if !found.holds_any() {
                return Some(Self { aborted_max: self.aborted_max.saturating_mul(ABORTED_FACTOR), ..self.clone() });
            }
        }
        if let Some(end) = found.next_offset().filter(|_| !rows.is_empty()) {
            found.aborted = rows.iter().map(|row| row.aborted).filter(|aborted| aborted.first_offset < end).collect();
        }
        None
    }

    /// Read the rows of aborted transactions, which follow the entries, in the order of their markers.
    fn aborted(&self, elements: &mut Elements<'_>, entries: usize) -> Result<Vec<Row>, Failure> {
        let key = &*self.partition.keys.aborted;
        elements.pass(entries).ok_or_else(|| malformed(&self.partition.keys.stream, "the answer to EXEC"))?;
        let count = listed(key, elements.next())?;
        let rows = (0..count).map_while(|_| elements.next()).map(Row::read).collect::<Option<Vec<_>>>();
        rows.filter(|rows| rows.len() == count).ok_or_else(|| malformed(key, "an aborted transaction"))
    }
}

impl Sent {
    /// How many replies there are but for those to MULTI and EXEC.
    fn parts(self) -> usize {
        1 + usize::from(self.asks_entries) + usize::from(self.asks_aborted)
    }

    /// Whether it has commands that must see the same log; one alone is no transaction.
    fn is_block(self) -> bool {
        self.parts() > 1
    }
}

/// A row of an aborted transaction: all that have records below `stable`, and no row up to this one, were not aborted.
struct Row {
    aborted: Aborted,
    stable: i64,
}

impl Row {
    /// Read `<producer id>:<first offset>:<stable>`.
    fn read(element: Element<'_>) -> Option<Self> {
        let Element::Bulk(text) = element else { return None };
        let mut numbers = text.split(|byte| *byte == b':').map(parsed);
        let (producer_id, first_offset, stable) = (numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(Self { aborted: Aborted { producer_id, first_offset }, stable })
    }
}

/// Add the command that asks for one entry from an offset on, whatever it is.
pub fn put_search(partition: &Partition, offset: i64, text: &mut Vec<u8>) {
    put_command(text, 6, "XRANGE");
    put_argument(text, partition.keys.stream.as_bytes());
    put_id_of_end(text, b"(", offset, partition.layout);
    put_argument(text, b"+");
    put_argument(text, b"COUNT");
    put_integer(text, 1);
}

fn put_command(text: &mut Vec<u8>, words: usize, name: &str) {
    put_count(text, words);
    put_argument(text, name.as_bytes());
}
