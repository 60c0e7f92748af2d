//! Requests of consumers, as frames hold them.
//!
//! Skipped are the fields of brokers that follow a leader, but for their id, and the rack of a consumer. They are checked
//! all the same: a frame is right or wrong as a whole.
//!
//! Source: FetchRequest.json of Apache Kafka 4.2.

use std::ops::RangeInclusive;

use crate::Malformed;
use crate::frame::RequestHeader;
use crate::message::Message;
use crate::partition::TopicName;
use crate::wire::text;

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

const FETCH: (&str, i16) = ("Fetch", 1);
const READ_COMMITTED: i8 = 1;

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
    let (header, mut message) = Message::of(frame, FETCH, &VERSIONS, FLEXIBLE_FROM)?;
    message.limit_elements(NAMED_MAX);
    let version = message.version;
    request(&mut message, header).map_err(|why| Malformed::new(format!("FetchRequest v{version}: {why}")))
}

fn request(message: &mut Message<'_>, header: RequestHeader<'_>) -> Result<Request, Malformed> {
    let has_session = message.version >= SESSIONS_FROM;
    let mut request = Request {
        version: message.version,
        correlation_id: header.correlation_id,
        client_id: header.client_id.map(Into::into),
        replica_id: if message.version < REPLICA_STATES_FROM { message.int32()? } else { -1 },
        max_wait_ms: message.int32()?,
        min_bytes: message.int32()?,
        max_bytes: message.int32()?,
        is_committed: i8::from_be_bytes(message.array()?) == READ_COMMITTED,
        session_id: if has_session { message.int32()? } else { 0 },
        session_epoch: if has_session { message.int32()? } else { -1 },
        topics: message.list("topics", topic)?,
        forgotten: if has_session { message.list("forgotten_topics_data", forgotten)? } else { Vec::new() },
    };
    if message.version >= RACKS_FROM {
        skip_string(message, "rack_id", false)?;
    }
    message.tags(|message, tag| {
        Ok(Some(match tag {
            0 => {
                skip_string(message, "cluster_id", true)?;
                "cluster_id"
            }
            1 if message.version >= REPLICA_STATES_FROM => {
                request.replica_id = replica_state(message)?;
                "replica_state"
            }
            _ => return Ok(None),
        }))
    })?;
    Ok(request)
}

fn topic(message: &mut Message<'_>) -> Result<TopicData, Malformed> {
    let name = topic_name(message)?;
    let partitions = message.list("partitions", partition)?;
    message.skip_tags()?;
    Ok(TopicData { name, partitions })
}

fn partition(message: &mut Message<'_>) -> Result<PartitionData, Malformed> {
    let index = message.int32()?;
    let current_leader_epoch = if message.version >= LEADER_EPOCHS_FROM { message.int32()? } else { -1 };
    let fetch_offset = i64::from_be_bytes(message.array()?);
    let last_fetched_epoch = if message.version >= LAST_EPOCHS_FROM { message.int32()? } else { -1 };
    if message.version >= LOG_START_FROM {
        message.array::<8>()?;
    }
    let partition_max_bytes = message.int32()?;
    message.tags(|message, tag| {
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

fn forgotten(message: &mut Message<'_>) -> Result<ForgottenTopic, Malformed> {
    let name = topic_name(message)?;
    let partitions = message.list("partitions", Message::int32)?;
    message.skip_tags()?;
    Ok(ForgottenTopic { name, partitions })
}

fn topic_name(message: &mut Message<'_>) -> Result<TopicName, Malformed> {
    if message.version >= TOPIC_IDS_FROM {
        return Ok(TopicName::Id(message.array()?));
    }
    let name = message.string("topic", false)?.unwrap_or_default();
    Ok(TopicName::Name(text(name)?.into()))
}

/// Read which follower asks.
fn replica_state(message: &mut Message<'_>) -> Result<i32, Malformed> {
    let replica_id = message.int32()?;
    let _replica_epoch = message.array::<8>()?;
    message.skip_tags()?;
    Ok(replica_id)
}

fn skip_string(message: &mut Message<'_>, name: &str, nullable: bool) -> Result<(), Malformed> {
    text(message.string(name, nullable)?.unwrap_or_default())?;
    Ok(())
}
