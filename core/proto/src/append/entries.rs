//! Arguments of which an append script adds entries to a stream.
//!
//! Theory of operation. In layout `batch` they are the bytes of the batch, and then the codec that compresses them at
//! rest, if one does: the header stays plain, what follows it is a frame.
//!
//! In layout `record` an entry has the fields `key`, `value`, `timestamp`, `korvet.encoding`, `header.<name>` and
//! `korvet.producer`, in this order. A null key or value has no field, a header whose value is null has the field
//! `nullheader.<name>`. Most batches have records of one shape, of which the names of the fields are said once: Redis
//! spends a quarter less on them. If the records differ, each says how many arguments it has, names and values in turn.

use std::borrow::Cow;
use std::io;

use crate::ErrorCode;
use crate::batch::{HEADER_BYTES, Header, Record, Walk, text_of};
use crate::compression::{Codec, Frames};
use crate::failure::Failure;
use crate::partition::AtRest;
use crate::pipeline::Packed;
use crate::resp::{put_argument, put_end, put_integer, put_length};
use crate::shared::Shared;

/// From this size on a value or batch stays where it lies: a write takes it from there at the cost of copying this.
const PAYLOAD_BYTES_MIN: usize = 2 << 10;
/// Lua's stack holds 8000 values (LUAI_MAXCSTACK), and a script passes all arguments of XADD through it.
const ENTRY_ARGUMENTS_MAX: usize = 7_900;
/// What surrounds a record of one shape, about: lengths, ends, the timestamp.
const RECORD_TEXT_BYTES: usize = 48;

pub(crate) const KEY: &[u8] = b"key";
pub(crate) const VALUE: &[u8] = b"value";
pub(crate) const TIMESTAMP: &[u8] = b"timestamp";
pub(crate) const BATCH: &[u8] = b"batch";
pub(crate) const ENCODING: &[u8] = b"korvet.encoding";
pub(crate) const PRODUCER: &[u8] = b"korvet.producer";
pub(crate) const MARKER: &[u8] = b"korvet.marker";
pub(crate) const HEADER: &[u8] = b"header.";
pub(crate) const NULL_HEADER: &[u8] = b"nullheader.";

/// Arguments for an append script, after the producer ids.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub packed: Packed<Shared>,
    pub arguments: usize,
    /// How many fields all records have in common; 0: they differ, or the entry is a batch.
    pub fields: u8,
    /// The bytes of the fields and values of all entries.
    pub stored_bytes: usize,
    /// The memory of payloads that do not lie in what was sent.
    owned_bytes: usize,
    /// Whether that of their source is counted.
    holds_source: bool,
}

/// Bytes with payloads in them: a part of the frame that the client sent, or bytes that the worker made from it.
#[derive(Debug)]
pub(super) struct Source {
    pub bytes: Shared,
    pub is_sent: bool,
}

impl Source {
    pub fn sent(bytes: &Shared) -> Self {
        Self { bytes: bytes.clone(), is_sent: true }
    }

    pub fn made(mut bytes: Vec<u8>) -> Self {
        bytes.shrink_to_fit(); // it may wait for Redis
        Self { bytes: bytes.into(), is_sent: false }
    }

    /// A part of `sent` if `bytes` are borrowed of it, bytes of their own otherwise.
    pub fn of(bytes: Cow<'_, [u8]>, sent: &Shared) -> Self {
        match bytes {
            Cow::Borrowed(part) => Self::sent(&sent.part_of(part)),
            Cow::Owned(made) => Self::made(made),
        }
    }
}

/// What the records of a batch get beside their own fields.
pub(super) struct Extras<'a> {
    /// The time of the append, in milliseconds, instead of their own.
    pub append_time: Option<i64>,
    /// Whose transaction they are of.
    pub producer: Option<String>,
    pub at_rest: &'a AtRest,
}

impl Entries {
    /// The entry of a batch, whose own codec is `codec`.
    pub fn of_batch(batch: &Source, codec: Option<Codec>, at_rest: &AtRest) -> io::Result<Self> {
        if let Some(at_rest_codec) = at_rest.codec.filter(|_| codec == Some(Codec::None)) {
            let (header, records) = batch.bytes.as_ref().split_at_checked(HEADER_BYTES).unwrap_or_default();
            if records.len() >= at_rest.min_bytes {
                if let Some(frame) = Frames::new(at_rest_codec).compress(records)? {
                    let mut entries = Self { stored_bytes: BATCH.len() + ENCODING.len(), ..Self::default() };
                    entries.put_made([header, &frame].concat());
                    entries.put(at_rest_codec.name().as_bytes());
                    return Ok(entries);
                }
            }
        }
        Ok(Self::of_plain_batch(batch))
    }

    /// The entry of a batch as it is.
    pub fn of_plain_batch(batch: &Source) -> Self {
        let mut entries = Self { stored_bytes: BATCH.len(), ..Self::default() };
        entries.put_part(batch.bytes.as_ref(), batch);
        entries
    }

    /// The entries of records, which were walked over.
    pub fn of_records(header: &Header, plain: &Source, walk: &Walk, extras: &Extras<'_>) -> Result<Self, Failure> {
        let count = usize::try_from(header.record_count).unwrap_or_default();
        let has_large = extras.at_rest.codec.is_some() && walk.value_bytes_max >= extras.at_rest.min_bytes;
        let is_keyed_or_not = walk.null_keys == 0 || walk.null_keys == count;
        if has_large || walk.null_values > 0 || walk.headers > 0 || !is_keyed_or_not {
            return Self::of_differing(header, plain, extras);
        }
        let mut entries = Self::default();
        if walk.value_bytes_max < PAYLOAD_BYTES_MIN {
            entries.packed.text.reserve(walk.plain_bytes + count * RECORD_TEXT_BYTES);
        }
        for name in [KEY, VALUE, TIMESTAMP, PRODUCER] {
            let is_missing =
                if name == KEY { walk.null_keys > 0 } else { name == PRODUCER && extras.producer.is_none() };
            if !is_missing {
                entries.put(name);
                entries.fields += 1;
            }
        }
        entries.stored_bytes *= count;
        for record in header.records(plain.bytes.as_ref()) {
            let record = record?;
            if let Some(key) = record.key {
                entries.put(key);
            }
            entries.put_part(record.value.unwrap_or_default(), plain);
            entries.put_time(extras.append_time.unwrap_or(record.timestamp));
            if let Some(producer) = &extras.producer {
                entries.put(producer.as_bytes());
            }
        }
        Ok(entries)
    }

    fn of_differing(header: &Header, plain: &Source, extras: &Extras<'_>) -> Result<Self, Failure> {
        let mut entries = Self::default();
        let mut frames = extras.at_rest.codec.map(|codec| (codec.name(), Frames::new(codec)));
        for record in header.records(plain.bytes.as_ref()) {
            let record = record?;
            let value = record.value.filter(|value| value.len() >= extras.at_rest.min_bytes);
            let encoded = match (value, &mut frames) {
                (Some(value), Some((name, frames))) => frames.compress(value)?.map(|frame| (*name, frame)),
                _ => None,
            };
            entries.put_entry(&record, encoded, plain, extras)?;
        }
        Ok(entries)
    }

    /// The entry of the marker that ends a transaction.
    pub fn of_marker(commits: bool, producer: &str, time: i64) -> Self {
        let mut entries = Self::default();
        for name in [MARKER, PRODUCER, TIMESTAMP] {
            entries.put(name);
            entries.fields += 1;
        }
        entries.put(if commits { b"commit" } else { b"abort" });
        entries.put(producer.as_bytes());
        entries.put_time(time);
        entries
    }

    /// The memory that is held for them, beside what was sent.
    pub fn held_bytes(&self) -> usize {
        self.packed.text.capacity() + self.owned_bytes
    }

    /// Add one of the records that differ: how many arguments it has, and these.
    fn put_entry(
        &mut self,
        record: &Record<'_>,
        encoded: Option<(&str, Vec<u8>)>,
        plain: &Source,
        extras: &Extras<'_>,
    ) -> Result<(), Failure> {
        let optional = [record.key.is_some(), record.value.is_some(), encoded.is_some(), extras.producer.is_some()];
        let headers = record.headers();
        let fields = 1 + optional.into_iter().filter(|is_there| *is_there).count() + headers.len();
        if 2 * fields > ENTRY_ARGUMENTS_MAX {
            let most = ENTRY_ARGUMENTS_MAX / 2 - 5;
            let message = format!("a record of {} headers, {most} can be stored", headers.len());
            return Err(Failure::rule(ErrorCode::InvalidRecord, message));
        }
        put_integer(&mut self.packed.text, 2 * fields as i64);
        self.arguments += 1;
        if let Some(key) = record.key {
            self.put(KEY);
            self.put(key);
        }
        if let Some(value) = record.value {
            self.put(VALUE);
            if encoded.is_none() {
                self.put_part(value, plain);
            }
        }
        let encoding = encoded.map(|(name, frame)| {
            self.put_made(frame);
            name
        });
        self.put(TIMESTAMP);
        self.put_time(extras.append_time.unwrap_or(record.timestamp));
        if let Some(name) = encoding {
            self.put(ENCODING);
            self.put(name.as_bytes());
        }
        for (name, content) in headers {
            self.put_name(if content.is_some() { HEADER } else { NULL_HEADER }, text_of(name).as_bytes());
            self.put(content.unwrap_or_default());
        }
        if let Some(producer) = &extras.producer {
            self.put(PRODUCER);
            self.put(producer.as_bytes());
        }
        Ok(())
    }

    fn put(&mut self, argument: &[u8]) {
        put_argument(&mut self.packed.text, argument);
        self.count(argument.len());
    }

    fn put_name(&mut self, prefix: &[u8], name: &[u8]) {
        let size = prefix.len() + name.len();
        put_length(&mut self.packed.text, size);
        self.packed.text.extend_from_slice(prefix);
        self.packed.text.extend_from_slice(name);
        put_end(&mut self.packed.text);
        self.count(size);
    }

    fn put_time(&mut self, milliseconds: i64) {
        let digits = milliseconds.unsigned_abs().checked_ilog10().map_or(1, |tens| tens as usize + 1);
        put_integer(&mut self.packed.text, milliseconds);
        self.count(digits + usize::from(milliseconds < 0));
    }

    /// Add a part of bytes that may stay where they are.
    fn put_part(&mut self, part: &[u8], source: &Source) {
        if part.len() < PAYLOAD_BYTES_MIN {
            return self.put(part);
        }
        if !source.is_sent && !std::mem::replace(&mut self.holds_source, true) {
            self.owned_bytes += source.bytes.held_bytes();
        }
        self.count(part.len());
        self.packed.put_payload(source.bytes.part_of(part));
    }

    /// Add bytes that were made for this.
    fn put_made(&mut self, bytes: Vec<u8>) {
        if bytes.len() < PAYLOAD_BYTES_MIN {
            return self.put(&bytes);
        }
        let made = Source::made(bytes);
        self.owned_bytes += made.bytes.held_bytes();
        self.count(made.bytes.as_ref().len());
        self.packed.put_payload(made.bytes);
    }

    fn count(&mut self, bytes: usize) {
        self.arguments += 1;
        self.stored_bytes += bytes;
    }
}
