//! What the calls of `Producers` take and return, in the words of Python.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use korvet_proto::ErrorCode;
use korvet_proto::access::Right;
use korvet_proto::append::Marker;
use korvet_proto::client::slot_of;
use korvet_proto::compression::Codec;
use korvet_proto::failure::{Failure, FailureKind};
use korvet_proto::noted::Traffic;
use korvet_proto::partition::TopicName;
use korvet_proto::partition::{AtRest, Keys, Layout, Partition, Topic, TopicConfig};
use korvet_proto::pipeline::Time;
use korvet_proto::produce::{Asked, Decision, Noted, Outcome, Question, Script, ScriptText};
use korvet_proto::shared::Shared;
use pyo3::exceptions::PyValueError;
use pyo3::types::{PyBytes, PyTuple};
use pyo3::{intern, prelude::*};

use crate::buffer::Bytes;

/// What `end_of` returns: the topic's id, an epoch, and where the log ended in that.
pub type EndFields = (String, i32, i64);

type StageSeconds = (f64, [f64; 5]);
type ErrorCounts = BTreeMap<i16, u64>;
pub type TrafficFields = (String, String, u64, u64);

/// What `take_noted` returns.
pub type NotedFields = (
    (u64, u64, u64, u64),
    Vec<StageSeconds>,
    (Vec<f64>, Vec<f64>),
    (ErrorCounts, ErrorCounts),
    (ErrorCounts, u64, Option<String>, bool),
    Vec<TrafficFields>,
);

/// The keys of a partition, and its channel.
const KEYS: usize = 8;

/// A time of Python; less than none is none.
pub fn seconds(number: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(number.max(0.0)).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// How values are compressed in Redis: a codec by its name, and from which size on.
pub fn at_rest_of(codec: &str, min_bytes: usize) -> PyResult<AtRest> {
    let codec = match codec {
        "none" => None,
        "lz4" => Some(Codec::Lz4),
        "zstd" => Some(Codec::Zstd),
        other => return Err(PyValueError::new_err(format!("nothing is stored as {other}"))),
    };
    Ok(AtRest { codec, min_bytes })
}

/// The configs of a topic, as korvet/log/appends.py gives them.
#[derive(FromPyObject)]
struct ConfigArgs<'py> {
    codec: Option<i16>,
    consumer_codec: i16,
    at_rest: (Bound<'py, PyAny>, usize),
    max_message_bytes: usize,
    max_message_records: usize,
    is_compacted: bool,
    has_append_time: bool,
    timestamp_before_max_ms: i64,
    timestamp_after_max_ms: i64,
}

/// A partition: an object with these attributes.
#[derive(FromPyObject)]
pub struct PartitionArgs<'py> {
    topic: String,
    topic_id: [u8; 16],
    topic_id_text: String,
    partition_index: i32,
    /// Of the ids of its entries; `None`: an entry is a batch.
    bits: Option<u8>,
    keys: Vec<String>,
    replicas: u32,
    config: ConfigArgs<'py>,
}

fn codec_of(number: i16) -> PyResult<Codec> {
    Codec::of(number).ok_or_else(|| PyValueError::new_err(format!("compression codec {number} is unknown")))
}

impl PartitionArgs<'_> {
    pub fn partition(self) -> PyResult<Partition> {
        let config = self.config;
        let (at_rest, min_bytes) = config.at_rest;
        let config = TopicConfig {
            codec: config.codec.map(codec_of).transpose()?,
            consumer_codec: codec_of(config.consumer_codec)?,
            at_rest: at_rest_of(at_rest.extract()?, min_bytes)?,
            max_message_bytes: config.max_message_bytes,
            max_message_records: config.max_message_records,
            is_compacted: config.is_compacted,
            has_append_time: config.has_append_time,
            timestamp_before_max_ms: config.timestamp_before_max_ms,
            timestamp_after_max_ms: config.timestamp_after_max_ms,
        };
        let keys = <[String; KEYS]>::try_from(self.keys);
        let [stream, state, index, open, aborted, first, second, channel] =
            keys.map_err(|keys| PyValueError::new_err(format!("a partition has {KEYS} keys, not {}", keys.len())))?;
        let slot = slot_of(stream.as_bytes());
        Ok(Partition {
            topic: Arc::new(Topic {
                name: self.topic.into(),
                id: self.topic_id,
                id_text: self.topic_id_text.into(),
                config,
            }),
            index: self.partition_index,
            layout: self.bits.map_or(Layout::Batch, |bits| Layout::Record { bits }),
            keys: Keys {
                stream: stream.into(),
                state: state.into(),
                index: index.into(),
                open: open.into(),
                aborted: aborted.into(),
                compacted: [first.into(), second.into()],
                channel: channel.into(),
            },
            slot,
            replicas: self.replicas,
        })
    }
}

/// What the worker itself appends: a batch, or the marker of a producer: its id, its epoch, the number of the transaction, and
/// whether it commits.
#[derive(FromPyObject)]
enum AskedArgs {
    Marker((i64, i16, i64, bool)),
    Batch(Bytes),
}

/// An append of the worker itself, with the number of its transaction if it is of one.
#[derive(FromPyObject)]
pub struct BatchArgs<'py>(PartitionArgs<'py>, Bound<'py, PyAny>, Option<i64>);

impl BatchArgs<'_> {
    pub fn asked(self) -> PyResult<(Arc<Partition>, Asked, Option<i64>)> {
        let Self(partition, asked, number) = self;
        let py = asked.py();
        let asked = match asked.extract()? {
            AskedArgs::Batch(batch) => Asked::Batch(Some(Shared::from(batch.get(py).to_vec()))),
            AskedArgs::Marker((producer_id, epoch, number, commits)) => {
                Asked::Marker(Marker { producer_id, epoch, number, commits })
            }
        };
        Ok((Arc::new(partition.partition()?), asked, number))
    }
}

/// A script of korvet/redis/scripts.py.
pub fn script_of(script: &Bound<'_, PyAny>) -> PyResult<Script> {
    let text = |script: &Bound<'_, PyAny>| -> PyResult<ScriptText> {
        let (source, sha) = (intern!(script.py(), "source"), intern!(script.py(), "sha"));
        Ok(ScriptText { source: script.getattr(source)?.extract()?, sha: script.getattr(sha)?.extract()? })
    };
    Ok(Script { text: text(script)?, when_full: text(&script.getattr(intern!(script.py(), "when_full"))?)? })
}

/// A decision, `None` to go on: a number, a throttle and its reason, or why not.
#[derive(FromPyObject)]
pub enum DecisionArgs<'py> {
    Number(i64),
    Throttle((u32, u32)),
    Refuse((i16, Bound<'py, PyAny>, Bound<'py, PyAny>)),
}

pub fn decision_of(decision: Option<&DecisionArgs<'_>>) -> PyResult<Decision> {
    let Some(decision) = decision else { return Ok(Decision::Go) };
    Ok(match decision {
        DecisionArgs::Number(number) => Decision::Number(*number),
        DecisionArgs::Throttle((ms, reason)) => Decision::Throttle(*ms, *reason),
        DecisionArgs::Refuse((code, message, kind)) => {
            Decision::Refuse(refusal_of(*code, message.extract()?, kind.extract()?))
        }
    })
}

/// Why a request is refused. An unknown code is a fault of the owner: the client gets an answer all the same.
pub fn refusal_of(code: i16, message: String, kind: &str) -> Failure {
    let kind = match kind {
        "rule" => FailureKind::Rule,
        "away" => FailureKind::NodeAway,
        _ => FailureKind::Unavailable,
    };
    Failure::new(ErrorCode::of(code).unwrap_or(ErrorCode::UnknownServerError), message, kind)
}

pub fn right_fields(py: Python<'_>, right: Right) -> PyResult<Bound<'_, PyTuple>> {
    match right {
        Right::Topic(name) => ("right", "topic", &*name).into_pyobject(py),
        Right::TopicId(id) => ("right", "topic id", PyBytes::new(py, &id)).into_pyobject(py),
        Right::TransactionalId(id) => ("right", "transactional id", &*id).into_pyobject(py),
        Right::Cluster => ("right", "cluster", "").into_pyobject(py),
    }
}

pub fn topic_fields(py: Python<'_>, name: TopicName, index: i32, is_stale: bool) -> PyResult<Bound<'_, PyTuple>> {
    let (name, id) = match name {
        TopicName::Name(name) => (name.to_string(), None),
        TopicName::Id(id) => (String::new(), Some(PyBytes::new(py, &id))),
    };
    ("topic", name, id, index, is_stale).into_pyobject(py)
}

pub fn charge_fields(
    py: Python<'_>,
    client_id: Option<String>,
    bytes: usize,
    busy: Duration,
) -> PyResult<Bound<'_, PyTuple>> {
    ("charge", client_id, bytes, busy.as_secs_f64()).into_pyobject(py)
}

/// The question as a tuple: a word, and what it is about.
pub fn question_fields(py: Python<'_>, question: Question, begun_s: f64) -> PyResult<Bound<'_, PyTuple>> {
    let stream = |partition: &Partition| partition.keys.stream.to_string();
    match question {
        Question::Late { came_after } => ("late", begun_s + came_after.as_secs_f64()).into_pyobject(py),
        Question::Right(right) => right_fields(py, right),
        Question::Topic { name, index, is_stale } => topic_fields(py, name, index, is_stale),
        Question::InSync { partition } => ("in sync", stream(&partition)).into_pyobject(py),
        Question::Verify { transactional_id, version, producer_id, epoch, partitions } => {
            let streams: Vec<String> = partitions.iter().map(|partition| stream(partition)).collect();
            ("verify", transactional_id, version, producer_id, epoch, streams).into_pyobject(py)
        }
        Question::External { partition } => ("external", stream(&partition)).into_pyobject(py),
        Question::Stale { node, later } => ("stale", node, later).into_pyobject(py),
        Question::Elsewhere { replies, attempt } => ("elsewhere", replies, attempt).into_pyobject(py),
        Question::TimeAt { partition, offset } => ("time at", stream(&partition), offset).into_pyobject(py),
        Question::Confirm { node, history, replicas } => ("confirm", node, &*history, replicas).into_pyobject(py),
        Question::Rest => ("rest",).into_pyobject(py),
        Question::Charge { client_id, bytes, busy } => charge_fields(py, client_id, bytes, busy),
    }
}

/// What became of an append: where it is, or Kafka's code, a sentence, whose failure it is, and records with theirs.
pub fn outcome_fields(py: Python<'_>, outcome: Outcome) -> PyResult<Bound<'_, PyTuple>> {
    match outcome {
        Ok(appended) => (
            appended.base_offset,
            appended.log_start,
            appended.is_duplicate,
            appended.row_bytes,
            &*appended.history,
            appended.timestamp,
            appended.node,
        )
            .into_pyobject(py),
        Err(failure) => {
            let kind = match failure.kind {
                FailureKind::Rule => "rule",
                FailureKind::Unavailable | FailureKind::NoRoom => "unavailable",
                FailureKind::NodeAway => "away",
                FailureKind::Unknown { is_idempotent: true } => "unknown idempotent",
                FailureKind::Unknown { is_idempotent: false } => "unknown",
                FailureKind::MemoryFull => "memory full",
            };
            (failure.code as i16, failure.message, kind, failure.records).into_pyobject(py)
        }
    }
}

pub fn seconds_of(times: &[Time]) -> Vec<f64> {
    times.iter().map(Time::as_secs_f64).collect()
}

/// Name and id of each topic, records and bytes.
pub fn traffic_fields<'a>(traffic: impl Iterator<Item = &'a Traffic>) -> Vec<TrafficFields> {
    let fields = traffic
        .map(|Traffic { topic, records, bytes }| (topic.name.to_string(), topic.id_text.to_string(), *records, *bytes));
    fields.collect()
}

pub fn noted_fields(noted: Noted) -> NotedFields {
    let traffic = traffic_fields(noted.traffic());
    let answered = noted.answered.iter();
    let answered =
        answered.map(|each| (each.whole.as_secs_f64(), each.stages.map(|stage| stage.as_secs_f64()))).collect();
    let [batch_trips, record_trips] = &noted.round_trips;
    let round_trips = (seconds_of(batch_trips), seconds_of(record_trips));
    let [batch_errors, record_errors] = noted.script_errors;
    (
        (noted.begun, noted.received_bytes, noted.ended, noted.sent_bytes),
        answered,
        round_trips,
        (batch_errors, record_errors),
        (noted.failures, noted.away, noted.away_text, noted.has_success),
        traffic,
    )
}
