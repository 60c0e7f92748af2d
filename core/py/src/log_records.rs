//! The records of a log as objects of Python: columns if all have the same fields, else one tuple each.

use korvet_proto::failure::Failure;
use korvet_proto::log::{Found, Kind, StoredRecord};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyRange, PyString, PyTuple};

/// Below this many records the columns cost more than they spare.
const COLUMNS_MIN: usize = 16;
/// What a producer writes, where a marker has whether it commits (korvet/protocol/records/control.py).
const DATA: i8 = -1;

type Nullable<'py> = Option<Bound<'py, PyBytes>>;
type Header<'py> = (Bound<'py, PyString>, Nullable<'py>);
/// Where a run begins and ends, its producer's id and epoch, and its kind.
type Run = (usize, usize, i64, i16, i8);

/// What entries became.
pub struct Entries<'py> {
    /// A list of tuples, or a tuple of what korvet/protocol/records/columns.py takes.
    pub records: Bound<'py, PyAny>,
    pub batches: Bound<'py, PyList>,
    pub producers: Vec<Run>,
    pub has_more: bool,
    pub foreign: u32,
    pub damaged: Option<(i64, String)>,
}

struct Row<'py> {
    offset: i64,
    timestamp: i64,
    key: Nullable<'py>,
    value: Nullable<'py>,
    headers: Vec<Header<'py>>,
}

/// The records of what was found.
pub fn records_of<'py>(
    py: Python<'py>,
    found: &Found,
    plain_bytes_max: usize,
) -> PyResult<Result<Entries<'py>, Failure>> {
    let mut records = found.records(plain_bytes_max);
    let (mut rows, mut producers): (Vec<Row<'_>>, Vec<Run>) = (Vec::new(), Vec::new());
    while let Some(record) = records.next() {
        let record = match record {
            Ok(record) => record,
            Err(failure) => return Ok(Err(failure)),
        };
        note_producer(&mut producers, rows.len(), record.kind);
        let row = Row::of(py, &record, rows.first())?;
        rows.push(row);
    }
    let is_uniform = rows.first().is_some_and(|first| rows.iter().all(|row| row.is_like(first)));
    let made = if is_uniform && rows.len() >= COLUMNS_MIN { columns(py, &rows)? } else { tuples(py, rows)? };
    Ok(Ok(Entries {
        records: made,
        batches: PyList::empty(py),
        producers,
        has_more: records.has_more(),
        foreign: 0,
        damaged: records.damaged().cloned(),
    }))
}

/// Note the producer of the record at a position: of transactions, which have runs of records.
fn note_producer(runs: &mut Vec<Run>, position: usize, kind: Kind) {
    let ((id, epoch), kind) = match kind {
        Kind::Plain => return,
        Kind::Transactional(producer) => (producer, DATA),
        Kind::Marker { producer, commits } => (producer, i8::from(commits)),
    };
    match runs.last_mut() {
        Some(last) if kind == DATA && (last.1, last.2, last.3, last.4) == (position, id, epoch, DATA) => {
            last.1 = position + 1;
        }
        _ => runs.push((position, position + 1, id, epoch, kind)),
    }
}

impl<'py> Row<'py> {
    fn of(py: Python<'py>, record: &StoredRecord<'_>, first: Option<&Self>) -> PyResult<Self> {
        let bytes = |content: Option<&[u8]>| content.map(|content| PyBytes::new(py, content));
        let named = |place: usize, name: &[u8]| {
            let known = first.and_then(|first| first.headers.get(place)).map(|(known, _)| known);
            match known {
                Some(known) if known.to_str()?.as_bytes() == name => Ok::<_, PyErr>(known.clone()),
                _ => Ok(PyString::new(py, &String::from_utf8_lossy(name))),
            }
        };
        let headers = record.headers.iter().enumerate();
        let headers = headers.map(|(place, (name, content))| Ok((named(place, name)?, bytes(*content))));
        Ok(Self {
            offset: record.offset,
            timestamp: record.timestamp,
            key: bytes(record.key),
            value: bytes(record.value),
            headers: headers.collect::<PyResult<_>>()?,
        })
    }

    /// Whether it has the same fields. Of rows with the same names of headers these are the same objects.
    fn is_like(&self, first: &Self) -> bool {
        let pairs = self.headers.iter().zip(&first.headers);
        self.value.is_some()
            && self.key.is_some() == first.key.is_some()
            && self.headers.len() == first.headers.len()
            && pairs.into_iter().all(|(one, other)| one.0.is(&other.0) && one.1.is_some() == other.1.is_some())
    }
}

fn tuples<'py>(py: Python<'py>, rows: Vec<Row<'py>>) -> PyResult<Bound<'py, PyAny>> {
    let rows = rows.into_iter().map(|row| (row.offset, row.timestamp, row.key, row.value, row.headers));
    Ok(PyList::new(py, rows.collect::<Vec<_>>())?.into_any())
}

/// Runs of offsets, timestamps, keys, values and headers.
fn columns<'py>(py: Python<'py>, rows: &[Row<'py>]) -> PyResult<Bound<'py, PyAny>> {
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for row in rows {
        match runs.last_mut() {
            Some(last) if last.1 == row.offset => last.1 += 1,
            _ => runs.push((row.offset, row.offset + 1)),
        }
    }
    let runs = runs.into_iter().map(|(start, stop)| PyRange::new(py, start.try_into()?, stop.try_into()?));
    let runs = PyList::new(py, runs.collect::<PyResult<Vec<_>>>()?)?;
    let column = |contents: Vec<&Nullable<'py>>| {
        let contents: Option<Vec<_>> = contents.into_iter().map(Option::as_ref).collect();
        contents.map(|contents| PyList::new(py, contents)).transpose()
    };
    let names = rows.first().map(|first| &first.headers[..]).unwrap_or_default().iter().map(|(name, _)| name);
    let headers = names.enumerate().map(|(place, name)| {
        let contents = rows.iter().filter_map(|row| row.headers.get(place).map(|(_, content)| content));
        (name, column(contents.collect())?).into_pyobject(py)
    });
    let headers = PyList::new(py, headers.collect::<PyResult<Vec<Bound<'py, PyTuple>>>>()?)?;
    let timestamps = PyList::new(py, rows.iter().map(|row| row.timestamp))?;
    let keys = column(rows.iter().map(|row| &row.key).collect())?;
    let values = column(rows.iter().map(|row| &row.value).collect())?;
    Ok((runs, timestamps, keys, values, headers).into_pyobject(py)?.into_any())
}
