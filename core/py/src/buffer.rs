//! The bytes of a Python object, looked at where they lie, and bytes of Rust that Python sees where they lie.

use std::ffi::c_int;

use pyo3::buffer::PyBuffer;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

/// Bytes of `bytes`, `bytearray` or `memoryview`, one after the other.
pub struct Bytes(PyBuffer<u8>);

impl Bytes {
    /// The bytes, until Python runs again.
    #[allow(unsafe_code)]
    pub fn get<'a>(&'a self, _gil: Python<'a>) -> &'a [u8] {
        let (start, size) = (self.0.buf_ptr(), self.0.len_bytes());
        if size == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous (below) and pinned by its view. Nothing writes to it while the thread has the
        // GIL and calls no Python, which is how long the caller may keep the slice.
        unsafe { std::slice::from_raw_parts(start.cast(), size) }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Bytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(&object)?;
        if buffer.is_c_contiguous() {
            return Ok(Self(buffer));
        }
        Err(pyo3::exceptions::PyBufferError::new_err("the bytes do not lie one after the other"))
    }
}

/// Bytes that Python may read, and nobody changes.
#[pyclass(module = "korvet_core", frozen)]
pub struct Owned {
    bytes: Vec<u8>,
    begin: usize,
}

impl Owned {
    /// Take bytes, which are freed with the object and its views.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self::from(bytes, 0)
    }

    /// Show only what follows `begin`.
    pub fn from(bytes: Vec<u8>, begin: usize) -> Self {
        Self { bytes, begin }
    }

    /// A view of the bytes.
    pub fn view<'py>(owned: &Bound<'py, Self>) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(owned.as_any())
    }
}

#[pymethods]
impl Owned {
    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(owned: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let Self { bytes, begin } = owned.get();
        let bytes = bytes.get(*begin..).unwrap_or_default();
        let size = ffi::Py_ssize_t::try_from(bytes.len())?;
        // SAFETY: Python gives a view to fill in. It keeps the object as long as the view, and neither the vector nor
        // its bytes change, for the object is frozen and the view is read-only.
        let status =
            unsafe { ffi::PyBuffer_FillInfo(view, owned.as_ptr(), bytes.as_ptr().cast_mut().cast(), size, 1, flags) };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(owned.py())) }
    }
}
