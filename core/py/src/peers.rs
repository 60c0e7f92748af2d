//! The connections of a worker's clients: called by gevent's loop once for all that are ready.
//!
//! A turn reads from all sockets that are ready and returns events: a connection has a frame, its answers are written, it is
//! closed. A frame is where it arrived, and Python sees it there; an answer leaves from where Python has it.
//!
//! While anything is borrowed no object of Python is made or dropped: either may run any code, which may call here.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use korvet_proto::frame::{FETCH, PRODUCE};
use korvet_proto::peer::{Limits, Login, PeerId, Reason};
use korvet_proto::shared;
use korvet_tls::{ClientAuth, Options, Server, Session};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use pyo3::{Borrowed, PyTraverseError, PyVisit, intern, prelude::*};
use rustix::io::Errno;

use crate::args::seconds;
use crate::buffer::Owned;
use crate::data_path::DataPath;
use crate::peer_sockets::{Detail, Happened, PeerSockets, Piece, Spent};
use crate::resp::{Payload, each_of, payload_of};
use crate::sockets::reason_of;

/// Pieces below this size are joined: cheaper than passing each to the kernel.
const PIECE_BYTES_MIN: usize = 1024;
/// What most answers take.
const JOINED_BYTES: usize = 256;

type Taken<'py> = (u64, Bound<'py, PyAny>, f64, f64);

/// TLS of a listener.
#[pyclass(module = "korvet_core", frozen)]
pub struct TlsServer(Server);

#[pymethods]
impl TlsServer {
    #[new]
    #[pyo3(signature = (*, key_store, trust_store, client_auth, versions, suites))]
    fn new(
        key_store: &str,
        trust_store: &str,
        client_auth: &str,
        versions: Vec<String>,
        suites: Vec<String>,
    ) -> PyResult<Self> {
        let client_auth = match client_auth {
            "none" => ClientAuth::None,
            "requested" => ClientAuth::Requested,
            "required" => ClientAuth::Required,
            _ => return Err(PyValueError::new_err(format!("{client_auth} is none of none, requested, required"))),
        };
        let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
        let suites: Vec<&str> = suites.iter().map(String::as_str).collect();
        let options = Options { key_store, trust_store, client_auth, versions: &versions, suites: &suites };
        Server::new(&options).map(Self).map_err(|error| PyValueError::new_err(error.0))
    }

    #[staticmethod]
    fn all_suites() -> Vec<String> {
        Server::suites()
    }
}

#[pyclass(module = "korvet_core", generic)]
pub struct ClientSockets {
    pub(crate) sockets: PeerSockets,
    /// What serves Produce and Fetch.
    path: Option<Py<DataPath>>,
    /// Python's time.monotonic() at the beginning of time.
    begun_s: f64,
}

impl ClientSockets {
    /// Have Produce and Fetch served by this.
    pub fn attach(&mut self, path: Py<DataPath>) {
        self.path = Some(path);
        self.sockets.changed.is_wanted = true;
    }

    /// Have a turn say what has happened.
    pub fn ring(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.try_borrow_mut()?.sockets.ring().map_err(os_error)
    }

    /// Do something, and have Produce and Fetch served that has arrived. What is returned besides is to be dropped once nothing is
    /// left to be said: that may run any code, which would hear of it.
    fn act<R>(slf: &Bound<'_, Self>, act: impl FnOnce(&mut PeerSockets) -> R) -> PyResult<(R, Vec<Payload>)> {
        let (result, spent, path) = {
            let mut own = slf.try_borrow_mut()?;
            let result = act(&mut own.sockets);
            own.sockets.settle(slf.py());
            let changed = own.sockets.take_changed();
            let has_changed = !changed.is_empty();
            let path = own.path.as_ref().filter(|_| has_changed).map(|path| path.clone_ref(slf.py()));
            (result, own.sockets.spent.take(), path.map(|path| (path, changed)))
        };
        if let Some((path, changed)) = path {
            let path = path.bind(slf.py());
            let mut own = path.try_borrow_mut()?;
            own.note(changed);
            drop(own);
            DataPath::run(path, false)?;
        }
        Ok((result, spent))
    }

    /// Do something, and return what has come of it.
    fn change<'py, R>(
        slf: &Bound<'py, Self>,
        act: impl FnOnce(&mut PeerSockets) -> R,
    ) -> PyResult<(R, Bound<'py, PyList>)> {
        let (result, spent) = Self::act(slf, act)?;
        let mut happened = slf.try_borrow_mut()?.sockets.happened();
        let list = list_of(slf.py(), &mut happened)?;
        drop(spent);
        if happened.capacity() > 0 {
            slf.try_borrow_mut()?.sockets.reuse(happened);
        }
        Ok((result, list))
    }

    /// Do something; a turn returns what has come of it.
    fn change_quietly<R>(slf: &Bound<'_, Self>, act: impl FnOnce(&mut PeerSockets) -> R) -> PyResult<R> {
        let (result, spent) = Self::act(slf, act)?;
        Self::ring(slf)?;
        drop(spent);
        Ok(result)
    }
}

#[pymethods]
impl ClientSockets {
    #[new]
    #[allow(clippy::too_many_arguments)] // each by its name
    #[pyo3(signature = (
        *, idle_s, receive_s, produce_frame_max, other_frame_max, frames_max, ahead_bytes, budget_bytes, login_budget_bytes,
        half_budget_bytes, handshakes_max, now_s
    ))]
    fn new(
        idle_s: Option<f64>,
        receive_s: f64,
        produce_frame_max: usize,
        other_frame_max: usize,
        frames_max: usize,
        ahead_bytes: usize,
        budget_bytes: usize,
        login_budget_bytes: usize,
        half_budget_bytes: usize,
        handshakes_max: usize,
        now_s: f64,
    ) -> PyResult<Self> {
        let limits = Limits {
            idle: idle_s.map(seconds).transpose()?,
            receive: seconds(receive_s)?,
            produce_frame: produce_frame_max,
            other_frame: other_frame_max,
            frames_max,
            ahead_bytes,
            budget: budget_bytes,
            login_budget: login_budget_bytes,
            halves_budget: half_budget_bytes,
            handshakes_max,
        };
        Ok(Self { sockets: PeerSockets::new(limits).map_err(os_error)?, path: None, begun_s: now_s })
    }

    fn fileno(&self) -> RawFd {
        self.sockets.poller_fd()
    }

    #[getter]
    fn due_s(&self) -> Option<f64> {
        self.sockets.peers.due().map(|at| at.saturating_sub(self.sockets.now()).as_secs_f64())
    }

    #[getter]
    fn count(&self) -> usize {
        self.sockets.peers.count()
    }

    #[getter]
    fn held(&self) -> (usize, usize, usize) {
        self.sockets.peers.held()
    }

    /// Take over a connected socket; `login`: the largest frame before its peer has logged in, and how long that may take.
    #[allow(unsafe_code)]
    #[pyo3(signature = (fd, owner, login, tls, /))]
    fn adopt(
        slf: &Bound<'_, Self>,
        fd: RawFd,
        owner: Py<PyAny>,
        login: Option<(usize, f64)>,
        tls: Option<&Bound<'_, TlsServer>>,
    ) -> PyResult<u64> {
        if fd < 0 {
            return Err(PyValueError::new_err("the descriptor is none"));
        }
        // SAFETY: the caller has detached the descriptor from its socket, and hands it over.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let login = login.map(|(frame_max, left_s)| Ok::<_, PyErr>((frame_max, seconds(left_s)?))).transpose()?;
        let tls = tls.map(|tls| Session::new(&tls.get().0)).transpose();
        let tls = tls.map_err(|failure| PyOSError::new_err(failure.to_string()))?;
        let id = Self::change_quietly(slf, |sockets| {
            let now = sockets.now();
            let login = login.map(|(frame_max, left)| Login { frame_max, is_token: false, until: now + left });
            sockets.adopt(fd, owner, login, tls)
        })?;
        id.map(PeerId::as_u64).map_err(os_error)
    }

    /// Read and write where there is something to read, or room.
    fn turn<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let (outcome, happened) = Self::change(slf, PeerSockets::turn)?;
        // What has happened is not lost: the poller fails again in the next turn.
        outcome.or_else(|error| if happened.is_empty() { Err(os_error(error)) } else { Ok(()) })?;
        Ok(happened)
    }

    fn tick<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let ((), happened) = Self::change(slf, |sockets| {
            let now = sockets.now();
            sockets.peers.tick(now);
        })?;
        Ok(happened)
    }

    /// Take the next frame: its number, its bytes, when it arrived, and when the socket was last empty before.
    #[pyo3(signature = (id, /))]
    fn next_frame<'py>(slf: &Bound<'py, Self>, id: u64) -> PyResult<Option<Taken<'py>>> {
        let (py, peer) = (slf.py(), PeerId::from_u64(id));
        let (path, key) = {
            let mut own = slf.try_borrow_mut()?;
            own.sockets.read_rest(peer);
            let key = own.sockets.next_key(peer);
            (own.path.as_ref().map(|path| path.clone_ref(py)), key)
        };
        if let Some(path) = path {
            let path = path.bind(py);
            if path.try_borrow()?.keeps(peer, key) {
                path.try_borrow_mut()?.look([peer]);
                DataPath::run(path, true)?;
                return Ok(None);
            }
        }
        let frame = Self::change_quietly(slf, |sockets| sockets.next_frame(peer))?;
        let Some(frame) = frame else { return Ok(None) };
        let begun_s = slf.try_borrow()?.begun_s;
        let bytes = Owned::view(&Bound::new(py, Owned::from(frame.bytes, frame.begin))?)?;
        let (arrived, came_after) = (frame.arrived.as_secs_f64(), frame.came_after.as_secs_f64());
        Ok(Some((frame.number, bytes.into_any(), begun_s + arrived, begun_s + came_after)))
    }

    /// Answer frames, each with nothing if its client expects nothing. Returns whether all answers are with the kernel.
    #[pyo3(signature = (id, answers, /))]
    fn answer<'py>(
        slf: &Bound<'py, Self>,
        id: u64,
        answers: &Bound<'py, PyAny>,
    ) -> PyResult<(bool, Bound<'py, PyList>)> {
        let spent = slf.try_borrow()?.sockets.spent.clone();
        let mut packed = Vec::new();
        each_of(answers, |answer| {
            let answer = answer.cast::<PyTuple>()?;
            let number = answer.get_borrowed_item(0)?.extract()?;
            packed.push((number, pieces_of(answer.get_borrowed_item(1)?, &spent)?));
            Ok(())
        })?;
        let peer = PeerId::from_u64(id);
        Self::change(slf, |sockets| {
            let is_written = sockets.answer(peer, packed);
            if sockets.changed.is_wanted && matches!(sockets.next_key(peer), Some(PRODUCE | FETCH)) {
                sockets.changed.ready.push(peer);
            }
            is_written
        })
    }

    #[pyo3(signature = (id, seconds, /))]
    fn mute(slf: &Bound<'_, Self>, id: u64, seconds: f64) -> PyResult<()> {
        let left = self::seconds(seconds)?;
        Self::change_quietly(slf, |sockets| {
            let now = sockets.now();
            sockets.peers.mute(PeerId::from_u64(id), now + left, now);
        })
    }

    /// Change what a peer may send before it has logged in; without `frame_max` it has.
    #[pyo3(signature = (id, frame_max, is_token, left_s, /))]
    fn set_login(
        slf: &Bound<'_, Self>,
        id: u64,
        frame_max: Option<usize>,
        is_token: bool,
        left_s: f64,
    ) -> PyResult<()> {
        let left = seconds(left_s)?;
        Self::change_quietly(slf, |sockets| {
            let now = sockets.now();
            let login = frame_max.map(|frame_max| Login { frame_max, is_token, until: now + left });
            sockets.peers.set_login(PeerId::from_u64(id), login, now);
        })
    }

    #[pyo3(signature = (id, linger_s, shuts_down, /))]
    fn leave<'py>(slf: &Bound<'py, Self>, id: u64, linger_s: f64, shuts_down: bool) -> PyResult<Bound<'py, PyList>> {
        let linger = seconds(linger_s)?;
        let ((), happened) = Self::change(slf, |sockets| {
            let now = sockets.now();
            sockets.peers.leave(PeerId::from_u64(id), linger, shuts_down, now);
        })?;
        Ok(happened)
    }

    #[pyo3(signature = (id, /))]
    fn end<'py>(slf: &Bound<'py, Self>, id: u64) -> PyResult<Bound<'py, PyList>> {
        let ((), happened) = Self::change(slf, |sockets| {
            let now = sockets.now();
            sockets.peers.end(PeerId::from_u64(id), now);
        })?;
        Ok(happened)
    }

    #[pyo3(signature = (id, /))]
    fn close<'py>(slf: &Bound<'py, Self>, id: u64) -> PyResult<Bound<'py, PyList>> {
        let ((), happened) = Self::change(slf, |sockets| sockets.peers.close(PeerId::from_u64(id), Reason::Ended))?;
        Ok(happened)
    }

    #[pyo3(signature = (id, /))]
    fn is_gone(&mut self, id: u64) -> bool {
        self.sockets.is_gone(PeerId::from_u64(id))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.path)?;
        self.sockets.owners().try_for_each(|owner| visit.call(owner))
    }

    fn __clear__(&mut self) {
        drop((self.path.take(), self.sockets.forget()));
    }
}

fn os_error(error: Errno) -> PyErr {
    PyOSError::new_err((error.raw_os_error(), reason_of(error)))
}

/// The pieces of an answer; neighbours that are small are joined.
fn pieces_of(chunks: Borrowed<'_, '_, PyAny>, spent: &Spent) -> PyResult<Vec<Piece>> {
    let mut pieces: Vec<Piece> = Vec::new();
    each_of(&chunks, |chunk| {
        let payload = payload_of(&chunk)?;
        let bytes = payload.as_ref();
        if bytes.len() >= PIECE_BYTES_MIN {
            pieces.push(Piece::kept(payload, spent));
        } else if let Some(Piece::Own(shared::Piece::Made(last))) = pieces.last_mut() {
            last.extend_from_slice(bytes);
        } else {
            let mut joined = Vec::with_capacity(bytes.len().max(JOINED_BYTES));
            joined.extend_from_slice(bytes);
            pieces.push(Piece::Own(shared::Piece::Made(joined)));
        }
        Ok(())
    })?;
    Ok(pieces)
}

/// What has happened as tuples: owner, word, detail.
fn list_of<'py>(py: Python<'py>, happened: &mut Vec<Happened>) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for Happened { owner, word, detail } in happened.drain(..) {
        let word = match word {
            "frame" => intern!(py, "frame").clone(),
            "written" => intern!(py, "written").clone(),
            "timer" => intern!(py, "timer").clone(),
            _ => PyString::new(py, word),
        };
        let detail = match detail {
            Detail::Nothing => None,
            Detail::Text(text) => Some(PyString::new(py, &text).into_any()),
            Detail::Bytes(bytes) => Some(PyBytes::new(py, &bytes).into_any()),
        };
        list.append((owner, word, detail))?;
    }
    Ok(list)
}
