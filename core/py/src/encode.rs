//! Records of Python as the payload of a batch.
//!
//! Columns are gone over twice: once to count, and once to write into the object that Python gets, for a copy of a large
//! payload costs as much as all else. Records that come as tuples, a few at a time, are written at once.

use korvet_proto::encode::{Encoder, Filled, HeaderFields, Sink};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyBytesMethods, PySequence, PyString, PyTuple};

type Encoded<'py> = (Bound<'py, PyBytes>, usize, i32, i64);
type Nullable<'py> = Option<Bound<'py, PyBytes>>;
type RecordFields<'py> = (i64, i64, Nullable<'py>, Nullable<'py>, Vec<(Bound<'py, PyString>, Nullable<'py>)>);

/// The payload of a batch that is being made of records with rising offsets.
#[pyclass(module = "korvet_core")]
pub struct RecordEncoder(Encoder<Vec<u8>>);

#[pymethods]
impl RecordEncoder {
    #[new]
    #[pyo3(signature = (base_offset, bytes_max, *, at_least_one))]
    fn new(base_offset: i64, bytes_max: usize, at_least_one: bool) -> Self {
        Self(Encoder::new(Vec::new(), base_offset, bytes_max, at_least_one))
    }

    #[pyo3(signature = (records, start, /))]
    fn add(&mut self, records: &Bound<'_, PySequence>, start: usize) -> PyResult<usize> {
        let before = self.0.record_count();
        // By position: an iterator would go over all that the batches before have taken.
        for position in start..records.len()? {
            let record = records.get_item(position)?;
            let (offset, timestamp, key, value, headers) = record.cast::<PyTuple>()?.extract::<RecordFields<'_>>()?;
            let headers = headers
                .iter()
                .map(|(name, content)| Ok((name.to_str()?.as_bytes(), bytes_of(content.as_ref()))))
                .collect::<PyResult<Vec<HeaderFields<'_>>>>()?;
            if !self.0.push(offset, timestamp, bytes_of(key.as_ref()), bytes_of(value.as_ref()), &headers) {
                break;
            }
        }
        Ok(self.0.record_count() - before)
    }

    #[getter]
    fn payload_bytes(&self) -> usize {
        self.0.sink().len()
    }

    fn encoded<'py>(&self, py: Python<'py>) -> Encoded<'py> {
        encoded(PyBytes::new(py, self.0.sink()), &self.0)
    }
}

fn encoded<'py, S: Sink>(payload: Bound<'py, PyBytes>, encoder: &Encoder<S>) -> Encoded<'py> {
    (payload, encoder.record_count(), encoder.last_offset_delta(), encoder.max_timestamp())
}

/// What one field holds in every record, None if it is null in all of them.
type Contents<'py> = Option<Vec<Bound<'py, PyBytes>>>;

struct Columns<'py> {
    runs: Vec<(i64, i64)>,
    timestamps: Vec<i64>,
    keys: Contents<'py>,
    values: Vec<Bound<'py, PyBytes>>,
    headers: Vec<(Bound<'py, PyString>, Contents<'py>)>,
}

impl Columns<'_> {
    /// Give the records to an encoder until it takes no more.
    fn push_to<S: Sink>(&self, encoder: &mut Encoder<S>) -> PyResult<()> {
        let names = self.headers.iter().map(|(name, _)| name.to_str()).collect::<PyResult<Vec<_>>>()?;
        let mut fields: Vec<HeaderFields<'_>> = names.iter().map(|name| (name.as_bytes(), None)).collect();
        let offsets = self.runs.iter().flat_map(|(start, stop)| *start..*stop);
        for (row, ((offset, timestamp), value)) in offsets.zip(&self.timestamps).zip(&self.values).enumerate() {
            for (field, (_, contents)) in fields.iter_mut().zip(&self.headers) {
                field.1 = content_of(contents, row);
            }
            if !encoder.push(offset, *timestamp, content_of(&self.keys, row), Some(value.as_bytes()), &fields) {
                break;
            }
        }
        Ok(())
    }
}

fn bytes_of<'a>(content: Option<&'a Bound<'_, PyBytes>>) -> Option<&'a [u8]> {
    content.map(PyBytesMethods::as_bytes)
}

fn content_of<'a>(contents: &'a Contents<'_>, row: usize) -> Option<&'a [u8]> {
    bytes_of(contents.as_ref()?.get(row))
}

#[pyfunction]
#[pyo3(signature = (runs, timestamps, keys, values, headers, bytes_max, *, at_least_one))]
#[allow(clippy::too_many_arguments)] // the columns, and the limits
pub fn encode_columns<'py>(
    py: Python<'py>,
    runs: Vec<(i64, i64)>,
    timestamps: Vec<i64>,
    keys: Contents<'py>,
    values: Vec<Bound<'py, PyBytes>>,
    headers: Vec<(Bound<'py, PyString>, Contents<'py>)>,
    bytes_max: usize,
    at_least_one: bool,
) -> PyResult<Encoded<'py>> {
    let base_offset = runs.first().map_or(0, |(start, _)| *start);
    let columns = Columns { runs, timestamps, keys, values, headers };
    let mut counted = Encoder::new(0, base_offset, bytes_max, at_least_one);
    columns.push_to(&mut counted)?;
    let payload = PyBytes::new_with(py, *counted.sink(), |place| {
        columns.push_to(&mut Encoder::new(Filled::new(place), base_offset, bytes_max, at_least_one))
    })?;
    Ok(encoded(payload, &counted))
}
