//! Record batches for a consumer, built from records that lie one by one in the log.
//!
//! Theory of operation. A [`BatchesBuilder`] takes records with rising offsets until its bytes are used up. A batch ends
//! where the offset delta leaves its int32, which happens after a pause in a log whose offsets are times, and where the
//! leader epoch, the producer, or with LogAppendTime the timestamp changes: a batch has one of each. A gap within a batch
//! is legal. One that is to be compressed ends as soon as it is large: all of it is compressed at once, and others wait for
//! that. The batches carry no sequences, for they are not the producer's own, and a producer only in transactions.
//!
//! Source: the Kafka documentation, "Record Batch"; KIP-74 for the first record of a fetch; KIP-98 for transactions.

use std::io;

use crate::batch::{CONTROL_BIT, HEADER_BYTES, Header, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT};
use crate::compression::Codec;
use crate::encode::{Encoder, RecordFields};

/// A batch that is to be compressed takes no more records from this size on.
const COMPRESSED_BYTES_MAX: usize = 1 << 20;

/// Id and epoch of the producer of a transaction.
pub type Producer = (i64, i16);

/// Batches that are being built.
#[derive(Debug)]
pub struct BatchesBuilder {
    codec: Codec,
    leader_epoch: i32,
    producer: Option<Producer>,
    at_least_one: bool,
    log_append_time: bool,
    bytes_left: i64,
    open: Option<Encoder>,
    batches: Vec<Vec<u8>>,
    /// How many records were taken.
    pub record_count: usize,
    /// The offset after the last record that was taken.
    pub next_offset: i64,
    /// Whether a record did not fit.
    pub is_full: bool,
}

impl BatchesBuilder {
    /// Take `bytes_max` bytes uncompressed at the most, but with `at_least_one` the first record at any size.
    ///
    /// `codec` compresses each batch that it makes smaller. With `log_append_time` the timestamps are the broker's.
    pub fn new(codec: Codec, leader_epoch: i32, bytes_max: i64, at_least_one: bool, log_append_time: bool) -> Self {
        Self {
            codec,
            leader_epoch,
            producer: None,
            at_least_one,
            log_append_time,
            bytes_left: bytes_max,
            open: None,
            batches: Vec::new(),
            record_count: 0,
            next_offset: 0,
            is_full: false,
        }
    }

    /// How many bytes may still be taken.
    pub fn plain_bytes_left(&self) -> i64 {
        self.bytes_left - self.open.as_ref().map_or(0, |open| bytes_of(open.payload()))
    }

    /// Set the leader epoch of the records that follow.
    pub fn begin_epoch(&mut self, leader_epoch: i32) -> io::Result<()> {
        if leader_epoch != self.leader_epoch {
            self.close(0)?;
            self.leader_epoch = leader_epoch;
        }
        Ok(())
    }

    /// Set the producer of the records that follow.
    ///
    /// No batch has records of two of its transactions, for the marker between them may be gone: a consumer leaves out
    /// whole batches.
    pub fn begin_producer(&mut self, producer: Option<Producer>) -> io::Result<()> {
        if producer.is_some() || self.producer.is_some() {
            self.close(0)?;
            self.producer = producer;
        }
        Ok(())
    }

    /// Take no more than `bytes_left` from here on; an open batch would grow to the size it was opened with.
    pub fn limit(&mut self, bytes_left: i64) -> io::Result<()> {
        if bytes_left < self.plain_bytes_left() {
            self.close(0)?;
            self.bytes_left = bytes_left;
        }
        Ok(())
    }

    /// Take a record, or return false: it does not fit, and then nothing after it may be taken.
    pub fn push<Name: AsRef<[u8]>>(&mut self, record: &RecordFields<'_, Name>) -> io::Result<bool> {
        let base_timestamp = self.open.as_ref().and_then(Encoder::base_timestamp);
        let is_other = self.log_append_time && base_timestamp.is_some_and(|timestamp| timestamp != record.timestamp);
        if is_other || self.is_large() {
            self.close(0)?;
        }
        if !self.open.as_mut().is_some_and(|open| open.push(record)) {
            self.close(0)?;
            let room = self.bytes_left.saturating_sub_unsigned(HEADER_BYTES as u64);
            let any_size = self.at_least_one && self.record_count == 0;
            let mut open = Encoder::new(record.offset, usize::try_from(room).unwrap_or(0), any_size);
            if self.is_full || !open.push(record) {
                self.is_full = true;
                return Ok(false);
            }
            self.open = Some(open);
        }
        self.record_count += 1;
        self.next_offset = record.offset.saturating_add(1);
        Ok(true)
    }

    /// Take the record of a marker, which is a batch of its own.
    pub fn push_control<Name: AsRef<[u8]>>(&mut self, record: &RecordFields<'_, Name>) -> io::Result<bool> {
        self.close(0)?;
        let is_taken = self.push(record)?;
        self.close(TRANSACTIONAL_BIT | CONTROL_BIT)?;
        Ok(is_taken)
    }

    /// Return the batches since this was called before.
    pub fn finish(&mut self) -> io::Result<Vec<Vec<u8>>> {
        self.close(0)?;
        Ok(std::mem::take(&mut self.batches))
    }

    fn is_large(&self) -> bool {
        let size = self.open.as_ref().map_or(0, |open| open.payload().len());
        self.codec != Codec::None && size >= COMPRESSED_BYTES_MAX
    }

    fn close(&mut self, control_bits: i16) -> io::Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        self.bytes_left -= bytes_of(open.payload());
        let appended = if self.log_append_time { LOG_APPEND_TIME_BIT } else { 0 };
        let transactional = if self.producer.is_some() { TRANSACTIONAL_BIT } else { 0 };
        let mut header = Header {
            partition_leader_epoch: self.leader_epoch,
            attributes: if control_bits == 0 { appended | transactional } else { control_bits },
            ..open.header()
        };
        if let Some(producer) = self.producer {
            (header.producer_id, header.producer_epoch) = producer;
        }
        self.batches.push(match self.codec {
            Codec::None => header.sealed(open.into_batch()),
            codec => {
                let compressed = codec.compress(open.payload())?;
                if compressed.len() < open.payload().len() {
                    header.with_codec(codec).sealed_with(&compressed)
                } else {
                    header.sealed(open.into_batch())
                }
            }
        });
        Ok(())
    }
}

/// The bytes of a batch with this payload.
fn bytes_of(payload: &[u8]) -> i64 {
    (HEADER_BYTES + payload.len()) as i64
}
