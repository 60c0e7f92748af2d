//! Compaction: which entries of a log stay, since of each key it keeps the latest record.
//!
//! Theory of operation. A pass reads a log twice. The first time, over the part that was not compacted yet,
//! [`Cleaner::map`] remembers the latest offset of each key. The second time, over all of the pass,
//! [`Cleaner::retain`] says what is left of each entry, to be written to another stream. Who reads and writes the streams
//! decides how far a pass goes (korvet/log/compaction.py); of a reply of Redis this says what it holds.
//!
//! * A record stays if no later one has its key. One without a key goes, and so does all of an aborted transaction.
//! * A tombstone, or the marker of a transaction, stays for as long as readers may need to see it: until a later pass
//!   finds that the period in which it was compacted first is over.
//! * The last record of the log stays, whatever it is: a consumer must be able to reach the high watermark.
//! * An entry of which all records stay is written as it is, byte for byte. A batch that cannot be read stays as well,
//!   for only what is understood may be removed. In layout `batch`, what other clients of Redis wrote is no record, and goes.

mod aborted;
mod offset_map;

use std::borrow::Cow;
use std::sync::Arc;

pub use aborted::AbortedTransaction;
use aborted::AbortedTransactions;
pub use offset_map::{OffsetMap, SLOT_BYTES};

use crate::append::{BATCH, ENCODING};
use crate::batch::{CONTROL_BIT, HEADER_BYTES, Header, Record, TRANSACTIONAL_BIT};
use crate::compression::{Codec, Frames};
use crate::encode::{Encoder, HeaderFields, RecordFields};
use crate::failure::Failure;
use crate::log::{Range, Ranged, RawEntry, StoredBatch, StoredRecord};
use crate::partition::{AtRest, Layout, Partition};
use crate::refusal::Refusal;
use crate::shared::Shared;

/// What a pass goes by.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Where the log starts: what lies below is not looked at.
    pub start: i64,
    /// The first offset that was not compacted before.
    pub dirty_start: i64,
    /// The end of the log.
    pub end: i64,
    /// A batch that holds more bytes cannot be read.
    pub plain_bytes_max: usize,
    /// How batches are compressed of which some records are left.
    pub at_rest: AtRest,
    /// The transactions with markers from the start on that were aborted, in order of these.
    pub aborted: Vec<AbortedTransaction>,
    /// Periods in which parts of the log were compacted for the first time: where each ends, and whether the tombstones of
    /// that part go now. Where no period is known, they do.
    pub periods: Vec<(i64, bool)>,
}

/// What was mapped of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The offset after the last entry; `None`: there is no entry.
    pub next_offset: Option<i64>,
    #[allow(missing_docs)]
    pub entries: usize,
    /// About the size of the entries.
    pub bytes: usize,
}

/// What is left of an entry.
#[derive(Clone, Debug)]
pub struct Retained<'a> {
    #[allow(missing_docs)]
    pub id: &'a [u8],
    /// The names of its fields and what they hold, in turns.
    pub words: Vec<Cow<'a, [u8]>>,
    /// The offset after it.
    pub end: i64,
    #[allow(missing_docs)]
    pub records: i32,
    /// The largest timestamp of its records in milliseconds.
    pub timestamp: i64,
    /// Why it cannot be read, if so.
    pub damage: Option<String>,
}

/// What decides whether a record stays.
#[derive(Clone, Copy, Debug)]
struct Keyed<'a> {
    offset: i64,
    key: Option<&'a [u8]>,
    is_tombstone: bool,
    /// That of a transaction, which the record may mark the end of.
    producer_id: Option<i64>,
    is_marker: bool,
}

/// A pass of compaction.
#[derive(Debug)]
pub struct Cleaner {
    partition: Arc<Partition>,
    rules: Rules,
    aborted: AbortedTransactions,
    latest: OffsetMap,
    /// How many records [`Self::retain`] has looked at.
    pub seen: u64,
    /// How many of them go because they have no key.
    pub unkeyed: u64,
    /// Whether some tombstones or markers were compacted for the first time.
    pub has_new_tombstones: bool,
}

impl Cleaner {
    #[allow(missing_docs)]
    pub fn new(partition: &Arc<Partition>, rules: Rules, latest: OffsetMap) -> Self {
        let aborted = AbortedTransactions::new(&rules.aborted);
        let partition = Arc::clone(partition);
        Self { partition, rules, aborted, latest, seen: 0, unkeyed: 0, has_new_tombstones: false }
    }

    /// How many keys are in the map.
    pub fn keys(&self) -> usize {
        self.latest.keys()
    }

    /// Remember the latest offset of each key in a reply to XRANGE. Returns also the offset of the first record whose key
    /// does not fit the map: of it and of all later records nothing is remembered.
    pub fn map(&mut self, reply: &Shared) -> Result<(Page, Option<i64>), Failure> {
        let (range, mut next_offset, mut full_at) = (Range::of(&self.partition, reply)?, None, None);
        let Self { rules, aborted, latest, .. } = self;
        let mut see = |keyed: Keyed<'_>| {
            // A batch in which the log starts holds some below, which nobody can read: they need no slot.
            let key = keyed.key.filter(|_| full_at.is_none() && keyed.offset >= rules.dirty_start);
            if let Some(key) = key.filter(|_| !aborted.has(keyed.producer_id, keyed.offset)) {
                full_at = (!latest.put(key, keyed.offset)).then_some(keyed.offset);
            }
        };
        match self.partition.layout {
            Layout::Record { .. } => range.records(|record, _| {
                next_offset = Some(record.offset + 1);
                see(Keyed::of_record(record));
                Ok(())
            })?,
            Layout::Batch => range.batches(|end, ranged, _| {
                next_offset = Some(end);
                if let Ranged::Batch(batch) = ranged {
                    // One that cannot be read has no keys.
                    let _ = with_records(&batch, rules.plain_bytes_max, |header, records| {
                        for record in records {
                            see(Keyed::of_batch(&batch, header, record));
                        }
                    });
                }
                Ok(())
            })?,
        }
        Ok((Page { next_offset, entries: range.count(), bytes: range.size_bytes() }, full_at))
    }

    /// Call `write` with what is left of each entry of a reply to XRANGE.
    pub fn retain(
        &mut self,
        reply: &Shared,
        mut write: impl FnMut(Retained<'_>) -> Result<(), Failure>,
    ) -> Result<Page, Failure> {
        let (range, mut next_offset) = (Range::of(&self.partition, reply)?, None);
        match self.partition.layout {
            Layout::Record { .. } => range.records(|record, raw| {
                next_offset = Some(record.offset + 1);
                if self.stays(Keyed::of_record(record)) {
                    return write(whole(&raw, record.offset + 1, 1, record.timestamp, None));
                }
                Ok(())
            })?,
            Layout::Batch => range.batches(|end, ranged, raw| {
                next_offset = Some(end);
                let left = match ranged {
                    Ranged::Batch(batch) => self.left_of(&batch, &raw)?,
                    Ranged::Damaged(why) => Some(whole(&raw, end, 0, -1, Some(why))),
                    Ranged::Foreign => None,
                };
                left.map_or(Ok(()), &mut write)
            })?,
        }
        Ok(Page { next_offset, entries: range.count(), bytes: range.size_bytes() })
    }

    /// What is left of a batch.
    fn left_of<'a>(&mut self, batch: &StoredBatch<'a>, raw: &RawEntry<'a>) -> Result<Option<Retained<'a>>, Failure> {
        let (end, plain_bytes_max) = (batch.next_offset, self.rules.plain_bytes_max);
        let read = with_records(batch, plain_bytes_max, |header, records| {
            let keep: Vec<bool> =
                records.iter().map(|record| self.stays(Keyed::of_batch(batch, header, record))).collect();
            let kept = || records.iter().zip(&keep).filter(|(_, stays)| **stays).map(|(record, _)| record);
            let time = |record: &Record<'_>| header.append_time().unwrap_or(record.timestamp);
            let Some(timestamp) = kept().map(time).max() else { return Ok(None) };
            let count = i32::try_from(kept().count()).unwrap_or(i32::MAX);
            let mut left = whole(raw, end, count, timestamp, None);
            if keep.contains(&false) {
                if let Some(words) = self.rewritten(batch, header, kept().map(|record| (time(record), record)))? {
                    left.words = words;
                }
            }
            Ok(Some(left))
        });
        read.unwrap_or_else(|refusal| Ok(self.left_unread(batch, raw, &refusal)))
    }

    /// The fields of a batch with some of its records; `None` if it has to stay as it is.
    fn rewritten<'r>(
        &self,
        batch: &StoredBatch<'_>,
        header: &Header,
        records: impl Iterator<Item = (i64, &'r Record<'r>)>,
    ) -> Result<Option<Vec<Cow<'static, [u8]>>>, Failure> {
        let Some(codec) = header.codec() else { return Ok(None) };
        let mut encoder = Encoder::new(batch.base_offset, usize::MAX, true);
        for (timestamp, record) in records {
            let headers: Vec<HeaderFields<'_>> = record.headers().collect();
            let offset = batch.base_offset + i64::from(record.offset_delta);
            let (key, value) = (record.key, record.value);
            if !encoder.push(&RecordFields { offset, timestamp, key, value, headers: &headers }) {
                return Ok(None);
            }
        }
        let payload = codec.compress(encoder.payload())?;
        let whole = header.retaining(&encoder.header()).sealed_with(&payload);
        let at_rest = self.rules.at_rest;
        let at_rest_codec = at_rest.codec.filter(|_| codec == Codec::None && payload.len() >= at_rest.min_bytes);
        if let Some(at_rest_codec) = at_rest_codec {
            if let Some(frame) = Frames::new(at_rest_codec).compress(&payload)? {
                let stored = [whole.get(..HEADER_BYTES).unwrap_or_default(), &frame].concat();
                let encoding = at_rest_codec.name().as_bytes();
                return Ok(Some(vec![BATCH.into(), stored.into(), ENCODING.into(), encoding.into()]));
            }
        }
        Ok(Some(vec![BATCH.into(), whole.into()]))
    }

    /// What is left of a batch whose records cannot be read: all, unless its transaction was aborted.
    fn left_unread<'a>(
        &mut self,
        batch: &StoredBatch<'a>,
        raw: &RawEntry<'a>,
        refusal: &Refusal,
    ) -> Option<Retained<'a>> {
        let (end, count) = (batch.next_offset, batch.record_count);
        let header = Header::read(batch.stored)?;
        self.seen += u64::try_from(count).unwrap_or(0);
        if self.aborted.has(producer_of(&header), end - 1) {
            return None;
        }
        Some(whole(raw, end, count, header.max_timestamp, Some(refusal.message.to_string())))
    }

    fn stays(&mut self, keyed: Keyed<'_>) -> bool {
        if keyed.offset < self.rules.start {
            // The log starts within its batch, so nobody can read it: compaction does not remove it.
            return false;
        }
        self.seen += 1;
        let is_last = keyed.offset == self.rules.end - 1;
        if keyed.is_marker {
            return self.outlives_pass(keyed.offset) || is_last;
        }
        if self.aborted.has(keyed.producer_id, keyed.offset) {
            return false;
        }
        let Some(key) = keyed.key else {
            self.unkeyed += u64::from(!is_last);
            return is_last;
        };
        if self.latest.get(key).is_some_and(|latest| latest > keyed.offset) {
            return false;
        }
        !keyed.is_tombstone || self.outlives_pass(keyed.offset) || is_last
    }

    /// Whether a tombstone, or a marker of a transaction, stays: as long as readers may need to see it.
    fn outlives_pass(&mut self, offset: i64) -> bool {
        if offset < self.rules.dirty_start {
            let period = self.rules.periods.iter().find(|(end, _)| offset < *end);
            return period.is_some_and(|(_, is_due)| !is_due);
        }
        self.has_new_tombstones = true;
        true
    }
}

impl<'a> Keyed<'a> {
    fn of_record(record: &StoredRecord<'a>) -> Self {
        let StoredRecord { offset, key, value, kind, .. } = *record;
        let (producer_id, is_marker) = (kind.producer().map(|(id, _)| id), kind.is_marker());
        Self { offset, key: key.filter(|_| !is_marker), is_tombstone: value.is_none(), producer_id, is_marker }
    }

    fn of_batch(batch: &StoredBatch<'_>, header: &Header, record: &Record<'a>) -> Self {
        let is_marker = header.attributes & CONTROL_BIT != 0;
        Self {
            offset: batch.base_offset + i64::from(record.offset_delta),
            key: record.key.filter(|_| !is_marker),
            is_tombstone: record.value.is_none(),
            producer_id: producer_of(header),
            is_marker,
        }
    }
}

/// That of a transaction.
fn producer_of(header: &Header) -> Option<i64> {
    (header.attributes & TRANSACTIONAL_BIT != 0).then_some(header.producer_id)
}

/// Call `read` with the records of a batch, all of which can be read.
fn with_records<T>(
    batch: &StoredBatch<'_>,
    plain_bytes_max: usize,
    read: impl FnOnce(&Header, &[Record<'_>]) -> T,
) -> Result<T, Refusal> {
    let header = Header::read(batch.stored).ok_or(Refusal::invalid("the header is cut off"))?;
    let plain = header.stored_records(batch.stored, batch.plain.as_deref(), plain_bytes_max)?;
    let records = header.records(&plain).collect::<Result<Vec<_>, _>>()?;
    Ok(read(&header, &records))
}

/// An entry as it is.
fn whole<'a>(raw: &RawEntry<'a>, end: i64, records: i32, timestamp: i64, damage: Option<String>) -> Retained<'a> {
    let words = raw.words().map(Cow::Borrowed).collect();
    Retained { id: raw.id, words, end, records, timestamp, damage }
}
