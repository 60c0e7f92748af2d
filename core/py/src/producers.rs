//! Produce, served between the sockets of clients and those of Redis; Python hears of it only what it has to decide.
//!
//! One step takes in what Redis has replied and which requests have arrived, sends what was gathered, and writes answers.
//! The sockets and the client of Redis are borrowed for a step: nothing in it makes, calls or drops an object of Python but
//! for references to owners. What Python is to know or to decide is given to its callable when nothing is borrowed.

use std::collections::VecDeque;
use std::mem;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use korvet_proto::access::{Right, Session};
use korvet_proto::client::{LaneId, Piece};
use korvet_proto::peer::PeerId;
use korvet_proto::pipeline::{Packed, Time};
use korvet_proto::produce::{self, Clock, Decision, End, Event, Incoming, Pressure, RequestId, Sending};
use korvet_proto::shared::Shared;
use pyo3::exceptions::PyValueError;
use pyo3::types::{PyList, PyTuple};
use pyo3::{PyTraverseError, PyVisit, prelude::*};
use rustix::time::{ClockId, clock_gettime};

use crate::client::{Appended, RedisClient};
use crate::peer_sockets::PeerSockets;
use crate::peers::ClientSockets;
use crate::produce_args::{
    BatchArgs, DecisionArgs, EndFields, NotedFields, PartitionArgs, decision_of, noted_fields, outcome_fields,
    question_fields, script_of,
};

/// Until when this worker may begin requests without looking at Redis' clock.
#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    /// By the clock that goes on while the machine is suspended.
    end: Option<Duration>,
    /// What came before this may be older than it seems.
    late_until: Time,
    length: Duration,
}

/// What Python is to know.
enum News {
    Asked(RequestId, Option<Py<PyAny>>),
    Done(RequestId),
    Node(&'static str, usize),
    Partition(&'static str, String, u32),
    Word(&'static str),
}

#[pyclass(module = "korvet_core", generic)]
pub struct Producers {
    flow: produce::Producers,
    redis: Py<RedisClient>,
    lane: LaneId,
    /// By which the client of Redis knows this.
    number: usize,
    sockets: Option<Py<ClientSockets>>,
    on_news: Option<Py<PyAny>>,
    /// Clients that may have a request.
    ready: VecDeque<PeerId>,
    lease: Lease,
    begun: Instant,
    /// Python's time.monotonic() then.
    begun_s: f64,
    is_running: bool,
    /// Whether there may be something to do for whoever runs it.
    has_more: bool,
}

/// Somebody runs it, until this is dropped: whatever ends that, the next one runs it again.
struct Running<'a, 'py>(&'a Bound<'py, Producers>);

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        if let Ok(mut own) = self.0.try_borrow_mut() {
            own.is_running = false;
        }
    }
}

impl Producers {
    fn now(&self) -> Time {
        self.begun.elapsed()
    }

    fn clock(&self) -> Clock {
        let ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Clock { now: self.now(), ms: i64::try_from(ms).unwrap_or(i64::MAX) }
    }

    /// A time of Python's clock.
    fn time_of(&self, seconds: f64) -> Time {
        Duration::try_from_secs_f64((seconds - self.begun_s).max(0.0)).unwrap_or(Duration::MAX)
    }

    /// The commands of a piece of a group.
    pub fn pack(&self, sending: produce::GroupId, piece: &Piece) -> Option<Packed<Shared>> {
        self.flow.pack(sending, piece, self.clock())
    }

    /// Whether Python does not get the next frame of a client now: it is served here, or after what is served here.
    pub fn keeps(&self, peer: PeerId, is_produce: bool) -> bool {
        self.flow.begun_by(peer) > 0 || is_produce && self.flow.serves(peer, self.now())
    }

    /// Look at clients that may have a request.
    pub fn look(&mut self, peers: impl IntoIterator<Item = PeerId>) {
        self.ready.extend(peers);
    }

    /// Forget a client whose connection is over.
    pub fn forget(&mut self, peer: PeerId) {
        self.flow.forget_session(peer);
    }

    /// Serve what has arrived, send what is gathered and answer what is done, until nothing is left to do. With `rings`
    /// the sockets are to have a turn if there is something to say about them.
    pub fn run(slf: &Bound<'_, Self>, rings: bool) -> PyResult<()> {
        {
            let mut own = slf.try_borrow_mut()?;
            own.has_more = true;
            if mem::replace(&mut own.is_running, true) {
                return Ok(()); // whoever runs it goes on
            }
        }
        let running = Running(slf);
        let (mut news, mut outcome) = (Vec::new(), Ok(()));
        while outcome.is_ok() && mem::take(&mut slf.try_borrow_mut()?.has_more) {
            outcome = Self::step(slf, &mut news);
        }
        drop(running);
        let (sockets, on_news) = {
            let own = slf.try_borrow()?;
            let sockets = own.sockets.as_ref().map(|sockets| sockets.clone_ref(slf.py()));
            (sockets, own.on_news.as_ref().filter(|_| !news.is_empty()).map(|call| call.clone_ref(slf.py())))
        };
        if let Some(sockets) = sockets.filter(|_| rings) {
            Self::report(slf, ClientSockets::ring(sockets.bind(slf.py())));
        }
        if let Some(on_news) = on_news {
            let heard = list_of(slf.py(), news).and_then(|news| on_news.bind(slf.py()).call1((news,)));
            Self::report(slf, heard.map(|_| ()));
        }
        outcome
    }

    /// Give an error that nobody waits for to Python's hook for such errors: whoever calls has asked for something else.
    fn report(slf: &Bound<'_, Self>, result: PyResult<()>) {
        if let Err(error) = result {
            error.write_unraisable(slf.py(), Some(slf));
        }
    }

    fn step(slf: &Bound<'_, Self>, news: &mut Vec<News>) -> PyResult<()> {
        let py = slf.py();
        let (redis, sockets, number, lane) = {
            let own = slf.try_borrow()?;
            let sockets = own.sockets.as_ref().map(|sockets| sockets.clone_ref(py));
            (own.redis.clone_ref(py), sockets, own.number, own.lane)
        };
        let redis = redis.bind(py);
        let appended = redis.try_borrow_mut()?.take_appended(number);
        let is_quiet = appended.is_empty();
        let (sends, spent) = {
            let mut own = slf.try_borrow_mut()?;
            let client = redis.try_borrow()?;
            let mut sockets = sockets.as_ref().map(|sockets| sockets.bind(py).try_borrow_mut()).transpose()?;
            let peers = sockets.as_mut().map(|sockets| &mut sockets.sockets);
            own.serve(py, appended, &client, peers, news)
        };
        drop(spent);
        let is_done = is_quiet && sends.is_empty();
        for sending in sends {
            // Whatever becomes of one: the requests in the others have no other time limit.
            Self::report(slf, RedisClient::begin_appends(redis, &sending, number, lane));
        }
        let mut own = slf.try_borrow_mut()?;
        own.has_more |= !(is_done && own.ready.is_empty());
        Ok(())
    }

    fn serve(
        &mut self,
        py: Python<'_>,
        appended: Vec<Appended>,
        client: &RedisClient,
        mut sockets: Option<&mut PeerSockets>,
        news: &mut Vec<News>,
    ) -> (Vec<Sending>, impl Sized + use<>) {
        let (clock, nodes) = (self.clock(), client.nodes(self.lane));
        for outcome in appended {
            match outcome {
                Appended::Replied { group, call, reply } => self.flow.replied(group, call, &reply, &nodes, clock),
                Appended::Prevented { group, calls, kind, text } => {
                    self.flow.prevented(group, calls, kind, &text, &nodes, clock);
                }
                Appended::Reordered => self.flow.reordered(),
                Appended::Reconnected => self.flow.reconnected(clock.now),
            }
        }
        if let Some(sockets) = sockets.as_deref_mut() {
            while let Some(peer) = self.ready.pop_front() {
                self.take_frames(py, peer, sockets, client);
            }
        }
        self.flow.flush(&nodes, self.clock());
        let sends = std::iter::from_fn(|| self.flow.next_send()).collect();
        let (mut answered, mut ends) = (Vec::new(), Vec::new());
        let mut count = 0;
        while let Some(event) = self.flow.next_event() {
            match event {
                Event::Answer { peer, number, response, throttle, reason } => {
                    count += 1;
                    if let Some(sockets) = sockets.as_deref_mut() {
                        sockets.put_answer(peer, number, response);
                    }
                    answered.push(peer);
                    if !throttle.is_zero() {
                        ends.push((peer, Some((throttle, reason)), String::new(), false));
                    }
                }
                Event::Close { peer, text, is_unanswered } => ends.push((peer, None, text, is_unanswered)),
                Event::Room { peer } => self.ready.push_back(peer),
                event => news.extend(Self::news_of(py, event, sockets.as_deref())),
            }
        }
        let Some(sockets) = sockets else {
            self.ready.clear();
            return (sends, None);
        };
        answered.sort_unstable();
        answered.dedup();
        for peer in answered {
            self.ready.push_back(peer);
            sockets.write_answers(peer);
        }
        self.flow.note_written(count, self.now());
        for (peer, throttle, text, is_unanswered) in ends {
            match throttle {
                Some((throttle, reason)) => sockets.throttle(py, peer, throttle, reason),
                None => sockets.end_for(py, peer, if is_unanswered { "unanswered" } else { "failed" }, text),
            }
        }
        sockets.settle(py);
        self.ready.extend(sockets.changed.ready.drain(..));
        sockets.changed.gone.drain(..).for_each(|peer| self.forget(peer));
        (sends, Some(sockets.spent.take()))
    }

    /// Begin the requests of a client that have arrived, as far as they are Produce and may begin; others are Python's.
    fn take_frames(&mut self, py: Python<'_>, peer: PeerId, sockets: &mut PeerSockets, client: &RedisClient) {
        while let Some(is_produce) = sockets.next_is_produce(peer) {
            let clock = self.clock();
            if !is_produce || !self.flow.serves(peer, clock.now) {
                if self.flow.begun_by(peer) == 0 {
                    sockets.has_frame(py, peer);
                }
                return;
            }
            // Those that Python serves are answered first.
            if sockets.peers.given(peer) > self.flow.begun_by(peer) || !self.flow.may_begin(peer) {
                return;
            }
            let now = sockets.now();
            let Some(frame) = sockets.next_frame(peer) else { return };
            let size = frame.bytes.len();
            let age = |at: Time| clock.now.saturating_sub(now.saturating_sub(at));
            let came_after = age(frame.came_after);
            let incoming = Incoming {
                number: frame.number,
                frame: Shared::from(frame.bytes).part(frame.begin..size),
                arrived: age(frame.arrived),
                late: self.is_late(came_after, clock.now).then_some(came_after),
            };
            self.flow.begin(peer, &incoming, &client.nodes(self.lane), clock);
            if self.flow.is_metered() {
                self.flow.note_busy(peer, self.now().saturating_sub(clock.now));
            }
        }
    }

    fn is_late(&self, came_after: Time, now: Time) -> bool {
        let Lease { end: Some(end), late_until, length } = self.lease else { return false };
        boot_time() >= end || came_after < late_until || now.saturating_sub(came_after) > length
    }

    fn news_of(py: Python<'_>, event: Event, sockets: Option<&PeerSockets>) -> Option<News> {
        Some(match event {
            Event::Asked { request, peer } => {
                let owner = peer.zip(sockets).and_then(|(peer, sockets)| sockets.owner(py, peer));
                News::Asked(request, owner)
            }
            Event::Done { request } => News::Done(request),
            Event::WantsEpoch { node } => News::Node("epoch", node),
            Event::WantsPressure { node } => News::Node("pressure", node),
            Event::MemoryFull { node } => News::Node("full", node),
            Event::WantsMap => News::Word("map"),
            Event::Row { partition } => News::Partition("row", partition.keys.stream.to_string(), 0),
            Event::Moved { partition, count } => News::Partition("moved", partition.keys.stream.to_string(), count),
            Event::Noted => News::Word("noted"),
            Event::Answer { .. } | Event::Close { .. } | Event::Room { .. } => return None,
        })
    }

    /// Change something, and do what follows.
    fn change<R>(
        slf: &Bound<'_, Self>,
        change: impl FnOnce(&mut Self, &RedisClient, Clock) -> PyResult<R>,
    ) -> PyResult<R> {
        let result = {
            let mut own = slf.try_borrow_mut()?;
            let redis = own.redis.clone_ref(slf.py());
            let client = redis.bind(slf.py()).try_borrow()?;
            let clock = own.clock();
            change(&mut own, &client, clock)?
        };
        Self::run(slf, true)?;
        Ok(result)
    }
}

#[cfg(target_os = "linux")]
fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

#[cfg(not(target_os = "linux"))]
fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

fn list_of(py: Python<'_>, news: Vec<News>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for each in news {
        match each {
            News::Asked(request, owner) => list.append(("asked", request.as_u64(), owner))?,
            News::Done(request) => list.append(("done", request.as_u64(), 0))?,
            News::Node(word, node) => list.append((word, node, 0))?,
            News::Partition(word, stream, count) => list.append((word, stream, count))?,
            News::Word(word) => list.append((word, 0, 0))?,
        }
    }
    Ok(list)
}

fn seconds(number: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(number.max(0.0)).map_err(|error| PyValueError::new_err(error.to_string()))
}

#[pymethods]
impl Producers {
    #[new]
    #[allow(clippy::too_many_arguments)] // each by its name, or once
    #[pyo3(signature = (
        redis, lane, scripts, on_news, *, is_cluster, plain_bytes_max, held_bytes_max, timeout_s, replicas, now_s
    ))]
    fn new(
        redis: Py<RedisClient>,
        lane: LaneId,
        scripts: (Bound<'_, PyAny>, Bound<'_, PyAny>),
        on_news: Py<PyAny>,
        is_cluster: bool,
        plain_bytes_max: usize,
        held_bytes_max: usize,
        timeout_s: f64,
        replicas: u32,
        now_s: f64,
    ) -> PyResult<Self> {
        let timeout = seconds(timeout_s)?;
        let options = produce::Options { plain_bytes_max, held_bytes_max, timeout, is_cluster, replicas };
        let scripts = [script_of(&scripts.0)?, script_of(&scripts.1)?];
        Ok(Self {
            flow: produce::Producers::new(options, scripts),
            redis,
            lane,
            number: usize::MAX,
            sockets: None,
            on_news: Some(on_news),
            ready: VecDeque::new(),
            lease: Lease::default(),
            begun: Instant::now(),
            begun_s: now_s,
            is_running: false,
            has_more: false,
        })
    }

    /// Have the client of Redis bring what came of scripts.
    fn join(slf: &Bound<'_, Self>) -> PyResult<()> {
        let redis = slf.try_borrow()?.redis.clone_ref(slf.py());
        let number = redis.bind(slf.py()).try_borrow_mut()?.attach(slf.clone().unbind());
        slf.try_borrow_mut()?.number = number;
        Ok(())
    }

    /// Serve the clients of these sockets.
    #[pyo3(signature = (sockets, /))]
    fn serve_clients(slf: &Bound<'_, Self>, sockets: Bound<'_, ClientSockets>) -> PyResult<()> {
        sockets.try_borrow_mut()?.attach(slf.clone().unbind());
        slf.try_borrow_mut()?.sockets = Some(sockets.unbind());
        Ok(())
    }

    // --- what Python decides on

    #[pyo3(signature = (partition, /))]
    fn put_partition(slf: &Bound<'_, Self>, partition: PartitionArgs<'_>) -> PyResult<()> {
        let partition = partition.partition()?;
        slf.try_borrow_mut()?.flow.put_partition(partition);
        Ok(())
    }

    #[pyo3(signature = (name, /))]
    fn forget_topic(&mut self, name: &str) {
        self.flow.forget_topic(name);
    }

    fn forget_topics(&mut self) {
        self.flow.forget_topics();
    }

    #[pyo3(signature = (peer, may_write_all, ends_s, /))]
    fn put_session(slf: &Bound<'_, Self>, peer: u64, may_write_all: bool, ends_s: Option<f64>) -> PyResult<()> {
        let (py, peer) = (slf.py(), PeerId::from_u64(peer));
        Self::change(slf, |own, _, _| {
            let sockets = own.sockets.as_ref().map(|sockets| sockets.bind(py).try_borrow()).transpose()?;
            // One that is over was forgotten already, and nobody would forget it again.
            if sockets.is_some_and(|sockets| sockets.sockets.peers.is_there(peer)) {
                let ends_at = ends_s.map(|ends_s| own.time_of(ends_s));
                own.flow.put_session(peer, Session { may_all: may_write_all, ends_at });
                own.look([peer]);
            }
            Ok(())
        })
    }

    #[pyo3(signature = (peer, kind, name, /))]
    fn grant(&mut self, peer: u64, kind: &str, name: &Bound<'_, PyAny>) -> PyResult<()> {
        let right = match kind {
            "topic" => Right::Topic(name.extract::<&str>()?.into()),
            "topic id" => Right::TopicId(name.extract()?),
            _ => Right::TransactionalId(name.extract::<&str>()?.into()),
        };
        self.flow.grant(PeerId::from_u64(peer), right);
        Ok(())
    }

    fn forget_rights(&mut self) {
        self.flow.forget_rights();
    }

    #[pyo3(signature = (until_s, /))]
    fn trust_rights(&mut self, until_s: f64) {
        let until = self.time_of(until_s);
        self.flow.trust_rights(until);
    }

    #[pyo3(signature = (is_metered, /))]
    fn set_metered(&mut self, is_metered: bool) {
        self.flow.set_metered(is_metered);
    }

    #[pyo3(signature = (end_boot_s, late_until_s, length_s, /))]
    fn set_lease(&mut self, end_boot_s: f64, late_until_s: f64, length_s: f64) -> PyResult<()> {
        let (end, late_until) = (Some(seconds(end_boot_s)?), self.time_of(late_until_s));
        self.lease = Lease { end, late_until, length: seconds(length_s)? };
        Ok(())
    }

    fn reordered(&mut self) {
        self.flow.reordered();
    }

    #[pyo3(signature = (node, history, epoch, /))]
    fn put_epoch(slf: &Bound<'_, Self>, node: usize, history: &str, epoch: i32) -> PyResult<()> {
        Self::change(slf, |own, _, _| {
            own.flow.put_epoch(node, history, epoch);
            Ok(())
        })
    }

    #[pyo3(signature = (node, text, /))]
    fn no_epoch(slf: &Bound<'_, Self>, node: usize, text: &str) -> PyResult<()> {
        Self::change(slf, |own, client, clock| {
            own.flow.no_epoch(node, text, &client.nodes(own.lane), clock);
            Ok(())
        })
    }

    #[pyo3(signature = (node, throttle_ms, refusal, due_s, until_s, /))]
    fn put_pressure(&mut self, node: usize, throttle_ms: u32, refusal: Option<String>, due_s: f64, until_s: f64) {
        let (due, until) = (self.time_of(due_s), self.time_of(until_s));
        self.flow.put_pressure(node, Pressure { throttle_ms, refusal, due, until });
    }

    #[pyo3(signature = (node, history, count, until_s, /))]
    fn put_insync(&mut self, node: usize, history: &str, count: u32, until_s: f64) {
        let until = self.time_of(until_s);
        self.flow.put_insync(node, history, count, until);
    }

    #[pyo3(signature = (throttle_ms, /))]
    fn set_full_throttle(&mut self, throttle_ms: u32) {
        self.flow.set_full_throttle(throttle_ms);
    }

    // --- requests

    /// Append batches and markers of the worker itself; its number comes with the news `done`.
    #[pyo3(signature = (batches, /))]
    fn append(slf: &Bound<'_, Self>, batches: Vec<BatchArgs<'_>>) -> PyResult<u64> {
        let asked = batches.into_iter().map(BatchArgs::asked).collect::<PyResult<Vec<_>>>()?;
        Self::change(slf, |own, client, clock| Ok(own.flow.append(asked, &client.nodes(own.lane), clock).as_u64()))
    }

    #[pyo3(signature = (request, /))]
    fn outcomes<'py>(slf: &Bound<'py, Self>, request: u64) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let outcomes = slf.try_borrow_mut()?.flow.take_outcomes(RequestId::from_u64(request));
        outcomes.into_iter().map(|outcome| outcome_fields(slf.py(), outcome)).collect()
    }

    #[pyo3(signature = (request, /))]
    fn questions<'py>(slf: &Bound<'py, Self>, request: u64) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let (questions, begun_s) = {
            let own = slf.try_borrow()?;
            let questions: Vec<_> = own.flow.questions(RequestId::from_u64(request)).cloned().collect();
            (questions, own.begun_s)
        };
        questions.into_iter().map(|question| question_fields(slf.py(), question, begun_s)).collect()
    }

    #[pyo3(signature = (request, decisions, /))]
    fn decide(slf: &Bound<'_, Self>, request: u64, decisions: Vec<Option<DecisionArgs<'_>>>) -> PyResult<()> {
        let decisions = decisions.iter().map(Option::as_ref).map(decision_of).collect::<PyResult<Vec<Decision>>>()?;
        Self::change(slf, |own, client, clock| {
            own.flow.decide(RequestId::from_u64(request), decisions, &client.nodes(own.lane), clock);
            Ok(())
        })
    }

    // --- what Python reads

    #[getter]
    fn count(&self) -> usize {
        self.flow.count()
    }

    #[pyo3(signature = (stream, /))]
    fn end_of(&self, stream: &str) -> Option<EndFields> {
        self.flow.end_of(stream).map(|end| (end.topic_id.to_string(), end.epoch, end.end))
    }

    #[pyo3(signature = (stream, topic_id, epoch, end, /))]
    fn put_end(&mut self, stream: &str, topic_id: &str, epoch: i32, end: i64) {
        self.flow.put_end(stream, End { topic_id: topic_id.into(), epoch, end });
    }

    fn take_noted(slf: &Bound<'_, Self>) -> PyResult<NotedFields> {
        let noted = slf.try_borrow_mut()?.flow.take_noted();
        Ok(noted_fields(noted))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.redis)?;
        visit.call(&self.sockets)?;
        visit.call(&self.on_news)
    }

    fn __clear__(&mut self) {
        drop((self.sockets.take(), self.on_news.take()));
    }
}
