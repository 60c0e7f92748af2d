//! The entries that a read has found, apart from the reply of Redis: for readers that look at them more than once.
//!
//! Theory of operation. In layout `record` a [`Page`] has the records as columns, each byte of them copied once; in layout
//! `batch` the batches, whose bytes stay in the reply unless they were compressed at rest. Nothing of a page changes: a
//! part of it shares all with the whole. What is made of a page for a consumer is in page_parts.rs.

use std::sync::Arc;

use super::{Found, Kind, StoredBatch};
use crate::batch::{HEADER_BYTES, Header, LENGTH_FROM, Record};
use crate::columns::{Binaries, Columns};
use crate::failure::Failure;
use crate::partition::Layout;
use crate::refusal::Refusal;
use crate::shared::Shared;

/// What a record weighs in a batch besides key and value, about.
const RECORD_BYTES: usize = 20;

/// Entries in the order of the log: records or batches.
#[derive(Clone, Debug)]
pub struct Page {
    pub(super) held: Arc<Held>,
    /// How many of them are on the page.
    pub(super) count: usize,
}

#[derive(Debug)]
pub(super) enum Held {
    Records { columns: Box<Columns>, runs: Vec<Run> },
    Batches(Vec<HeldBatch>),
}

/// Rows of one producer in a transaction, or its end: from one row up to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub start: usize,
    pub stop: usize,
    pub kind: Kind,
}

/// A batch of the log, with its bytes.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct HeldBatch {
    pub base_offset: i64,
    pub next_offset: i64,
    /// As it is served.
    pub size_bytes: usize,
    pub header: Header,
    /// What lies in Redis, with the header as the producer wrote it.
    pub stored: Shared,
    /// The records, if those in `stored` are compressed at rest.
    pub plain: Option<Vec<u8>>,
}

/// How a walk over what was found has ended.
#[derive(Clone, Debug, Default)]
pub struct Walked {
    /// Whether reading on at once may find more.
    pub has_more: bool,
    /// How many entries are no batches.
    pub foreign: u32,
    /// The offset and the encoding of the first value that does not decompress: it is served as it is stored.
    pub damaged: Option<(i64, String)>,
}

impl Page {
    /// The page of a read. It ends before its values, decompressed, hold more than `plain_bytes_max` bytes and one value:
    /// a few compressed bytes may stand for many. Fails if the first entry is malformed.
    pub fn of(found: &Found, plain_bytes_max: usize) -> Result<(Self, Walked), Failure> {
        let (held, walked) = match found.partition.layout {
            Layout::Record { .. } => records_of(found, plain_bytes_max)?,
            Layout::Batch => batches_of(found, plain_bytes_max)?,
        };
        let count = held.len();
        Ok((Self { held: Arc::new(held), count }, walked))
    }

    /// The batches of which an answer of the remote tier is made, whose headers have the offsets of the log.
    pub fn of_batches(data: &Shared) -> Self {
        let (mut batches, mut begin) = (Vec::new(), 0);
        while let Some(header) = data.as_ref().get(begin..).and_then(Header::read) {
            let size_bytes = usize::try_from(header.batch_length).unwrap_or(0) + LENGTH_FROM;
            if size_bytes < HEADER_BYTES {
                break;
            }
            let (base_offset, stored) = (header.base_offset, data.part(begin..begin + size_bytes));
            let next_offset = base_offset + i64::from(header.last_offset_delta) + 1;
            batches.push(HeldBatch { base_offset, next_offset, size_bytes, header, stored, plain: None });
            begin += size_bytes;
        }
        Self { count: batches.len(), held: Arc::new(Held::Batches(batches)) }
    }

    /// How many entries are on it.
    pub fn len(&self) -> usize {
        self.count
    }

    #[allow(missing_docs)]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Its batches; none in layout `record`.
    pub fn batches(&self) -> &[HeldBatch] {
        match &*self.held {
            Held::Batches(batches) => batches.get(..self.count).unwrap_or_default(),
            Held::Records { .. } => &[],
        }
    }

    /// Its records as columns, of which the first [`Self::len`] rows are on it; `None` in layout `batch`.
    pub fn columns(&self) -> Option<&Columns> {
        match &*self.held {
            Held::Records { columns, .. } => Some(columns),
            Held::Batches(_) => None,
        }
    }

    fn offsets(&self) -> &[i64] {
        self.columns().and_then(|columns| columns.offsets.get(..self.count)).unwrap_or_default()
    }

    /// The offset of the first record or batch.
    pub fn first_offset(&self) -> Option<i64> {
        self.offsets().first().copied().or_else(|| self.batches().first().map(|batch| batch.base_offset))
    }

    /// The offset past the last one.
    pub fn next_offset(&self) -> Option<i64> {
        self.offsets().last().map(|last| last + 1).or_else(|| self.batches().last().map(|batch| batch.next_offset))
    }

    /// The timestamp (ms) of the first record.
    pub fn first_timestamp(&self) -> Option<i64> {
        if let Some(columns) = self.columns().filter(|_| self.count > 0) {
            return columns.timestamps.first().copied();
        }
        let header = self.batches().first()?.header;
        Some(header.append_time().unwrap_or(header.base_timestamp))
    }

    /// When the first record was appended (ms); `None` if the log does not keep it: an offset may be a time, of which
    /// `bits` are the sequence, and a batch has it with LogAppendTime alone.
    pub fn first_appended_ms(&self, bits: u32) -> Option<i64> {
        let offset = self.offsets().first().filter(|_| bits > 0);
        let of_offset = offset.and_then(|offset| offset.checked_shr(bits));
        of_offset.or_else(|| self.batches().first()?.header.append_time())
    }

    /// What lies below an offset, which is between two entries.
    #[must_use]
    pub fn until(&self, end: i64) -> Self {
        let records = self.offsets().partition_point(|offset| *offset < end);
        let batches = self.batches().partition_point(|batch| batch.next_offset <= end);
        Self { held: Arc::clone(&self.held), count: records + batches }
    }

    /// The sizes of the entries in bytes, about.
    fn sizes(&self) -> impl Iterator<Item = usize> {
        let columns = self.columns();
        (0..self.count).map(move |row| {
            let size = |binaries: &Option<Binaries>| {
                binaries.as_ref().and_then(|binaries| binaries.get(row)).map_or(0, <[u8]>::len)
            };
            columns.map_or_else(
                || self.batches().get(row).map_or(0, |batch| batch.size_bytes),
                |columns| size(&columns.keys) + size(&columns.values) + RECORD_BYTES,
            )
        })
    }

    /// The first entries, as many as fit into `room` bytes or with `at_least_one` one of any size, and their size; `None`
    /// if there is something and nothing fits.
    pub fn fitting(&self, room: usize, at_least_one: bool) -> Option<(Self, usize)> {
        let (mut bytes, mut count) = (0_usize, 0);
        for size in self.sizes() {
            if bytes.saturating_add(size) > room && (count > 0 || !at_least_one) {
                break;
            }
            (bytes, count) = (bytes.saturating_add(size), count + 1);
        }
        (count > 0 || self.is_empty()).then(|| (Self { held: Arc::clone(&self.held), count }, bytes))
    }

    /// Where entries lie, first and last offset: each run of records without a gap, and each batch.
    pub fn spans(&self) -> Vec<(i64, i64)> {
        if self.columns().is_some() {
            return consecutive(self.offsets().iter().copied());
        }
        self.batches().iter().map(|batch| (batch.base_offset, batch.next_offset - 1)).collect()
    }

    /// Of each entry the offset after it and its largest timestamp (ms).
    pub fn ends(&self) -> Vec<(i64, i64)> {
        if let Some(columns) = self.columns() {
            return self.offsets().iter().map(|offset| offset + 1).zip(columns.timestamps.iter().copied()).collect();
        }
        self.batches().iter().map(|batch| (batch.next_offset, batch.header.max_timestamp)).collect()
    }

    /// The offset and timestamp of the first record from `first` on that is not older than a time.
    pub fn first_since(&self, time: i64, first: i64, plain_bytes_max: usize) -> Option<(i64, i64)> {
        self.since(time, plain_bytes_max).flatten().find(|(offset, timestamp)| *timestamp >= time && *offset >= first)
    }

    /// The same of the first record with the largest timestamp from `first` up to `end`, if that is not older than a time.
    pub fn largest(&self, time: i64, (first, end): (i64, i64), plain_bytes_max: usize) -> Option<(i64, i64)> {
        let stamps = self.since(time, plain_bytes_max).flatten();
        let within = stamps.filter(|(offset, timestamp)| *timestamp >= time && (first..end).contains(offset));
        within.reduce(|before, next| if next.1 > before.1 { next } else { before })
    }

    /// Offsets and timestamps of the records, without batches of which all are older than a time.
    fn since(&self, time: i64, plain_bytes_max: usize) -> impl Iterator<Item = Vec<(i64, i64)>> {
        let records =
            self.columns().map(|columns| self.offsets().iter().copied().zip(columns.timestamps.iter().copied()));
        let batches = self.batches().iter().filter(move |batch| batch.header.max_timestamp >= time);
        let batches = batches.map(move |batch| batch.stamps(plain_bytes_max));
        records.map(Iterator::collect).into_iter().chain(batches)
    }
}

impl HeldBatch {
    /// Call `see` with each of its records.
    pub fn records(&self, plain_bytes_max: usize, mut see: impl FnMut(i64, i64, &Record<'_>)) -> Result<(), Refusal> {
        let plain = self.header.stored_records(self.stored.as_ref(), self.plain.as_deref(), plain_bytes_max)?;
        for record in self.header.records(&plain) {
            let record = record.map_err(Refusal::of_stored)?;
            let offset = self.base_offset.wrapping_add(record.offset_delta.into());
            see(offset, self.header.append_time().unwrap_or(record.timestamp), &record);
        }
        Ok(())
    }

    /// Offset and timestamp of each record; if they cannot be read the header answers.
    fn stamps(&self, plain_bytes_max: usize) -> Vec<(i64, i64)> {
        let mut stamps = Vec::new();
        if self.records(plain_bytes_max, |offset, timestamp, _| stamps.push((offset, timestamp))).is_err() {
            return vec![(self.base_offset, self.header.max_timestamp)];
        }
        stamps
    }
}

impl Held {
    pub fn len(&self) -> usize {
        match self {
            Self::Records { columns, .. } => columns.offsets.len(),
            Self::Batches(batches) => batches.len(),
        }
    }
}

/// Runs of offsets without a gap: the first and the last of each.
pub(super) fn consecutive(offsets: impl Iterator<Item = i64>) -> Vec<(i64, i64)> {
    let mut spans: Vec<(i64, i64)> = Vec::new();
    for offset in offsets {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == offset => *last = offset,
            _ => spans.push((offset, offset)),
        }
    }
    spans
}

fn records_of(found: &Found, plain_bytes_max: usize) -> Result<(Held, Walked), Failure> {
    let (mut columns, mut runs) = (Columns::of_records(), Vec::new());
    let mut records = found.records(plain_bytes_max);
    while records.plain_bytes() <= plain_bytes_max {
        let Some(record) = records.next() else { break };
        let record = record?;
        let row = columns.offsets.len();
        if let Err(refusal) = columns.push(&record.fields()) {
            if row == 0 {
                return Err(refusal.into());
            }
            break;
        }
        note_run(&mut runs, row, record.kind);
    }
    let (has_more, damaged) = (records.has_more(), records.damaged().cloned());
    Ok((Held::Records { columns: Box::new(columns), runs }, Walked { has_more, foreign: 0, damaged }))
}

/// Note whose the record of a row is.
pub(super) fn note_run(runs: &mut Vec<Run>, row: usize, kind: Kind) {
    match (runs.last_mut(), kind) {
        (_, Kind::Plain) => {}
        (Some(last), Kind::Transactional(_)) if last.stop == row && last.kind == kind => last.stop = row + 1,
        _ => runs.push(Run { start: row, stop: row + 1, kind }),
    }
}

fn batches_of(found: &Found, plain_bytes_max: usize) -> Result<(Held, Walked), Failure> {
    let mut batches = found.batches();
    let (mut held, mut plain_bytes) = (Vec::new(), 0);
    while plain_bytes <= plain_bytes_max {
        let Some(batch) = batches.next() else { break };
        let StoredBatch { base_offset, next_offset, size_bytes, stored, plain, .. } = batch?;
        plain_bytes += plain.as_ref().map_or(0, Vec::len);
        // A walk yields no batch whose header is cut off.
        if let (Some(header), Some(reply)) = (Header::read(stored), found.reply()) {
            let stored = reply.part_of(stored);
            held.push(HeldBatch { base_offset, next_offset, size_bytes, header, stored, plain });
        }
    }
    let (has_more, foreign) = (batches.has_more(), batches.foreign);
    Ok((Held::Batches(held), Walked { has_more, foreign, damaged: None }))
}
