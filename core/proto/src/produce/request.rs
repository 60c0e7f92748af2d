//! Requests of producers, as frames hold them.
//!
//! A [`Request`] has numbers and names of its own. The batches stay in the frame, and it has their places there.
//! `timeout_ms` is skipped: how long a request may wait for Redis is a setting of the broker.
//!
//! Source: ProduceRequest.json of Apache Kafka 4.2.

use std::ops::{Range, RangeInclusive};

use crate::Malformed;
use crate::frame::RequestHeader;
use crate::message::Message;
use crate::partition::TopicName;
use crate::wire::text;

/// The versions that can be read; older ones had other formats of records.
pub const VERSIONS: RangeInclusive<i16> = 3..=13;
/// From here on messages and headers have tagged fields (KIP-482).
pub(super) const FLEXIBLE_FROM: i16 = 9;
/// From here on topics have ids for names (KIP-516).
const TOPIC_IDS_FROM: i16 = 13;

const PRODUCE: (&str, i16) = ("Produce", 0);

/// What a producer asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Request {
    pub version: i16,
    /// What the response repeats.
    pub correlation_id: i32,
    pub transactional_id: Option<String>,
    /// How many replicas the producer waits for: any number, of which 0, 1 and -1 have a meaning.
    pub acks: i16,
    pub topics: Vec<TopicData>,
}

/// Batches for a topic, which may be empty or named before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct TopicData {
    pub name: TopicName,
    pub partitions: Vec<PartitionData>,
}

/// A batch for a partition, which may be named before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionData {
    /// Any number.
    pub index: i32,
    /// Where the batch is in the frame; `None` for null.
    pub records: Option<Range<usize>>,
}

impl Request {
    /// How many batches it has.
    pub fn partition_count(&self) -> usize {
        self.topics.iter().map(|topic| topic.partitions.len()).sum()
    }
}

/// Read the header and the message of a Produce request, whose `frame` is without its size.
///
/// What follows the message is ignored, as by Kafka.
pub fn read(frame: &[u8]) -> Result<Request, Malformed> {
    let (header, mut message) = Message::of(frame, PRODUCE, &VERSIONS, FLEXIBLE_FROM)?;
    let version = message.version;
    request(&mut message, &header).map_err(|why| Malformed::new(format!("ProduceRequest v{version}: {why}")))
}

fn request(message: &mut Message<'_>, header: &RequestHeader<'_>) -> Result<Request, Malformed> {
    let transactional_id = string(message, "transactional_id", true)?;
    let acks = i16::from_be_bytes(message.array()?);
    let _timeout_ms = message.int32()?;
    let topics = message.list("topic_data", topic)?;
    message.skip_tags()?;
    let (version, correlation_id) = (message.version, header.correlation_id);
    Ok(Request { version, correlation_id, transactional_id, acks, topics })
}

fn topic(message: &mut Message<'_>) -> Result<TopicData, Malformed> {
    let name = if message.version >= TOPIC_IDS_FROM {
        TopicName::Id(message.array()?)
    } else {
        TopicName::Name(string(message, "name", false)?.unwrap_or_default().into())
    };
    let partitions = message.list("partition_data", partition)?;
    message.skip_tags()?;
    Ok(TopicData { name, partitions })
}

fn partition(message: &mut Message<'_>) -> Result<PartitionData, Malformed> {
    let (index, records) = (message.int32()?, message.bytes_range("records")?);
    message.skip_tags()?;
    Ok(PartitionData { index, records })
}

fn string(message: &mut Message<'_>, name: &str, nullable: bool) -> Result<Option<String>, Malformed> {
    let bytes = message.string(name, nullable)?;
    bytes.map(|bytes| Ok(text(bytes)?.into_owned())).transpose()
}
