//! RESP between bytes and Python: commands of arguments, replies as objects.
//!
//! A status, a string and a verbatim string are `bytes`, an error is what a callable makes of its text, a map is a list of
//! pairs, a set and a push are lists; attributes are left out. Objects are made from the bytes where they were received.
//!
//! To make an object may run any code of Python, by the garbage collector or in the callable: nothing but a [`RespReader`]
//! is borrowed meanwhile, which only its owner calls.

use std::collections::TryReserveError;

use korvet_proto::pipeline::Packed;
use korvet_proto::resp::{Element, Elements, Inbox, put_argument, put_count, put_integer};
use korvet_proto::shared::Shared;
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::types::{PyBytes, PyInt, PyList, PyMemoryView, PyString, PyTuple};
use pyo3::{Borrowed, ffi, prelude::*};

use crate::buffer::Bytes;

/// From this size on an argument is not copied before it is written.
const PAYLOAD_BYTES_MIN: usize = 2048;
/// What most requests need.
const TEXT_BYTES: usize = 256;

enum Owner {
    Bytes(#[allow(dead_code)] Py<PyBytes>),
    View(#[allow(dead_code)] Bytes),
    Shared(#[allow(dead_code)] Shared),
}

/// An argument where its owner has it: Python, or the frame of a client.
pub struct Payload {
    _owner: Owner,
    start: *const u8,
    size: usize,
}

// SAFETY: the pointer is to bytes of the owner, which may be sent, and is only followed with the GIL (below).
#[allow(unsafe_code)]
unsafe impl Send for Payload {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Payload {}

impl Payload {
    fn new(owner: Owner, bytes: &[u8]) -> Self {
        Self { _owner: owner, start: bytes.as_ptr(), size: bytes.len() }
    }
}

impl From<Shared> for Payload {
    fn from(shared: Shared) -> Self {
        let (start, size) = (shared.as_ref().as_ptr(), shared.as_ref().len());
        Self { _owner: Owner::Shared(shared), start, size }
    }
}

impl AsRef<[u8]> for Payload {
    #[allow(unsafe_code)]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the owner keeps the bytes where they are: `bytes` do not move, a view pins what it shows, and nobody
        // changes what is shared. Payloads are within objects whose methods keep the GIL and call no Python while they have the slice, so nothing writes.
        unsafe { std::slice::from_raw_parts(self.start, self.size) }
    }
}

/// Bytes of Python where they are: `bytes`, or another contiguous buffer.
pub fn payload_of(object: &Bound<'_, PyAny>) -> PyResult<Payload> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Payload::new(Owner::Bytes(bytes.clone().unbind()), bytes.as_bytes()));
    }
    let view: Bytes = object.extract()?;
    let bytes = view.get(object.py());
    let (start, size) = (bytes.as_ptr(), bytes.len());
    Ok(Payload { _owner: Owner::View(view), start, size })
}

fn put_bytes(packed: &mut Packed<Payload>, argument: Borrowed<'_, '_, PyBytes>) {
    let bytes = argument.as_bytes();
    if bytes.len() < PAYLOAD_BYTES_MIN {
        put_argument(&mut packed.text, bytes);
    } else {
        packed.put_payload(Payload::new(Owner::Bytes(argument.to_owned().unbind()), bytes));
    }
}

fn put_view(py: Python<'_>, packed: &mut Packed<Payload>, argument: Borrowed<'_, '_, PyMemoryView>) -> PyResult<()> {
    let view: Bytes = argument.extract()?;
    let bytes = view.get(py);
    if bytes.len() < PAYLOAD_BYTES_MIN {
        put_argument(&mut packed.text, bytes);
        return Ok(());
    }
    let (start, size) = (bytes.as_ptr(), bytes.len());
    packed.put_payload(Payload { _owner: Owner::View(view), start, size });
    Ok(())
}

fn put_int(packed: &mut Packed<Payload>, argument: Borrowed<'_, '_, PyInt>) -> PyResult<()> {
    match argument.extract::<i64>() {
        Ok(number) => put_integer(&mut packed.text, number),
        Err(_) => put_argument(&mut packed.text, argument.str()?.to_str()?.as_bytes()),
    }
    Ok(())
}

/// Write an argument, or all of a sequence of arguments.
pub fn put_item(packed: &mut Packed<Payload>, item: Borrowed<'_, '_, PyAny>, is_nested: bool) -> PyResult<()> {
    if let Ok(bytes) = item.cast::<PyBytes>() {
        put_bytes(packed, bytes);
    } else if let Ok(text) = item.cast::<PyString>() {
        put_argument(&mut packed.text, text.to_str()?.as_bytes());
    } else if let Ok(number) = item.cast_exact::<PyInt>() {
        put_int(packed, number)?;
    } else if let Ok(view) = item.cast::<PyMemoryView>() {
        put_view(item.py(), packed, view)?;
    } else if !is_nested && is_sequence(&item) {
        each_of(&item, |argument| put_item(packed, argument, true))?;
    } else {
        let message = format!("an argument of a command is of type {}", item.get_type().name()?);
        return Err(PyTypeError::new_err(message));
    }
    Ok(())
}

fn is_sequence(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>()
}

/// Call a function with each item of a tuple, a list or another sequence.
pub fn each_of(
    sequence: &Bound<'_, PyAny>,
    mut call: impl FnMut(Borrowed<'_, '_, PyAny>) -> PyResult<()>,
) -> PyResult<()> {
    if let Ok(tuple) = sequence.cast::<PyTuple>() {
        return tuple.iter_borrowed().try_for_each(call);
    }
    if let Ok(list) = sequence.cast::<PyList>() {
        return list.iter().try_for_each(|item| call(item.as_borrowed()));
    }
    sequence.try_iter()?.try_for_each(|item| call(item?.as_borrowed()))
}

/// Write a command; fails if it has no words. `bytes` are one as the server takes it.
pub fn put_command(packed: &mut Packed<Payload>, command: Borrowed<'_, '_, PyAny>) -> PyResult<()> {
    if let Ok(text) = command.cast::<PyBytes>() {
        packed.text.extend_from_slice(text.as_bytes());
        return Ok(());
    }
    let mut count = 0;
    each_of(&command, |item| {
        count += if is_sequence(&item) { item.len()? } else { 1 };
        Ok(())
    })?;
    if count == 0 {
        return Err(PyValueError::new_err("a command has no words: Redis would not answer it"));
    }
    put_count(&mut packed.text, count);
    each_of(&command, |item| put_item(packed, item, false))
}

/// Room for what most requests need.
pub fn new_packed() -> Packed<Payload> {
    let mut packed = Packed::default();
    packed.text = Vec::with_capacity(TEXT_BYTES);
    packed
}

#[pyfunction]
#[pyo3(signature = (command, /))]
pub fn pack_command<'py>(py: Python<'py>, command: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let mut packed = Packed::default();
    put_command(&mut packed, command.as_borrowed())?;
    Ok(PyBytes::new(py, &packed.joined()))
}

/// Makes objects of replies.
pub struct Builder<'py> {
    pub py: Python<'py>,
    error_of: Bound<'py, PyAny>,
}

impl<'py> Builder<'py> {
    pub fn new(py: Python<'py>, error_of: &Py<PyAny>) -> Self {
        Self { py, error_of: error_of.bind(py).clone() }
    }

    /// The object of a whole reply. Fails if there is no memory for it.
    pub fn build(&self, reply: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        self.next(&mut Elements::of(reply))
    }

    fn next(&self, elements: &mut Elements<'_>) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        loop {
            let element = elements.next().ok_or_else(|| PyValueError::new_err("a reply is not whole"))?;
            return Ok(match element {
                Element::Bulk(bytes) | Element::Simple(bytes) | Element::Verbatim(bytes) => bytes_of(py, bytes)?,
                Element::Integer(number) => number.into_pyobject(py)?.into_any(),
                Element::Null => py.None().into_bound(py),
                Element::Array(count) | Element::Set(count) | Element::Push(count) => {
                    list_of(py, count, || self.next(elements))?
                }
                Element::Map(count) => list_of(py, count, || {
                    let pair = [self.next(elements)?, self.next(elements)?];
                    Ok(PyTuple::new(py, pair)?.into_any())
                })?,
                Element::Attribute(count) => {
                    for _ in 0..count * 2 {
                        self.next(elements)?;
                    }
                    // Not a call: any number of attributes may follow one another, and each call takes stack.
                    continue;
                }
                Element::Error(text) => self.error(text),
                Element::Double(number) => number.into_pyobject(py)?.into_any(),
                Element::Boolean(is_true) => is_true.into_pyobject(py)?.to_owned().into_any(),
                Element::BigNumber(digits) => py.get_type::<PyInt>().call1((String::from_utf8_lossy(digits),))?,
            });
        }
    }

    /// What the callable makes of an error. If it fails, that is the reply: the others must not be lost.
    fn error(&self, text: &[u8]) -> Bound<'py, PyAny> {
        let made = self.error_of.call1((String::from_utf8_lossy(text),));
        made.unwrap_or_else(|failure| failure.into_value(self.py).into_bound(self.py).into_any())
    }
}

#[allow(unsafe_code)]
pub fn bytes_of<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let size = ffi::Py_ssize_t::try_from(bytes.len())?;
    // SAFETY: the pointer and the size are of one slice, and the call returns a new reference or fails. PyO3's own way
    // panics if there is no memory for a large reply.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), size)) }
}

/// A list of `count` objects, which all are there: the reply is whole.
#[allow(unsafe_code)]
pub fn list_of<'py>(
    py: Python<'py>,
    count: usize,
    mut make: impl FnMut() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let size = ffi::Py_ssize_t::try_from(count)?;
    // SAFETY: the call returns a new reference or fails. The places of the list are empty, which Python allows in a list
    // that nobody else has.
    let list = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyList_New(size))? };
    for place in 0..size {
        let item = make()?;
        // SAFETY: the list is one, the place is below its size, and the call takes over the reference.
        unsafe { ffi::PyList_SetItem(list.as_ptr(), place, item.into_ptr()) };
    }
    Ok(list)
}

pub fn no_memory(error: TryReserveError) -> PyErr {
    PyMemoryError::new_err(error.to_string())
}

/// The bytes of a whole reply, of which no objects were made.
#[pyclass(module = "korvet_core", frozen)]
pub struct RawReply(pub Shared);

#[pymethods]
impl RawReply {
    #[new]
    #[pyo3(signature = (reply, /))]
    fn new(py: Python<'_>, reply: Bytes) -> Self {
        Self(reply.get(py).to_vec().into())
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        bytes_of(py, self.0.as_ref())
    }
}

/// Takes what a server sends, in pieces of any size.
#[pyclass(module = "korvet_core")]
pub struct RespReader {
    inbox: Inbox,
    error_of: Py<PyAny>,
}

#[pymethods]
impl RespReader {
    #[new]
    #[pyo3(signature = (error_of, /))]
    fn new(error_of: Py<PyAny>) -> Self {
        Self { inbox: Inbox::default(), error_of }
    }

    #[pyo3(signature = (data, /))]
    fn feed(&mut self, py: Python<'_>, data: Bytes) -> PyResult<()> {
        let data = data.get(py);
        self.inbox.room(data.len()).map_err(no_memory)?.extend_from_slice(data);
        Ok(())
    }

    #[pyo3(signature = (missing, /))]
    fn next_reply<'py>(&mut self, missing: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let reply = self.inbox.next_reply().map_err(|malformed| PyValueError::new_err(malformed.to_string()))?;
        let Some(reply) = reply else { return Ok(missing) };
        // Where they were received: a copy of a large reply costs more than its objects. So nobody may call this reader
        // meanwhile, and who does gets an error of PyO3, for it is borrowed.
        Builder::new(missing.py(), &self.error_of).build(self.inbox.bytes().get(reply).unwrap_or_default())
    }
}
