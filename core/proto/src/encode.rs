//! Records written one after the other, as the payload of a batch.
//!
//! Theory of operation. An [`Encoder`] takes records with rising offsets as long as they fit: into the bytes that it may
//! take, and into the int32 of an offset delta. What it does not take begins the next batch. The size of a record is
//! computed before it is written, for its length stands first. The bytes begin with room for the header, so that a batch
//! is whole where its records were written: a copy of a large payload costs as much as all else.
//!
//! Source: the Kafka documentation, "Record".

use crate::batch::{HEADER_BYTES, Header, NO_PRODUCER_ID};

/// The bytes that an int32 allows a batch.
const PAYLOAD_BYTES_MAX: usize = i32::MAX as usize - HEADER_BYTES;
const MAGIC: i8 = 2;
const NO_SEQUENCE: i32 = -1;
const NO_PRODUCER_EPOCH: i16 = -1;

/// A batch's records on their way into bytes.
#[derive(Debug)]
pub struct Encoder {
    batch: Vec<u8>,
    record_count: i32,
    bytes_max: usize,
    at_least_one: bool,
    base_offset: i64,
    base_timestamp: Option<i64>,
    max_timestamp: i64,
    last_offset_delta: i32,
}

/// The name and value of a header.
pub type HeaderFields<'a, Name = &'a [u8]> = (Name, Option<&'a [u8]>);

/// What is written of a record.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct RecordFields<'a, Name = &'a [u8]> {
    pub offset: i64,
    pub timestamp: i64,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: &'a [HeaderFields<'a, Name>],
}

impl Encoder {
    /// Begin a batch at an offset. With `at_least_one` the first record is taken at any size.
    pub fn new(base_offset: i64, bytes_max: usize, at_least_one: bool) -> Self {
        Self {
            batch: vec![0; HEADER_BYTES],
            record_count: 0,
            bytes_max: bytes_max.min(PAYLOAD_BYTES_MAX),
            at_least_one,
            base_offset,
            base_timestamp: None,
            max_timestamp: i64::MIN,
            last_offset_delta: -1,
        }
    }

    /// Take a record, or return false and take nothing: it does not fit.
    #[inline]
    pub fn push<Name: AsRef<[u8]>>(&mut self, record: &RecordFields<'_, Name>) -> bool {
        let RecordFields { offset, timestamp, key, value, headers } = *record;
        let Some(delta) = offset.checked_sub(self.base_offset).and_then(|delta| i32::try_from(delta).ok()) else {
            return false;
        };
        // Timestamps may be any int64, so a delta wraps, as it does when it is read.
        let since = timestamp.wrapping_sub(self.base_timestamp.unwrap_or(timestamp));
        let mut size =
            1 + varint_bytes(since) + varint_bytes(delta.into()) + nullable_bytes(key) + nullable_bytes(value);
        size += varint_bytes(headers.len() as i64);
        for (name, content) in headers {
            size += nullable_bytes(Some(name.as_ref())) + nullable_bytes(*content);
        }
        let whole = varint_bytes(size as i64) + size;
        let limit = if self.at_least_one && self.record_count == 0 { PAYLOAD_BYTES_MAX } else { self.bytes_max };
        if delta <= self.last_offset_delta || whole > limit.saturating_sub(self.payload().len()) {
            return false;
        }
        self.base_timestamp.get_or_insert(timestamp);
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.last_offset_delta = delta;
        self.record_count += 1;
        self.batch.reserve(whole);
        self.put_varint(size as i64);
        self.batch.push(0); // attributes, of which no bit is used
        self.put_varint(since);
        self.put_varint(delta.into());
        self.put_nullable(key);
        self.put_nullable(value);
        self.put_varint(headers.len() as i64);
        for (name, content) in headers {
            self.put_nullable(Some(name.as_ref()));
            self.put_nullable(*content);
        }
        true
    }

    /// The records that were taken.
    pub fn payload(&self) -> &[u8] {
        self.batch.get(HEADER_BYTES..).unwrap_or_default()
    }

    /// The timestamp of the first record, if there is one.
    pub fn base_timestamp(&self) -> Option<i64> {
        self.base_timestamp
    }

    /// What the records say of a header, of a batch without attributes and without a producer.
    pub fn header(&self) -> Header {
        Header {
            base_offset: self.base_offset,
            batch_length: 0,
            partition_leader_epoch: 0,
            magic: MAGIC,
            crc: 0,
            attributes: 0,
            last_offset_delta: self.last_offset_delta,
            base_timestamp: self.base_timestamp.unwrap_or_default(),
            max_timestamp: self.max_timestamp,
            producer_id: NO_PRODUCER_ID,
            producer_epoch: NO_PRODUCER_EPOCH,
            base_sequence: NO_SEQUENCE,
            record_count: self.record_count,
        }
    }

    /// Room for a header, and the records after it.
    pub fn into_batch(self) -> Vec<u8> {
        self.batch
    }

    #[inline]
    fn put_varint(&mut self, number: i64) {
        let mut left = zigzag(number);
        while left > 0x7F {
            self.batch.push(low_byte(left) | 0x80);
            left >>= 7;
        }
        self.batch.push(low_byte(left));
    }

    #[inline]
    fn put_nullable(&mut self, content: Option<&[u8]>) {
        self.put_varint(content.map_or(-1, |bytes| bytes.len() as i64));
        self.batch.extend_from_slice(content.unwrap_or_default());
    }
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

fn low_byte(number: u64) -> u8 {
    number.to_le_bytes()[0]
}

fn varint_bytes(number: i64) -> usize {
    let bits = 64 - (zigzag(number) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

fn nullable_bytes(content: Option<&[u8]>) -> usize {
    content.map_or(1, |bytes| varint_bytes(bytes.len() as i64) + bytes.len())
}
