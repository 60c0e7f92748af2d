//! Responses to consumers, as frames in pieces: large parts of records stay where they are, the rest is made.
//!
//! `current_leader`, `snapshot_id` and `node_endpoints` are never there: by these tagged fields a consumer would go to
//! another broker, and each broker of Korvet serves all reads. `preferred_read_replica` is none for the same reason.
//!
//! Source: FetchResponse.json of Apache Kafka 4.2.

use super::request::FLEXIBLE_FROM;
use crate::ErrorCode;
use crate::log::{Aborted, EpochStart};
use crate::partition::TopicName;
use crate::shared::Piece;
use crate::wire::put_varint;

/// From here on a partition has the log's start (KIP-107).
const LOG_START_FROM: i16 = 5;
/// From here on clients know KAFKA_STORAGE_ERROR. Others take it for one that does not pass, and get one after which they
/// ask again.
const STORAGE_ERRORS_FROM: i16 = 6;
/// From here on there are sessions, and an error of the whole request (KIP-227).
const SESSIONS_FROM: i16 = 7;
/// From here on a partition has the replica to read from (KIP-392).
const READ_REPLICAS_FROM: i16 = 11;

const NO_REPLICA: i32 = -1;
/// The tag of the diverging epoch.
const DIVERGING: u8 = 0;
/// An epoch, an offset, and no tagged fields.
const DIVERGING_BYTES: u8 = 13;

/// What is smaller is copied: to pass it on costs more, and a response is to have few pieces.
const PART_BYTES_MIN: usize = 4 << 10;
/// What stands between two parts of records, most likely.
const BETWEEN_BYTES: usize = 128;
/// Size, header, and the names of a few topics.
const FRAME_BYTES: usize = 256;
/// A partition with a few aborted transactions.
const PARTITION_BYTES: usize = 64;
/// Room that is taken for a piece before it is known whether it becomes as large.
const ROOM_BYTES_MAX: usize = 64 << 10;

const SIZE_BYTES: usize = 4;

/// What stands before the results. Below version 7 there is no error and no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Header {
    pub version: i16,
    pub correlation_id: i32,
    pub throttle_ms: i32,
    /// 0 for none.
    pub error: i16,
    pub session_id: i32,
}

/// What was read of a partition; -1 for bounds that are not known.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct PartitionResult {
    pub index: i32,
    /// 0 for none.
    pub error: i16,
    pub high_watermark: i64,
    pub last_stable_offset: i64,
    pub log_start: i64,
    /// The last epoch that log and client have in common, and where it ends in the log. Since version 12.
    pub diverging: Option<EpochStart>,
    /// Of which the client is to leave out the records; `None` for a client that reads all.
    pub aborted: Option<Vec<Aborted>>,
    pub records: Vec<Piece>,
}

/// Say in a written response for how long its client is throttled.
pub(super) fn set_throttle(response: &mut [Piece], version: i16, throttle_ms: u32) {
    let at = SIZE_BYTES + size_of::<i32>() + usize::from(version >= FLEXIBLE_FROM);
    if let Some(Piece::Made(begin)) = response.first_mut() {
        if let Some(place) = begin.get_mut(at..at + size_of::<u32>()) {
            place.copy_from_slice(&throttle_ms.to_be_bytes());
        }
    }
}

/// Write the frame that answers a request, with its size.
///
/// Results that follow one another and are of one topic are written as one topic, as Kafka does.
pub fn write(header: &Header, results: Vec<(&TopicName, PartitionResult)>) -> Vec<Piece> {
    let room = FRAME_BYTES + results.len().saturating_mul(PARTITION_BYTES).min(ROOM_BYTES_MAX);
    let is_flexible = header.version >= FLEXIBLE_FROM;
    let out = Vec::with_capacity(room);
    let mut message = Message { version: header.version, is_flexible, pieces: Vec::new(), out };
    message.out.extend_from_slice(&[0; SIZE_BYTES]);
    message.out.extend_from_slice(&header.correlation_id.to_be_bytes());
    message.no_tags();
    message.response(header, results);
    message.end()
}

struct Message {
    version: i16,
    is_flexible: bool,
    pieces: Vec<Piece>,
    /// The end of the frame so far.
    out: Vec<u8>,
}

impl Message {
    fn response(&mut self, header: &Header, results: Vec<(&TopicName, PartitionResult)>) {
        self.out.extend_from_slice(&header.throttle_ms.to_be_bytes());
        if self.version >= SESSIONS_FROM {
            self.out.extend_from_slice(&header.error.to_be_bytes());
            self.out.extend_from_slice(&header.session_id.to_be_bytes());
        }
        let topics = results.chunk_by(|(name, _), (next, _)| name == next);
        let topics: Vec<(&TopicName, usize)> =
            topics.filter_map(|topic| topic.first().map(|(name, _)| (*name, topic.len()))).collect();
        self.count(topics.len());
        let mut results = results.into_iter();
        for (name, count) in topics {
            self.name(name);
            self.count(count);
            for (_, result) in results.by_ref().take(count) {
                self.partition(result);
            }
            self.no_tags();
        }
        self.no_tags();
    }

    fn partition(&mut self, result: PartitionResult) {
        let is_unknown = self.version < STORAGE_ERRORS_FROM && result.error == ErrorCode::KafkaStorageError as i16;
        let error = if is_unknown { ErrorCode::NotLeaderOrFollower as i16 } else { result.error };
        self.out.extend_from_slice(&result.index.to_be_bytes());
        self.out.extend_from_slice(&error.to_be_bytes());
        self.out.extend_from_slice(&result.high_watermark.to_be_bytes());
        self.out.extend_from_slice(&result.last_stable_offset.to_be_bytes());
        if self.version >= LOG_START_FROM {
            self.out.extend_from_slice(&result.log_start.to_be_bytes());
        }
        self.aborted(result.aborted.as_deref());
        if self.version >= READ_REPLICAS_FROM {
            self.out.extend_from_slice(&NO_REPLICA.to_be_bytes());
        }
        self.count(result.records.iter().map(Piece::len).sum());
        for piece in result.records {
            self.pass_on(piece);
        }
        match result.diverging {
            Some(EpochStart { epoch, start }) if self.is_flexible => {
                self.out.extend_from_slice(&[1, DIVERGING, DIVERGING_BYTES]);
                self.out.extend_from_slice(&epoch.to_be_bytes());
                self.out.extend_from_slice(&start.to_be_bytes());
                self.no_tags();
            }
            _ => self.no_tags(),
        }
    }

    fn aborted(&mut self, aborted: Option<&[Aborted]>) {
        match aborted {
            Some(aborted) => self.count(aborted.len()),
            None if self.is_flexible => self.out.push(0),
            None => self.out.extend_from_slice(&(-1_i32).to_be_bytes()),
        }
        for Aborted { producer_id, first_offset } in aborted.unwrap_or_default() {
            self.out.extend_from_slice(&producer_id.to_be_bytes());
            self.out.extend_from_slice(&first_offset.to_be_bytes());
            self.no_tags();
        }
    }

    fn name(&mut self, name: &TopicName) {
        match name {
            TopicName::Name(name) => {
                if self.is_flexible {
                    self.count(name.len());
                } else {
                    // One of a request is not too long.
                    self.out.extend_from_slice(&(name.len() as i16).to_be_bytes());
                }
                self.out.extend_from_slice(name.as_bytes());
            }
            TopicName::Id(id) => self.out.extend_from_slice(id),
        }
    }

    fn pass_on(&mut self, piece: Piece) {
        if piece.len() < PART_BYTES_MIN {
            return self.out.extend_from_slice(piece.as_ref());
        }
        let before = std::mem::replace(&mut self.out, Vec::with_capacity(BETWEEN_BYTES));
        self.put_made(before);
        self.pieces.push(piece);
    }

    fn put_made(&mut self, made: Vec<u8>) {
        if !made.is_empty() {
            self.pieces.push(Piece::Made(made));
        }
    }

    /// Write a length too: no array and no part of a frame has 2 GiB.
    fn count(&mut self, count: usize) {
        if self.is_flexible {
            put_varint(&mut self.out, (count as u32).saturating_add(1));
        } else {
            self.out.extend_from_slice(&(count as i32).to_be_bytes());
        }
    }

    fn no_tags(&mut self) {
        if self.is_flexible {
            self.out.push(0);
        }
    }

    fn end(mut self) -> Vec<Piece> {
        let last = std::mem::take(&mut self.out);
        self.put_made(last);
        let size = self.pieces.iter().map(Piece::len).sum::<usize>() - SIZE_BYTES;
        if let Some(Piece::Made(first)) = self.pieces.first_mut() {
            if let Some(place) = first.first_chunk_mut() {
                *place = i32::try_from(size).unwrap_or(i32::MAX).to_be_bytes();
            }
        }
        self.pieces
    }
}
