//! The entries of a reply to XRANGE, one after the other, and their ids: an id is the offset just past its entry, its
//! end. `offset.sequence.bits` of the topic make an id a time, of which the offset is made; else it is `0-<end>`.
//! Scripts have the same in lua/shared/entry_ids.lua.

use std::fmt::Display;

use super::state::malformed;
use crate::failure::Failure;
use crate::partition::{Layout, Partition};
use crate::resp::{put_digits, put_end, put_length};
use crate::{ErrorCode, Malformed};

/// The end of exact numbers in Lua and in scores; an id whose offset would not lie below it has none.
pub(super) const OFFSETS_END: i64 = 1 << 53;

/// Digits of a count or length, which the connection has compared with what is there, and a zero.
const COUNT_DIGITS_MAX: usize = 11;
const END: &[u8] = b"\r\n";
/// Digits of a number that is an int64.
const NUMBER_DIGITS_MAX: usize = 19;

/// Before which entry a walk has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// There are no more.
    Exhausted,
    /// One of the log that is not shown.
    Cut,
    /// One that is not of the log: its id is no offset, or past the log's end.
    Outside,
    /// A batch that is damaged.
    Damaged,
}

/// The head of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The offset just past it, `None` if its id names none.
    pub end: Option<i64>,
    /// How many fields follow, at least one.
    pub pairs: usize,
}

/// Entries that are not read yet.
#[derive(Clone, Debug)]
pub(super) struct Entries<'a> {
    bytes: &'a [u8],
    layout: Layout,
    left: usize,
    /// How many fields of the entry before these are not read yet.
    pairs: usize,
    before: Before<'a>,
}

/// How the entry before begins: most begin as that, but for the sequence in the id.
#[derive(Clone, Copy, Debug)]
struct Before<'a> {
    /// Up to the time in the id and its dash.
    head: &'a [u8],
    /// How many digits the sequence has.
    digits: usize,
    /// From the end of the id up to the first field.
    tail: &'a [u8],
    /// The offset of the first id of the time, if it has one.
    time_offset: Option<i64>,
    pairs: usize,
}

impl<'a> Entries<'a> {
    /// Begin with the first of `count` entries.
    pub fn new(layout: Layout, bytes: &'a [u8], count: usize) -> Self {
        let before = Before { head: b"-", digits: 0, tail: b"-", time_offset: None, pairs: 0 };
        Self { bytes, layout, left: count, pairs: 0, before }
    }

    /// The next entry; what was not read of the one before is passed over.
    #[inline]
    pub fn next(&mut self) -> Option<Result<Entry, Malformed>> {
        self.left = self.left.checked_sub(1)?;
        let entry = self.head();
        if entry.is_none() {
            self.left = 0;
        }
        Some(entry.ok_or_else(no_entry))
    }

    #[inline]
    fn head(&mut self) -> Option<Entry> {
        while self.pairs > 0 {
            self.pair().ok()?;
        }
        let sequence = match self.same_head() {
            Some(sequence) => sequence,
            None => self.other_head()?,
        };
        self.pairs = self.before.pairs;
        let sequence = i64::try_from(number(sequence)?).ok();
        let end = sequence.zip(self.before.time_offset);
        let end = end.and_then(|(sequence, offset)| end_of(offset, sequence, self.layout));
        Some(Entry { end, pairs: self.pairs })
    }

    /// Read the beginning of an entry that begins as the one before; returns the sequence in its id.
    #[inline]
    fn same_head(&mut self) -> Option<&'a [u8]> {
        let (sequence, left) = self.bytes.strip_prefix(self.before.head)?.split_at_checked(self.before.digits)?;
        self.bytes = left.strip_prefix(self.before.tail)?;
        Some(sequence)
    }

    /// Read the beginning of any entry; returns the sequence in its id.
    fn other_head(&mut self) -> Option<&'a [u8]> {
        let begin = self.bytes;
        if !self.skip(b"*2\r\n") {
            return None;
        }
        let id = self.text()?;
        let dash = id.iter().position(|byte| *byte == b'-')?;
        let (time, sequence) = id.split_at_checked(dash)?;
        let sequence = sequence.get(1..)?;
        let (texts, left) = counted(self.bytes, b'*')?;
        if texts == 0 || texts % 2 > 0 {
            return None;
        }
        let tail_bytes = END.len() + self.bytes.len() - left.len();
        let whole = begin.get(..begin.len() - left.len())?;
        let (head, tail) = whole.split_at_checked(whole.len() - tail_bytes)?;
        let head = head.get(..head.len() - sequence.len())?;
        let time_offset = offset_of(number(time)?, self.layout);
        self.before = Before { head, digits: sequence.len(), tail, time_offset, pairs: texts / 2 };
        self.bytes = left;
        Some(sequence)
    }

    /// The name and content of the entry's next field.
    #[inline]
    pub fn pair(&mut self) -> Result<(&'a [u8], &'a [u8]), Malformed> {
        let pair = self.text().and_then(|name| Some((name, self.content()?)));
        pair.ok_or_else(no_entry)
    }

    /// Pass over the name of the entry's next field, if it is the one whose bytes these are; its content follows.
    #[inline]
    pub fn passes(&mut self, name: &[u8]) -> bool {
        self.pairs > 0 && self.skip(name)
    }

    /// The content of the field whose name was read.
    #[inline]
    pub fn content(&mut self) -> Option<&'a [u8]> {
        self.pairs = self.pairs.saturating_sub(1);
        self.text()
    }

    #[inline]
    fn skip(&mut self, bytes: &[u8]) -> bool {
        let left = self.bytes.strip_prefix(bytes);
        self.bytes = left.unwrap_or(self.bytes);
        left.is_some()
    }

    #[inline]
    fn text(&mut self) -> Option<&'a [u8]> {
        let (size, left) = counted(self.bytes, b'$')?;
        let (text, left) = left.split_at_checked(size)?;
        self.bytes = left.strip_prefix(END)?;
        Some(text)
    }
}

/// The count or length after the byte `kind`, and the rest.
#[inline]
fn counted(bytes: &[u8], kind: u8) -> Option<(usize, &[u8])> {
    let (first, digits) = bytes.split_first()?;
    let mut count = 0;
    for (size, byte) in digits.iter().enumerate().take(COUNT_DIGITS_MAX) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            let left = digits.get(size..)?.strip_prefix(END)?;
            return (*first == kind && size > 0).then_some((count, left));
        }
        count = 10 * count + usize::from(digit);
    }
    None
}

pub(super) fn no_entry() -> Malformed {
    Malformed::new("it is none")
}

/// The failure for an entry that is none, or not what it claims to be.
///
/// As Kafka answers of a damaged batch: a consumer reports the offset, and does not retry as after a storage error.
pub(super) fn malformed_entry(partition: &Partition, why: &dyn Display) -> Failure {
    let stream = &*partition.keys.stream;
    match partition.layout {
        Layout::Batch => Failure::rule(ErrorCode::CorruptMessage, format!("{stream}: an entry ({why}) is malformed")),
        Layout::Record { .. } => malformed(stream, "an entry"),
    }
}

/// The offset of the first id of a millisecond, if it has one.
fn offset_of(time: u64, layout: Layout) -> Option<i64> {
    match bits_of(layout) {
        0 => (time == 0).then_some(0),
        bits => i64::try_from(time).ok()?.checked_mul(1_i64.checked_shl(bits)?),
    }
}

/// The offset just past an id, if it has one.
#[inline]
fn end_of(time_offset: i64, sequence: i64, layout: Layout) -> Option<i64> {
    let (width, end) = match bits_of(layout) {
        0 => (OFFSETS_END, sequence),
        bits => (1_i64.checked_shl(bits)?, time_offset.checked_add(sequence)?.checked_add(1)?),
    };
    (sequence < width && end <= OFFSETS_END).then_some(end)
}

/// The number that digits are; of more digits than an int64 has it is the largest.
#[inline]
pub(super) fn number(text: &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.wrapping_mul(10).wrapping_add(digit.into());
    }
    match text.len() {
        0 => None,
        1..=NUMBER_DIGITS_MAX => Some(number),
        _ => Some(u64::MAX),
    }
}

/// Write the id of an entry that ends at an offset as an argument, after `before`; `0-0` if there can be none.
pub(super) fn put_id_of_end(text: &mut Vec<u8>, before: &[u8], end: i64, layout: Layout) {
    let (ms, sequence) = match bits_of(layout) {
        0 => (0, end.max(0) as u64),
        bits => {
            let last = end.saturating_sub(1).max(0) as u64;
            let width = 1_u64.checked_shl(bits).unwrap_or(0);
            (last.checked_div(width).unwrap_or(0), last & width.wrapping_sub(1))
        }
    };
    put_length(text, before.len() + digits_of(ms) + 1 + digits_of(sequence));
    text.extend_from_slice(before);
    put_digits(text, ms);
    text.push(b'-');
    put_digits(text, sequence);
    put_end(text);
}

fn digits_of(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |tens| tens as usize + 1)
}

/// How many bits of an offset are the sequence of an id; 0: ids count.
fn bits_of(layout: Layout) -> u32 {
    match layout {
        Layout::Batch => 0,
        Layout::Record { bits } => u32::from(bits),
    }
}
