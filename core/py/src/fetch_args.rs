//! What the calls of `DataPath` for Fetch take and return, in the words of Python.

use std::collections::BTreeMap;

use korvet_proto::ErrorCode;
use korvet_proto::access::Right;
use korvet_proto::failure::{Failure, FailureKind};
use korvet_proto::fetch::{Decision, Noted, Question};
use korvet_proto::partition::{Partition, TopicName};
use korvet_proto::pipeline::Time;
use korvet_proto::shared::Shared;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::buffer::Bytes;

type Answers = Vec<(f64, [f64; 5], i16)>;
type TrafficFields = (String, String, u64, u64);

/// What `take_fetch_noted` returns.
pub type FetchNotedFields = (
    (u64, u64, u64, u64),
    Answers,
    Vec<f64>,
    (u64, Option<String>),
    Vec<TrafficFields>,
    (usize, usize, usize, u64),
    BTreeMap<i16, u64>,
);

/// A decision, `None` to go on: a number, or a tuple of a word and what it is about.
pub fn fetch_decision_of(decision: &Bound<'_, PyAny>) -> PyResult<Decision> {
    if decision.is_none() {
        return Ok(Decision::Go);
    }
    let Ok(fields) = decision.cast::<PyTuple>() else { return Ok(Decision::Number(decision.extract()?)) };
    let word = fields.get_item(0)?;
    Ok(match word.extract::<&str>()? {
        "bounds" => {
            let (_, high_watermark, stable): (Bound<'_, PyAny>, i64, i64) = fields.extract()?;
            Decision::Bounds { high_watermark, stable }
        }
        "batches" => {
            let (_, bytes, records, has_more): (Bound<'_, PyAny>, Bytes, u64, bool) = fields.extract()?;
            Decision::Batches { bytes: Shared::from(bytes.get(decision.py()).to_vec()), records, has_more }
        }
        "later" => Decision::Later,
        "throttle" => {
            let (_, ms, reason): (Bound<'_, PyAny>, u32, u32) = fields.extract()?;
            Decision::Throttle(ms, reason)
        }
        "refuse" => {
            let (_, code, message, kind): (Bound<'_, PyAny>, i16, String, String) = fields.extract()?;
            // One that no read is refused with is a fault of ours: its client gets an answer all the same.
            let code = ErrorCode::of(code).unwrap_or(ErrorCode::UnknownServerError);
            let kind = match kind.as_str() {
                "rule" => FailureKind::Rule,
                "away" => FailureKind::NodeAway,
                _ => FailureKind::Unavailable,
            };
            Decision::Refuse(Failure::new(code, message, kind))
        }
        word => return Err(PyValueError::new_err(format!("{word} is no decision"))),
    })
}

/// The question as a tuple: a word, and what it is about.
pub fn fetch_question_fields(py: Python<'_>, question: Question) -> PyResult<Bound<'_, PyTuple>> {
    let stream = |partition: &Partition| partition.keys.stream.to_string();
    match question {
        Question::Right(Right::Topic(name)) => ("right", "topic", &*name).into_pyobject(py),
        Question::Right(Right::TopicId(id)) => ("right", "topic id", PyBytes::new(py, &id)).into_pyobject(py),
        Question::Right(Right::TransactionalId(id)) => ("right", "transactional id", &*id).into_pyobject(py),
        Question::Right(Right::Cluster) => ("right", "cluster", "").into_pyobject(py),
        Question::Topic { name, index, is_stale } => {
            let (name, id) = match name {
                TopicName::Name(name) => (name.to_string(), None),
                TopicName::Id(id) => (String::new(), Some(PyBytes::new(py, &id))),
            };
            ("topic", name, id, index, is_stale).into_pyobject(py)
        }
        Question::Limit { client_id } => ("limit", client_id).into_pyobject(py),
        Question::Epoch { partition, known, last } => ("epoch", stream(&partition), known, last).into_pyobject(py),
        Question::External { partition, offset } => ("external", stream(&partition), offset).into_pyobject(py),
        Question::Watermark { partition, node, history, end, stable, shown, is_committed } => {
            ("watermark", stream(&partition), node, &*history, end, stable, shown, is_committed).into_pyobject(py)
        }
        Question::Remote { partition, remote, epochs, offset, bytes_max, is_first, waits, readable_end } => {
            let epochs: Vec<(i32, i64)> = epochs.iter().map(|start| (start.epoch, start.start)).collect();
            let range = (remote.start, remote.end, remote.archived, epochs);
            ("remote", stream(&partition), range, offset, bytes_max, is_first, waits, readable_end).into_pyobject(py)
        }
        Question::Charge { client_id, bytes, busy } => {
            ("charge", client_id, bytes, busy.as_secs_f64()).into_pyobject(py)
        }
    }
}

fn seconds_of(times: &[Time]) -> Vec<f64> {
    times.iter().map(Time::as_secs_f64).collect()
}

pub fn fetch_noted_fields(noted: &Noted) -> FetchNotedFields {
    let traffic = noted.traffic().map(|traffic| {
        let topic = &traffic.topic;
        (topic.name.to_string(), topic.id_text.to_string(), traffic.records, traffic.bytes)
    });
    let answered = noted.answered.iter().map(|answered| {
        (answered.whole.as_secs_f64(), answered.stages.map(|stage| stage.as_secs_f64()), answered.error)
    });
    let sessions = &noted.sessions;
    (
        (noted.begun, noted.received_bytes, noted.ended, noted.sent_bytes),
        answered.collect(),
        seconds_of(&noted.round_trips),
        (noted.away, noted.away_text.clone()),
        traffic.collect(),
        (noted.parked, sessions.sessions, sessions.partitions, sessions.evictions),
        noted.failures.clone(),
    )
}
