//! The bytes of a Python object, looked at where they lie.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

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
