//! What a read found becomes what a consumer gets: record batches, up to a number of bytes.
//!
//! Theory of operation. Records are built into batches. No batch has records of two leader epochs, or of two producers
//! of transactions, and a marker is a batch of its own. Batches are passed on as they lie in the reply: what differs is
//! the base offset and the leader epoch, which no CRC covers, so 16 bytes are made and the rest is a part of the reply. A
//! small batch is copied, for a response must not have thousands of pieces.

use std::io;
use std::sync::Arc;

use super::{Epochs, FIRST_EPOCH, Found, StoredBatch};
use crate::batch::{HEADER_BYTES, LENGTH_FROM};
use crate::build::BatchesBuilder;
use crate::failure::Failure;
use crate::partition::{Layout, Partition};
use crate::shared::{Piece, Shared};

/// What is smaller is copied.
const PART_BYTES_MIN: usize = 4 << 10;
/// When what was made has as many bytes, it grows no more.
const MADE_BYTES_MAX: usize = 64 << 10;
/// Base offset, length and leader epoch: the beginning of a header.
const FRONT_BYTES: usize = 16;

/// What was taken of what a read found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// As limits count them, without compression on the way.
    pub bytes: usize,
    #[allow(missing_docs)]
    pub entries: u32,
    /// Whether there may be more: in what was found, or of a read from the next offset on.
    pub has_more: bool,
    /// How many entries were passed over that are no batches.
    pub foreign: u32,
    /// The offset and the encoding of the first value that claims to be compressed and is not: it is served as stored.
    pub damaged: Option<(i64, String)>,
}

/// Batches for a consumer, of one partition.
#[derive(Debug)]
pub struct Collector {
    partition: Arc<Partition>,
    plain_bytes_max: usize,
    next_offset: i64,
    record_count: u64,
    is_full: bool,
    /// Begun with the first records.
    builder: Option<BatchesBuilder>,
    pieces: Pieces,
}

impl Collector {
    /// Collect from an offset on. No value at rest is undone that holds more than `plain_bytes_max` bytes.
    pub fn new(partition: &Arc<Partition>, offset: i64, plain_bytes_max: usize) -> Self {
        Self {
            partition: Arc::clone(partition),
            plain_bytes_max,
            next_offset: offset,
            record_count: 0,
            is_full: false,
            builder: None,
            pieces: Pieces::default(),
        }
    }

    /// Take what fits into `room` bytes, or with `at_least_one`, if nothing was taken before, one record or batch of any
    /// size. Fails with what is wrong with the first entry; before a later one that is wrong there is more.
    pub fn take(&mut self, found: &Found, room: usize, at_least_one: bool) -> Result<Taken, Failure> {
        match self.partition.layout {
            Layout::Record { .. } => self.take_records(found, room, at_least_one),
            Layout::Batch => self.take_batches(found, room, at_least_one),
        }
    }

    fn take_records(&mut self, found: &Found, room: usize, at_least_one: bool) -> Result<Taken, Failure> {
        let room = i64::try_from(room).unwrap_or(i64::MAX);
        let config = &self.partition.topic.config;
        let begun = self.builder.take().filter(|builder| builder.record_count > 0);
        let builder = self.builder.insert(begun.unwrap_or_else(|| {
            BatchesBuilder::new(config.consumer_codec, FIRST_EPOCH, room, at_least_one, config.has_append_time)
        }));
        builder.limit(room)?;
        let (left, count) = (builder.plain_bytes_left(), builder.record_count);
        let mut records = found.records(self.plain_bytes_max);
        let mut span = Span::new(&found.epochs);
        let mut before = None;
        while let Some(record) = records.next() {
            let record = match record {
                Ok(record) => record,
                Err(failure) if builder.record_count == count => return Err(failure),
                Err(_) => break,
            };
            let (producer, is_marker) = (record.kind.producer(), record.kind.is_marker());
            if is_marker || before != Some((producer, false)) {
                builder.begin_producer(producer)?;
                before = Some((producer, is_marker));
            }
            builder.begin_epoch(span.epoch_at(record.offset))?;
            let fields = record.fields();
            if !(if is_marker { builder.push_control(&fields)? } else { builder.push(&fields)? }) {
                break;
            }
        }
        let taken = builder.record_count - count;
        if taken > 0 {
            self.next_offset = builder.next_offset;
        }
        self.record_count += taken as u64;
        self.is_full = builder.is_full;
        Ok(Taken {
            bytes: usize::try_from(left - builder.plain_bytes_left()).unwrap_or(0),
            entries: u32::try_from(taken).unwrap_or(u32::MAX),
            has_more: records.has_more(),
            foreign: 0,
            damaged: records.damaged().cloned(),
        })
    }

    fn take_batches(&mut self, found: &Found, room: usize, at_least_one: bool) -> Result<Taken, Failure> {
        let mut taken = Taken::default();
        let mut batches = found.batches();
        let mut span = Span::new(&found.epochs);
        loop {
            let left = room.saturating_sub(taken.bytes);
            let is_any_size = at_least_one && self.pieces.is_empty();
            let Some(batch) = batches.next_if(|size| size <= left || is_any_size) else { break };
            let batch = batch?;
            taken.bytes += batch.size_bytes;
            taken.entries += 1;
            self.record_count += u64::try_from(batch.record_count).unwrap_or(0);
            self.next_offset = batch.next_offset;
            let epoch = span.epoch_at(batch.base_offset);
            self.pieces.put_batch(batch, epoch, found.reply());
        }
        self.is_full = !batches.has_ended();
        (taken.has_more, taken.foreign) = (batches.has_more(), batches.foreign);
        Ok(taken)
    }

    /// The offset after what was taken.
    pub fn next_offset(&self) -> i64 {
        self.next_offset
    }

    /// How many records were taken.
    pub fn record_count(&self) -> u64 {
        self.record_count
    }

    /// Whether something did not fit.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// The batches, in pieces.
    pub fn finish(mut self) -> io::Result<Vec<Piece>> {
        if let Some(mut builder) = self.builder {
            for batch in builder.finish()? {
                self.pieces.put_made(batch);
            }
        }
        Ok(self.pieces.finish())
    }
}

/// The offsets of one leader epoch, among which those of the records before are.
pub(super) struct Span<'a> {
    epochs: &'a Epochs,
    epoch: i32,
    end: Option<i64>,
}

impl<'a> Span<'a> {
    pub fn new(epochs: &'a Epochs) -> Self {
        Self { epochs, epoch: FIRST_EPOCH, end: Some(i64::MIN) }
    }

    /// The epoch of an offset, past those before.
    pub fn epoch_at(&mut self, offset: i64) -> i32 {
        if self.end.is_some_and(|end| offset >= end) {
            (self.epoch, self.end) = (self.epochs.at(offset), self.epochs.next_start(offset));
        }
        self.epoch
    }
}

/// Bytes on their way into pieces.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    done: Vec<Piece>,
    /// What was made and is no piece yet.
    made: Vec<u8>,
}

impl Pieces {
    fn is_empty(&self) -> bool {
        self.done.is_empty() && self.made.is_empty()
    }

    /// Put a batch of a reply.
    pub fn put_batch(&mut self, batch: StoredBatch<'_>, epoch: i32, reply: Option<&Shared>) {
        let StoredBatch { base_offset, size_bytes, stored, plain, .. } = batch;
        let is_small = size_bytes < PART_BYTES_MIN;
        self.reserve(if is_small { size_bytes } else { HEADER_BYTES });
        self.made.extend_from_slice(&base_offset.to_be_bytes());
        self.made.extend_from_slice(&((size_bytes - LENGTH_FROM) as u32).to_be_bytes());
        self.made.extend_from_slice(&epoch.to_be_bytes());
        let (header, payload) = stored.split_at_checked(HEADER_BYTES).unwrap_or_default();
        let header = header.get(FRONT_BYTES..).unwrap_or_default();
        match (plain, reply) {
            (Some(plain), _) => {
                self.made.extend_from_slice(header);
                self.put_made(plain);
            }
            (None, Some(reply)) if !is_small => {
                self.put(Piece::Part(reply.part_of(stored.get(FRONT_BYTES..).unwrap_or_default())));
            }
            _ => {
                self.made.extend_from_slice(header);
                self.made.extend_from_slice(payload);
            }
        }
    }

    /// Put bytes that were made.
    pub fn put_made(&mut self, bytes: Vec<u8>) {
        if bytes.len() >= PART_BYTES_MIN {
            return self.put(Piece::Made(bytes));
        }
        self.reserve(bytes.len());
        self.made.extend_from_slice(&bytes);
    }

    /// Make room, in another piece if there is much already: it would be copied.
    fn reserve(&mut self, bytes: usize) {
        if self.made.capacity() - self.made.len() < bytes && self.made.len() >= MADE_BYTES_MAX {
            self.close();
            self.made.reserve(MADE_BYTES_MAX);
        }
        self.made.reserve(bytes);
    }

    fn put(&mut self, piece: Piece) {
        self.close();
        self.done.push(piece);
    }

    /// Make a piece of what was made.
    fn close(&mut self) {
        if !self.made.is_empty() {
            self.done.push(Piece::Made(std::mem::take(&mut self.made)));
        }
    }

    pub fn finish(mut self) -> Vec<Piece> {
        self.close();
        self.done
    }
}
