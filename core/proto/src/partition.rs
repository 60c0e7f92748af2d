//! Partitions, as appends and reads need them.

use std::sync::Arc;

use crate::compression::Codec;

/// How values are compressed in Redis (settings storage.compression and storage.compression.min.bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtRest {
    /// lz4 or zstd; `None`: not at all.
    pub codec: Option<Codec>,
    /// What is smaller is not compressed.
    pub min_bytes: usize,
}

/// The configs of a topic that decide on its appends; times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct TopicConfig {
    /// The codec to which batches are recompressed (compression.type); `None` keeps the producer's.
    pub codec: Option<Codec>,
    /// The codec of batches that are made of records for a consumer.
    pub consumer_codec: Codec,
    pub at_rest: AtRest,
    pub max_message_bytes: usize,
    /// Of a batch in layout `record`.
    pub max_message_records: usize,
    /// Whether cleanup.policy has `compact`: each record needs a key.
    pub is_compacted: bool,
    pub has_append_time: bool,
    pub timestamp_before_max_ms: i64,
    pub timestamp_after_max_ms: i64,
}

/// One incarnation of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Topic {
    pub name: Box<str>,
    pub id: [u8; 16],
    /// As Kafka's tools print it.
    pub id_text: Box<str>,
    pub config: TopicConfig,
}

/// What an entry of the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A batch.
    Batch,
    /// A record. `bits` of the offset are the sequence of the entry's id; 0: ids count records.
    Record {
        /// As many.
        bits: u8,
    },
}

/// The keys of a partition in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Keys {
    pub stream: Box<str>,
    pub state: Box<str>,
    pub index: Box<str>,
    /// The transactions that are open.
    pub open: Box<str>,
    pub aborted: Box<str>,
    /// The streams to which compaction writes in turn.
    pub compacted: [Box<str>; 2],
    /// Where appends are announced.
    pub channel: Box<str>,
}

/// A partition to which batches are appended, and which is read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Partition {
    pub topic: Arc<Topic>,
    pub index: i32,
    pub layout: Layout,
    pub keys: Keys,
    /// The slot of the keys, if Redis is a cluster.
    pub slot: u16,
    /// How many replicas of Redis the topic wants to have its records: min.insync.replicas less the master.
    pub replicas: u32,
}

/// No topic has a longer name.
pub const NAME_BYTES_MAX: usize = 249;

/// A topic as a request names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TopicName {
    /// Up to version 12.
    Name(Arc<str>),
    /// From version 13 on; zeros name no topic.
    Id([u8; 16]),
}

impl TopicName {
    /// Whether no topic can have this name. To look for it in each of a million places would take long, and each question
    /// would hold it.
    pub fn is_too_long(&self) -> bool {
        matches!(self, Self::Name(name) if name.len() > NAME_BYTES_MAX)
    }
}
