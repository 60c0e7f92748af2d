//! Channels of pub/sub, between a feed of the client of Redis and those who listen: Python, and the core's own readers.
//!
//! What a feed brings is taken in where it lies. Listeners of Python hear at the end of the turn, when nothing is
//! borrowed: their calls go to one callable, which has the event loop make them.

use std::mem;
use std::ops::Range;

use korvet_proto::channels::{self, Action, Announced, Name, Options};
use korvet_proto::client::{Event, LaneId, NodeId, Time, slot_of};
use korvet_proto::pipeline::Packed;
use pyo3::types::PyList;
use pyo3::{PyTraverseError, PyVisit, prelude::*};

use crate::client::RedisClient;
use crate::data_path::DataPath;
use crate::resp::bytes_of;
use crate::sockets::State;

/// A callable of Python, which is no other if it is the same object.
struct Listener(Py<PyAny>);

impl PartialEq for Listener {
    fn eq(&self, other: &Self) -> bool {
        self.0.is(&other.0)
    }
}

#[pyclass(module = "korvet_core")]
pub struct Channels {
    state: channels::Channels<Listener>,
    redis: Py<RedisClient>,
    lane: LaneId,
    is_cluster: bool,
    on_news: Option<Py<PyAny>>,
    /// The core's own readers.
    readers: Option<Py<DataPath>>,
    /// Who hears what in this turn, a range of `payloads`, or is to read again.
    calls: Vec<(Listener, Option<Range<usize>>)>,
    payloads: Vec<u8>,
    /// What became of channels that somebody waits for: why one is not live.
    answers: Vec<(Name, Option<String>)>,
    /// The time for which the driver was asked to set its timer.
    timer_at: Option<Time>,
}

impl Channels {
    pub fn new(redis: &Bound<'_, RedisClient>, lane: LaneId, on_news: Py<PyAny>, options: Options) -> Self {
        Self {
            state: channels::Channels::new(options),
            redis: redis.clone().unbind(),
            lane,
            is_cluster: options.is_cluster,
            on_news: Some(on_news),
            readers: None,
            calls: Vec::new(),
            payloads: Vec::new(),
            answers: Vec::new(),
            timer_at: None,
        }
    }

    // --- for the client of Redis

    /// Take what a node sent over a feed.
    pub fn received(&mut self, py: Python<'_>, (lane, node): (LaneId, NodeId), reply: &[u8], now: Time) {
        if lane != self.lane {
            return;
        }
        if let Some(message) = self.state.received(node, reply, now) {
            let begin = self.payloads.len();
            self.payloads.extend_from_slice(message.payload);
            let range = begin..self.payloads.len();
            let listeners = message.listeners.iter().map(|listener| Listener(listener.0.clone_ref(py)));
            self.calls.extend(listeners.map(|listener| (listener, Some(range.clone()))));
        }
        self.take_events(py);
    }

    /// Note what became of a connection, or of the map.
    pub fn note(&mut self, event: &Event, now: Time) {
        match event {
            Event::Connected { lane, node, .. } if *lane == self.lane => self.state.connected(*node),
            Event::Refused { lane, node, text } if *lane == self.lane => self.state.refused(*node, text),
            Event::Lost { lane, node, text } if *lane == self.lane => self.state.lost(*node, text, now),
            Event::Map => self.state.map_changed(),
            _ => {}
        }
    }

    /// Look whether anything is due.
    pub fn tick(&mut self, now: Time) {
        self.state.tick(now);
    }

    /// When that is to be looked at, if at all.
    pub fn due(&self) -> Option<Time> {
        self.state.due()
    }

    /// Do what follows from what was said; returns whether anything did, and whether the timer is to be set.
    pub fn serve(&mut self, state: &mut State) -> (bool, bool) {
        let (is_due, lane, now) = (self.state.is_due(), self.lane, state.now());
        if is_due {
            self.state.serve(&state.client, now);
        }
        while let Some(action) = self.state.next_action() {
            match action {
                Action::Keep { node, is_kept, pings } => state.client.keep(lane, node, is_kept, pings, now),
                Action::Lose { node, reason, pauses } => state.client.lose(lane, node, &reason, pauses, now),
                Action::Send { node, commands } => {
                    if let Some(connection) = state.client.send(lane, node, Packed::from(commands)) {
                        state.flush(connection);
                    }
                }
                Action::Moved { slot, host, port } => state.client.moved(slot, &host, port, now),
                Action::ReadMap => state.client.read_map_soon(now),
            }
        }
        let sets_timer = self.is_due_earlier();
        self.timer_at = self.due();
        (is_due, sets_timer)
    }

    fn is_due_earlier(&self) -> bool {
        self.due().is_some_and(|due| self.timer_at.is_none_or(|at| due < at))
    }

    /// Whether somebody is to hear something.
    pub fn has_news(&self) -> bool {
        let has_calls = !self.calls.is_empty() || !self.answers.is_empty();
        has_calls || self.state.has_events() || self.readers.is_some() && self.state.has_announced()
    }

    /// Have those hear who listen, at the end of a turn.
    pub fn report(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let (calls, payloads, answers, on_news, readers) = {
            let mut own = slf.try_borrow_mut()?;
            own.take_events(py);
            let readers = own.readers.as_ref().filter(|_| own.state.has_announced()).map(|one| one.clone_ref(py));
            let on_news = own.on_news.as_ref().map(|call| call.clone_ref(py));
            let (calls, payloads) = (mem::take(&mut own.calls), mem::take(&mut own.payloads));
            (calls, payloads, mem::take(&mut own.answers), on_news, readers)
        };
        let outcome = readers.map_or(Ok(()), |readers| DataPath::run(readers.bind(py), true));
        let Some(on_news) = on_news.filter(|_| !(calls.is_empty() && answers.is_empty())) else { return outcome };
        let heard = PyList::empty(py);
        for (Listener(listener), range) in calls {
            let payload = range.map(|range| bytes_of(py, payloads.get(range).unwrap_or_default())).transpose()?;
            heard.append((listener, payload))?;
        }
        let answered = PyList::empty(py);
        for (channel, refusal) in answers {
            answered.append((&*channel, refusal))?;
        }
        on_news.bind(py).call1((heard, answered))?;
        outcome
    }

    fn take_events(&mut self, py: Python<'_>) {
        while let Some(event) = self.state.next_event() {
            match event {
                channels::Event::Live { channel } => self.answers.push((channel, None)),
                channels::Event::Failed { channel, text } => self.answers.push((channel, Some(text))),
                channels::Event::Again { channel } => {
                    let listeners = self.state.listeners_of(&channel).iter();
                    self.calls.extend(listeners.map(|listener| (Listener(listener.0.clone_ref(py)), None)));
                }
            }
        }
    }

    // --- for the core's own readers

    /// Have these run when something is announced.
    pub fn attach(&mut self, readers: Py<DataPath>) {
        self.readers = Some(readers);
    }

    /// Have what comes over a channel announced; returns whether it is live. `run` is to be called then.
    pub fn watch(&mut self, channel: &str, slot: u16, now: Time) -> bool {
        self.state.watch(channel, slot, now)
    }

    /// Announce no more what comes over a channel. `run` is to be called then.
    pub fn unwatch(&mut self, channel: &str, now: Time) {
        self.state.unwatch(channel, now);
    }

    /// Take what was announced, in order.
    pub fn take_announced(&mut self) -> Vec<Announced> {
        self.state.take_announced()
    }

    /// Do what follows from changes, if anything does.
    pub fn run(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (redis, is_quiet) = {
            let own = slf.try_borrow()?;
            (own.redis.clone_ref(slf.py()), !(own.state.is_due() || own.is_due_earlier() || own.has_news()))
        };
        if is_quiet { Ok(()) } else { RedisClient::serve_channels(redis.bind(slf.py())) }
    }

    fn now(&self, py: Python<'_>) -> PyResult<Time> {
        Ok(self.redis.bind(py).try_borrow()?.state.now())
    }

    fn slot_of(&self, channel: &str) -> u16 {
        if self.is_cluster { slot_of(channel.as_bytes()) } else { 0 }
    }
}

#[pymethods]
impl Channels {
    #[pyo3(signature = (pairs, /))]
    fn listen(slf: &Bound<'_, Self>, pairs: Vec<(String, Py<PyAny>)>) -> PyResult<()> {
        {
            let mut own = slf.try_borrow_mut()?;
            let now = own.now(slf.py())?;
            for (channel, listener) in pairs {
                let slot = own.slot_of(&channel);
                own.state.listen(&channel, slot, Listener(listener), now);
            }
        }
        Self::run(slf)
    }

    #[pyo3(signature = (channel, listener, /))]
    fn forget(slf: &Bound<'_, Self>, channel: &str, listener: Py<PyAny>) -> PyResult<()> {
        let listener = Listener(listener);
        let gone = {
            let mut own = slf.try_borrow_mut()?;
            let now = own.now(slf.py())?;
            own.state.forget(channel, &listener, now)
        };
        drop(gone);
        Self::run(slf)
    }

    #[pyo3(signature = (channel, /))]
    fn live(&self, channel: &str) -> bool {
        self.state.is_live(channel)
    }

    #[getter]
    fn count(&self) -> usize {
        self.state.count()
    }

    #[getter]
    fn listeners(&self) -> usize {
        self.state.listeners().count()
    }

    #[pyo3(signature = (reason, /))]
    fn reconnect(slf: &Bound<'_, Self>, reason: &str) -> PyResult<()> {
        slf.try_borrow_mut()?.state.reconnect(reason);
        Self::run(slf)
    }

    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (redis, lane, gone) = {
            let mut own = slf.try_borrow_mut()?;
            (own.redis.clone_ref(slf.py()), own.lane, own.state.close())
        };
        drop(gone);
        RedisClient::close_feed(redis.bind(slf.py()), lane)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let calls = self.calls.iter().map(|(listener, _)| listener);
        for Listener(listener) in self.state.listeners().chain(calls) {
            visit.call(listener)?;
        }
        visit.call(&self.redis)?;
        visit.call(&self.on_news)?;
        visit.call(&self.readers)
    }

    fn __clear__(&mut self) {
        let listeners = (self.state.close(), mem::take(&mut self.calls));
        drop((listeners, self.on_news.take(), self.readers.take()));
    }
}
