//! The ends of a log, exact at the time of the answer.
//!
//! In layout `batch` the state says them alone. In layout `record` other clients of Redis may have deleted the first
//! entries, and written others past the end: then the log is to take these in before it is asked again.

use super::entries::{Entries, Entry};
use super::state::{listed, malformed};
use super::{Epochs, Remote, STATE_FIELDS, State};
use crate::failure::Failure;
use crate::partition::{Layout, Partition};
use crate::resp::{Elements, put_argument, put_count};

/// The ends of a log. Consumers may see less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The lowest offset that may be asked for.
    pub log_start: i64,
    /// The offset of the first record, the end in an empty log.
    pub first_offset: i64,
    /// The end.
    pub end: i64,
    /// The largest timestamp (ms) of all records, -1 without any; it may be that of a record that has left the log.
    pub max_timestamp: i64,
    /// Up to where the remote tier holds the log.
    pub archived: i64,
    /// What only the remote tier holds.
    pub remote: Option<Remote>,
    /// Below it compaction has removed records.
    pub compacted_end: i64,
    #[allow(missing_docs)]
    pub epochs: Epochs,
    /// Where the oldest open transaction begins.
    pub open: Option<i64>,
}

impl Bounds {
    /// Add the commands that ask for them; the reply to the last is what [`Self::read`] takes.
    pub fn put(partition: &Partition, text: &mut Vec<u8>) {
        let keys = &partition.keys;
        let is_batch = partition.layout == Layout::Batch;
        let mut put = |words: &[&str]| {
            put_count(text, words.len());
            for word in words {
                put_argument(text, word.as_bytes());
            }
        };
        if !is_batch {
            put(&["MULTI"]);
        }
        put(&[&["HMGET", &*keys.state][..], &STATE_FIELDS].concat());
        if !is_batch {
            put(&["XRANGE", &keys.stream, "-", "+", "COUNT", "1"]);
            put(&["XREVRANGE", &keys.stream, "+", "-", "COUNT", "1"]);
            put(&["EXEC"]);
        }
    }

    /// What a reply says; `None`: entries of other clients of Redis are not in the log yet.
    pub fn read(partition: &Partition, reply: &[u8]) -> Result<Option<Self>, Failure> {
        let mut elements = Elements::of(reply);
        if partition.layout == Layout::Batch {
            let state = State::read(partition, &mut elements)?;
            let first = state.first.map_or(state.end, |first| first.max(state.start));
            return Ok(Some(Self::of(state, first)));
        }
        let stream = &*partition.keys.stream;
        if listed(stream, elements.next())? != 3 {
            return Err(malformed(stream, "the answer to EXEC"));
        }
        let state = State::read(partition, &mut elements)?;
        let (first, last) = (entry_of(partition, &mut elements)?, entry_of(partition, &mut elements)?);
        let is_past = |last: Entry| last.end.is_none_or(|end| end > state.end);
        if state.is_moving || last.is_some_and(is_past) {
            return Ok(None);
        }
        let known = state.start.max(state.first.unwrap_or(0));
        let first = match first {
            // Compaction moves no start, and the first entry of the stream lies past the compacted part.
            _ if state.start < state.compacted_end => known,
            // Entries below the log's start are deleted, even if trimming has not reached them yet.
            Some(first) => known.max(first.end.map_or(0, |end| end - 1)),
            None => state.end,
        };
        Ok(Some(Self::of(state, first)))
    }

    fn of(state: State, first: i64) -> Self {
        let remote = state.remote();
        Self {
            log_start: remote.map_or(state.start, |remote| remote.start),
            first_offset: remote.map_or(first.min(state.end), |remote| remote.start),
            end: state.end,
            max_timestamp: state.largest,
            archived: state.archived,
            remote,
            compacted_end: state.compacted_end,
            epochs: state.epochs,
            open: state.open,
        }
    }
}

/// The one entry that there may be.
fn entry_of(partition: &Partition, elements: &mut Elements<'_>) -> Result<Option<Entry>, Failure> {
    let stream = &*partition.keys.stream;
    let count = listed(stream, elements.next())?;
    let entry = Entries::new(partition.layout, elements.left(), count).next().transpose();
    let entry = entry.map_err(|_| malformed(stream, "an entry"))?;
    elements.pass(count).ok_or_else(|| malformed(stream, "an entry"))?;
    Ok(entry)
}
