//! What a read of a log has found, for Python: bounds, and records or batches.

use korvet_proto::batch::{HEADER_BYTES, Header, LENGTH_FROM};
use korvet_proto::compression::Codec;
use korvet_proto::log::{Aborted, Found, NO_EPOCH, Page, Walked};
use korvet_proto::partition::Layout;
use korvet_proto::shared::Shared;
use korvet_proto::{Refusal, batch};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PyString, PyTuple};

use crate::batch::{as_tuple, refused};
use crate::buffer::{Bytes, Owned};
use crate::columns::{ArrowColumns, Wanted, arrow_of_batches, arrow_of_records};

type Spans = Vec<(i64, i64)>;

/// What was found; nothing of it changes.
#[pyclass(module = "korvet_core", frozen)]
pub struct Fetched {
    /// Without its entries.
    found: Found,
    page: Page,
    walked: Walked,
    /// Whether reading on at once may find more.
    #[pyo3(get)]
    more: bool,
    plain_bytes_max: usize,
}

impl Fetched {
    pub fn new(mut found: Found, page: Page, walked: Walked, plain_bytes_max: usize) -> Self {
        found.forget_entries();
        let more = walked.has_more;
        Self { found, page, walked, more, plain_bytes_max }
    }

    fn with(&self, page: Page, more: bool) -> Self {
        Self { found: self.found.clone(), page, walked: self.walked.clone(), more, ..*self }
    }

    fn bits(&self) -> u32 {
        match self.found.partition.layout {
            Layout::Batch => 0,
            Layout::Record { bits } => bits.into(),
        }
    }

    fn aborted_rows(&self) -> &[Aborted] {
        &self.found.aborted
    }
}

#[pymethods]
impl Fetched {
    #[getter]
    fn log_start(&self) -> i64 {
        self.found.log_start
    }

    #[getter]
    fn first_offset(&self) -> i64 {
        self.found.first_offset
    }

    #[getter]
    fn high_watermark(&self) -> i64 {
        self.found.high_watermark
    }

    #[getter]
    fn end_offset(&self) -> i64 {
        self.found.end_offset()
    }

    #[getter]
    fn stable_offset(&self) -> i64 {
        self.found.stable_offset()
    }

    #[getter]
    fn visible_end(&self) -> i64 {
        self.found.visible_end()
    }

    #[getter]
    fn compacted_end(&self) -> i64 {
        self.found.compacted_end
    }

    #[getter]
    fn remote(&self) -> Option<(i64, i64, i64)> {
        self.found.remote.map(|remote| (remote.start, remote.end, remote.archived))
    }

    #[getter]
    fn remote_end(&self) -> Option<i64> {
        self.found.remote.map(|remote| remote.end)
    }

    #[getter]
    fn epochs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.found.epochs.iter().map(|begun| (begun.epoch, begun.start)).collect::<Vec<_>>())
    }

    #[getter]
    fn is_committed(&self) -> bool {
        self.found.is_committed
    }

    #[getter]
    fn aborted(&self) -> Spans {
        self.aborted_rows().iter().map(|aborted| (aborted.producer_id, aborted.first_offset)).collect()
    }

    #[getter]
    fn foreign(&self) -> u32 {
        self.walked.foreign
    }

    #[getter]
    fn damaged(&self) -> Option<(i64, String)> {
        self.walked.damaged.clone()
    }

    fn __len__(&self) -> usize {
        self.page.len()
    }

    #[getter]
    fn size_bytes(&self) -> usize {
        self.page.batches().iter().map(|batch| batch.size_bytes).sum()
    }

    #[getter]
    fn first(&self) -> Option<i64> {
        self.page.first_offset()
    }

    #[getter]
    fn next_offset(&self) -> Option<i64> {
        self.page.next_offset()
    }

    #[getter]
    fn first_timestamp(&self) -> Option<i64> {
        self.page.first_timestamp()
    }

    #[getter]
    fn first_appended_ms(&self) -> Option<i64> {
        self.page.first_appended_ms(self.bits())
    }

    fn spans(&self) -> Spans {
        self.page.spans()
    }

    fn record_spans(&self) -> PyResult<Spans> {
        self.page.record_spans(self.plain_bytes_max).map_err(refused)
    }

    fn ends(&self) -> Spans {
        self.page.ends()
    }

    #[pyo3(signature = (timestamp, first, /))]
    fn first_since(&self, timestamp: i64, first: i64) -> Option<(i64, i64)> {
        self.page.first_since(timestamp, first, self.plain_bytes_max)
    }

    #[pyo3(signature = (timestamp, first, end, /))]
    fn largest(&self, timestamp: i64, first: i64, end: i64) -> Option<(i64, i64)> {
        self.page.largest(timestamp, (first, end), self.plain_bytes_max)
    }

    #[pyo3(signature = (high_watermark, stable, /))]
    fn limit(&self, high_watermark: i64, stable: i64) -> Self {
        let mut found = self.found.clone();
        found.limit(high_watermark, stable);
        if found.high_watermark == self.found.high_watermark {
            return self.with(self.page.clone(), self.more);
        }
        let (end, page) = (found.visible_end(), self.page.until(found.visible_end()));
        let is_cut = page.len() < self.page.len();
        let more = self.more && !is_cut && page.next_offset().is_some_and(|next_offset| next_offset < end);
        Self { found, ..self.with(page, more) }
    }

    #[pyo3(signature = (room, at_least_one, /))]
    fn fitting(&self, room: usize, at_least_one: bool) -> Option<(Self, usize)> {
        let (page, bytes) = self.page.fitting(room, at_least_one)?;
        let more = self.more || page.len() < self.page.len();
        Some((self.with(page, more), bytes))
    }

    fn to_go_on(&self) -> Self {
        self.with(self.page.clone(), true)
    }

    #[pyo3(signature = (data, /))]
    fn with_batches(&self, py: Python<'_>, data: Bytes) -> Self {
        self.with(Page::of_batches(&Shared::from(data.get(py).to_vec())), true)
    }

    fn archived(&self) -> Spans {
        self.page.archived(self.aborted_rows())
    }

    fn visible(&self) -> PyResult<Self> {
        Ok(self.with(self.page.visible(self.aborted_rows()).map_err(refused)?, self.more))
    }

    fn each(&self) -> PyResult<Vec<Self>> {
        let pages = self.page.each().map_err(refused)?;
        Ok(pages.into_iter().map(|page| self.with(page, true)).collect())
    }

    #[pyo3(signature = (ranges, /, *, codec, log_append_time))]
    fn collect<'py>(
        &self,
        py: Python<'py>,
        ranges: Vec<(i64, i64)>,
        codec: i16,
        log_append_time: bool,
    ) -> PyResult<(Vec<Bound<'py, PyMemoryView>>, usize)> {
        let codec: Codec = crate::batch::codec(codec)?;
        let collected = self.page.collect(&ranges, &self.found.epochs, codec, log_append_time);
        let (pieces, count) = collected.map_err(|failure| refused(Refusal::new(failure.code, failure.message)))?;
        let views = pieces.into_iter().map(|piece| {
            let bytes = piece.as_ref().to_vec();
            Owned::view(&Bound::new(py, Owned::new(bytes))?)
        });
        Ok((views.collect::<PyResult<_>>()?, count))
    }

    #[allow(clippy::fn_params_excessive_bools)] // each by its name
    #[pyo3(signature = (payloads_bytes_max, /, *, keys, values, headers, log_append_time))]
    fn arrow_columns<'py>(
        &self,
        py: Python<'py>,
        payloads_bytes_max: usize,
        keys: bool,
        values: bool,
        headers: bool,
        log_append_time: bool,
    ) -> PyResult<ArrowColumns<'py>> {
        let wanted = Wanted { keys, values, headers };
        match self.page.columns() {
            Some(_) => {
                let whole = self.page.whole().map_err(refused)?;
                let columns = whole.columns().ok_or_else(|| PyValueError::new_err("no records"))?;
                arrow_of_records(py, columns, wanted, log_append_time)
            }
            None => arrow_of_batches(py, self.page.batches(), self.plain_bytes_max, payloads_bytes_max, wanted),
        }
    }

    fn as_stored<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyMemoryView>>> {
        let mut pieces = Vec::new();
        for batch in self.page.batches() {
            let (base_offset, partition_leader_epoch) = (batch.base_offset, NO_EPOCH);
            let batch_length = i32::try_from(batch.size_bytes - LENGTH_FROM).unwrap_or(i32::MAX);
            let header = Header { base_offset, batch_length, partition_leader_epoch, ..batch.header };
            let mut bytes = header.bytes().to_vec();
            let payload = batch.plain.as_deref().or(batch.stored.as_ref().get(HEADER_BYTES..)).unwrap_or_default();
            bytes.extend_from_slice(payload);
            pieces.push(Owned::view(&Bound::new(py, Owned::new(bytes))?)?);
        }
        Ok(pieces)
    }

    fn records<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let records = PyList::empty(py);
        if let Some(columns) = self.page.columns() {
            for row in 0..self.page.len() {
                let made = columns.row(row, |record| {
                    let bytes = |content: Option<&[u8]>| content.map(|content| PyBytes::new(py, content));
                    let headers = record.headers.iter();
                    let headers =
                        headers.map(|(name, value)| (PyString::new(py, &batch::text_of(name)), bytes(*value)));
                    let headers = PyList::new(py, headers.collect::<Vec<_>>())?;
                    let (key, value) = (bytes(record.key), bytes(record.value));
                    records.append((record.offset, record.timestamp, key, value, headers))
                });
                made.transpose()?;
            }
        }
        for batch in self.page.batches() {
            let mut made = Ok(());
            let read = batch.records(self.plain_bytes_max, |offset, timestamp, record| {
                if made.is_ok() {
                    made = as_tuple(py, record, offset, timestamp).and_then(|record| records.append(record));
                }
            });
            made?;
            read.map_err(refused)?;
        }
        Ok(records)
    }
}
