//! A record batch of magic 2: its header, and the checks of one that a producer sent.
//!
//! Theory of operation. [`Header::of_produced`] looks at the 61 bytes before the records and at the CRC, [`Header::walk`]
//! at the records: they have to be exactly as the header says. The rules are those of Kafka's `LogValidator`
//! and `DefaultRecord`, and so are the codes; only the offset deltas, which Kafka checks in compressed batches alone,
//! have to be 0, 1, 2, ... in all. A batch that passes can be stored as it came: every client reads it to its end.
//! [`Records`] reads stored batches too, which may have lost records to compaction: their offsets have gaps, and rise.
//!
//! Source: the Kafka documentation, "Record Batch" and "Record"; KIP-98 for the fields of the producer.

use std::borrow::Cow;
use std::fmt::Write;

use crate::compression::{Codec, has_linked_blocks};
use crate::cursor::Cursor;
use crate::{ErrorCode, Refusal};

/// The bytes before the records.
pub const HEADER_BYTES: usize = 61;
/// Where the length begins to count: after the base offset and itself.
pub const LENGTH_FROM: usize = 12;
/// Where the bytes begin that the CRC covers: at the attributes.
pub const CRC_FROM: usize = 21;

const MAGIC: i8 = 2;
const MAGIC_AT: usize = 16;
const CODEC_MASK: i16 = 0x07;
/// The attributes: the batch has the time of its append, which is its largest timestamp.
pub const LOG_APPEND_TIME_BIT: i16 = 0x08;
/// The attributes: a transaction.
pub const TRANSACTIONAL_BIT: i16 = 0x10;
/// The attributes: a marker, which ends one.
pub const CONTROL_BIT: i16 = 0x20;
/// The producer id of a batch whose producer is not idempotent.
pub const NO_PRODUCER_ID: i64 = -1;
/// The most headers of a batch: one takes two bytes here, and an object of 72 where the records are decoded.
pub const HEADERS_MAX: usize = 1_000_000;
/// A record without key, value and headers: length, attributes, two deltas, two lengths and a count, a byte each.
const RECORD_BYTES_MIN: usize = 7;

/// The fields before the records, by their names in Kafka's documentation; timestamps in milliseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Header {
    pub base_offset: i64,
    pub batch_length: i32,
    pub partition_leader_epoch: i32,
    pub magic: i8,
    pub crc: u32,
    pub attributes: i16,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: i32,
}

/// The CRC-32C of `data`, which follows what has the CRC `before` (0: nothing).
pub fn crc32c(before: u32, data: &[u8]) -> u32 {
    crc32c::crc32c_append(before, data)
}

/// What the walk over the records of a batch saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The size of the records uncompressed.
    pub plain_bytes: usize,
    /// The smallest timestamp of a record, in milliseconds; -1 is that of a record without one.
    pub min_timestamp: i64,
    /// The largest timestamp of a record.
    pub max_timestamp: i64,
    /// How many records have no key: a compacted topic takes none of these.
    pub null_keys: usize,
    /// How many records have no value.
    pub null_values: usize,
    /// The size of the largest value.
    pub value_bytes_max: usize,
    /// How many headers all records have.
    pub headers: usize,
}

impl Walk {
    /// Begin a walk over records of which none was seen.
    pub fn over(plain: &[u8]) -> Self {
        Self {
            plain_bytes: plain.len(),
            min_timestamp: i64::MAX,
            max_timestamp: i64::MIN,
            null_keys: 0,
            null_values: 0,
            value_bytes_max: 0,
            headers: 0,
        }
    }

    /// See a record.
    #[inline]
    pub fn see(&mut self, record: &Record<'_>) {
        self.min_timestamp = self.min_timestamp.min(record.timestamp);
        self.max_timestamp = self.max_timestamp.max(record.timestamp);
        self.null_keys += usize::from(record.key.is_none());
        self.null_values += usize::from(record.value.is_none());
        self.value_bytes_max = self.value_bytes_max.max(record.value.map_or(0, <[u8]>::len));
        self.headers += record.header_count;
    }
}

/// One record of a batch, its fields where they lie.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Its offset less the base offset of the batch.
    pub offset_delta: i32,
    /// Its own time in milliseconds, also if the batch has the time of its append.
    pub timestamp: i64,
    /// None is null.
    pub key: Option<&'a [u8]>,
    /// None is null: a tombstone in a compacted topic.
    pub value: Option<&'a [u8]>,
    headers: Cursor<'a>,
    header_count: usize,
}

impl Header {
    /// Read the fields, of which nothing is checked; `None` if the bytes are too few.
    pub fn read(batch: &[u8]) -> Option<Self> {
        let mut fields = Cursor::new(batch.get(..HEADER_BYTES)?);
        Some(Self {
            base_offset: i64::from_be_bytes(fields.array()?),
            batch_length: i32::from_be_bytes(fields.array()?),
            partition_leader_epoch: i32::from_be_bytes(fields.array()?),
            magic: i8::from_be_bytes(fields.array()?),
            crc: u32::from_be_bytes(fields.array()?),
            attributes: i16::from_be_bytes(fields.array()?),
            last_offset_delta: i32::from_be_bytes(fields.array()?),
            base_timestamp: i64::from_be_bytes(fields.array()?),
            max_timestamp: i64::from_be_bytes(fields.array()?),
            producer_id: i64::from_be_bytes(fields.array()?),
            producer_epoch: i16::from_be_bytes(fields.array()?),
            base_sequence: i32::from_be_bytes(fields.array()?),
            record_count: i32::from_be_bytes(fields.array()?),
        })
    }

    /// Read and check the header of what a producer sent for one partition: exactly one batch, whose CRC matches.
    pub fn of_produced(sent: &[u8], message_bytes_max: usize) -> Result<Self, Refusal> {
        let header = Self::read_magic_2(sent)?;
        let size = header.size(sent.len())?;
        if size > message_bytes_max {
            let message = format!("a batch of {size} bytes exceeds max.message.bytes = {message_bytes_max}");
            return Err(Refusal::new(ErrorCode::MessageTooLarge, message));
        }
        if size < sent.len() {
            return Err(Refusal::invalid("a partition may carry just one record batch"));
        }
        if sent.get(CRC_FROM..).map(crc32c::crc32c) != Some(header.crc) {
            return Err(Refusal::new(ErrorCode::CorruptMessage, "the CRC does not match the batch"));
        }
        header.check_fields(size - HEADER_BYTES)?;
        if header.codec() == Some(Codec::Lz4) && sent.get(HEADER_BYTES..).is_some_and(has_linked_blocks) {
            return Err(Refusal::invalid("the blocks of lz4 are linked, which Kafka and Java's client do not read"));
        }
        Ok(header)
    }

    /// The number of the codec, which may be none's.
    pub fn codec_number(&self) -> i16 {
        self.attributes & CODEC_MASK
    }

    /// When the batch was appended, if it has that instead of the times of its records (LogAppendTime).
    pub fn append_time(&self) -> Option<i64> {
        (self.attributes & LOG_APPEND_TIME_BIT != 0).then_some(self.max_timestamp)
    }

    /// The codec, if its number is one.
    pub fn codec(&self) -> Option<Codec> {
        Codec::of(self.codec_number())
    }

    /// Walk over the records of a batch with this header, decompressed to `plain_bytes_max` at the most.
    pub fn walk(&self, batch: &[u8], plain_bytes_max: usize) -> Result<Walk, Refusal> {
        self.walk_plain(&self.decompressed(batch, plain_bytes_max)?)
    }

    /// Walk over the records, which were decompressed.
    pub fn walk_plain(&self, plain: &[u8]) -> Result<Walk, Refusal> {
        let mut walk = Walk::over(plain);
        for record in self.checked_records(plain) {
            walk.see(&record?);
        }
        Ok(walk)
    }

    /// The header of a batch as it is stored: in the topic's codec, if it has one, and with the time of the append
    /// instead of the records' own, if that is given.
    ///
    /// Its largest timestamp is that of a record, for another would mislead a search by time. `LogAppendTime`, which
    /// only a broker may set, is taken from a producer's batch.
    #[must_use]
    pub fn as_stored(self, walk: &Walk, codec: Option<Codec>, append_timestamp: Option<i64>) -> Self {
        let time_bit = if append_timestamp.is_some() { LOG_APPEND_TIME_BIT } else { 0 };
        let stored = Self {
            attributes: self.attributes & !LOG_APPEND_TIME_BIT | time_bit,
            max_timestamp: append_timestamp.unwrap_or(walk.max_timestamp),
            ..self
        };
        codec.map_or(stored, |codec| stored.with_codec(codec))
    }

    /// The header of a batch of which some records are left, by what they say of one: its offsets stay (KIP-98).
    #[must_use]
    pub fn retaining(self, left: &Self) -> Self {
        Self {
            // The timestamps in the records are differences from the first of those that are left.
            base_timestamp: left.base_timestamp,
            max_timestamp: self.append_time().unwrap_or(left.max_timestamp),
            record_count: left.record_count,
            ..self
        }
    }

    /// The same with another codec.
    #[must_use]
    pub fn with_codec(self, codec: Codec) -> Self {
        Self { attributes: self.attributes & !CODEC_MASK | codec as i16, ..self }
    }

    /// The batch with this header and a payload: length and CRC follow.
    pub fn sealed_with(self, payload: &[u8]) -> Vec<u8> {
        self.sealed([&[0; HEADER_BYTES], payload].concat())
    }

    /// The same where the payload lies after room for the header.
    pub fn sealed(mut self, mut batch: Vec<u8>) -> Vec<u8> {
        // One of more than 2 GiB is too large for every topic, by the size that this says.
        self.batch_length = i32::try_from(batch.len().saturating_sub(LENGTH_FROM)).unwrap_or(i32::MAX);
        if let Some((room, payload)) = batch.split_first_chunk_mut::<HEADER_BYTES>() {
            let covered = self.bytes();
            self.crc = crc32c(crc32c(0, covered.get(CRC_FROM..).unwrap_or_default()), payload);
            *room = self.bytes();
        }
        batch.shrink_to_fit(); // it may wait for a slow consumer
        batch
    }

    /// The bytes of the fields.
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let fields = [
            &self.base_offset.to_be_bytes()[..],
            &self.batch_length.to_be_bytes(),
            &self.partition_leader_epoch.to_be_bytes(),
            &self.magic.to_be_bytes(),
            &self.crc.to_be_bytes(),
            &self.attributes.to_be_bytes(),
            &self.last_offset_delta.to_be_bytes(),
            &self.base_timestamp.to_be_bytes(),
            &self.max_timestamp.to_be_bytes(),
            &self.producer_id.to_be_bytes(),
            &self.producer_epoch.to_be_bytes(),
            &self.base_sequence.to_be_bytes(),
            &self.record_count.to_be_bytes(),
        ];
        let mut bytes = [0; HEADER_BYTES];
        for (place, byte) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
            *place = *byte;
        }
        bytes
    }

    /// The bytes of the records, decompressed to `plain_bytes_max` at the most.
    pub fn decompressed<'a>(&self, batch: &'a [u8], plain_bytes_max: usize) -> Result<Cow<'a, [u8]>, Refusal> {
        self.decompressed_payload(batch.get(HEADER_BYTES..).unwrap_or_default(), plain_bytes_max)
    }

    /// The same for a batch of the log, whose payload is `payload` if it was compressed at rest.
    pub fn stored_records<'a>(
        &self,
        batch: &'a [u8],
        payload: Option<&'a [u8]>,
        plain_bytes_max: usize,
    ) -> Result<Cow<'a, [u8]>, Refusal> {
        let payload = payload.or(batch.get(HEADER_BYTES..)).unwrap_or_default();
        self.decompressed_payload(payload, plain_bytes_max).map_err(Refusal::of_stored)
    }

    fn decompressed_payload<'a>(&self, payload: &'a [u8], limit: usize) -> Result<Cow<'a, [u8]>, Refusal> {
        self.codec().ok_or_else(|| self.unknown_codec())?.decompress(payload, limit)
    }

    /// The records that `plain` holds, each or why it cannot be read: then there are no more.
    pub fn records<'a>(&self, plain: &'a [u8]) -> Records<'a> {
        let (count, last_delta, base_timestamp) = (self.record_count, self.last_offset_delta, self.base_timestamp);
        Records::new(Cursor::new(plain), Rest { count, first_delta: 0, last_delta, base_timestamp })
    }

    /// The same for a batch of a producer, with `HEADERS_MAX` headers at the most. Offsets rise, and [`Self::of_produced`]
    /// has seen that there are as many as records: so the deltas are 0, 1, 2, ...
    pub fn checked_records<'a>(&self, plain: &'a [u8]) -> impl Iterator<Item = Result<Record<'a>, Refusal>> + use<'a> {
        let mut headers = 0;
        self.records(plain).map(move |record| {
            let record = record?;
            headers += record.header_count;
            if headers > HEADERS_MAX {
                let message = format!("the records have more than {HEADERS_MAX} headers");
                return Err(Refusal::new(ErrorCode::MessageTooLarge, message));
            }
            Ok(record)
        })
    }

    fn read_magic_2(sent: &[u8]) -> Result<Self, Refusal> {
        let magic = *sent.get(MAGIC_AT).ok_or(Refusal::invalid("the partition has no record batch"))?;
        match magic as i8 {
            MAGIC => {
                Self::read(sent).ok_or_else(|| Refusal::invalid(format!("{} bytes are not a record batch", sent.len())))
            }
            0 | 1 => Err(Refusal::invalid(format!("message format {magic} is too old"))),
            _ => Err(Refusal::new(ErrorCode::CorruptMessage, format!("message format {magic} is unknown"))),
        }
    }

    /// The size that the header says, if the batch can have it and it is there. To Kafka what is cut off is no batch.
    fn size(&self, sent_bytes: usize) -> Result<usize, Refusal> {
        let size = usize::try_from(self.batch_length).unwrap_or(0) + LENGTH_FROM;
        let code = match size {
            ..HEADER_BYTES => ErrorCode::CorruptMessage,
            _ if size > sent_bytes => ErrorCode::InvalidRecord,
            _ => return Ok(size),
        };
        Err(Refusal::new(code, format!("a batch of length {} in {sent_bytes} bytes", self.batch_length)))
    }

    fn check_fields(&self, stored_bytes: usize) -> Result<(), Refusal> {
        if self.base_offset != 0 {
            return Err(Refusal::invalid(format!(
                "a batch with base offset {}, of a producer it is 0",
                self.base_offset
            )));
        }
        let (count, delta) = (self.record_count, self.last_offset_delta);
        if count <= 0 || delta != count - 1 {
            return Err(Refusal::invalid(format!("{count} records with a last offset delta of {delta}")));
        }
        let codec = self.codec().ok_or_else(|| self.unknown_codec())?;
        if codec == Codec::None && usize::try_from(count).is_ok_and(|count| count > stored_bytes / RECORD_BYTES_MIN) {
            return Err(Refusal::invalid(format!("{count} records in {stored_bytes} bytes")));
        }
        if self.attributes & CONTROL_BIT != 0 {
            return Err(Refusal::invalid("a client may not write control records"));
        }
        let (id, epoch, sequence) = (self.producer_id, self.producer_epoch, self.base_sequence);
        if id == NO_PRODUCER_ID {
            return match self.attributes & TRANSACTIONAL_BIT {
                0 => Ok(()),
                _ => Err(Refusal::invalid("a batch of a transaction has no producer id")),
            };
        }
        if sequence >= 0 && epoch >= 0 {
            return Ok(());
        }
        let code = if sequence < 0 { ErrorCode::InvalidRecord } else { ErrorCode::InvalidProducerEpoch };
        Err(Refusal::new(code, format!("producer {id} with epoch {epoch}, sequence {sequence}")))
    }

    fn unknown_codec(&self) -> Refusal {
        let message = format!("compression codec {} is unknown", self.codec_number());
        Refusal::new(ErrorCode::UnsupportedCompressionType, message)
    }
}

/// Which records of a batch have not been read yet, apart from their bytes.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// How many these are.
    pub count: i32,
    /// The smallest offset delta that the next record may have.
    pub first_delta: i64,
    /// The largest one that a record of the batch may have.
    pub last_delta: i32,
    /// The timestamp of the batch, to which the records add theirs.
    pub base_timestamp: i64,
}

/// Iterates over the records of a batch, whose offsets rise, and notices at the end whether bytes are left.
#[derive(Debug)]
pub struct Records<'a> {
    left: Cursor<'a>,
    rest: Rest,
}

impl<'a> Records<'a> {
    /// The records that are left of a batch, and their bytes.
    pub fn new(left: Cursor<'a>, rest: Rest) -> Self {
        Self { left, rest }
    }

    /// Which records were not read yet.
    pub fn rest(&self) -> Rest {
        self.rest
    }

    /// How many bytes are left after the records that came.
    pub fn bytes_left(&self) -> usize {
        self.left.len()
    }

    fn record(&mut self) -> Result<Record<'a>, &'static str> {
        const STRUCTURE: &str = "a record ends within one of its fields";
        let size = self.left.varint().ok_or("the batch ends before its last record")?;
        let body = usize::try_from(size).ok().and_then(|size| self.left.bytes(size));
        let mut body = Cursor::new(body.ok_or("a record is longer than the batch")?);
        let _attributes = body.byte().ok_or(STRUCTURE)?;
        let timestamp = self.rest.base_timestamp.wrapping_add(body.varlong().ok_or(STRUCTURE)?);
        let offset_delta = body.varint().ok_or(STRUCTURE)?;
        if i64::from(offset_delta) < self.rest.first_delta || offset_delta > self.rest.last_delta {
            return Err("the offset of a record does not rise, or is past the batch");
        }
        self.rest.first_delta = i64::from(offset_delta) + 1;
        let (key, value) = (body.nullable().ok_or(STRUCTURE)?, body.nullable().ok_or(STRUCTURE)?);
        let header_count = body.varint().ok_or(STRUCTURE)?;
        let header_count = usize::try_from(header_count).map_err(|_| "a record has less than no headers")?;
        let headers = body;
        for _ in 0..header_count {
            body.nullable().ok_or(STRUCTURE)?.ok_or("the name of a header is null")?;
            body.nullable().ok_or(STRUCTURE)?;
        }
        if !body.is_empty() {
            return Err("a record is longer than its fields");
        }
        Ok(Record { offset_delta, timestamp, key, value, headers, header_count })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Refusal>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.count <= 0 {
            let rest = std::mem::replace(&mut self.left, Cursor::new(&[]));
            return (!rest.is_empty())
                .then(|| Err(Refusal::invalid(format!("{} bytes follow the last record", rest.len()))));
        }
        let record = self.record();
        self.rest.count -= 1;
        if record.is_err() {
            (self.left, self.rest.count) = (Cursor::new(&[]), 0);
        }
        Some(record.map_err(|why| Refusal::invalid(format!("the records cannot be read: {why}"))))
    }
}

impl<'a> Record<'a> {
    /// The names and values of the headers, in the producer's order; a name may repeat and may be no UTF-8.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = (&'a [u8], Option<&'a [u8]>)> + use<'a> {
        let mut left = self.headers;
        (0..self.header_count).map(move |_| {
            // The reader of the record has been here.
            let name = left.nullable().flatten().unwrap_or_default();
            (name, left.nullable().flatten())
        })
    }
}

/// The name of a header as text: bytes that are no UTF-8 are written as `\xNN`.
pub fn text_of(name: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(name) {
        return Cow::Borrowed(text);
    }
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    Cow::Owned(text)
}
