//! A range of a stream, whatever the log says of it: the entries that one XRANGE has found, for what works on streams
//! themselves (compaction, repair of the index).
//!
//! Each entry has an offset; what has none is malformed, and so is all that is no reply to XRANGE. The reply stays where
//! it is: [`Range::records`] and [`Range::batches`] say what the entries mean, [`Range::raw`] what they are.

use std::sync::Arc;

use super::batches::{Step, batch_of};
use super::entries::OFFSETS_END;
use super::found::Found;
use super::state::{listed, malformed};
use super::{Records, StoredBatch};
use crate::append::BATCH;
use crate::batch::Header;
use crate::compression::FrameReader;
use crate::failure::Failure;
use crate::partition::{Layout, Partition};
use crate::resp::{Element, Elements};
use crate::shared::Shared;

/// Entries of a stream of a partition.
#[derive(Clone, Debug)]
pub struct Range {
    found: Found,
    count: usize,
    size_bytes: usize,
}

/// What an entry in layout `batch` is.
#[derive(Clone, Debug)]
pub enum Ranged<'a> {
    #[allow(missing_docs)]
    Batch(StoredBatch<'a>),
    /// One that cannot be read, and why.
    Damaged(String),
    /// An entry of another client of Redis.
    Foreign,
}

/// What one entry, which ends before the offset `end`, adds to the counters of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Weight {
    pub end: i64,
    pub records: i32,
    /// The lengths of its fields and of what they hold.
    pub bytes: usize,
    /// The largest of its records, in milliseconds.
    pub timestamp: i64,
}

impl Range {
    /// Take the reply to XRANGE.
    pub fn of(partition: &Arc<Partition>, reply: &Shared) -> Result<Self, Failure> {
        let mut elements = Elements::of(reply.as_ref());
        let count = listed(&partition.keys.stream, elements.next())?;
        let (size_bytes, all) = (elements.left().len(), reply.as_ref().len());
        let found = Found::of_range(partition, reply.part(all - size_bytes..all), count, OFFSETS_END);
        Ok(Self { found, count, size_bytes })
    }

    /// How many entries these are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The size of the reply in bytes, about that of the entries.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Call `see` with each entry of layout `record`, as a record and as it is. No value is decompressed.
    pub fn records<'a>(
        &'a self,
        mut see: impl FnMut(&super::StoredRecord<'_>, RawEntry<'a>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mut records, mut raw): (Records<'_>, _) = (self.found.records(0), self.raw());
        for _ in 0..self.count {
            let record = records.next().transpose()?.ok_or_else(|| self.malformed())?;
            see(&record, raw.next().ok_or_else(|| self.malformed())?)?;
        }
        Ok(())
    }

    /// Call `see` with each entry of layout `batch`: its end, what it means, and what it is.
    pub fn batches<'a>(
        &'a self,
        mut see: impl FnMut(i64, Ranged<'a>, RawEntry<'a>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mut entries, mut raw, mut frames) = (self.found.entries(), self.raw(), FrameReader::default());
        for _ in 0..self.count {
            let entry = entries.next().and_then(Result::ok).ok_or_else(|| self.malformed())?;
            let end = entry.end.ok_or_else(|| self.malformed())?;
            let ranged = match batch_of(&mut entries, entry.pairs, end, &mut frames, |_| true) {
                Ok(Step::Batch(batch)) => Ranged::Batch(batch),
                Ok(_) => Ranged::Foreign,
                Err(why) => Ranged::Damaged(why.to_string()),
            };
            see(end, ranged, raw.next().ok_or_else(|| self.malformed())?)?;
        }
        Ok(())
    }

    /// The weight of each entry. In layout `batch` its header says it; an entry that is no batch weighs nothing.
    pub fn weights(&self) -> Result<Vec<Weight>, Failure> {
        let mut weights = Vec::new();
        if self.found.partition.layout != Layout::Batch {
            self.records(|record, raw| {
                let (end, timestamp) = (record.offset + 1, record.timestamp);
                weights.push(Weight { end, records: 1, bytes: raw.size_bytes(), timestamp });
                Ok(())
            })?;
            return Ok(weights);
        }
        let (mut entries, mut raw) = (self.found.entries(), self.raw());
        for _ in 0..self.count {
            let entry = entries.next().and_then(Result::ok).ok_or_else(|| self.malformed())?;
            let (end, raw) = entry.end.zip(raw.next()).ok_or_else(|| self.malformed())?;
            let (name, stored) = entries.pair().map_err(|_| self.malformed())?;
            let header = Header::read(stored).filter(|_| name == BATCH);
            weights.push(header.map_or(Weight { end, records: 0, bytes: 0, timestamp: -1 }, |header| {
                let (records, timestamp) = (header.record_count, header.max_timestamp);
                Weight { end, records, bytes: raw.size_bytes(), timestamp }
            }));
        }
        Ok(weights)
    }

    /// The entries as they are.
    pub fn raw(&self) -> RawEntries<'_> {
        RawEntries { elements: Elements::of(self.found.reply().map(AsRef::as_ref).unwrap_or_default()) }
    }

    fn malformed(&self) -> Failure {
        malformed(&self.found.partition.keys.stream, "an entry")
    }
}

/// The entries of a range as they are, one after the other.
#[derive(Clone, Debug)]
pub struct RawEntries<'a> {
    elements: Elements<'a>,
}

/// An entry as it is.
#[derive(Clone, Debug)]
pub struct RawEntry<'a> {
    /// Its id.
    pub id: &'a [u8],
    words: usize,
    elements: Elements<'a>,
}

impl<'a> Iterator for RawEntries<'a> {
    type Item = RawEntry<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let (Element::Array(2), Element::Bulk(id)) = (self.elements.next()?, self.elements.next()?) else {
            return None;
        };
        let Element::Array(words) = self.elements.next()? else { return None };
        let elements = self.elements.clone();
        self.elements.pass(words)?;
        Some(RawEntry { id, words, elements })
    }
}

impl<'a> RawEntry<'a> {
    /// The names of its fields and what they hold, in turns.
    pub fn words(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut elements = self.elements.clone();
        (0..self.words).map_while(move |_| match elements.next() {
            Some(Element::Bulk(word)) => Some(word),
            _ => None,
        })
    }

    /// The lengths of these.
    pub fn size_bytes(&self) -> usize {
        self.words().map(<[u8]>::len).sum()
    }
}
