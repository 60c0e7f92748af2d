//! A call of Python: who waits for it, the commands or scripts that it asks for, and the replies so far.
//!
//! Commands are kept as objects, and packed when a piece of them is to be sent: it may be sent again in another way. To
//! pack may run any code of Python, by the garbage collector: the client is not borrowed meanwhile.

use korvet_proto::client::{Caller, Prevented, Ready, Span, slot_of};
use korvet_proto::pipeline::Packed;
use korvet_proto::produce::GroupId;
use korvet_proto::resp::{Element, Elements, put_argument, put_count, put_integer};
use korvet_proto::shared::Shared;
use pyo3::exceptions::PyValueError;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use pyo3::{intern, prelude::*};

use crate::resp::{Payload, each_of, new_packed, put_command, put_item};

/// What a call asks for.
pub struct Asked {
    /// The commands or the scripts' calls, of which nobody else can change how many they are.
    pub calls: Py<PyTuple>,
    pub are_scripts: bool,
    /// Whether replies come as their bytes.
    pub is_raw: bool,
    /// Gets the node and the history of each piece when it is sent.
    pub sent: Option<Py<PyList>>,
}

impl Asked {
    /// Fails if there are none: nobody would answer.
    pub fn new(calls: &Bound<'_, PyAny>, are_scripts: bool, sent: Option<Bound<'_, PyList>>) -> PyResult<Self> {
        let calls = if let Ok(tuple) = calls.cast::<PyTuple>() {
            tuple.clone()
        } else if let Ok(list) = calls.cast::<PyList>() {
            list.to_tuple()
        } else {
            calls.py().get_type::<PyTuple>().call1((calls,))?.cast_into()?
        };
        if calls.is_empty() {
            return Err(PyValueError::new_err("a request has no commands"));
        }
        Ok(Self { calls: calls.unbind(), are_scripts, is_raw: false, sent: sent.map(Bound::unbind) })
    }

    /// That of a call which asks for a connection or a map, and for no replies.
    pub fn nothing(py: Python<'_>) -> Self {
        Self { calls: PyTuple::empty(py).unbind(), are_scripts: false, is_raw: false, sent: None }
    }

    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        let sent = self.sent.as_ref().map(|sent| sent.clone_ref(py));
        Self { calls: self.calls.clone_ref(py), are_scripts: self.are_scripts, is_raw: self.is_raw, sent }
    }

    pub fn count(&self, py: Python<'_>) -> usize {
        self.calls.bind(py).len()
    }

    /// The bytes of the commands of a piece, after those that its way puts first: ASKING holds for the next command.
    pub fn packed(&self, py: Python<'_>, ready: &Ready) -> PyResult<Packed<Payload>> {
        let (mut packed, calls, piece) = (new_packed(), self.calls.bind(py), &ready.piece);
        if piece.way.loads {
            put_load(&mut packed, &calls.get_item(piece.first)?, piece.way.is_full)?;
        }
        if piece.way.asks {
            put_count(&mut packed.text, 1);
            put_argument(&mut packed.text, b"ASKING");
        }
        for index in piece.first..piece.first + piece.count {
            let call = calls.get_borrowed_item(index)?;
            if self.are_scripts {
                put_script(&mut packed, &call, piece.way.is_full, ready.lease_end_ms)?;
            } else {
                put_command(&mut packed, call)?;
            }
        }
        Ok(packed)
    }

    /// The pieces in which a cluster takes it: each command and each script is one, and MULTI to EXEC is one.
    ///
    /// One without a key goes with the next one that has a key, else with the last one.
    pub fn spans(&self, py: Python<'_>) -> PyResult<Vec<Span>> {
        let calls = self.calls.bind(py);
        let mut spans: Vec<Span> = Vec::with_capacity(calls.len());
        let (mut without_key, mut is_within) = (0, false);
        for (index, call) in calls.iter().enumerate() {
            let slot = if self.are_scripts { slot_of_script(&call)? } else { slot_of_command(&call)? };
            match spans.last_mut().filter(|_| is_within) {
                Some(transaction) => {
                    transaction.count += 1;
                    transaction.slot = transaction.slot.or(slot);
                }
                None => spans.push(Span { first: index, count: 1, slot }),
            }
            if !self.are_scripts {
                is_within = if is_within { !is_word(&call, "EXEC")? } else { is_word(&call, "MULTI")? };
            }
            let slot = spans.last().and_then(|span| span.slot);
            if slot.is_some() {
                for span in spans.get_mut(without_key..).unwrap_or_default() {
                    span.slot = slot;
                }
                without_key = spans.len();
            }
        }
        let last = without_key.checked_sub(1).and_then(|last| spans.get(last)?.slot);
        let rest = spans.get_mut(without_key..).unwrap_or_default();
        for span in rest {
            span.slot = last.or(Some(0));
        }
        Ok(spans)
    }
}

/// The script of a call, or its text for a full memory.
fn script_of(script: Bound<'_, PyAny>, is_full: bool) -> PyResult<Bound<'_, PyAny>> {
    if is_full { script.getattr(intern!(script.py(), "when_full")) } else { Ok(script) }
}

/// Write SCRIPT LOAD for a call of a script.
fn put_load(packed: &mut Packed<Payload>, call: &Bound<'_, PyAny>, is_full: bool) -> PyResult<()> {
    let source = script_of(call.get_item(0)?, is_full)?.getattr(intern!(call.py(), "source"))?;
    put_count(&mut packed.text, 3);
    put_argument(&mut packed.text, b"SCRIPT");
    put_argument(&mut packed.text, b"LOAD");
    put_item(packed, source.as_borrowed(), true)
}

/// Write EVALSHA for a call of a script.
fn put_script(packed: &mut Packed<Payload>, call: &Bound<'_, PyAny>, is_full: bool, lease_end_ms: i64) -> PyResult<()> {
    let py = call.py();
    let (script, keys, arguments): (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>) = call.extract()?;
    let script = script_of(script, is_full)?;
    let is_leased = script.getattr(intern!(py, "leased"))?.is_truthy()?;
    let (key_count, mut left) = (keys.len()?, keys.len()? + arguments.len()?);
    put_count(&mut packed.text, 3 + left + usize::from(is_leased));
    put_argument(&mut packed.text, b"EVALSHA");
    put_item(packed, script.getattr(intern!(py, "sha"))?.as_borrowed(), true)?;
    put_integer(&mut packed.text, key_count as i64);
    for items in [keys, arguments] {
        each_of(&items, |item| {
            left = left.checked_sub(1).ok_or_else(changed)?;
            put_item(packed, item, true)
        })?;
    }
    if left > 0 {
        return Err(changed());
    }
    if is_leased {
        put_integer(&mut packed.text, lease_end_ms);
    }
    Ok(())
}

fn changed() -> PyErr {
    PyValueError::new_err("the keys or arguments of a script have changed while they were packed")
}

fn slot_of_script(call: &Bound<'_, PyAny>) -> PyResult<Option<u16>> {
    let keys = call.get_item(1)?;
    if keys.is_empty()? { Ok(None) } else { slot_of_key(&keys.get_item(0)?) }
}

/// The slot of the first key of a command, if it has one.
fn slot_of_command(command: &Bound<'_, PyAny>) -> PyResult<Option<u16>> {
    if let Ok(text) = command.cast::<PyBytes>() {
        // Of those that are packed each has its key in the second place.
        let mut words = Elements::of(text.as_bytes()).skip(2);
        return Ok(if let Some(Element::Bulk(key)) = words.next() { Some(slot_of(key)) } else { None });
    }
    let count = command.len()?;
    if count < 2 {
        return Ok(None);
    }
    let word = command.get_item(0)?;
    let word = text_of(&word)?;
    let place = match word {
        Some(b"TIME" | b"PING") => return Ok(None),
        Some(b"EVALSHA") => 3,
        Some(b"XINFO" | b"XGROUP" | b"MEMORY") => 2,
        _ => 1,
    };
    if place < count { slot_of_key(&command.get_item(place)?) } else { Ok(None) }
}

fn is_word(command: &Bound<'_, PyAny>, name: &str) -> PyResult<bool> {
    if let Ok(text) = command.cast::<PyBytes>() {
        return Ok(Elements::of(text.as_bytes()).nth(1) == Some(Element::Bulk(name.as_bytes())));
    }
    Ok(command.len()? > 0 && text_of(&command.get_item(0)?)? == Some(name.as_bytes()))
}

/// The slot of a key, or of the first of several that stand in its place.
fn slot_of_key(key: &Bound<'_, PyAny>) -> PyResult<Option<u16>> {
    if key.is_instance_of::<PyTuple>() || key.is_instance_of::<PyList>() {
        let first = if key.is_empty()? { None } else { Some(key.get_item(0)?) };
        return Ok(first.as_ref().map(text_of).transpose()?.flatten().map(slot_of));
    }
    Ok(text_of(key)?.map(slot_of))
}

/// The bytes of a string or of bytes.
pub fn text_of<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a [u8]>> {
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Some(text.to_str()?.as_bytes()));
    }
    Ok(object.cast::<PyBytes>().ok().map(PyBytesMethods::as_bytes))
}

/// Who waits for a call of Python, and what it has so far.
pub struct Waiting {
    pub waiter: Py<PyAny>,
    /// Its name for metrics.
    pub operation: Py<PyAny>,
    pub asked: Asked,
    /// One outcome for each place; made with the first.
    pub outcomes: Option<Py<PyList>>,
    /// Whether the server has replied anything.
    pub is_answered: bool,
}

/// What a call of the data path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Scripts of a group of appends.
    Appends,
    /// Commands of a group of reads.
    Reads,
}

/// What the data path is to know of Redis.
#[derive(Clone, Debug)]
pub enum Came {
    /// The reply at a place of a group.
    Reply {
        kind: Kind,
        group: GroupId,
        place: usize,
        reply: Shared,
    },
    Prevented {
        kind: Kind,
        group: GroupId,
        place: usize,
        why: Prevented,
        text: String,
    },
    /// What was refused until now may not be refused from now on.
    Reordered,
    /// A connection is there again after a loss.
    Reconnected,
}

/// Whose a call is.
pub enum Token {
    Python(Waiting),
    /// A group of the data path, by its number. Of a script that runs again only the last reply counts, so replies are kept.
    Own {
        kind: Kind,
        number: usize,
        group: GroupId,
        outcomes: Vec<Option<Came>>,
    },
}

impl Token {
    pub fn new(waiter: Py<PyAny>, operation: Py<PyAny>, asked: Asked) -> Self {
        Self::Python(Waiting { waiter, operation, asked, outcomes: None, is_answered: false })
    }

    pub fn own(kind: Kind, number: usize, group: GroupId, count: usize) -> Self {
        Self::Own { kind, number, group, outcomes: (0..count).map(|_| None).collect() }
    }

    /// The objects that it holds.
    pub fn objects(&self) -> impl Iterator<Item = &Py<PyAny>> {
        let waiting = if let Self::Python(waiting) = self { Some(waiting) } else { None };
        waiting.into_iter().flat_map(|waiting| {
            let lists = waiting.asked.sent.iter().chain(&waiting.outcomes).map(Py::as_any);
            [&waiting.waiter, &waiting.operation, waiting.asked.calls.as_any()].into_iter().chain(lists)
        })
    }
}

impl Asked {
    fn script<'py>(&self, py: Python<'py>, place: usize) -> Option<Bound<'py, PyAny>> {
        self.calls.bind(py).get_borrowed_item(place).ok()?.get_item(0).ok()
    }
}

impl Caller for Token {
    fn runs_when_full(&self, place: usize) -> bool {
        let Self::Python(Waiting { asked, .. }) = self else {
            return matches!(self, Self::Own { kind: Kind::Appends, .. });
        };
        Python::attach(|py| {
            let full = asked.script(py, place).and_then(|script| script.getattr(intern!(py, "when_full")).ok());
            full.is_some_and(|full| !full.is_none())
        })
    }

    fn is_same_script(&self, place: usize, other: usize) -> bool {
        // Of appends each loads its own.
        let Self::Python(Waiting { asked, .. }) = self else { return place == other };
        Python::attach(|py| match (asked.script(py, place), asked.script(py, other)) {
            (Some(script), Some(other)) => script.is(&other),
            _ => false,
        })
    }
}
