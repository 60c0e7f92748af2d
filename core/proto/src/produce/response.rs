//! Responses to producers, as frames.
//!
//! `current_leader` and `node_endpoints` are never there: they are tagged fields of the versions from 10 on, by which a
//! producer would go to another broker, and each broker of Korvet takes all appends.
//!
//! Source: ProduceResponse.json of Apache Kafka 4.2.

use super::request::{FLEXIBLE_FROM, Request};
use crate::ErrorCode;
use crate::failure::Failure;
use crate::partition::TopicName;
use crate::wire::put_varint;

/// From here on a response has the log's start (KIP-207).
const LOG_START_FROM: i16 = 5;
/// From here on a response says which records spoilt a batch (KIP-467).
const MESSAGES_FROM: i16 = 8;

const NO_ERROR: i16 = 0;

/// Characters of a message: many quote what a client sent, and a string has no more than 32767 bytes.
const MESSAGE_CHARS_MAX: usize = 1000;
/// From this size on a response gets no messages: a million partitions could each quote the long name of their topic.
const MESSAGES_BYTES_MAX: usize = 16 << 20;
/// Size, header, throttle and tagged fields.
const FRAME_BYTES: usize = 24;
/// A topic without its name.
const TOPIC_BYTES: usize = 24;
/// A partition without messages.
const PARTITION_BYTES: usize = 44;

const SIZE_BYTES: usize = 4;

/// What a producer learns of a batch that is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The offset of the first record.
    pub base_offset: i64,
    /// The time that all records got; -1 if they keep their own.
    pub append_time_ms: i64,
    /// The first offset of the log.
    pub log_start: i64,
}

/// Write the frame that answers a request, with its size.
///
/// There is a result for each batch of the request, in its order; one that is missing is an UNKNOWN_SERVER_ERROR.
pub fn write<'a>(
    request: &Request,
    results: impl Iterator<Item = Result<Written, &'a Failure>>,
    throttle_ms: i32,
) -> Vec<u8> {
    let names = request.topics.iter().map(|topic| match &topic.name {
        TopicName::Name(name) => name.len(),
        TopicName::Id(id) => id.len(),
    });
    let topics_bytes = names.sum::<usize>() + request.topics.len() * TOPIC_BYTES;
    let room = FRAME_BYTES + topics_bytes + request.partition_count() * PARTITION_BYTES;
    let is_flexible = request.version >= FLEXIBLE_FROM;
    let mut message = Message { version: request.version, is_flexible, out: Vec::with_capacity(room) };
    message.out.extend_from_slice(&[0; SIZE_BYTES]);
    message.out.extend_from_slice(&request.correlation_id.to_be_bytes());
    message.no_tags();
    message.response(request, results, throttle_ms);
    let mut out = message.out;
    let size = i32::try_from(out.len() - SIZE_BYTES).unwrap_or(i32::MAX);
    if let Some(place) = out.first_chunk_mut() {
        *place = size.to_be_bytes();
    }
    out
}

struct Message {
    version: i16,
    is_flexible: bool,
    out: Vec<u8>,
}

impl Message {
    fn response<'a>(
        &mut self,
        request: &Request,
        mut results: impl Iterator<Item = Result<Written, &'a Failure>>,
        throttle_ms: i32,
    ) {
        self.count(request.topics.len());
        for topic in &request.topics {
            match &topic.name {
                TopicName::Name(name) => self.string(name),
                TopicName::Id(id) => self.out.extend_from_slice(id),
            }
            self.count(topic.partitions.len());
            for partition in &topic.partitions {
                self.out.extend_from_slice(&partition.index.to_be_bytes());
                self.result(results.next());
                self.no_tags();
            }
            self.no_tags();
        }
        self.out.extend_from_slice(&throttle_ms.to_be_bytes());
        self.no_tags();
    }

    /// Write what stands after the index of a partition.
    fn result(&mut self, result: Option<Result<Written, &Failure>>) {
        const NOT_WRITTEN: Written = Written { base_offset: -1, append_time_ms: -1, log_start: -1 };
        let (written, failure, code) = match result {
            Some(Ok(written)) => (written, None, NO_ERROR),
            Some(Err(failure)) => (NOT_WRITTEN, Some(failure), failure.answered() as i16),
            None => (NOT_WRITTEN, None, ErrorCode::UnknownServerError as i16),
        };
        self.out.extend_from_slice(&code.to_be_bytes());
        self.out.extend_from_slice(&written.base_offset.to_be_bytes());
        self.out.extend_from_slice(&written.append_time_ms.to_be_bytes());
        if self.version >= LOG_START_FROM {
            self.out.extend_from_slice(&written.log_start.to_be_bytes());
        }
        if self.version >= MESSAGES_FROM {
            self.messages(failure.filter(|_| self.out.len() < MESSAGES_BYTES_MAX));
        }
    }

    fn messages(&mut self, failure: Option<&Failure>) {
        let records = failure.map_or(&[][..], |failure| &failure.records);
        self.count(records.len());
        for (index, message) in records {
            self.out.extend_from_slice(&index.to_be_bytes());
            self.text(message);
            self.no_tags();
        }
        match failure {
            Some(failure) if !failure.message.is_empty() => self.text(&failure.message),
            _ if self.is_flexible => self.out.push(0),
            _ => self.out.extend_from_slice(&(-1_i16).to_be_bytes()),
        }
    }

    /// Write a message, of which a long one is cut.
    fn text(&mut self, message: &str) {
        if message.chars().nth(MESSAGE_CHARS_MAX).is_none() {
            return self.string(message);
        }
        let begin: String = message.chars().take(MESSAGE_CHARS_MAX - 3).collect();
        self.string(&(begin + "..."));
    }

    /// Write a string; one of a request, or a message, is not too long for its length.
    fn string(&mut self, text: &str) {
        if self.is_flexible {
            self.count(text.len());
        } else {
            self.out.extend_from_slice(&(text.len() as i16).to_be_bytes());
        }
        self.out.extend_from_slice(text.as_bytes());
    }

    fn count(&mut self, count: usize) {
        if self.is_flexible {
            put_varint(&mut self.out, count as u32 + 1);
        } else {
            self.out.extend_from_slice(&(count as i32).to_be_bytes());
        }
    }

    fn no_tags(&mut self) {
        if self.is_flexible {
            self.out.push(0);
        }
    }
}
