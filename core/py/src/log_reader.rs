//! Reading logs for Python: the commands of reads, and what their replies are.

use std::collections::HashMap;
use std::sync::Arc;

use korvet_proto::client::slot_of;
use korvet_proto::compression::Codec;
use korvet_proto::failure::{Failure, FailureKind};
use korvet_proto::log::{Bounds, Known, Outcome, Page, Read, Sent};
use korvet_proto::partition::{AtRest, Keys, Layout, Partition, Topic, TopicConfig};
use korvet_proto::resp::{Element, Elements};
use pyo3::types::{PyBytes, PyList, PyTuple};
use pyo3::{IntoPyObjectExt, intern, prelude::*};

use crate::fetched::Fetched;
use crate::resp::RawReply;

/// Partitions that are kept as the core has them; all are forgotten beyond it.
const PARTITIONS_MAX: usize = 20_000;
/// What the commands of most reads take.
const COMMANDS_BYTES: usize = 512;
/// What no read asks for: how a topic's records are written.
const CONFIG: TopicConfig = TopicConfig {
    codec: None,
    consumer_codec: Codec::None,
    at_rest: AtRest { codec: None, min_bytes: 0 },
    max_message_bytes: 0,
    max_message_records: 0,
    is_compacted: false,
    has_append_time: false,
    timestamp_before_max_ms: 0,
    timestamp_after_max_ms: 0,
};

/// A partition: korvet/topics/types.py.
#[derive(FromPyObject)]
struct PartitionArgs {
    topic: String,
    index: i32,
    topic_id: String,
    bits: i32,
    format: String,
    stream: String,
    state: String,
    index_key: String,
    open_transactions: String,
    aborted: String,
    compacted: (String, String),
    channel: String,
    replicas: u32,
}

impl From<PartitionArgs> for Partition {
    fn from(args: PartitionArgs) -> Self {
        let layout = layout_of(&args.format, args.bits);
        let slot = slot_of(args.stream.as_bytes());
        let topic = Topic { name: args.topic.into(), id: [0; 16], id_text: args.topic_id.into(), config: CONFIG };
        let keys = Keys {
            stream: args.stream.into(),
            state: args.state.into(),
            index: args.index_key.into(),
            open: args.open_transactions.into(),
            aborted: args.aborted.into(),
            compacted: [args.compacted.0.into(), args.compacted.1.into()],
            channel: args.channel.into(),
        };
        Self { topic: Arc::new(topic), index: args.index, layout, keys, slot, replicas: args.replicas }
    }
}

fn layout_of(format: &str, bits: i32) -> Layout {
    if format == "batch" { Layout::Batch } else { Layout::Record { bits: u8::try_from(bits).unwrap_or(0) } }
}

pub fn partition_of(partition: &Bound<'_, PyAny>) -> PyResult<Partition> {
    Ok(partition.extract::<PartitionArgs>()?.into())
}

/// A read, and its commands.
#[pyclass(module = "korvet_core", frozen)]
pub struct LogRead {
    read: Read,
    sent: Sent,
    /// Each as Redis takes it.
    #[pyo3(get)]
    commands: Py<PyList>,
}

/// Reads logs, and knows what was found of them.
#[pyclass(module = "korvet_core")]
pub struct LogReader {
    known: Known,
    partitions: HashMap<String, Arc<Partition>>,
    plain_bytes_max: usize,
}

#[pymethods]
impl LogReader {
    #[new]
    #[pyo3(signature = (plain_bytes_max, /))]
    fn new(plain_bytes_max: usize) -> Self {
        Self { known: Known::default(), partitions: HashMap::new(), plain_bytes_max }
    }

    #[allow(clippy::too_many_arguments)] // all are given
    #[pyo3(signature = (partition, offset, entries_max, end, is_committed, aborted_max, /))]
    fn begin(
        slf: &Bound<'_, Self>,
        partition: &Bound<'_, PyAny>,
        offset: i64,
        entries_max: u32,
        end: Option<i64>,
        is_committed: bool,
        aborted_max: u32,
    ) -> PyResult<LogRead> {
        let partition = Self::partition(slf, partition)?;
        Self::sent(slf, Read { partition, offset, entries_max, end, is_committed, aborted_max })
    }

    #[pyo3(signature = (partition, /))]
    fn bounds_commands<'py>(slf: &Bound<'py, Self>, partition: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let mut text = Vec::with_capacity(COMMANDS_BYTES);
        Bounds::put(&*Self::partition(slf, partition)?, &mut text);
        commands_of(slf.py(), &text)
    }

    #[pyo3(signature = (partition, reply, /))]
    fn bounds<'py>(
        slf: &Bound<'py, Self>,
        partition: &Bound<'py, PyAny>,
        reply: &RawReply,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        match Bounds::read(&*Self::partition(slf, partition)?, reply.0.as_ref()) {
            Ok(None) => Ok(py.None().into_bound(py)),
            Ok(Some(found)) => bounds_fields(py, &found),
            Err(failure) => refused(py, failure),
        }
    }

    #[pyo3(signature = (read, reply, /))]
    fn outcome<'py>(
        slf: &Bound<'py, Self>,
        read: &Bound<'py, LogRead>,
        reply: &RawReply,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, read) = (slf.py(), read.get());
        let (outcome, plain_bytes_max) = {
            let mut reader = slf.try_borrow_mut()?;
            (read.read.outcome(read.sent, &reply.0, &mut reader.known), reader.plain_bytes_max)
        };
        let (found, is_settled) = match outcome {
            Outcome::Again(read) => return Self::sent(slf, read)?.into_bound_py_any(py),
            Outcome::Refused(failure) => return refused(py, failure),
            Outcome::Found(found) => (found, true),
            Outcome::Unsettled(found) => (found, false),
        };
        match Page::of(&found, plain_bytes_max) {
            Ok((page, walked)) => {
                (is_settled, Fetched::new(found, page, walked, plain_bytes_max)).into_bound_py_any(py)
            }
            Err(failure) => refused(py, failure),
        }
    }
}

// To make objects may run any code of Python, by the garbage collector: the reader is not borrowed meanwhile.
impl LogReader {
    fn partition(slf: &Bound<'_, Self>, partition: &Bound<'_, PyAny>) -> PyResult<Arc<Partition>> {
        let py = slf.py();
        let (stream, id) = (partition.getattr(intern!(py, "stream"))?, partition.getattr(intern!(py, "topic_id"))?);
        let (format, bits) = (partition.getattr(intern!(py, "format"))?, partition.getattr(intern!(py, "bits"))?);
        let (stream, id): (&str, &str) = (stream.extract()?, id.extract()?);
        let layout = layout_of(format.extract()?, bits.extract()?);
        let is_it = |known: &&Arc<Partition>| &*known.topic.id_text == id && known.layout == layout;
        if let Some(known) = slf.try_borrow()?.partitions.get(stream).filter(is_it) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(partition_of(partition)?);
        let partitions = &mut slf.try_borrow_mut()?.partitions;
        if partitions.len() >= PARTITIONS_MAX {
            partitions.clear();
        }
        partitions.insert(stream.to_owned(), Arc::clone(&made));
        Ok(made)
    }

    fn sent(slf: &Bound<'_, Self>, read: Read) -> PyResult<LogRead> {
        let py = slf.py();
        let mut text = Vec::with_capacity(COMMANDS_BYTES);
        let (_, sent) = read.put(&slf.try_borrow()?.known, &mut text);
        let commands = commands_of(py, &text)?;
        Ok(LogRead { read, sent, commands: commands.unbind() })
    }
}

/// Each command that a text has.
fn commands_of<'py>(py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyList>> {
    let (commands, mut elements) = (PyList::empty(py), Elements::of(text));
    let mut rest = elements.left();
    while let Some(Element::Array(words)) = elements.next() {
        elements.pass(words);
        let size = rest.len() - elements.left().len();
        commands.append(PyBytes::new(py, rest.get(..size).unwrap_or_default()))?;
        rest = elements.left();
    }
    Ok(commands)
}

/// A code, a sentence, and whether Redis is away, slow or refusing.
fn refused(py: Python<'_>, failure: Failure) -> PyResult<Bound<'_, PyAny>> {
    let is_unavailable = failure.kind != FailureKind::Rule;
    Ok((failure.code as i16, failure.message, is_unavailable).into_pyobject(py)?.into_any())
}

fn bounds_fields<'py>(py: Python<'py>, found: &Bounds) -> PyResult<Bound<'py, PyAny>> {
    let Bounds { log_start, first_offset, end, max_timestamp, archived, remote, compacted_end, open, .. } = *found;
    let remote = remote.map(|remote| (remote.start, remote.end, remote.archived));
    let epochs = PyTuple::new(py, found.epochs.iter().map(|begun| (begun.epoch, begun.start)).collect::<Vec<_>>())?;
    let fields = (log_start, first_offset, end, max_timestamp, archived, remote, compacted_end, epochs, open);
    fields.into_bound_py_any(py)
}
