//! Requests of consumers, as frames hold them.
//!
//! Skipped are the fields of brokers that follow a leader, but for their id, and the rack of a consumer. They are checked
//! all the same: a frame is right or wrong as a whole.
//!
//! Source: FetchRequest.json of Apache Kafka 4.2.

use std::ops::RangeInclusive;

use crate::Malformed;
use crate::frame::{RequestHeader, request_header};
use crate::partition::TopicName;
use crate::wire::{Reader, text};

/// The versions that can be read; older ones had other formats of records.
pub const VERSIONS: RangeInclusive<i16> = 4..=18;
/// From here on messages and headers have tagged fields (KIP-482).
pub(super) const FLEXIBLE_FROM: i16 = 12;
/// From here on topics have ids for names (KIP-516).
pub(super) const TOPIC_IDS_FROM: i16 = 13;
/// From here on there is the start of a follower's log (KIP-107).
const LOG_START_FROM: i16 = 5;
/// From here on there are sessions (KIP-227).
const SESSIONS_FROM: i16 = 7;
/// From here on a partition has the leader epoch that the client knows (KIP-320).
const LEADER_EPOCHS_FROM: i16 = 9;
/// From here on there is a rack (KIP-392).
const RACKS_FROM: i16 = 11;
/// From here on a partition has the epoch of the record before the offset (KIP-595), and the request a cluster.
const LAST_EPOCHS_FROM: i16 = 12;
/// From here on the id of a follower is in a tagged field (KIP-903).
const REPLICA_STATES_FROM: i16 = 15;
/// From here on there is the directory of a follower (KIP-853).
const DIRECTORIES_FROM: i16 = 17;
/// From here on there is the high watermark of a follower (KIP-1166).
const HIGH_WATERMARKS_FROM: i16 = 18;

/// The most topics and partitions that a request names. Of a partition 16 bytes of a frame become half a KiB here while it
/// is read, and as much in the process of its owner while that is asked about it.
pub const NAMED_MAX: usize = 100_000;

const FETCH: i16 = 1;
const READ_COMMITTED: i8 = 1;
/// Elements that an array has room for before they are read: a count is a claim.
const ROOM_ELEMENTS_MAX: usize = 64;

/// What a consumer asks for. A field that its version does not have is -1, or 0 for the session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Request {
    pub version: i16,
    /// What the response repeats.
    pub correlation_id: i32,
    pub client_id: Option<String>,
    /// Which broker asks; consumers have negative ones.
    pub replica_id: i32,
    pub max_wait_ms: i32,
    pub min_bytes: i32,
    pub max_bytes: i32,
    /// Whether records of transactions that are open or were aborted are left out.
    pub is_committed: bool,
    pub session_id: i32,
    pub session_epoch: i32,
    pub topics: Vec<TopicData>,
    pub forgotten: Vec<ForgottenTopic>,
}

/// Partitions of a topic, which may be empty or named before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct TopicData {
    pub name: TopicName,
    pub partitions: Vec<PartitionData>,
}

/// What is asked of a partition, which may be named before; any numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PartitionData {
    pub index: i32,
    pub current_leader_epoch: i32,
    pub fetch_offset: i64,
    pub last_fetched_epoch: i32,
    pub partition_max_bytes: i32,
}

/// Partitions of a topic that leave the session, if they are in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ForgottenTopic {
    pub name: TopicName,
    pub partitions: Vec<i32>,
}

impl Request {
    /// How many partitions it names.
    pub fn partition_count(&self) -> usize {
        self.topics.iter().map(|topic| topic.partitions.len()).sum()
    }
}

/// Read the header and the message of a Fetch request, whose `frame` is without its size.
///
/// What follows the message is ignored, as by Kafka.
pub fn read(frame: &[u8]) -> Result<Request, Malformed> {
    let header = request_header(frame, |_| Some(FLEXIBLE_FROM))?;
    let version = header.api_version;
    if header.api_key != FETCH {
        return Err(Malformed::new(format!("a request of API key {} is no Fetch request", header.api_key)));
    }
    if !VERSIONS.contains(&version) {
        return Err(Malformed::new(format!("version {version} of Fetch is not served")));
    }
    let is_flexible = version >= FLEXIBLE_FROM;
    let mut reader = Reader::new(header.body, is_flexible);
    reader.limit_elements(NAMED_MAX);
    let mut message = Message { frame, version, is_flexible, reader };
    message.request(header).map_err(|why| Malformed::new(format!("FetchRequest v{version}: {why}")))
}

struct Message<'a> {
    frame: &'a [u8],
    version: i16,
    is_flexible: bool,
    reader: Reader,
}

impl<'a> Message<'a> {
    fn request(&mut self, header: RequestHeader<'_>) -> Result<Request, Malformed> {
        let has_session = self.version >= SESSIONS_FROM;
        let mut request = Request {
            version: self.version,
            correlation_id: header.correlation_id,
            client_id: header.client_id.map(Into::into),
            replica_id: if self.version < REPLICA_STATES_FROM { self.int32()? } else { -1 },
            max_wait_ms: self.int32()?,
            min_bytes: self.int32()?,
            max_bytes: self.int32()?,
            is_committed: i8::from_be_bytes(self.array()?) == READ_COMMITTED,
            session_id: if has_session { self.int32()? } else { 0 },
            session_epoch: if has_session { self.int32()? } else { -1 },
            topics: self.list("topics", Self::topic)?,
            forgotten: if has_session { self.list("forgotten_topics_data", Self::forgotten)? } else { Vec::new() },
        };
        if self.version >= RACKS_FROM {
            self.skip_string("rack_id", false)?;
        }
        self.tags(|message, tag| {
            Ok(Some(match tag {
                0 => {
                    message.skip_string("cluster_id", true)?;
                    "cluster_id"
                }
                1 if message.version >= REPLICA_STATES_FROM => {
                    request.replica_id = message.replica_state()?;
                    "replica_state"
                }
                _ => return Ok(None),
            }))
        })?;
        Ok(request)
    }

    fn topic(&mut self) -> Result<TopicData, Malformed> {
        let name = self.topic_name()?;
        let partitions = self.list("partitions", Self::partition)?;
        self.skip_tags()?;
        Ok(TopicData { name, partitions })
    }

    fn partition(&mut self) -> Result<PartitionData, Malformed> {
        let index = self.int32()?;
        let current_leader_epoch = if self.version >= LEADER_EPOCHS_FROM { self.int32()? } else { -1 };
        let fetch_offset = i64::from_be_bytes(self.array()?);
        let last_fetched_epoch = if self.version >= LAST_EPOCHS_FROM { self.int32()? } else { -1 };
        if self.version >= LOG_START_FROM {
            self.array::<8>()?;
        }
        let partition_max_bytes = self.int32()?;
        self.tags(|message, tag| {
            Ok(Some(match tag {
                0 if message.version >= DIRECTORIES_FROM => {
                    message.array::<16>()?;
                    "replica_directory_id"
                }
                1 if message.version >= HIGH_WATERMARKS_FROM => {
                    message.array::<8>()?;
                    "high_watermark"
                }
                _ => return Ok(None),
            }))
        })?;
        Ok(PartitionData { index, current_leader_epoch, fetch_offset, last_fetched_epoch, partition_max_bytes })
    }

    fn forgotten(&mut self) -> Result<ForgottenTopic, Malformed> {
        let name = self.topic_name()?;
        let partitions = self.list("partitions", Self::int32)?;
        self.skip_tags()?;
        Ok(ForgottenTopic { name, partitions })
    }

    fn topic_name(&mut self) -> Result<TopicName, Malformed> {
        if self.version >= TOPIC_IDS_FROM {
            return Ok(TopicName::Id(self.array()?));
        }
        let name = self.string("topic", false)?.unwrap_or_default();
        Ok(TopicName::Name(text(name)?.into()))
    }

    /// Read which follower asks.
    fn replica_state(&mut self) -> Result<i32, Malformed> {
        let replica_id = self.int32()?;
        let _replica_epoch = self.array::<8>()?;
        self.skip_tags()?;
        Ok(replica_id)
    }

    fn int32(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    fn array<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], Malformed> {
        self.reader.array(self.frame)
    }

    fn string(&mut self, name: &str, nullable: bool) -> Result<Option<&'a [u8]>, Malformed> {
        let Some(size) = self.reader.length(self.frame, name, true, nullable)? else { return Ok(None) };
        Ok(Some(self.reader.bytes(self.frame, size)?))
    }

    fn skip_string(&mut self, name: &str, nullable: bool) -> Result<(), Malformed> {
        text(self.string(name, nullable)?.unwrap_or_default())?;
        Ok(())
    }

    fn list<T>(
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

    fn skip_tags(&mut self) -> Result<(), Malformed> {
        if self.is_flexible { self.reader.skip_tags(self.frame) } else { Ok(()) }
    }

    /// Read the tagged fields of a struct. `known` reads one by its tag and returns its name, unless it does not know it.
    fn tags(
        &mut self,
        mut known: impl FnMut(&mut Self, u32) -> Result<Option<&'static str>, Malformed>,
    ) -> Result<(), Malformed> {
        let count = if self.is_flexible { self.reader.tag_count(self.frame)? } else { 0 };
        for _ in 0..count {
            let (tag, end) = self.reader.tag(self.frame)?;
            let begin = self.reader.position();
            match known(self, tag)? {
                Some(name) => self.reader.end_tag(name, begin, end)?,
                None => self.reader.skip_to(end),
            }
        }
        Ok(())
    }
}
