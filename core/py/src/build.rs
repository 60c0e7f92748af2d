//! Records of Python as batches for a consumer, and as what compaction leaves of a batch.

use korvet_proto::build;
use korvet_proto::encode::{Encoder, HeaderFields, RecordFields};
use korvet_proto::{ErrorCode, Refusal};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyBytesMethods, PyList, PyMemoryView, PyString, PyTuple};

use crate::batch::{codec, header_of, refused};
use crate::buffer::{Bytes, Owned};

type Nullable<'py> = Option<Bound<'py, PyBytes>>;
/// What one field holds in every record, None if it is null in all of them.
type Contents<'py> = Option<Vec<Bound<'py, PyBytes>>>;

type Record<'py> = (i64, i64, Nullable<'py>, Nullable<'py>, Vec<(Bound<'py, PyString>, Nullable<'py>)>);

#[derive(FromPyObject)]
struct Run {
    start: i64,
    stop: i64,
}

/// Records of one layout: the attributes of Python's Columns.
#[derive(FromPyObject)]
struct Columns<'py> {
    runs: Vec<Run>,
    timestamps: Vec<i64>,
    keys: Contents<'py>,
    values: Vec<Bound<'py, PyBytes>>,
    headers: Vec<(Bound<'py, PyString>, Contents<'py>)>,
}

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
    fn add(&mut self, records: &Bound<'_, PyAny>) -> PyResult<()> {
        let Ok(records) = records.cast::<PyList>() else { return self.add_columns(&records.extract()?) };
        for record in records {
            if !with_fields(&record, |fields| Ok(self.builder.push(fields)?))? {
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

impl BatchesBuilder {
    fn add_columns(&mut self, columns: &Columns<'_>) -> PyResult<()> {
        let names = columns.headers.iter().map(|(name, _)| name.to_str()).collect::<PyResult<Vec<_>>>()?;
        let mut headers: Vec<HeaderFields<'_>> = names.iter().map(|name| (name.as_bytes(), None)).collect();
        let offsets = columns.runs.iter().flat_map(|run| run.start..run.stop);
        for (row, ((offset, timestamp), value)) in offsets.zip(&columns.timestamps).zip(&columns.values).enumerate() {
            for (field, (_, contents)) in headers.iter_mut().zip(&columns.headers) {
                field.1 = content_of(contents, row);
            }
            let (key, value) = (content_of(&columns.keys, row), Some(value.as_bytes()));
            if !self.builder.push(&RecordFields { offset, timestamp: *timestamp, key, value, headers: &headers })? {
                break;
            }
        }
        Ok(())
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

fn content_of<'a>(contents: &'a Contents<'_>, row: usize) -> Option<&'a [u8]> {
    bytes_of(contents.as_ref()?.get(row))
}

#[pyfunction]
#[pyo3(signature = (batch, base_offset, records, /))]
pub fn retain<'py>(
    py: Python<'py>,
    batch: Bytes,
    base_offset: i64,
    records: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut encoder = Encoder::new(base_offset, usize::MAX, true);
    for record in records {
        if !with_fields(&record, |fields| Ok(encoder.push(fields)))? {
            let message = "the offsets of its records do not rise";
            return Err(refused(Refusal::new(ErrorCode::CorruptMessage, message)));
        }
    }
    let header = header_of(py, &batch)?.0;
    let payload = codec(header.codec_number())?.compress(encoder.payload())?;
    Ok(PyBytes::new(py, &header.retaining(&encoder.header()).sealed_with(&payload)))
}
