//! One connection to Redis, whose socket is here: called by gevent's watchers, once for each readiness.
//!
//! Python connects, shakes hands and hands the socket over; the state is a `korvet_proto::pipeline::Pipeline`. Reading
//! returns what is finished. What the owner is to do besides, such as to watch for room to write or to look at the clock,
//! are bits: reading returns them, and `exchange`, which has them seldom, calls the owner's `act`. With TLS there is no socket here: Python takes the bytes to write, and brings those it has decrypted.
//!
//! Objects are made of replies while the link itself is not borrowed, for that may run any Python, which may send. The
//! replies that came before a failure are handed over; a failure is the loss of the connection, never an exception.
//!
//! The socket is closed by `close`, after the caller has stopped its watchers: not at the loss, for the kernel may give
//! its number to another one at once.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use korvet_proto::pipeline::{Answered, Due, Limits, Owner, Pipeline, Request, Time};
use korvet_proto::resp::Inbox;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use crate::buffer::Bytes;
use crate::resp::{Builder, Payload, no_memory, pack};

/// The kernel takes no more: `write` is to be called when it does, and then until it says something else.
const STUCK: u8 = 1;
/// `write` is to be called at the end of this turn of the event loop.
const FLUSH: u8 = 2;
/// `due_s` has changed.
const TIMER: u8 = 4;
/// The connection is lost: `lost` says why, and `close` is to be called.
const LOST: u8 = 8;
/// The server refused a write, since it is a replica.
const READ_ONLY: u8 = 16;
/// Nothing was heard for some time.
const SILENT: u8 = 32;
/// What is `unwritten` is to be written now: the socket is elsewhere.
const WRITE: u8 = 64;

/// One read from the kernel: thousands of small replies, or a part of a large one.
const READ_BYTES: usize = 128 * 1024;
/// The most bytes of one turn, for a large reply must not stall the worker: the watcher calls again.
const TURN_BYTES: usize = 1024 * 1024;
/// From this size on a request is written at once: its bytes cost more than a write.
const LARGE_BYTES: usize = 8 * 1024;
/// How many pieces one write takes.
const PIECES_MAX: usize = 64;

/// Who waits for a request, and its name for metrics.
struct Waiting {
    waiter: Py<PyAny>,
    operation: Py<PyAny>,
}

/// A reply among the received bytes, and whose it is.
type Event = (Range<usize>, Owner<Waiting>);

#[pyclass(module = "korvet_core")]
#[allow(clippy::struct_excessive_bools)] // of the socket, of the loop, of the owner: none follows from another
pub struct RedisLink {
    socket: Option<OwnedFd>,
    pipeline: Pipeline<Waiting, Payload>,
    inbox: Inbox,
    /// Replies to the oldest request, of which others are missing.
    parts: Vec<Py<PyAny>>,
    error_of: Py<PyAny>,
    new_waiter: Py<PyAny>,
    act: Py<PyAny>,
    begun: Instant,
    lost: Option<String>,
    failed: Vec<Waiting>,
    takes_unasked: bool,
    is_stuck: bool,
    is_flushing: bool,
    is_building: bool,
}

impl RedisLink {
    fn now(&self) -> Time {
        self.begun.elapsed()
    }

    fn lose(&mut self, reason: impl Into<String>) -> u8 {
        if self.lost.is_none() {
            self.lost = Some(reason.into());
            self.failed.append(&mut self.pipeline.lose());
        }
        LOST
    }

    /// Write what the kernel takes at once; returns what is to be done.
    fn write_out(&mut self) -> u8 {
        self.is_flushing = false;
        while self.lost.is_none() && self.pipeline.pieces() > 0 {
            let Some(socket) = &self.socket else { return STUCK };
            let (mut slices, mut size) = ([IoSlice::new(&[]); PIECES_MAX], 0);
            let count = self.pipeline.pieces().min(PIECES_MAX);
            for (slice, piece) in slices.iter_mut().zip(self.pipeline.unwritten()) {
                *slice = IoSlice::new(piece);
                size += piece.len();
            }
            match rustix::io::writev(socket, slices.get(..count).unwrap_or_default()) {
                Ok(taken) => {
                    self.pipeline.wrote(taken);
                    if taken < size {
                        return self.stuck();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.stuck(),
                Err(error) => return self.lose(reason_of(error)),
            }
        }
        self.is_stuck = false;
        0
    }

    fn stuck(&mut self) -> u8 {
        self.is_stuck = true;
        STUCK
    }

    /// Read once; returns what is to be done, how much came, and whether there may be more.
    fn read(&mut self) -> (u8, usize, bool) {
        const NOTHING: (u8, usize, bool) = (0, 0, false);
        let Some(socket) = self.socket.as_ref().filter(|_| self.lost.is_none()) else { return NOTHING };
        let Ok(room) = self.inbox.room(READ_BYTES) else {
            return (self.lose("there is no memory for what it sent"), 0, false);
        };
        let size = room.capacity() - room.len();
        match rustix::io::retry_on_intr(|| rustix::io::read(socket, spare_capacity(room))) {
            Ok(0) => (self.lose("it closed the connection"), 0, false),
            Ok(taken) => (0, taken, taken == size),
            Err(Errno::AGAIN) => NOTHING,
            Err(error) => (self.lose(reason_of(error)), 0, false),
        }
    }

    /// Find the whole replies among what was received.
    fn take_in(&mut self, todo: &mut u8) -> Vec<Event> {
        let (now, mut events) = (self.now(), Vec::new());
        self.pipeline.heard(now);
        while self.lost.is_none() {
            match self.inbox.next_reply() {
                Ok(None) => break,
                Ok(Some(range)) => {
                    let reply = self.inbox.bytes().get(range.clone()).unwrap_or_default();
                    if reply.starts_with(b"-READONLY ") {
                        *todo |= READ_ONLY;
                    }
                    let owner = self.pipeline.answer(now);
                    if matches!(owner, Owner::Nobody) && !self.takes_unasked {
                        let text = String::from_utf8_lossy(reply.get(..100).unwrap_or(reply)).trim_end().to_owned();
                        *todo |= self.lose(format!("it sent a reply without a request: {text}"));
                    } else {
                        events.push((range, owner));
                    }
                }
                Err(malformed) => *todo |= self.lose(format!("it sent what is not RESP: {malformed}")),
            }
        }
        events
    }
}

/// Make objects of the replies among `bytes`, and append what is finished to `done`.
///
/// Fails if there is no memory for them, with whose reply it was; later events stay in the iterator.
fn build(
    builder: &Builder<'_>,
    bytes: &[u8],
    events: &mut std::vec::IntoIter<Event>,
    parts: &mut Vec<Py<PyAny>>,
    done: &Bound<'_, PyList>,
) -> Result<(), Option<Waiting>> {
    for (range, owner) in events {
        let reply = bytes.get(range).unwrap_or_default();
        match owner {
            Owner::Dropped => parts.clear(),
            Owner::Part => parts.push(builder.build(reply).map_err(|_| None)?.unbind()),
            Owner::Nobody => {
                let unasked = builder.build(reply).and_then(|reply| {
                    let nobody = done.py().None();
                    done.append((&nobody, reply, &nobody, 0.0))
                });
                unasked.map_err(|_| None)?;
            }
            Owner::Last(answered) => {
                if finish(builder, reply, &answered, parts, done).is_err() {
                    return Err(Some(answered.token));
                }
            }
        }
    }
    Ok(())
}

fn finish(
    builder: &Builder<'_>,
    reply: &[u8],
    answered: &Answered<Waiting>,
    parts: &mut Vec<Py<PyAny>>,
    done: &Bound<'_, PyList>,
) -> PyResult<()> {
    let (py, took) = (done.py(), answered.took.as_secs_f64());
    let Waiting { waiter, operation } = &answered.token;
    if answered.has_given_up {
        parts.clear();
        return done.append((py.None(), py.None(), operation, took));
    }
    let reply = builder.build(reply)?;
    if answered.count == 1 {
        return done.append((waiter, reply, operation, took));
    }
    parts.push(reply.unbind());
    done.append((waiter, PyList::new(py, parts.drain(..))?, operation, took))
}

/// The system's words for an error, without its number.
fn reason_of(error: Errno) -> String {
    let text = std::io::Error::from(error).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Build what `take_in` has found, while the link is not borrowed.
fn hand_over<'py>(slf: &Bound<'py, RedisLink>, events: Vec<Event>, done: &Bound<'py, PyList>) -> u8 {
    if events.is_empty() {
        return 0;
    }
    let (builder, bytes, mut parts) = {
        let mut link = slf.borrow_mut();
        link.is_building = true;
        let builder = Builder::new(slf.py(), &link.error_of);
        (builder, link.inbox.lend(), std::mem::take(&mut link.parts))
    };
    let mut events = events.into_iter();
    let built = build(&builder, &bytes, &mut events, &mut parts, done);
    let mut link = slf.borrow_mut();
    link.is_building = false;
    link.inbox.give_back(bytes);
    link.parts = parts;
    let Err(waiting) = built else { return 0 };
    link.failed.extend(waiting);
    for (_, owner) in events {
        if let Owner::Last(answered) = owner {
            link.failed.extend((!answered.has_given_up).then_some(answered.token));
        }
    }
    link.lose("there is no memory for what it sent")
}

type Turn<'py> = (Bound<'py, PyList>, u8);

#[pymethods]
impl RedisLink {
    #[classattr]
    const STUCK: u8 = STUCK;
    #[classattr]
    const FLUSH: u8 = FLUSH;
    #[classattr]
    const TIMER: u8 = TIMER;
    #[classattr]
    const LOST: u8 = LOST;
    #[classattr]
    const READ_ONLY: u8 = READ_ONLY;
    #[classattr]
    const SILENT: u8 = SILENT;
    #[classattr]
    const WRITE: u8 = WRITE;

    #[new]
    #[allow(clippy::too_many_arguments, unsafe_code)] // the limits, each by its name
    #[pyo3(signature = (fd, error_of, new_waiter, act, *, timeout_s, silence_s, commands_max, bytes_max, reply_bytes_max, takes_unasked))]
    fn new(
        fd: Option<RawFd>,
        error_of: Py<PyAny>,
        new_waiter: Py<PyAny>,
        act: Py<PyAny>,
        timeout_s: f64,
        silence_s: Option<f64>,
        commands_max: usize,
        bytes_max: usize,
        reply_bytes_max: usize,
        takes_unasked: bool,
    ) -> PyResult<Self> {
        let timeout = seconds(timeout_s)?;
        let silence = silence_s.map(seconds).transpose()?;
        let limits = Limits { commands_max, bytes_max, reply_bytes_max, timeout, silence };
        if fd.is_some_and(|fd| fd < 0) {
            return Err(PyValueError::new_err("the descriptor is none"));
        }
        // SAFETY: the caller has detached the descriptor from its socket, and hands it over.
        let socket = fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Self {
            socket,
            pipeline: Pipeline::new(limits, Time::ZERO),
            inbox: Inbox::default(),
            parts: Vec::new(),
            error_of,
            new_waiter,
            act,
            begun: Instant::now(),
            lost: None,
            failed: Vec::new(),
            takes_unasked,
            is_stuck: false,
            is_flushing: false,
            is_building: false,
        })
    }

    #[getter]
    fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    #[getter]
    fn has_room(&self) -> bool {
        self.lost.is_none() && self.pipeline.has_room(0)
    }

    #[getter]
    fn has_reply_room(&self) -> bool {
        self.lost.is_none() && self.pipeline.has_reply_room()
    }

    #[getter]
    fn under_way(&self) -> (usize, usize, usize) {
        self.pipeline.under_way()
    }

    #[getter]
    fn silent_s(&self) -> f64 {
        self.now().saturating_sub(self.pipeline.heard_at()).as_secs_f64()
    }

    #[getter]
    fn due_s(&self) -> Option<f64> {
        self.pipeline.due().map(|at| at.saturating_sub(self.now()).as_secs_f64())
    }

    #[pyo3(signature = (commands, operation, reply_bytes = 0, timeout_s = None, is_forced = false, /))]
    fn exchange<'py>(
        slf: &Bound<'py, Self>,
        commands: &Bound<'py, PyAny>,
        operation: Bound<'py, PyAny>,
        reply_bytes: usize,
        timeout_s: Option<f64>,
        is_forced: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, link) = (slf.py(), slf.borrow());
        if link.lost.is_some() || !(is_forced || link.pipeline.has_room(reply_bytes)) {
            return Ok(None);
        }
        let (new_waiter, timeout) = (link.new_waiter.clone_ref(py), link.pipeline.timeout());
        drop(link);
        let waiter = new_waiter.bind(py).call0()?;
        let (packed, count) = pack(commands)?;
        let timeout = timeout_s.map(seconds).transpose()?.unwrap_or(timeout);
        let mut link = slf.borrow_mut();
        if link.lost.is_some() {
            return Ok(None);
        }
        let (now, due, is_idle, size) = (link.now(), link.pipeline.due(), link.pipeline.is_idle(), packed.size());
        let token = Waiting { waiter: waiter.clone().unbind(), operation: operation.unbind() };
        link.pipeline.push(Request { token, packed, count, deadline: now + timeout, reply_bytes }, now);
        let timer = if link.pipeline.due() == due { 0 } else { TIMER };
        let todo = timer | link.write_soon(is_idle || size >= LARGE_BYTES);
        if todo != 0 {
            let act = link.act.clone_ref(py);
            drop(link);
            act.bind(py).call1((todo,))?;
        }
        Ok(Some(waiter))
    }

    #[pyo3(signature = (commands, /))]
    fn send(slf: &Bound<'_, Self>, commands: &Bound<'_, PyAny>) -> PyResult<u8> {
        let (packed, _) = pack(commands)?;
        let mut link = slf.borrow_mut();
        if link.lost.is_some() {
            return Ok(0);
        }
        link.pipeline.push_unasked(packed);
        Ok(link.write_soon(false))
    }

    fn write(&mut self) -> u8 {
        self.write_out()
    }

    fn receive<'py>(slf: &Bound<'py, Self>) -> Turn<'py> {
        let (done, mut todo, mut size, mut is_more) = (PyList::empty(slf.py()), 0, 0, true);
        while is_more && size < TURN_BYTES && todo & LOST == 0 {
            let events = {
                let mut link = slf.borrow_mut();
                if link.is_building {
                    break;
                }
                let (read, taken, more) = link.read();
                (todo, size, is_more) = (todo | read, size + taken, more);
                if taken == 0 { Vec::new() } else { link.take_in(&mut todo) }
            };
            todo |= hand_over(slf, events, &done);
        }
        (done, todo)
    }

    #[pyo3(signature = (data, /))]
    fn received<'py>(slf: &Bound<'py, Self>, data: Bytes) -> Turn<'py> {
        let (done, mut todo) = (PyList::empty(slf.py()), 0);
        let events = {
            let mut link = slf.borrow_mut();
            let data = data.get(slf.py());
            if link.lost.is_some() {
                return (done, todo);
            }
            if link.is_building {
                // The bytes before these are away. To drop these would give replies to the wrong waiters.
                return (done, link.lose("bytes came while replies were read"));
            }
            let room = link.inbox.room(data.len()).map(|room| room.extend_from_slice(data));
            if room.is_ok() {
                link.take_in(&mut todo)
            } else {
                todo |= link.lose("there is no memory for what it sent");
                Vec::new()
            }
        };
        todo |= hand_over(slf, events, &done);
        (done, todo)
    }

    #[pyo3(signature = (size_max, /))]
    fn unwritten<'py>(&mut self, py: Python<'py>, size_max: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.is_flushing = false;
        let mut joined = Vec::new();
        for piece in self.pipeline.unwritten() {
            let left = size_max.saturating_sub(joined.len());
            let piece = piece.get(..left).unwrap_or(piece);
            joined.try_reserve(piece.len()).map_err(no_memory)?;
            joined.extend_from_slice(piece);
            if joined.len() >= size_max {
                break;
            }
        }
        Ok(PyBytes::new(py, &joined))
    }

    #[pyo3(signature = (size, /))]
    fn wrote(&mut self, size: usize) {
        self.pipeline.wrote(size);
    }

    fn tick<'py>(slf: &Bound<'py, Self>) -> PyResult<Turn<'py>> {
        let py = slf.py();
        let (mut late, mut todo) = (Vec::new(), TIMER);
        {
            let mut link = slf.borrow_mut();
            let now = link.now();
            match link.pipeline.tick(now, |waiting| late.push(waiting.waiter.clone_ref(py))) {
                Due::Nothing => {}
                Due::Silence => todo |= SILENT,
                Due::Loss => {
                    let reason = format!("nothing was heard for {:.0} ms", link.pipeline.timeout().as_secs_f64() * 1e3);
                    todo |= link.lose(reason);
                }
            }
        }
        Ok((PyList::new(py, late)?, todo))
    }

    #[pyo3(signature = (reason, /))]
    fn lose_for(&mut self, reason: String) {
        self.lose(reason);
    }

    fn close<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let failed = {
            let mut link = slf.borrow_mut();
            link.lose("it was closed");
            link.socket = None;
            std::mem::take(&mut link.failed)
        };
        PyList::new(slf.py(), failed.into_iter().map(|waiting| waiting.waiter))
    }
}

impl RedisLink {
    /// Write now, or arrange for it to be done at the end of this turn, with all that others send until then.
    fn write_soon(&mut self, at_once: bool) -> u8 {
        if self.is_stuck {
            return 0;
        }
        if at_once {
            return if self.socket.is_some() { self.write_out() } else { WRITE };
        }
        if std::mem::replace(&mut self.is_flushing, true) { 0 } else { FLUSH }
    }
}

fn seconds(number: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(number.max(0.0)).map_err(|error| PyValueError::new_err(error.to_string()))
}
