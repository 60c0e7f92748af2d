//! Frames of clients.

use std::borrow::Cow;

use korvet_proto::Malformed;
use korvet_proto::frame;
use korvet_proto::wire::Reader;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::buffer::Bytes;

pyo3::create_exception!(
    korvet_core,
    ProtocolError,
    PyException,
    "The connection has to close, with a log line: a broken protocol, or something that no response can say."
);

type HeaderFields<'a> = (i16, i16, i32, Option<Cow<'a, str>>, usize);

fn malformed(error: Malformed) -> PyErr {
    ProtocolError::new_err(error.to_string())
}

#[pyfunction]
#[pyo3(signature = (frame, flexible_from, /))]
pub fn request_header(frame: Bytes, flexible_from: Bound<'_, PyDict>) -> PyResult<Bound<'_, PyTuple>> {
    let py = flexible_from.py();
    let first = |api_key| flexible_from.get_item(api_key).ok().flatten()?.extract().ok();
    let header = frame::request_header(frame.get(py), first).map_err(malformed)?;
    let fields: HeaderFields<'_> =
        (header.api_key, header.api_version, header.correlation_id, header.client_id, header.body);
    fields.into_pyobject(py)
}

#[pyfunction]
#[pyo3(signature = (frame, position, /))]
pub fn skip_tagged_fields(py: Python<'_>, frame: Bytes, position: usize) -> PyResult<usize> {
    let mut reader = Reader::new(position, true);
    reader.skip_tags(frame.get(py)).map_err(malformed)?;
    Ok(reader.position())
}
