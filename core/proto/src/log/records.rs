//! Layout `record`: an entry of the stream as a record.
//!
//! Theory of operation. Entries that Korvet wrote have the fields `key`, `value`, `timestamp`, `korvet.encoding`,
//! `header.<name>` and `korvet.producer`, in this order; an absent key or value is null, a header whose value is null
//! is the field `nullheader.<name>`. The end of a transaction has the fields `korvet.marker`, `korvet.producer` and
//! `timestamp`. But any client may XADD to the stream, with fields in any order. Such an entry is neither lost nor
//! refused: without a usable timestamp it gets the time of its id, and a field that is none of the above, or that repeats
//! one, becomes a header of that name.
//!
//! A walk reads each byte once and takes memory for none of the records: fields stay in the reply, a value that is
//! compressed at rest is undone where the one before it was.

use std::borrow::Cow;

use super::Found;
use super::entries::{Ended, Entries, malformed_entry, no_entry, number};
use crate::Malformed;
use crate::append::{ENCODING, HEADER, KEY, MARKER, NULL_HEADER, PRODUCER, TIMESTAMP, VALUE};
use crate::batch::text_of;
use crate::build::Producer;
use crate::compression::FrameReader;
use crate::encode::{HeaderFields, RecordFields};
use crate::failure::Failure;
use crate::partition::Layout;

const PRODUCER_ID_DIGITS_MAX: usize = 19;
const PRODUCER_EPOCH_DIGITS_MAX: usize = 5;
const TIMESTAMP_DIGITS_MAX: usize = 19;

/// The value of a marker: its version, and the epoch of the coordinator, which Korvet does not have.
const MARKER_VALUE: &[u8] = &[0; 6];
const ABORT_KEY: &[u8] = &[0, 0, 0, 0];
const COMMIT_KEY: &[u8] = &[0, 0, 0, 1];

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No transaction.
    Plain,
    /// A transaction of a producer.
    Transactional(Producer),
    /// The end of one: a control record.
    #[allow(missing_docs)]
    Marker { producer: Producer, commits: bool },
}

impl Kind {
    /// Whose transaction it is of, if it is of one.
    pub fn producer(self) -> Option<Producer> {
        match self {
            Self::Plain => None,
            Self::Transactional(producer) | Self::Marker { producer, .. } => Some(producer),
        }
    }

    /// Whether it ends a transaction.
    pub fn is_marker(self) -> bool {
        matches!(self, Self::Marker { .. })
    }
}

/// The name of a header, which is UTF-8 as [`text_of`] has it, and its value.
pub type StoredHeader<'a> = HeaderFields<'a, Cow<'a, [u8]>>;

/// A record of the log; its timestamp is in milliseconds.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct StoredRecord<'a> {
    pub offset: i64,
    pub timestamp: i64,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: &'a [StoredHeader<'a>],
    pub kind: Kind,
}

impl<'a> StoredRecord<'a> {
    /// What is written of it in a batch.
    pub fn fields(&self) -> RecordFields<'a, Cow<'a, [u8]>> {
        let Self { offset, timestamp, key, value, headers, .. } = *self;
        RecordFields { offset, timestamp, key, value, headers }
    }
}

/// The records of what a read found, up to the first that is not shown.
pub struct Records<'a> {
    found: &'a Found,
    entries: Entries<'a>,
    bits: u8,
    plain_bytes_max: usize,
    /// The last timestamp, as text and as a number: many records have that of the one before.
    time: Option<(&'a [u8], i64)>,
    /// Of the last record.
    headers: Vec<StoredHeader<'a>>,
    /// The value of the last record, if it was compressed; and how many bytes all of these had.
    plain: Vec<u8>,
    plain_bytes: usize,
    frames: FrameReader,
    next_offset: Option<i64>,
    ended: Option<Ended>,
    damaged: Option<(i64, String)>,
}

/// What was read of an entry, headers aside.
#[derive(Clone, Copy)]
struct Fields<'a> {
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    timestamp: Option<i64>,
    encoding: Option<&'a [u8]>,
    kind: Kind,
}

impl<'a> Records<'a> {
    /// Begin with the first entry. No value is undone that holds more than `plain_bytes_max` bytes.
    pub(super) fn new(found: &'a Found, plain_bytes_max: usize) -> Self {
        Self {
            found,
            entries: found.entries(),
            bits: match found.partition.layout {
                Layout::Batch => 0,
                Layout::Record { bits } => bits,
            },
            plain_bytes_max,
            time: None,
            headers: Vec::new(),
            plain: Vec::new(),
            plain_bytes: 0,
            frames: FrameReader::default(),
            next_offset: None,
            ended: None,
            damaged: None,
        }
    }

    /// The next record. Fails with KAFKA_STORAGE_ERROR where an entry is none; then there are no more.
    #[allow(clippy::should_implement_trait)] // A record borrows of the walk what was decompressed.
    pub fn next(&mut self) -> Option<Result<StoredRecord<'_>, Failure>> {
        if self.ended.is_some() {
            return None;
        }
        match self.read() {
            Ok(Some((offset, fields))) => Some(Ok(self.record(offset, fields))),
            Ok(None) => None,
            Err(why) => {
                self.ended = Some(Ended::Outside);
                Some(Err(malformed_entry(&self.found.partition, &why)))
            }
        }
    }

    /// Whether reading on at once may find more.
    pub fn has_more(&self) -> bool {
        self.ended.is_none_or(|ended| self.found.has_more(ended, self.next_offset))
    }

    /// How many bytes the values have that were compressed at rest.
    pub(super) fn plain_bytes(&self) -> usize {
        self.plain_bytes
    }

    /// The offset and the encoding of the first value that claims to be compressed and is not, or holds too much: it is
    /// served as it is stored.
    pub fn damaged(&self) -> Option<&(i64, String)> {
        self.damaged.as_ref()
    }

    /// Read an entry, unless the walk ends before it.
    fn read(&mut self) -> Result<Option<(i64, Fields<'a>)>, Malformed> {
        let Some(entry) = self.entries.next() else {
            self.ended = Some(Ended::Exhausted);
            return Ok(None);
        };
        let entry = entry?;
        self.ended = self.found.ended_at(entry.end);
        match entry.end {
            Some(end) if self.ended.is_none() => {
                let fields = self.fields(entry.pairs)?;
                self.next_offset = Some(end);
                Ok(Some((end - 1, fields)))
            }
            _ => Ok(None),
        }
    }

    fn fields(&mut self, pairs: usize) -> Result<Fields<'a>, Malformed> {
        let mut fields = Fields { key: None, value: None, timestamp: None, encoding: None, kind: Kind::Plain };
        self.headers.clear();
        // Most entries begin with these, in this order.
        let mut left = pairs;
        if self.entries.passes(b"$3\r\nkey\r\n") {
            (fields.key, left) = (Some(self.entries.content().ok_or_else(no_entry)?), left - 1);
        }
        if self.entries.passes(b"$5\r\nvalue\r\n") {
            (fields.value, left) = (Some(self.entries.content().ok_or_else(no_entry)?), left - 1);
        }
        if self.entries.passes(b"$9\r\ntimestamp\r\n") {
            let text = self.entries.content().ok_or_else(no_entry)?;
            (fields.timestamp, left) = (self.timestamp_of(text), left - 1);
            if fields.timestamp.is_none() {
                self.headers.push(header(TIMESTAMP, text));
            }
        }
        for left in (0..left).rev() {
            let (name, content) = self.entries.pair()?;
            match name {
                KEY if fields.key.is_none() => fields.key = Some(content),
                VALUE if fields.value.is_none() => fields.value = Some(content),
                TIMESTAMP if fields.timestamp.is_none() => {
                    fields.timestamp = self.timestamp_of(content);
                    if fields.timestamp.is_none() {
                        self.headers.push(header(name, content));
                    }
                }
                ENCODING if fields.encoding.is_none() => fields.encoding = Some(content),
                PRODUCER if left == 0 && pairs > 1 => match producer_of(content) {
                    Some(producer) => fields.kind = Kind::Transactional(producer),
                    None => self.headers.push(header(name, content)),
                },
                MARKER if left == 2 && pairs == 3 => {
                    if let Some(marker) = self.marker(content)? {
                        return Ok(marker);
                    }
                    self.headers.push(header(name, content));
                }
                _ => self.headers.push(header(name, content)),
            }
        }
        Ok(fields)
    }

    /// The timestamp in milliseconds that a field holds, `None` if it is no decimal int64.
    fn timestamp_of(&mut self, text: &'a [u8]) -> Option<i64> {
        match self.time {
            Some((before, time)) if before == text => Some(time),
            _ => {
                let time = timestamp_of(text)?;
                self.time = Some((text, time));
                Some(time)
            }
        }
    }

    /// Read the fields after the first one of a marker; `None`, and nothing is read, if it is none.
    fn marker(&mut self, kind: &[u8]) -> Result<Option<Fields<'a>>, Malformed> {
        let key = match kind {
            b"abort" => ABORT_KEY,
            b"commit" => COMMIT_KEY,
            _ => return Ok(None),
        };
        let mut ahead = self.entries.clone();
        let ((producer, of), (timestamp, at)) = (ahead.pair()?, ahead.pair()?);
        let Some(producer) = producer_of(of).filter(|_| producer == PRODUCER && timestamp == TIMESTAMP) else {
            return Ok(None);
        };
        self.entries = ahead;
        let kind = Kind::Marker { producer, commits: key == COMMIT_KEY };
        let (key, value) = (Some(key), Some(MARKER_VALUE));
        Ok(Some(Fields { key, value, timestamp: timestamp_of(at), encoding: None, kind }))
    }

    fn record(&mut self, offset: i64, fields: Fields<'a>) -> StoredRecord<'_> {
        let Fields { key, mut value, timestamp, encoding, kind } = fields;
        if let Some(encoding) = encoding {
            self.plain.clear();
            let limit = self.plain_bytes_max;
            let undone = value.and_then(|frame| self.frames.append_content(frame, encoding, limit, &mut self.plain));
            if undone.is_some() {
                self.plain_bytes += self.plain.len();
                value = Some(&self.plain);
            } else {
                self.damaged.get_or_insert_with(|| (offset, text_of(encoding).into_owned()));
                self.headers.push((Cow::Borrowed(ENCODING), Some(encoding)));
            }
        }
        let added_ms = if self.bits > 0 { offset.checked_shr(self.bits.into()).unwrap_or(0) } else { -1 };
        let timestamp = timestamp.unwrap_or(added_ms);
        StoredRecord { offset, timestamp, key, value, headers: &self.headers, kind }
    }
}

/// What a field that is no part of a record becomes.
fn header<'a>(name: &'a [u8], content: &'a [u8]) -> StoredHeader<'a> {
    let (name, content) = match (name.strip_prefix(HEADER), name.strip_prefix(NULL_HEADER)) {
        (Some(name), _) => (name, Some(content)),
        (_, Some(name)) if content.is_empty() => (name, None),
        _ => (name, Some(content)),
    };
    let name = match text_of(name) {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    };
    (name, content)
}

/// The producer id and epoch that a field holds, `None` if it is not Korvet's.
fn producer_of(text: &[u8]) -> Option<Producer> {
    let colon = text.iter().position(|byte| *byte == b':')?;
    let (id, epoch) = text.split_at_checked(colon)?;
    let epoch = epoch.get(1..)?;
    if id.len() > PRODUCER_ID_DIGITS_MAX || epoch.len() > PRODUCER_EPOCH_DIGITS_MAX {
        return None;
    }
    Some((i64::try_from(number(id)?).ok()?, i16::try_from(number(epoch)?).ok()?))
}

/// The timestamp in milliseconds that a field holds, `None` if it is no decimal int64.
fn timestamp_of(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.len() > TIMESTAMP_DIGITS_MAX {
        return None;
    }
    let magnitude = number(digits)?;
    if digits.len() < text.len() { 0_i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}
