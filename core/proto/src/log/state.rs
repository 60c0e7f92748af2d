//! The state of a log in Redis: where it starts and ends, and which stream holds which of its offsets.

use super::entries::OFFSETS_END;
use super::{Epochs, Remote};
use crate::ErrorCode;
use crate::cursor::Cursor;
use crate::failure::{Failure, call_failure};
use crate::partition::Partition;
use crate::resp::{Element, Elements};

/// The fields of the state that a read asks for, in this order.
pub const STATE_FIELDS: [&str; 8] = ["topic", "log", "clean", "clean_end", "archived", "epochs", "open", "aborted"];

/// The state of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Where the log ends.
    pub end: i64,
    /// Where it starts in Redis. Expiry in the remote tier may move the log's start past that: then it is this, and what
    /// is below is no longer part of the log, though Redis still holds it.
    pub start: i64,
    /// The offset of the first record, `None` before there is any.
    pub first: Option<i64>,
    /// The largest timestamp in milliseconds, -1 without any.
    pub largest: i64,
    /// Whether entries of other clients of Redis are on their way to new offsets.
    pub is_moving: bool,
    /// The compacted stream that holds what lies below `compacted_end`.
    pub segment: Option<usize>,
    #[allow(missing_docs)]
    pub compacted_end: i64,
    /// Where the log starts in the remote tier, `None` before anything was archived.
    pub remote_start: Option<i64>,
    /// Up to where the remote tier holds the log.
    pub archived: i64,
    #[allow(missing_docs)]
    pub epochs: Epochs,
    /// Where the oldest open transaction begins.
    pub open: Option<i64>,
    /// The offset of the last marker that aborted a transaction, -1 without one.
    pub last_aborted: i64,
}

impl State {
    /// Read the reply to HMGET of [`STATE_FIELDS`]. Fails with UNKNOWN_TOPIC_OR_PARTITION if the topic id is another or
    /// none, with KAFKA_STORAGE_ERROR for what Korvet cannot have stored, and as Redis' error says.
    pub fn read(partition: &Partition, fields: &mut Elements<'_>) -> Result<Self, Failure> {
        let key = &*partition.keys.state;
        let count = listed(key, fields.next())?;
        let has_topic = count > 0 && fields.next() == Some(Element::Bulk(partition.topic.id_text.as_bytes()));
        if !has_topic {
            return Err(of_another_topic(partition));
        }
        let state = if count == STATE_FIELDS.len() { Self::parse(fields) } else { None };
        state.ok_or_else(|| malformed(key, "a field"))
    }

    /// Read what follows the topic id.
    fn parse(fields: &mut Elements<'_>) -> Option<Self> {
        let mut next = || match fields.next()? {
            Element::Bulk(text) => Some(text),
            Element::Null => Some(&b""[..]),
            _ => None,
        };
        let log = Counters::unpack(next()?)?;
        let segment = match next()? {
            b"" => None,
            b"0" => Some(0),
            b"1" => Some(1),
            _ => return None,
        };
        Some(Self {
            end: log.end,
            start: log.start.max(log.remote_start),
            first: (log.first >= 0).then_some(log.first),
            largest: log.largest,
            is_moving: log.is_moving,
            segment,
            compacted_end: number(next()?, 0)?,
            remote_start: (log.remote_start >= 0).then_some(log.remote_start),
            archived: number(next()?, 0)?,
            epochs: Epochs::parse(next()?)?,
            open: match next()? {
                b"" => None,
                offset => Some(parsed(offset)?),
            },
            last_aborted: number(next()?, -1)?,
        })
    }

    /// What only the remote tier holds.
    pub fn remote(&self) -> Option<Remote> {
        let start = self.remote_start.filter(|start| *start < self.start)?;
        Some(Remote { start, end: self.start, archived: self.archived })
    }
}

/// What the packed field `log` says of a log (docs/redis-schema.md).
struct Counters {
    end: i64,
    start: i64,
    first: i64,
    remote_start: i64,
    largest: i64,
    is_moving: bool,
}

impl Counters {
    /// Read the field as the scripts do, which refuse counters that contradict each other.
    fn unpack(packed: &[u8]) -> Option<Self> {
        let mut left = Cursor::new(packed);
        let mut next = || left.array().map(i64::from_be_bytes);
        let (end, start, first, remote_start) = (next()?, next()?, next()?, next()?);
        let (bytes, records, entries) = (next()?, next()?, next()?);
        let (largest, interval) = (next()?, next()?);
        left.bytes(size_of::<i32>())?; // the epoch of the last record
        let moving = left.byte()?;
        let is_exact = [end, bytes, records, entries].iter().all(|number| (0..=OFFSETS_END).contains(number));
        let is_below = start >= 0 && start.max(first).max(remote_start) <= end;
        let is_right = left.is_empty() && is_exact && is_below && moving <= 1;
        let has_times = largest <= OFFSETS_END && interval <= largest;
        (is_right && has_times).then_some(Self { end, start, first, remote_start, largest, is_moving: moving == 1 })
    }
}

/// The number that a text is, `without` for an empty one.
fn number(text: &[u8], without: i64) -> Option<i64> {
    if text.is_empty() { Some(without) } else { parsed(text) }
}

/// The number that a text is.
pub(super) fn parsed(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The count of an array that is about `key`. Fails for an error reply and for anything else.
pub(super) fn listed(key: &str, reply: Option<Element<'_>>) -> Result<usize, Failure> {
    match reply {
        Some(Element::Array(count)) => Ok(count),
        Some(Element::Error(text)) => Err(call_failure(&String::from_utf8_lossy(text), key).failure),
        _ => Err(malformed(key, "the answer")),
    }
}

/// The failure for content that Korvet cannot have stored.
pub(super) fn malformed(key: &str, what: &str) -> Failure {
    Failure::rule(ErrorCode::KafkaStorageError, format!("{key}: {what} is malformed"))
}

/// The failure for a state with another topic id, or none.
fn of_another_topic(partition: &Partition) -> Failure {
    let (stream, id) = (&partition.keys.stream, &partition.topic.id_text);
    Failure::rule(ErrorCode::UnknownTopicOrPartition, format!("{stream} does not belong to topic id {id}"))
}
