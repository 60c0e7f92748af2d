//! Requests of producers, as frames hold them.
//!
//! A [`Request`] has numbers and names of its own. The batches stay in the frame, and it has their places there.
//! `timeout_ms` is skipped: how long a request may wait for Redis is a setting of the broker.
//!
//! Source: ProduceRequest.json of Apache Kafka 4.2.

use std::ops::{Range, RangeInclusive};

use crate::Malformed;
use crate::frame::{RequestHeader, request_header};
use crate::partition::TopicName;
use crate::wire::{Reader, text};

/// The versions that can be read; older ones had other formats of records.
pub const VERSIONS: RangeInclusive<i16> = 3..=13;
/// From here on messages and headers have tagged fields (KIP-482).
pub(super) const FLEXIBLE_FROM: i16 = 9;
/// From here on topics have ids for names (KIP-516).
const TOPIC_IDS_FROM: i16 = 13;

const PRODUCE: i16 = 0;
/// Elements that an array has room for before they are read: a count is a claim.
const ROOM_ELEMENTS_MAX: usize = 64;

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
    let header = request_header(frame, |_| Some(FLEXIBLE_FROM))?;
    let version = header.api_version;
    if header.api_key != PRODUCE {
        return Err(Malformed::new(format!("a request of API key {} is no Produce request", header.api_key)));
    }
    if !VERSIONS.contains(&version) {
        return Err(Malformed::new(format!("version {version} of Produce is not served")));
    }
    let is_flexible = version >= FLEXIBLE_FROM;
    let mut message = Message { frame, version, is_flexible, reader: Reader::new(header.body, is_flexible) };
    message.request(&header).map_err(|why| Malformed::new(format!("ProduceRequest v{version}: {why}")))
}

struct Message<'a> {
    frame: &'a [u8],
    version: i16,
    is_flexible: bool,
    reader: Reader,
}

impl Message<'_> {
    fn request(&mut self, header: &RequestHeader<'_>) -> Result<Request, Malformed> {
        let transactional_id = self.string("transactional_id", true)?;
        let acks = i16::from_be_bytes(self.reader.array(self.frame)?);
        let _timeout_ms = self.reader.array::<4>(self.frame)?;
        let topics = self.array("topic_data", Self::topic)?;
        self.skip_tags()?;
        Ok(Request { version: self.version, correlation_id: header.correlation_id, transactional_id, acks, topics })
    }

    fn topic(&mut self) -> Result<TopicData, Malformed> {
        let name = if self.version >= TOPIC_IDS_FROM {
            TopicName::Id(self.reader.array(self.frame)?)
        } else {
            TopicName::Name(self.string("name", false)?.unwrap_or_default().into())
        };
        let partitions = self.array("partition_data", Self::partition)?;
        self.skip_tags()?;
        Ok(TopicData { name, partitions })
    }

    fn partition(&mut self) -> Result<PartitionData, Malformed> {
        let index = i32::from_be_bytes(self.reader.array(self.frame)?);
        let records = match self.reader.length(self.frame, "records", false, true)? {
            Some(size) => {
                let begin = self.reader.position();
                self.reader.bytes(self.frame, size)?;
                Some(begin..self.reader.position())
            }
            None => None,
        };
        self.skip_tags()?;
        Ok(PartitionData { index, records })
    }

    fn string(&mut self, name: &str, nullable: bool) -> Result<Option<String>, Malformed> {
        let Some(size) = self.reader.length(self.frame, name, true, nullable)? else { return Ok(None) };
        Ok(Some(text(self.reader.bytes(self.frame, size)?)?.into_owned()))
    }

    fn array<T>(
        &mut self,
        name: &str,
        mut element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.reader.count(self.frame, name, false)?.unwrap_or(0);
        let mut elements = Vec::with_capacity(count.min(ROOM_ELEMENTS_MAX));
        for _ in 0..count {
            elements.push(element(self)?);
        }
        Ok(elements)
    }

    /// Skip the tagged fields of a struct: a request has none that is known.
    fn skip_tags(&mut self) -> Result<(), Malformed> {
        if self.is_flexible { self.reader.skip_tags(self.frame) } else { Ok(()) }
    }
}
