//! Records of Python as batches for a consumer.

use korvet_proto::build;
use korvet_proto::encode::{HeaderFields, RecordFields};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyBytesMethods, PyList, PyMemoryView, PyString, PyTuple};

use crate::buffer::Owned;

type Nullable<'py> = Option<Bound<'py, PyBytes>>;
type Record<'py> = (i64, i64, Nullable<'py>, Nullable<'py>, Vec<(Bound<'py, PyString>, Nullable<'py>)>);

/// Builds batches of records with rising offsets.
#[pyclass(module = "korvet_core", subclass)]
pub struct BatchesBuilder {
    builder: build::BatchesBuilder,
    finished: Vec<Py<Owned>>,
}

#[pymethods]
impl BatchesBuilder {
    #[new]
    #[pyo3(signature = (*, codec, leader_epoch, bytes_max, at_least_one, log_append_time = false, next_offset = 0))]
    fn new(
        codec: i16,
        leader_epoch: i32,
        bytes_max: i64,
        at_least_one: bool,
        log_append_time: bool,
        next_offset: i64,
    ) -> PyResult<Self> {
        let codec = crate::batch::codec(codec)?;
        let mut builder = build::BatchesBuilder::new(codec, leader_epoch, bytes_max, at_least_one, log_append_time);
        builder.next_offset = next_offset;
        Ok(Self { builder, finished: Vec::new() })
    }

    #[getter]
    fn record_count(&self) -> usize {
        self.builder.record_count
    }

    #[getter]
    fn next_offset(&self) -> i64 {
        self.builder.next_offset
    }

    #[getter]
    fn full(&self) -> bool {
        self.builder.is_full
    }

    #[getter]
    fn plain_bytes_left(&self) -> i64 {
        self.builder.plain_bytes_left()
    }

    #[pyo3(signature = (leader_epoch, /))]
    fn begin_epoch(&mut self, leader_epoch: i32) -> PyResult<()> {
        Ok(self.builder.begin_epoch(leader_epoch)?)
    }

    #[pyo3(signature = (producer_id = -1, epoch = -1, /))]
    fn begin_producer(&mut self, producer_id: i64, epoch: i16) -> PyResult<()> {
        let producer = (producer_id, epoch);
        Ok(self.builder.begin_producer((producer != (-1, -1)).then_some(producer))?)
    }

    #[pyo3(signature = (bytes_left, /))]
    fn limit(&mut self, bytes_left: i64) -> PyResult<()> {
        Ok(self.builder.limit(bytes_left)?)
    }

    #[pyo3(signature = (records, /))]
    fn add(&mut self, records: &Bound<'_, PyList>) -> PyResult<()> {
        for record in records {
            if !with_fields(&record, |fields| Ok(self.builder.push(fields)?))? {
                break;
            }
        }
        Ok(())
    }

    #[pyo3(signature = (offsets, timestamps, keys, values, /))]
    fn add_columns(
        &mut self,
        offsets: Vec<i64>,
        timestamps: Vec<i64>,
        keys: Option<Vec<Bound<'_, PyBytes>>>,
        values: Vec<Bound<'_, PyBytes>>,
    ) -> PyResult<()> {
        for (row, ((offset, timestamp), value)) in offsets.into_iter().zip(timestamps).zip(&values).enumerate() {
            let key = keys.as_ref().and_then(|keys| bytes_of(keys.get(row)));
            let (value, headers) = (Some(value.as_bytes()), &[] as &[HeaderFields<'_>]);
            if !self.builder.push(&RecordFields { offset, timestamp, key, value, headers })? {
                break;
            }
        }
        Ok(())
    }

    #[pyo3(signature = (record, /))]
    fn add_control(&mut self, record: &Bound<'_, PyTuple>) -> PyResult<()> {
        with_fields(record, |fields| Ok(self.builder.push_control(fields)?)).map(drop)
    }

    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyMemoryView>>> {
        for batch in self.builder.finish()? {
            self.finished.push(Py::new(py, Owned::new(batch))?);
        }
        self.finished.iter().map(|batch| Owned::view(batch.bind(py))).collect()
    }
}

/// Call with the fields of a record, where Python's bytes lie.
fn with_fields<T>(record: &Bound<'_, PyAny>, call: impl FnOnce(&RecordFields<'_>) -> PyResult<T>) -> PyResult<T> {
    let (offset, timestamp, key, value, headers) = record.cast::<PyTuple>()?.extract::<Record<'_>>()?;
    let headers = headers
        .iter()
        .map(|(name, content)| Ok((name.to_str()?.as_bytes(), bytes_of(content.as_ref()))))
        .collect::<PyResult<Vec<HeaderFields<'_>>>>()?;
    let (key, value) = (bytes_of(key.as_ref()), bytes_of(value.as_ref()));
    call(&RecordFields { offset, timestamp, key, value, headers: &headers })
}

fn bytes_of<'a>(content: Option<&'a Bound<'_, PyBytes>>) -> Option<&'a [u8]> {
    content.map(PyBytesMethods::as_bytes)
}
