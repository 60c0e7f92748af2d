//! Record batches.

use korvet_proto::batch::{Header, Record, Walk};
use korvet_proto::compression::Codec;
use korvet_proto::cursor::Cursor;
use korvet_proto::{ErrorCode, Refusal, batch};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::buffer::Bytes;

pyo3::create_exception!(
    korvet_core,
    RefusedError,
    PyValueError,
    "A batch is not taken; args: Kafka's error code, a sentence."
);

type WalkFields = (usize, i64, i64, usize);

fn fields_of(walk: Walk) -> WalkFields {
    (walk.plain_bytes, walk.min_timestamp, walk.max_timestamp, walk.null_keys)
}

pub fn refused(refusal: Refusal) -> PyErr {
    RefusedError::new_err((refusal.code as i16, refusal.message.into_owned()))
}

pub fn header_of<'a>(py: Python<'a>, sent: &'a Bytes) -> PyResult<(Header, &'a [u8])> {
    let sent = sent.get(py);
    Header::read(sent).map(|header| (header, sent)).ok_or_else(|| PyValueError::new_err("the header is cut off"))
}

pub fn as_tuple<'py>(
    py: Python<'py>,
    record: &Record<'_>,
    offset: i64,
    timestamp: i64,
) -> PyResult<Bound<'py, PyTuple>> {
    let nullable = |bytes: Option<&[u8]>| bytes.map(|bytes| PyBytes::new(py, bytes));
    let headers = record.headers().map(|(name, value)| (PyString::new(py, &batch::text_of(name)), nullable(value)));
    (offset, timestamp, nullable(record.key), nullable(record.value), PyList::new(py, headers)?).into_pyobject(py)
}

pub fn codec(number: i16) -> PyResult<Codec> {
    Codec::of(number).ok_or_else(|| {
        let message = format!("compression codec {number} is unknown");
        refused(Refusal::new(ErrorCode::UnsupportedCompressionType, message))
    })
}

#[pyfunction]
#[pyo3(signature = (sent, message_bytes_max, /))]
pub fn check_header(py: Python<'_>, sent: Bytes, message_bytes_max: usize) -> PyResult<()> {
    Header::of_produced(sent.get(py), message_bytes_max).map(drop).map_err(refused)
}

#[pyfunction]
#[pyo3(signature = (sent, plain_bytes_max, number = None, append_timestamp = None, /))]
pub fn walk(
    py: Python<'_>,
    sent: Bytes,
    plain_bytes_max: usize,
    number: Option<i16>,
    append_timestamp: Option<i64>,
) -> PyResult<(WalkFields, Option<Bound<'_, PyBytes>>)> {
    let (header, sent) = header_of(py, &sent)?;
    let plain = header.decompressed(sent, plain_bytes_max).map_err(refused)?;
    let walk = header.walk_plain(&plain).map_err(refused)?;
    let wanted = number.map(codec).transpose()?;
    let stored = header.as_stored(&walk, wanted, append_timestamp);
    let batch = match wanted {
        _ if stored == header => return Ok((fields_of(walk), None)),
        Some(codec) if stored.codec_number() != header.codec_number() => stored.sealed_with(&codec.compress(&plain)?),
        _ => stored.sealed(sent.to_vec()),
    };
    Ok((fields_of(walk), Some(PyBytes::new(py, &batch))))
}

#[pyfunction]
#[pyo3(signature = (number, data, /))]
pub fn compress(py: Python<'_>, number: i16, data: Bytes) -> PyResult<Bound<'_, PyBytes>> {
    Ok(PyBytes::new(py, &codec(number)?.compress(data.get(py))?))
}

#[pyfunction]
#[pyo3(signature = (number, data, limit, /))]
pub fn decompress(py: Python<'_>, number: i16, data: Bytes, limit: usize) -> PyResult<Bound<'_, PyBytes>> {
    let plain = codec(number)?.decompress(data.get(py), limit).map_err(refused)?;
    Ok(PyBytes::new(py, &plain))
}

#[pyfunction]
#[pyo3(signature = (data, crc = 0, /))]
pub fn crc32c(py: Python<'_>, data: Bytes, crc: u32) -> u32 {
    batch::crc32c(crc, data.get(py))
}

/// Iterates over the records of a batch, whose bytes it keeps decompressed.
#[pyclass(module = "korvet_core")]
pub struct Records {
    plain: Vec<u8>,
    position: usize,
    rest: batch::Rest,
    base_offset: i64,
    append_timestamp: Option<i64>,
}

#[pymethods]
impl Records {
    #[new]
    #[pyo3(signature = (batch, base_offset, plain_bytes_max, plain, /))]
    fn new(
        py: Python<'_>,
        batch: Bytes,
        base_offset: i64,
        plain_bytes_max: usize,
        plain: Option<Bytes>,
    ) -> PyResult<Self> {
        let (header, batch) = header_of(py, &batch)?;
        let plain = plain.as_ref().map(|plain| plain.get(py));
        let plain = header.stored_records(batch, plain, plain_bytes_max).map_err(refused)?.into_owned();
        let (rest, append_timestamp) = (header.records(&[]).rest(), header.append_time());
        Ok(Self { plain, position: 0, rest, base_offset, append_timestamp })
    }

    fn __iter__(records: PyRef<'_, Self>) -> PyRef<'_, Self> {
        records
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let plain = Cursor::new(self.plain.get(self.position..).unwrap_or_default());
        let mut records = batch::Records::new(plain, self.rest);
        let record = records.next().transpose().map_err(|refusal| refused(refusal.of_stored()))?;
        let Some(record) = record else { return Ok(None) };
        (self.position, self.rest) = (self.plain.len() - records.bytes_left(), records.rest());
        let offset = self.base_offset.wrapping_add(record.offset_delta.into());
        let timestamp = self.append_timestamp.unwrap_or(record.timestamp);
        as_tuple(py, &record, offset, timestamp).map(Some)
    }
}
