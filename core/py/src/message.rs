//! Messages of all APIs between frames and the structs that Python declares.
//!
//! A [`MessageCodec`] has the fields of one version, as korvet/protocol/compile.py gives them: nested tuples. An array of
//! `LONG_ARRAY_MIN` elements or more becomes a list of the caller's making, and is gone through by an iterator of it: by
//! them a broker lets others run in between. So Python runs, and switches greenlets, while a message is read: what is
//! kept of the frame meanwhile is its buffer and a position.

use korvet_proto::Malformed;
use korvet_proto::wire::{Reader, put_varint, text};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyMemoryView, PySequence, PyString, PyTuple};

use crate::buffer::Bytes;
use crate::frame::ProtocolError;

/// Elements from which on an array is long: what it takes to go through it may be noticed by others.
const LONG_ARRAY_MIN: usize = 64;
/// Bytes from which on the value of a field is passed on and not copied.
const LONG_BYTES_MIN: usize = 4096;
/// What most responses take besides their records.
const OUT_BYTES: usize = 256;
const UUID_BYTES: usize = 16;

enum Kind {
    Int8,
    Int16,
    UInt16,
    Int32,
    UInt32,
    Int64,
    Float64,
    Boolean,
    Uuid,
    String,
    Bytes,
    Records,
    List(Box<Kind>),
    Part(Box<Part>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Kind {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(element) = object.cast::<PyList>() {
            return Ok(Self::List(Box::new(element.get_item(0)?.extract()?)));
        }
        if object.is_instance_of::<PyTuple>() {
            return Ok(Self::Part(Box::new(object.extract()?)));
        }
        Ok(match object.extract::<&str>()? {
            "b" => Self::Int8,
            "h" => Self::Int16,
            "H" => Self::UInt16,
            "i" => Self::Int32,
            "I" => Self::UInt32,
            "q" => Self::Int64,
            "d" => Self::Float64,
            "?" => Self::Boolean,
            "16s" => Self::Uuid,
            "string" => Self::String,
            "bytes" => Self::Bytes,
            "records" => Self::Records,
            other => return Err(PyTypeError::new_err(format!("{other} is no wire type"))),
        })
    }
}

/// A field: its name twice, its type, whether it may be null, its tag (0 without), and its default.
struct Field {
    name: Py<PyString>,
    label: String,
    kind: Kind,
    nullable: bool,
    tag: u32,
    default: Py<PyAny>,
}

impl<'a, 'py> FromPyObject<'a, 'py> for Field {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let (name, kind, nullable, tag, default): (Bound<'py, PyString>, Kind, bool, u32, Py<PyAny>) =
            object.extract()?;
        let label = name.to_str()?.to_owned();
        Ok(Self { name: name.unbind(), label, kind, nullable, tag, default })
    }
}

/// A struct: its class, its fields in wire order, its tagged fields by their tags, and fields that must hold a default.
#[derive(FromPyObject)]
struct Part(Py<PyAny>, Vec<Field>, Vec<Field>, Vec<(Py<PyString>, Py<PyAny>)>);

impl Field {
    fn is_default(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        is_default(value, self.default.bind(py))
    }
}

fn is_default(value: &Bound<'_, PyAny>, default: &Bound<'_, PyAny>) -> PyResult<bool> {
    if value.is(default) {
        return Ok(true);
    }
    Ok(!default.is_none() && value.eq(default)?)
}

/// Encodes and decodes a message in one version.
#[pyclass(frozen, module = "korvet_core")]
pub struct MessageCodec {
    name: String,
    version: i16,
    flexible: bool,
    part: Part,
}

#[pymethods]
impl MessageCodec {
    #[new]
    #[pyo3(signature = (name, version, flexible, part, /))]
    fn new(name: String, version: i16, flexible: bool, part: Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { name, version, flexible, part: part.extract()? })
    }

    #[pyo3(signature = (frame, position, long_array, /))]
    fn decode<'py>(
        &self,
        frame: Bound<'py, PyAny>,
        position: usize,
        long_array: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes = frame.extract()?;
        let mut decoder =
            Decoder { reader: Reader::new(position, self.flexible), frame, bytes, view: None, long_array };
        let fields = PyDict::new(decoder.frame.py());
        decoder.part(&self.part, &fields, self.flexible).map_err(|stop| match stop {
            Stop::Malformed(why) => ProtocolError::new_err(format!("{} v{}: {why}", self.name, self.version)),
            Stop::Failed(error) => error,
        })
    }

    #[pyo3(signature = (message, each_of, /))]
    fn encode<'py>(
        &self,
        message: Bound<'py, PyAny>,
        each_of: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = message.py();
        let mut encoder = Encoder {
            flexible: self.flexible,
            version: self.version,
            out: Vec::with_capacity(OUT_BYTES),
            chunks: PyList::empty(py),
            in_tag: false,
            each_of,
        };
        encoder.part(&self.part, &message)?;
        encoder.flush()?;
        Ok(encoder.chunks)
    }
}

enum Stop {
    Malformed(Malformed),
    Failed(PyErr),
}

impl From<Malformed> for Stop {
    fn from(why: Malformed) -> Self {
        Self::Malformed(why)
    }
}

impl From<PyErr> for Stop {
    fn from(error: PyErr) -> Self {
        Self::Failed(error)
    }
}

struct Decoder<'py> {
    reader: Reader,
    frame: Bound<'py, PyAny>,
    bytes: Bytes,
    view: Option<Bound<'py, PyMemoryView>>,
    long_array: Option<Bound<'py, PyAny>>,
}

macro_rules! number {
    ($decoder:ident, $type:ty) => {
        <$type>::from_be_bytes($decoder.reader.array($decoder.bytes.get($decoder.frame.py()))?)
            .into_pyobject($decoder.frame.py())
            .map_err(PyErr::from)?
            .into_any()
    };
}

impl<'py> Decoder<'py> {
    /// Read a struct; `fields` is for its arguments, and may have those of another one of the same class.
    fn part(&mut self, part: &Part, fields: &Bound<'py, PyDict>, flexible: bool) -> Result<Bound<'py, PyAny>, Stop> {
        let (py, Part(class, plain, tagged, _)) = (self.frame.py(), part);
        for field in plain {
            fields.set_item(field.name.bind(py), self.value(&field.kind, &field.label, field.nullable, flexible)?)?;
        }
        let tags = if flexible { self.reader.tag_count(self.bytes.get(py))? } else { 0 };
        for _ in 0..tags {
            self.tagged(tagged, fields)?;
        }
        let made = class.bind(py).call((), Some(fields))?;
        if tags > 0 {
            fields.clear();
        }
        Ok(made)
    }

    fn tagged(&mut self, known: &[Field], fields: &Bound<'py, PyDict>) -> Result<(), Stop> {
        let py = self.frame.py();
        let (tag, end) = self.reader.tag(self.bytes.get(py))?;
        let Some(field) = known.iter().find(|field| field.tag == tag) else {
            self.reader.skip_to(end);
            return Ok(());
        };
        let begin = self.reader.position();
        fields.set_item(field.name.bind(py), self.value(&field.kind, &field.label, field.nullable, true)?)?;
        Ok(self.reader.end_tag(&field.label, begin, end)?)
    }

    fn value(&mut self, kind: &Kind, name: &str, nullable: bool, flexible: bool) -> Result<Bound<'py, PyAny>, Stop> {
        let py = self.frame.py();
        Ok(match kind {
            Kind::Int8 => number!(self, i8),
            Kind::Int16 => number!(self, i16),
            Kind::UInt16 => number!(self, u16),
            Kind::Int32 => number!(self, i32),
            Kind::UInt32 => number!(self, u32),
            Kind::Int64 => number!(self, i64),
            Kind::Float64 => number!(self, f64),
            Kind::Boolean => {
                let [byte] = self.reader.array(self.bytes.get(py))?;
                pyo3::types::PyBool::new(py, byte != 0).to_owned().into_any()
            }
            Kind::Uuid => PyBytes::new(py, self.reader.bytes(self.bytes.get(py), UUID_BYTES)?).into_any(),
            Kind::String | Kind::Bytes | Kind::Records => {
                let is_string = matches!(kind, Kind::String);
                let Some(size) = self.reader.length(self.bytes.get(py), name, is_string, nullable)? else {
                    return Ok(py.None().into_bound(py));
                };
                let begin = self.reader.position();
                let content = self.reader.bytes(self.bytes.get(py), size)?;
                match kind {
                    Kind::String => PyString::new(py, &text(content)?).into_any(),
                    Kind::Bytes => PyBytes::new(py, content).into_any(),
                    _ => self.view(begin, size)?,
                }
            }
            Kind::List(element) => {
                let Some(count) = self.reader.count(self.bytes.get(py), name, nullable)? else {
                    return Ok(py.None().into_bound(py));
                };
                self.list(element, name, count, flexible)?
            }
            Kind::Part(part) => {
                if nullable && self.reader.array(self.bytes.get(py)).map(i8::from_be_bytes)? < 0 {
                    return Ok(py.None().into_bound(py));
                }
                self.part(part, &PyDict::new(py), flexible)?
            }
        })
    }

    fn list(&mut self, element: &Kind, name: &str, count: usize, flexible: bool) -> Result<Bound<'py, PyAny>, Stop> {
        let py = self.frame.py();
        let (fields, long_array) = (PyDict::new(py), self.long_array.clone());
        let mut next = || match element {
            Kind::Part(part) => self.part(part, &fields, flexible),
            _ => self.value(element, name, false, flexible),
        };
        let Some(long_array) = long_array.filter(|_| count >= LONG_ARRAY_MIN) else {
            let list = PyList::empty(py);
            for _ in 0..count {
                list.append(next()?)?;
            }
            return Ok(list.into_any());
        };
        let list = long_array.call0()?;
        let append = list.getattr(pyo3::intern!(py, "append"))?;
        for _ in 0..count {
            append.call1((next()?,))?;
        }
        Ok(list)
    }

    #[allow(unsafe_code)]
    fn view(&mut self, begin: usize, size: usize) -> PyResult<Bound<'py, PyAny>> {
        let py = self.frame.py();
        let view = match &self.view {
            Some(view) => view,
            None => self.view.insert(PyMemoryView::from(&self.frame)?),
        };
        let (begin, end) = (isize::try_from(begin)?, isize::try_from(begin + size)?);
        // SAFETY: the view is an object, and the call returns a new reference or fails. PyO3's own ways leak the numbers
        // of a slice (PySlice::new in 0.30), or ask Python at 400 ns whether a memoryview is a sequence.
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PySequence_GetSlice(view.as_ptr(), begin, end)) }
    }
}

struct Encoder<'py> {
    flexible: bool,
    version: i16,
    out: Vec<u8>,
    chunks: Bound<'py, PyList>,
    in_tag: bool,
    each_of: Option<Bound<'py, PyAny>>,
}

impl<'py> Encoder<'py> {
    fn flush(&mut self) -> PyResult<()> {
        if !self.out.is_empty() {
            self.chunks.append(PyBytes::new(self.chunks.py(), &self.out))?;
            self.out.clear();
        }
        Ok(())
    }

    fn part(&mut self, part: &Part, value: &Bound<'py, PyAny>) -> PyResult<()> {
        let (py, Part(_, plain, tagged, absent)) = (value.py(), part);
        for (name, default) in absent {
            if !is_default(&value.getattr(name.bind(py))?, default.bind(py))? {
                let message = format!("version {} has no field {name}", self.version);
                return Err(PyValueError::new_err(message));
            }
        }
        for field in plain {
            self.value(&field.kind, &value.getattr(field.name.bind(py))?, field.nullable)?;
        }
        if self.flexible {
            self.tagged(tagged, value)?;
        }
        Ok(())
    }

    fn tagged(&mut self, fields: &[Field], value: &Bound<'py, PyAny>) -> PyResult<()> {
        let py = value.py();
        let (mut count, was_in_tag) = (0, std::mem::replace(&mut self.in_tag, true));
        let before = std::mem::take(&mut self.out);
        let mut block = Vec::new();
        for field in fields {
            let content = value.getattr(field.name.bind(py))?;
            if !field.is_default(py, &content)? {
                count += 1;
                self.value(&field.kind, &content, field.nullable)?;
                put_varint(&mut block, field.tag);
                put_varint(&mut block, u32::try_from(self.out.len())?);
                block.append(&mut self.out);
            }
        }
        (self.out, self.in_tag) = (before, was_in_tag);
        put_varint(&mut self.out, count);
        self.out.append(&mut block);
        Ok(())
    }

    fn value(&mut self, kind: &Kind, value: &Bound<'py, PyAny>, nullable: bool) -> PyResult<()> {
        match kind {
            Kind::Int8 => self.out.extend_from_slice(&value.extract::<i8>()?.to_be_bytes()),
            Kind::Int16 => self.out.extend_from_slice(&value.extract::<i16>()?.to_be_bytes()),
            Kind::UInt16 => self.out.extend_from_slice(&value.extract::<u16>()?.to_be_bytes()),
            Kind::Int32 => self.out.extend_from_slice(&value.extract::<i32>()?.to_be_bytes()),
            Kind::UInt32 => self.out.extend_from_slice(&value.extract::<u32>()?.to_be_bytes()),
            Kind::Int64 => self.out.extend_from_slice(&value.extract::<i64>()?.to_be_bytes()),
            Kind::Float64 => self.out.extend_from_slice(&value.extract::<f64>()?.to_be_bytes()),
            Kind::Boolean => self.out.push(u8::from(value.is_truthy()?)),
            Kind::Uuid => match value.cast::<PyBytes>()?.as_bytes() {
                id if id.len() == UUID_BYTES => self.out.extend_from_slice(id),
                id => return Err(PyValueError::new_err(format!("a uuid of {} bytes", id.len()))),
            },
            _ if nullable && value.is_none() => self.null(kind),
            Kind::String => {
                let text = value.cast::<PyString>()?.to_str()?;
                self.length(text.len(), true)?;
                self.out.extend_from_slice(text.as_bytes());
            }
            Kind::Bytes => {
                let content: Bytes = value.extract()?;
                let content = content.get(value.py());
                self.length(content.len(), false)?;
                if content.len() < LONG_BYTES_MIN {
                    self.out.extend_from_slice(content);
                } else {
                    self.pass_on(value)?;
                }
            }
            Kind::Records => self.records(value)?,
            Kind::List(element) => self.list(element, value)?,
            Kind::Part(part) => {
                if nullable {
                    self.out.push(1);
                }
                match value.cast::<PyBytes>() {
                    Ok(encoded) => self.out.extend_from_slice(encoded.as_bytes()),
                    Err(_) => self.part(part, value)?,
                }
            }
        }
        Ok(())
    }

    fn records(&mut self, value: &Bound<'py, PyAny>) -> PyResult<()> {
        let Ok(pieces) = value.cast::<PyList>() else {
            self.length(value.len()?, false)?;
            return self.pass_on(value);
        };
        let mut size = 0;
        for piece in pieces.iter() {
            size += piece.len()?;
        }
        self.length(size, false)?;
        for piece in pieces.iter() {
            self.pass_on(&piece)?;
        }
        Ok(())
    }

    fn pass_on(&mut self, chunk: &Bound<'py, PyAny>) -> PyResult<()> {
        if self.in_tag {
            // The size of the tagged field stands before it, and is not known yet.
            self.out.extend_from_slice(chunk.extract::<Bytes>()?.get(chunk.py()));
            return Ok(());
        }
        self.flush()?;
        self.chunks.append(chunk)
    }

    fn list(&mut self, element: &Kind, value: &Bound<'py, PyAny>) -> PyResult<()> {
        let count = value.cast::<PySequence>()?.len()?;
        self.length(count, false)?;
        match self.each_of.as_ref().filter(|_| count >= LONG_ARRAY_MIN) {
            None => value.try_iter()?.try_for_each(|item| self.value(element, &item?, false)),
            Some(each_of) => {
                each_of.call1((value,))?.try_iter()?.try_for_each(|item| self.value(element, &item?, false))
            }
        }
    }

    fn length(&mut self, length: usize, is_string: bool) -> PyResult<()> {
        if self.flexible {
            put_varint(&mut self.out, u32::try_from(length)?.saturating_add(1));
        } else if is_string {
            self.out.extend_from_slice(&i16::try_from(length)?.to_be_bytes());
        } else {
            self.out.extend_from_slice(&i32::try_from(length)?.to_be_bytes());
        }
        Ok(())
    }

    fn null(&mut self, kind: &Kind) {
        match kind {
            Kind::Part(_) => self.out.push(0xFF),
            _ if self.flexible => self.out.push(0),
            Kind::String => self.out.extend_from_slice(&(-1_i16).to_be_bytes()),
            _ => self.out.extend_from_slice(&(-1_i32).to_be_bytes()),
        }
    }
}
