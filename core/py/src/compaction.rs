//! Ranges of streams for Python: what compaction leaves of them, and what an index counts of them.

use std::sync::Arc;

use korvet_proto::compaction::{AbortedTransaction, Cleaner, OffsetMap, Page, Retained, Rules};
use korvet_proto::failure::{Failure, FailureKind};
use korvet_proto::log::Range;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::args::at_rest_of;
use crate::batch::RefusedError;
use crate::log_reader::partition_of;
use crate::resp::RawReply;

type PageFields = (Option<i64>, usize, usize);
type RetainedFields<'py> = (Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>, i64, i32, usize, i64, Option<String>);

fn failed(failure: Failure) -> PyErr {
    let is_unavailable = failure.kind != FailureKind::Rule;
    RefusedError::new_err((failure.code as i16, failure.message, is_unavailable))
}

fn fields_of(page: Page) -> PageFields {
    (page.next_offset, page.entries, page.bytes)
}

/// A pass of compaction.
#[pyclass(module = "korvet_core")]
pub struct LogCleaner {
    cleaner: Cleaner,
}

#[pymethods]
impl LogCleaner {
    #[allow(clippy::too_many_arguments)] // each by its name
    #[new]
    #[pyo3(signature = (
        partition, /, *, start, dirty_start, end, plain_bytes_max, map_bytes_max, keys_max, at_rest, aborted, periods
    ))]
    fn new(
        partition: &Bound<'_, PyAny>,
        start: i64,
        dirty_start: i64,
        end: i64,
        plain_bytes_max: usize,
        map_bytes_max: usize,
        keys_max: usize,
        at_rest: (String, usize),
        aborted: Vec<(i64, i64, i64)>,
        periods: Vec<(i64, bool)>,
    ) -> PyResult<Self> {
        let (codec, min_bytes) = at_rest;
        let aborted = aborted.into_iter();
        let aborted =
            aborted.map(|(producer_id, first_offset, marker)| AbortedTransaction { producer_id, first_offset, marker });
        let (at_rest, aborted) = (at_rest_of(&codec, min_bytes)?, aborted.collect());
        let rules = Rules { start, dirty_start, end, plain_bytes_max, at_rest, aborted, periods };
        let partition = Arc::new(partition_of(partition)?);
        Ok(Self { cleaner: Cleaner::new(&partition, rules, OffsetMap::new(map_bytes_max, keys_max)) })
    }

    #[getter]
    fn keys(&self) -> usize {
        self.cleaner.keys()
    }

    #[getter]
    fn seen(&self) -> u64 {
        self.cleaner.seen
    }

    #[getter]
    fn unkeyed(&self) -> u64 {
        self.cleaner.unkeyed
    }

    #[getter]
    fn has_new_tombstones(&self) -> bool {
        self.cleaner.has_new_tombstones
    }

    #[pyo3(signature = (reply, /))]
    fn map(&mut self, reply: &RawReply) -> PyResult<(PageFields, Option<i64>)> {
        let (page, full_at) = self.cleaner.map(&reply.0).map_err(failed)?;
        Ok((fields_of(page), full_at))
    }

    #[pyo3(signature = (reply, /))]
    fn retain<'py>(slf: &Bound<'py, Self>, reply: &RawReply) -> PyResult<(PageFields, Vec<RetainedFields<'py>>)> {
        let py = slf.py();
        let mut left = Vec::new();
        // Bytes are no containers: to make them runs no code of Python.
        let page = slf.try_borrow_mut()?.cleaner.retain(&reply.0, |retained| {
            left.push(retained_fields(py, retained));
            Ok(())
        });
        Ok((fields_of(page.map_err(failed)?), left))
    }
}

fn retained_fields<'py>(py: Python<'py>, retained: Retained<'_>) -> RetainedFields<'py> {
    let Retained { id, words, end, records, timestamp, damage } = retained;
    let bytes = words.iter().map(|word| word.len()).sum();
    let words = words.iter().map(|word| PyBytes::new(py, word)).collect();
    (PyBytes::new(py, id), words, end, records, bytes, timestamp, damage)
}

#[pyfunction]
#[pyo3(signature = (partition, reply, /))]
pub fn weights<'py>(partition: &Bound<'py, PyAny>, reply: &RawReply) -> PyResult<Bound<'py, PyList>> {
    let weights = Range::of(&Arc::new(partition_of(partition)?), &reply.0).and_then(|range| range.weights());
    let weights = weights.map_err(failed)?;
    PyList::new(partition.py(), weights.into_iter().map(|each| (each.end, each.records, each.bytes, each.timestamp)))
}
