//! The client of Redis with its sockets: called by callers with what they ask for, and by a driver at each readiness.
//!
//! All state is a `korvet_proto::client::Client`. The driver, which is Python, opens sockets, watches them and has the
//! clock. Its calls return actions, which it is to do, and the calls that are finished. Calls of callers seldom have actions,
//! and give them to `act`; calls that are finished meanwhile come with the driver's next call.
//!
//! Commands are packed and objects made of replies while the client is not borrowed, for that may run any Python, which
//! may call the client. A finalizer that calls it while it is borrowed all the same gets an error of PyO3.

use std::mem;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use korvet_proto::channels;
use korvet_proto::client::{
    Address, Begin, Client, ConnectionId, LaneId, LaneOptions, Login, NodeId, Options, Span, Target, Time,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::args::seconds;
use crate::buffer::Bytes;
pub use crate::call::Came;
use crate::call::{Asked, Token, text_of};
use crate::channels::Channels;
use crate::data_path::DataPath;
use crate::resp::{Builder, bytes_of, each_of, new_packed, no_memory, put_command};
use crate::sockets::{NO_MEMORY, State, Step};
use crate::turn::{Lists, Received, Turn, send_piece};
use korvet_proto::shared::Shared;

/// The most bytes of one turn, for a large reply must not stall the worker: the watcher calls again.
const TURN_BYTES: usize = 1024 * 1024;

#[pyclass(module = "korvet_core", generic)]
pub struct RedisClient {
    pub(crate) state: State,
    /// What was finished in a call of a caller, until the driver calls.
    pub(crate) undelivered: Option<Py<PyList>>,
    pub(crate) prevented: Py<PyAny>,
    pub(crate) act: Option<Py<PyAny>>,
    /// What appends and reads over this client, and what it is to know.
    pub(crate) paths: Vec<Py<DataPath>>,
    pub(crate) came: Vec<Vec<Came>>,
    /// Who listens over its feeds.
    pub(crate) channels: Vec<Py<Channels>>,
    error_of: Py<PyAny>,
    new_waiter: Py<PyAny>,
    pub(crate) is_cluster: bool,
    /// Objects are made of replies, which lie among bytes of a connection that are away for it.
    is_building: bool,
}

/// Where a call goes, and how.
struct Route {
    lane: LaneId,
    node: Option<NodeId>,
    reply_bytes: usize,
    is_rerun: bool,
    history: Option<String>,
}

impl RedisClient {
    /// Do what follows from changes of channels.
    pub fn serve_channels(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::change(slf, |_, _| ())
    }

    pub fn close_feed(slf: &Bound<'_, Self>, lane: LaneId) -> PyResult<()> {
        Self::change(slf, |state, now| state.client.close(lane, now))
    }

    /// Begin a call, whose waiter is returned.
    fn ask<'py>(
        slf: &Bound<'py, Self>,
        asked: &Asked,
        operation: Bound<'py, PyAny>,
        route: Route,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let (waiter, is_divided) = {
            let client = slf.try_borrow()?;
            (client.new_waiter.clone_ref(py), client.is_cluster && route.node.is_none())
        };
        let waiter = waiter.bind(py).call0()?;
        let whole = [Span { first: 0, count: asked.count(py), slot: None }];
        let divided = if is_divided { asked.spans(py)? } else { Vec::new() };
        let spans = if is_divided { &divided } else { &whole[..] };
        let token = Token::new(waiter.clone().unbind(), operation.unbind(), asked.clone_ref(py));
        let Route { lane, node, reply_bytes, is_rerun, history } = route;
        let begin = Begin { token, lane, node, reply_bytes, is_scripts: asked.are_scripts, is_rerun, history };
        let (call, ready, now) = {
            let mut client = slf.try_borrow_mut()?;
            let now = client.state.now();
            (client.state.client.begin(begin, spans, now), client.state.client.next_ready(), now)
        };
        let (step, mut outcome) = match ready {
            Some(ready) if ready.piece.call == call => send_piece(slf, &ready, asked, now)?,
            ready => (Step { ready, todos: slf.try_borrow_mut()?.state.todos() }, Ok(())),
        };
        if !step.is_nothing() {
            let mut turn = Turn::new(slf);
            outcome = outcome.and(turn.run(step, Some((call, asked))));
            turn.have_acted()?;
        }
        outcome.map(|()| waiter)
    }

    /// Begin a call that asks for no replies.
    fn ask_nothing<'py>(
        slf: &Bound<'py, Self>,
        begin: impl FnOnce(&mut State, Token, Time),
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let new_waiter = slf.try_borrow()?.new_waiter.clone_ref(py);
        let waiter = new_waiter.bind(py).call0()?;
        let operation = pyo3::intern!(py, "").clone().into_any().unbind();
        let token = Token::new(waiter.clone().unbind(), operation, Asked::nothing(py));
        Self::change(slf, |state, now| begin(state, token, now))?;
        Ok(waiter)
    }

    fn stepped(slf: &Bound<'_, Self>, change: impl FnOnce(&mut State, Time)) -> PyResult<Step> {
        let mut client = slf.try_borrow_mut()?;
        let now = client.state.now();
        change(&mut client.state, now);
        Ok(client.state.step())
    }

    /// Change something for a caller, and have the driver act.
    pub(crate) fn change(slf: &Bound<'_, Self>, change: impl FnOnce(&mut State, Time)) -> PyResult<()> {
        let step = Self::stepped(slf, change)?;
        let mut turn = Turn::new(slf);
        let outcome = turn.run(step, None);
        turn.have_acted()?;
        outcome
    }

    /// Change something for the driver, and return what has come of it.
    fn turn<'py>(slf: &Bound<'py, Self>, change: impl FnOnce(&mut State, Time)) -> PyResult<Lists<'py>> {
        let step = Self::stepped(slf, change)?;
        let mut turn = Turn::resumed(slf)?;
        turn.run(step, None)?;
        Ok(turn.lists())
    }

    /// Have `take` append to the received bytes of a connection, and take them in; returns the result of `take`.
    fn take_in<'py>(
        slf: &Bound<'py, Self>,
        turn: &mut Turn<'_, 'py>,
        connection: ConnectionId,
        take: impl FnOnce(&mut State, Time) -> (usize, bool),
    ) -> PyResult<(usize, bool)> {
        let (taken, mut step, received) = {
            let mut client = slf.try_borrow_mut()?;
            let now = client.state.now();
            let taken = take(&mut client.state, now);
            let received = (taken.0 > 0).then(|| {
                client.is_building = true;
                client.state.client.received(connection, now);
                let bytes = Shared::from(client.state.client.lend(connection));
                Received { bytes, builder: Builder::new(slf.py(), &client.error_of) }
            });
            (taken, client.state.step(), received)
        };
        if let Some(received) = received {
            let has_memory = turn.handle(&mut step.todos, Some(&received));
            let mut client = slf.try_borrow_mut()?;
            client.is_building = false;
            let state = &mut client.state;
            match received.bytes.into_vec() {
                Ok(bytes) => state.client.give_back(connection, bytes),
                // The data path keeps replies where they are.
                Err(held) => state.client.give_back_rest(connection, held.as_ref()),
            }
            state.reuse(mem::take(&mut step.todos));
            if !has_memory {
                let now = state.now();
                state.client.failed(connection, NO_MEMORY, now);
            }
            if step.ready.is_none() {
                step = state.step();
            }
        }
        turn.run(step, None)?;
        Ok(taken)
    }
}

#[pymethods]
impl RedisClient {
    #[new]
    #[allow(clippy::too_many_arguments)] // each by its name, or once
    #[pyo3(signature = (
        kind, addresses, master_name, login, sentinel_login, error_of, prevented, new_waiter, act, *, timeout_s,
        connect_timeout_s, seed, watches = true
    ))]
    fn new(
        kind: &str,
        addresses: Vec<(String, u16)>,
        master_name: String,
        login: (String, String, u32),
        sentinel_login: (String, String),
        error_of: Py<PyAny>,
        prevented: Py<PyAny>,
        new_waiter: Py<PyAny>,
        act: Py<PyAny>,
        timeout_s: f64,
        connect_timeout_s: f64,
        seed: u64,
        watches: bool,
    ) -> PyResult<Self> {
        let mut addresses: Vec<_> = addresses.into_iter().map(|(host, port)| Address { host, port }).collect();
        let target = match (kind, addresses.pop()) {
            (_, None) => return Err(PyValueError::new_err("there is no address")),
            ("server", Some(address)) if addresses.is_empty() => Target::Server(address),
            ("sentinel", Some(address)) => {
                addresses.push(address);
                Target::Sentinels { addresses, master: master_name }
            }
            ("cluster", Some(address)) => {
                addresses.push(address);
                Target::Cluster(addresses)
            }
            _ => return Err(PyValueError::new_err(format!("there is no client of the kind {kind}"))),
        };
        let (username, password, database) = login;
        let login = Login { username, password, database };
        let (username, password) = sentinel_login;
        let sentinel_login = Login { username, password, database: 0 };
        let (timeout, connect_timeout) = (seconds(timeout_s)?, seconds(connect_timeout_s)?);
        Ok(Self {
            is_cluster: kind == "cluster",
            state: State::new(Client::new(Options {
                target,
                login,
                sentinel_login,
                timeout,
                connect_timeout,
                seed,
                is_watching: watches,
            })),
            undelivered: None,
            prevented,
            act: Some(act),
            paths: Vec::new(),
            came: Vec::new(),
            channels: Vec::new(),
            error_of,
            new_waiter,
            is_building: false,
        })
    }

    #[pyo3(signature = (*, commands_max, bytes_max, reply_bytes_max, first = None))]
    fn add_lane(
        slf: &Bound<'_, Self>,
        commands_max: usize,
        bytes_max: usize,
        reply_bytes_max: usize,
        first: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<LaneId> {
        let mut packed = Vec::new();
        if let Some(first) = first {
            each_of(first, |command| {
                let mut text = new_packed();
                put_command(&mut text, command)?;
                packed.push(text.joined());
                Ok(())
            })?;
        }
        let options = LaneOptions { commands_max, bytes_max, reply_bytes_max, first: packed, ping: None };
        Ok(slf.try_borrow_mut()?.state.client.add_lane(options))
    }

    #[pyo3(signature = (on_news, /, *, linger_s, timeout_s, ping_s))]
    fn open_feed(
        slf: &Bound<'_, Self>,
        on_news: Py<PyAny>,
        linger_s: f64,
        timeout_s: f64,
        ping_s: f64,
    ) -> PyResult<Py<Channels>> {
        let (linger, timeout, ping) = (seconds(linger_s)?, seconds(timeout_s)?, Some(seconds(ping_s)?));
        let (lane, is_cluster) = {
            let mut client = slf.try_borrow_mut()?;
            let (commands_max, bytes_max, reply_bytes_max, first) = (0, 0, 0, Vec::new());
            let options = LaneOptions { commands_max, bytes_max, reply_bytes_max, first, ping };
            (client.state.client.add_lane(options), client.is_cluster)
        };
        let options = channels::Options { is_cluster, linger, timeout };
        let channels = Py::new(slf.py(), Channels::new(slf, lane, on_news, options))?;
        slf.try_borrow_mut()?.channels.push(channels.clone_ref(slf.py()));
        Ok(channels)
    }

    // --- calls

    #[allow(clippy::too_many_arguments)] // all are given
    #[pyo3(signature = (lane, commands, operation, node, reply_bytes, is_raw = false, /))]
    fn begin<'py>(
        slf: &Bound<'py, Self>,
        lane: LaneId,
        commands: &Bound<'py, PyAny>,
        operation: Bound<'py, PyAny>,
        node: Option<NodeId>,
        reply_bytes: usize,
        is_raw: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let route = Route { lane, node, reply_bytes, is_rerun: false, history: None };
        Self::ask(slf, &Asked { is_raw, ..Asked::new(commands, false, None)? }, operation, route)
    }

    #[allow(clippy::too_many_arguments)] // all are given
    #[pyo3(signature = (lane, calls, operation, node, history, sent, /))]
    fn begin_scripts<'py>(
        slf: &Bound<'py, Self>,
        lane: LaneId,
        calls: &Bound<'py, PyAny>,
        operation: Bound<'py, PyAny>,
        node: Option<NodeId>,
        history: Option<String>,
        sent: Option<Bound<'py, PyList>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let route = Route { lane, node, reply_bytes: 0, is_rerun: true, history };
        Self::ask(slf, &Asked::new(calls, true, sent)?, operation, route)
    }

    // --- connections

    #[pyo3(signature = (lane, node, /))]
    fn connect<'py>(slf: &Bound<'py, Self>, lane: LaneId, node: NodeId) -> PyResult<Bound<'py, PyAny>> {
        Self::ask_nothing(slf, |state, token, now| {
            let node = Some(node);
            let begin = Begin { token, lane, node, reply_bytes: 0, is_scripts: false, is_rerun: false, history: None };
            state.client.begin(begin, &[], now);
        })
    }

    #[pyo3(signature = (lane, node, reason, pauses, /))]
    fn lose(slf: &Bound<'_, Self>, lane: LaneId, node: NodeId, reason: &str, pauses: bool) -> PyResult<()> {
        Self::change(slf, |state, now| state.client.lose(lane, node, reason, pauses, now))
    }

    #[pyo3(signature = (lane, /))]
    fn close(slf: &Bound<'_, Self>, lane: LaneId) -> PyResult<()> {
        Self::change(slf, |state, now| state.client.close(lane, now))
    }

    #[pyo3(signature = (lane, node, /))]
    fn is_ready(&self, lane: LaneId, node: NodeId) -> bool {
        self.state.client.is_ready(lane, node)
    }

    #[pyo3(signature = (lane, node, /))]
    fn is_busy(&self, lane: LaneId, node: NodeId) -> bool {
        self.state.client.is_busy(lane, node)
    }

    #[pyo3(signature = (lane, node, /))]
    fn under_way(&self, lane: LaneId, node: NodeId) -> (usize, usize, usize) {
        self.state.client.under_way(lane, node)
    }

    #[pyo3(signature = (lane, node, /))]
    fn waiting(&self, lane: LaneId, node: NodeId) -> (usize, usize) {
        self.state.client.waiting(lane, node)
    }

    #[pyo3(signature = (lane, node, history, /))]
    fn set_history(slf: &Bound<'_, Self>, lane: LaneId, node: NodeId, history: String) -> PyResult<()> {
        Self::change(slf, |state, _| state.client.set_history(lane, node, history))
    }

    // --- leases and flags of a node in a lane

    #[pyo3(signature = (lane, node, end_ms, /))]
    fn set_lease(&mut self, lane: LaneId, node: isize, end_ms: i64) {
        self.state.client.set_lease(lane, usize::try_from(node).ok(), end_ms);
    }

    #[pyo3(signature = (lane, node, /))]
    fn lease_end_ms(&self, lane: LaneId, node: NodeId) -> i64 {
        self.state.client.lease_end_ms(lane, node)
    }

    #[pyo3(signature = (lane, node, /))]
    fn lease_ended(&self, lane: LaneId, node: NodeId) -> bool {
        self.state.client.lease_ended(lane, node)
    }

    // --- the map of a cluster

    #[getter]
    fn map_version(&self) -> u64 {
        self.state.client.map_version()
    }

    fn read_map<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::ask_nothing(slf, |state, token, now| {
            state.client.read_map(token, now);
        })
    }

    fn read_map_soon(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::change(slf, |state, now| state.client.read_map_soon(now))
    }

    #[pyo3(signature = (slot, /))]
    fn node_at(&self, slot: u16) -> Option<NodeId> {
        self.state.client.node_at(slot)
    }

    fn slots(&self) -> Vec<(u16, u16, NodeId)> {
        self.state.client.slots()
    }

    #[pyo3(signature = (node, /))]
    fn name(&self, node: NodeId) -> PyResult<&str> {
        self.state.client.name(node).ok_or_else(|| PyValueError::new_err(format!("there is no node {node}")))
    }

    #[pyo3(signature = (node, /))]
    fn address(&self, node: NodeId) -> PyResult<(&str, u16)> {
        let address = self.state.client.address(node);
        let address = address.ok_or_else(|| PyValueError::new_err(format!("there is no node {node}")))?;
        Ok((&address.host, address.port))
    }

    #[pyo3(signature = (slot, host, port, /))]
    fn moved(slf: &Bound<'_, Self>, slot: u16, host: &str, port: u16) -> PyResult<()> {
        Self::change(slf, |state, now| state.client.moved(slot, host, port, now))
    }

    // --- called by the driver

    #[allow(unsafe_code)]
    #[pyo3(signature = (connection, fd, /))]
    fn opened<'py>(slf: &Bound<'py, Self>, connection: u64, fd: Option<RawFd>) -> PyResult<Lists<'py>> {
        if fd.is_some_and(|fd| fd < 0) {
            return Err(PyValueError::new_err("the descriptor is none"));
        }
        // SAFETY: the caller has detached the descriptor from its socket, and hands it over.
        let fd = fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Self::turn(slf, |state, now| state.opened(ConnectionId::from_u64(connection), fd, now))
    }

    #[pyo3(signature = (connection, reason, /))]
    fn failed<'py>(slf: &Bound<'py, Self>, connection: u64, reason: &str) -> PyResult<Lists<'py>> {
        Self::turn(slf, |state, now| state.client.failed(ConnectionId::from_u64(connection), reason, now))
    }

    #[pyo3(signature = (connection, /))]
    fn closed(&mut self, connection: u64) {
        self.state.closed(ConnectionId::from_u64(connection));
    }

    #[pyo3(signature = (connection, /))]
    fn readable<'py>(slf: &Bound<'py, Self>, connection: u64) -> PyResult<Lists<'py>> {
        let connection = ConnectionId::from_u64(connection);
        let (mut turn, mut size, mut is_more) = (Turn::resumed(slf)?, 0, true);
        while is_more && size < TURN_BYTES && !slf.try_borrow()?.is_building {
            let (taken, more) = Self::take_in(slf, &mut turn, connection, |state, now| state.read(connection, now))?;
            (size, is_more) = (size + taken, more);
        }
        Ok(turn.lists())
    }

    #[pyo3(signature = (connection, data, /))]
    fn received<'py>(slf: &Bound<'py, Self>, connection: u64, data: Bytes) -> PyResult<Lists<'py>> {
        let (py, connection) = (slf.py(), ConnectionId::from_u64(connection));
        if slf.try_borrow()?.is_building {
            // The bytes before these may be away. To drop these would give replies to the wrong callers.
            let reason = "bytes came while replies were read";
            return Self::turn(slf, |state, now| state.client.failed(connection, reason, now));
        }
        let mut turn = Turn::resumed(slf)?;
        Self::take_in(slf, &mut turn, connection, |state, now| (state.take(connection, data.get(py), now), false))?;
        Ok(turn.lists())
    }

    #[pyo3(signature = (connection, /))]
    fn writable<'py>(slf: &Bound<'py, Self>, connection: u64) -> PyResult<Lists<'py>> {
        Self::turn(slf, |state, now| state.write_out(ConnectionId::from_u64(connection), now))
    }

    #[pyo3(signature = (connection, size_max, /))]
    fn unwritten<'py>(&mut self, py: Python<'py>, connection: u64, size_max: usize) -> PyResult<Bound<'py, PyAny>> {
        let bytes = self.state.unwritten(ConnectionId::from_u64(connection), size_max).map_err(no_memory)?;
        bytes_of(py, &bytes)
    }

    #[pyo3(signature = (connection, size, /))]
    fn wrote(&mut self, connection: u64, size: usize) {
        self.state.client.wrote(ConnectionId::from_u64(connection), size);
    }

    fn tick<'py>(slf: &Bound<'py, Self>) -> PyResult<Lists<'py>> {
        {
            let client = slf.try_borrow()?;
            for channels in &client.channels {
                channels.bind(slf.py()).try_borrow_mut()?.tick(client.state.now());
            }
        }
        Self::turn(slf, |state, now| state.client.tick(now))
    }

    #[getter]
    fn due_s(&self, py: Python<'_>) -> Option<f64> {
        if self.undelivered.is_some() {
            return Some(0.0);
        }
        let channels = self.channels.iter().filter_map(|channels| channels.bind(py).try_borrow().ok()?.due());
        let due = channels.chain(self.state.client.due()).min();
        due.map(|at| at.saturating_sub(self.state.now()).as_secs_f64())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for object in [&self.error_of, &self.prevented, &self.new_waiter] {
            visit.call(object)?;
        }
        for token in self.state.client.tokens() {
            token.objects().try_for_each(|object| visit.call(object))?;
        }
        self.paths.iter().try_for_each(|path| visit.call(path))?;
        self.channels.iter().try_for_each(|channels| visit.call(channels))?;
        visit.call(&self.undelivered)?;
        visit.call(&self.act)
    }

    fn __clear__(&mut self) {
        let called = (self.act.take(), mem::take(&mut self.paths), mem::take(&mut self.channels));
        let dropped = (called, self.undelivered.take(), self.state.client.forget_calls());
        drop(dropped);
    }
}

/// The slot of a key in a cluster.
#[pyfunction]
#[pyo3(signature = (key, /))]
pub fn slot_of(key: &Bound<'_, PyAny>) -> PyResult<u16> {
    let text = text_of(key)?.ok_or_else(|| PyTypeError::new_err("a key is neither str nor bytes"))?;
    Ok(korvet_proto::client::slot_of(text))
}
