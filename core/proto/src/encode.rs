//! Records written one after the other, as the payload of a batch.
//!
//! Theory of operation. An [`Encoder`] takes records with rising offsets as long as they fit: into the bytes that it may
//! take, and into the int32 of an offset delta. What it does not take begins the next batch. The size of a record is
//! computed before it is written, for its length stands first. Where it writes is a [`Sink`]: one that only counts tells
//! how much room the records need, so that they can be written where they are to stay.
//!
//! Source: the Kafka documentation, "Record".

/// The bytes that an int32 allows a batch.
const PAYLOAD_BYTES_MAX: usize = i32::MAX as usize - crate::batch::HEADER_BYTES;

/// Where records are written.
pub trait Sink {
    /// Write bytes after those before.
    fn put(&mut self, bytes: &[u8]);
    /// How many bytes were written.
    fn written(&self) -> usize;
}

impl Sink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn written(&self) -> usize {
        self.len()
    }
}

/// Only counts.
impl Sink for usize {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        *self += bytes.len();
    }

    fn written(&self) -> usize {
        *self
    }
}

/// A slice of just the size that is needed; what were more is not written.
#[derive(Debug)]
pub struct Filled<'a> {
    left: &'a mut [u8],
    written: usize,
}

impl<'a> Filled<'a> {
    /// Fill a slice from its beginning.
    pub fn new(slice: &'a mut [u8]) -> Self {
        Self { left: slice, written: 0 }
    }
}

impl Sink for Filled<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if let Some((place, left)) = std::mem::take(&mut self.left).split_at_mut_checked(bytes.len()) {
            place.copy_from_slice(bytes);
            self.left = left;
            self.written += bytes.len();
        }
    }

    fn written(&self) -> usize {
        self.written
    }
}

const VARINT_BYTES_MAX: usize = 10;

/// A batch's records on their way into bytes.
#[derive(Debug)]
pub struct Encoder<S> {
    sink: S,
    record_count: usize,
    bytes_max: usize,
    at_least_one: bool,
    base_offset: i64,
    base_timestamp: Option<i64>,
    max_timestamp: i64,
    last_offset_delta: i32,
}

/// The name and value of a header.
pub type HeaderFields<'a> = (&'a [u8], Option<&'a [u8]>);

impl<S: Sink> Encoder<S> {
    /// Begin a batch at an offset. With `at_least_one` the first record is taken at any size.
    pub fn new(sink: S, base_offset: i64, bytes_max: usize, at_least_one: bool) -> Self {
        Self {
            sink,
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
    pub fn push(
        &mut self,
        offset: i64,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[HeaderFields<'_>],
    ) -> bool {
        let Some(delta) = offset.checked_sub(self.base_offset).and_then(|delta| i32::try_from(delta).ok()) else {
            return false;
        };
        // Timestamps may be any int64, so a delta wraps, as it does when it is read.
        let since = timestamp.wrapping_sub(self.base_timestamp.unwrap_or(timestamp));
        let mut size =
            1 + varint_bytes(since) + varint_bytes(delta.into()) + nullable_bytes(key) + nullable_bytes(value);
        size += varint_bytes(headers.len() as i64);
        for (name, content) in headers {
            size += nullable_bytes(Some(name)) + nullable_bytes(*content);
        }
        let whole = varint_bytes(size as i64) + size;
        let limit = if self.at_least_one && self.record_count == 0 { PAYLOAD_BYTES_MAX } else { self.bytes_max };
        if delta <= self.last_offset_delta || whole > limit.saturating_sub(self.sink.written()) {
            return false;
        }
        self.base_timestamp.get_or_insert(timestamp);
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.last_offset_delta = delta;
        self.record_count += 1;
        self.put_varint(size as i64);
        self.sink.put(&[0]); // attributes, of which no bit is used
        self.put_varint(since);
        self.put_varint(delta.into());
        self.put_nullable(key);
        self.put_nullable(value);
        self.put_varint(headers.len() as i64);
        for (name, content) in headers {
            self.put_nullable(Some(name));
            self.put_nullable(*content);
        }
        true
    }

    /// Where the records were written.
    pub fn sink(&self) -> &S {
        &self.sink
    }

    /// How many records were taken.
    pub fn record_count(&self) -> usize {
        self.record_count
    }

    /// The offset of the last record less that of the batch; -1 without any.
    pub fn last_offset_delta(&self) -> i32 {
        self.last_offset_delta
    }

    /// The largest timestamp of the records, which have at least one.
    pub fn max_timestamp(&self) -> i64 {
        self.max_timestamp
    }

    fn put_varint(&mut self, number: i64) {
        let (mut left, mut bytes, mut size) = (zigzag(number), [0; VARINT_BYTES_MAX], 0);
        for byte in &mut bytes {
            size += 1;
            *byte = low_byte(left) & 0x7F;
            left >>= 7;
            if left == 0 {
                break;
            }
            *byte |= 0x80;
        }
        self.sink.put(bytes.get(..size).unwrap_or_default());
    }

    fn put_nullable(&mut self, content: Option<&[u8]>) {
        self.put_varint(content.map_or(-1, |bytes| bytes.len() as i64));
        self.sink.put(content.unwrap_or_default());
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
