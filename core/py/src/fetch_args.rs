//! What the calls of `DataPath` for Fetch take and return, in the words of Python.

use std::collections::BTreeMap;

use korvet_proto::fetch::{Decision, Noted, Question};
use korvet_proto::partition::Partition;
use korvet_proto::shared::Shared;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::args::{TrafficFields, charge_fields, refusal_of, right_fields, seconds_of, topic_fields, traffic_fields};
use crate::buffer::Bytes;

type Answers = Vec<(f64, [f64; 5], i16)>;

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
            Decision::Refuse(refusal_of(code, message, &kind))
        }
        word => return Err(PyValueError::new_err(format!("{word} is no decision"))),
    })
}

/// The question as a tuple: a word, and what it is about.
pub fn fetch_question_fields(py: Python<'_>, question: Question) -> PyResult<Bound<'_, PyTuple>> {
    let stream = |partition: &Partition| partition.keys.stream.to_string();
    match question {
        Question::Right(right) => right_fields(py, right),
        Question::Topic { name, index, is_stale } => topic_fields(py, name, index, is_stale),
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
        Question::Charge { client_id, bytes, busy } => charge_fields(py, client_id, bytes, busy),
    }
}

pub fn fetch_noted_fields(noted: &Noted) -> FetchNotedFields {
    let answered = noted.answered.iter().map(|answered| {
        (answered.whole.as_secs_f64(), answered.stages.map(|stage| stage.as_secs_f64()), answered.error)
    });
    let sessions = &noted.sessions;
    (
        (noted.begun, noted.received_bytes, noted.ended, noted.sent_bytes),
        answered.collect(),
        seconds_of(&noted.round_trips),
        (noted.away, noted.away_text.clone()),
        traffic_fields(noted.traffic()),
        (noted.parked, sessions.sessions, sessions.partitions, sessions.evictions),
        noted.failures.clone(),
    )
}
