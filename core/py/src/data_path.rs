//! Produce and Fetch, served between the sockets of clients and those of Redis; Python hears of them only what it has to
//! decide.
//!
//! One step takes in replies of Redis and requests that have arrived, sends the gathered commands, and writes answers.
//! The sockets and the client of Redis are borrowed for a step: nothing in it makes, calls or drops an object of Python but
//! for references to owners. What Python is to know or to decide is given to its callable when nothing is borrowed.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use korvet_proto::channels::Announced;
use korvet_proto::client::{LaneId, Piece};
use korvet_proto::fetch::{self, Consumers};
use korvet_proto::frame::{FETCH, PRODUCE};
use korvet_proto::partition::Partition;
use korvet_proto::peer::PeerId;
use korvet_proto::pipeline::{Packed, Time};
use korvet_proto::produce::{self, Producers};
use korvet_proto::serving::{Clock, Incoming};
use korvet_proto::shared::{self, Shared};
use pyo3::prelude::*;
use pyo3::types::PyList;
use rustix::time::{ClockId, clock_gettime};

use crate::call::Kind;
use crate::channels::Channels;
use crate::client::{Came, RedisClient};
use crate::peer_sockets::{Changed, PeerSockets};
use crate::peers::ClientSockets;

/// Until when this worker may begin requests without looking at Redis' clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lease {
    /// By the clock that goes on while the machine is suspended.
    pub end: Option<Duration>,
    /// What came before this may be older than it seems.
    pub late_until: Time,
    pub length: Duration,
}

/// What Python is to know.
enum News {
    Asked(&'static str, produce::RequestId, Option<Py<PyAny>>),
    Done(produce::RequestId),
    Node(&'static str, usize),
    Partition(&'static str, String, u32),
    Damaged(String, i64, String),
    Seen(String, i32, i64, Vec<(i32, i64)>),
    Word(&'static str),
}

#[pyclass(module = "korvet_core", generic)]
pub struct DataPath {
    pub(crate) producers: Producers,
    pub(crate) consumers: Consumers,
    pub(crate) redis: Py<RedisClient>,
    pub(crate) appends: LaneId,
    pub(crate) reads: LaneId,
    /// By which the client of Redis knows this.
    pub(crate) number: usize,
    pub(crate) sockets: Option<Py<ClientSockets>>,
    pub(crate) channels: Option<Py<Channels>>,
    pub(crate) on_news: Option<Py<PyAny>>,
    /// Clients that may have a request.
    pub(crate) ready: VecDeque<PeerId>,
    pub(crate) lease: Lease,
    pub(crate) begun: Instant,
    /// Python's time.monotonic() then.
    pub(crate) begun_s: f64,
    pub(crate) is_running: bool,
    /// Whether there may be something to do for whoever runs it.
    pub(crate) has_more: bool,
}

/// Somebody runs it, until this is dropped: whatever ends that, the next one runs it again.
struct Running<'a, 'py>(&'a Bound<'py, DataPath>);

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        if let Ok(mut own) = self.0.try_borrow_mut() {
            own.is_running = false;
        }
    }
}

/// What is to be sent to Redis, and the logs that are to be listened to from now on, or no more.
#[derive(Default)]
struct Sends {
    appends: Vec<produce::Sending>,
    reads: Vec<fetch::Sending>,
    listens: Vec<(Arc<Partition>, bool)>,
}

/// What a step does with the sockets of clients.
#[derive(Default)]
struct Answers {
    produce: usize,
    fetch: usize,
    peers: Vec<PeerId>,
    throttles: Vec<(PeerId, Time, u32)>,
    ends: Vec<(PeerId, &'static str, String)>,
}

impl DataPath {
    pub(crate) fn now(&self) -> Time {
        self.begun.elapsed()
    }

    pub(crate) fn clock(&self) -> Clock {
        let ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Clock { now: self.now(), ms: i64::try_from(ms).unwrap_or(i64::MAX) }
    }

    /// A time of Python's clock.
    pub(crate) fn time_of(&self, seconds: f64) -> Time {
        Duration::try_from_secs_f64((seconds - self.begun_s).max(0.0)).unwrap_or(Duration::MAX)
    }

    /// The commands of a piece of a group.
    pub fn pack(&self, kind: Kind, group: produce::GroupId, piece: &Piece) -> Option<Packed<Shared>> {
        match kind {
            Kind::Appends => self.producers.pack(group, piece, self.clock()),
            Kind::Reads => self.consumers.pack(group, piece),
        }
    }

    /// Whether Python does not get the next frame of a client now: it is served here, or after what is served here.
    pub fn keeps(&self, peer: PeerId, key: Option<i16>) -> bool {
        self.begun_by(peer) > 0 || key.is_some_and(|key| self.serves(peer, key, self.now()))
    }

    fn begun_by(&self, peer: PeerId) -> usize {
        self.producers.begun_by(peer) + self.consumers.begun_by(peer)
    }

    fn serves(&self, peer: PeerId, key: i16, now: Time) -> bool {
        match key {
            PRODUCE => self.producers.serves(peer, now),
            FETCH => self.consumers.serves(peer, now),
            _ => false,
        }
    }

    /// Look at clients that may have a request.
    pub fn look(&mut self, peers: impl IntoIterator<Item = PeerId>) {
        self.ready.extend(peers);
    }

    /// Note what has happened to connections.
    pub fn note(&mut self, changed: Changed) {
        self.look(changed.ready);
        let now = self.now();
        changed.written.into_iter().for_each(|peer| self.consumers.written(peer));
        for peer in changed.gone {
            self.producers.forget_session(peer);
            self.consumers.forget_session(peer, now);
        }
    }

    /// Serve arrived requests, send gathered commands and answer finished requests, until nothing is left to do. With `rings`
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
        let (redis, sockets, channels, number, appends, reads) = {
            let own = slf.try_borrow()?;
            let sockets = own.sockets.as_ref().map(|sockets| sockets.clone_ref(py));
            let channels = own.channels.as_ref().map(|channels| channels.clone_ref(py));
            (own.redis.clone_ref(py), sockets, channels, own.number, own.appends, own.reads)
        };
        let channels = channels.as_ref().map(|channels| channels.bind(py));
        let redis = redis.bind(py);
        let came = redis.try_borrow_mut()?.take_came(number);
        let announced = match channels {
            Some(channels) => channels.try_borrow_mut()?.take_announced(),
            None => Vec::new(),
        };
        let is_quiet = came.is_empty() && announced.is_empty();
        let (sends, spent) = {
            let mut own = slf.try_borrow_mut()?;
            let client = redis.try_borrow()?;
            let mut sockets = sockets.as_ref().map(|sockets| sockets.bind(py).try_borrow_mut()).transpose()?;
            let peers = sockets.as_mut().map(|sockets| &mut sockets.sockets);
            own.take_announced(&announced, &client);
            own.serve(py, came, &client, peers, news)
        };
        drop(spent);
        let is_done = is_quiet && sends.is_empty();
        if let Some(channels) = channels.filter(|_| !sends.listens.is_empty()) {
            Self::report(slf, Self::listen(slf, channels, redis, sends.listens));
        }
        // Whatever becomes of one: the requests in the others have no other time limit.
        for sending in sends.appends {
            Self::report(slf, RedisClient::begin_appends(redis, &sending, number, appends));
        }
        for sending in sends.reads {
            Self::report(slf, RedisClient::begin_reads(redis, &sending, number, reads));
        }
        let mut own = slf.try_borrow_mut()?;
        own.has_more |= !(is_done && own.ready.is_empty());
        Ok(())
    }

    fn serve(
        &mut self,
        py: Python<'_>,
        came: Vec<Came>,
        client: &RedisClient,
        mut sockets: Option<&mut PeerSockets>,
        news: &mut Vec<News>,
    ) -> (Sends, impl Sized + use<>) {
        self.take_came(came, client);
        if let Some(sockets) = sockets.as_deref_mut() {
            while let Some(peer) = self.ready.pop_front() {
                self.take_frames(py, peer, sockets, client);
            }
        }
        self.producers.flush(&client.nodes(self.appends), self.clock());
        let mut answers = Answers::default();
        self.take_produced(py, client, sockets.as_deref_mut(), &mut answers, news);
        let listens = self.take_fetched(py, sockets.as_deref_mut(), &mut answers, news);
        let now = self.now();
        let sends = Sends {
            listens,
            appends: std::iter::from_fn(|| self.producers.next_send()).collect(),
            reads: std::iter::from_fn(|| self.consumers.next_send(now)).collect(),
        };
        let Some(sockets) = sockets else {
            self.ready.clear();
            return (sends, None);
        };
        self.write(py, sockets, answers);
        (sends, Some(sockets.spent.take()))
    }

    /// Listen to logs, or no more.
    fn listen(
        slf: &Bound<'_, Self>,
        channels: &Bound<'_, Channels>,
        redis: &Bound<'_, RedisClient>,
        listens: Vec<(Arc<Partition>, bool)>,
    ) -> PyResult<()> {
        {
            let client = redis.try_borrow()?;
            let mut own = slf.try_borrow_mut()?;
            let mut channels = channels.try_borrow_mut()?;
            let (at, now, nodes) = (client.state.now(), own.now(), client.nodes(own.reads));
            for (partition, listens) in listens {
                let channel = &partition.keys.channel;
                if !listens {
                    channels.unwatch(channel, at);
                } else if channels.watch(channel, partition.slot, at) {
                    own.consumers.live(channel, &nodes, now);
                    own.has_more = true;
                }
            }
        }
        Channels::run(channels)
    }

    fn take_announced(&mut self, announced: &[Announced], client: &RedisClient) {
        let (nodes, now) = (client.nodes(self.reads), self.now());
        for news in announced {
            match news {
                Announced::End { channel, end } => self.consumers.announced(channel, *end, &nodes, now),
                Announced::Live { channel } | Announced::Again { channel } => {
                    self.consumers.live(channel, &nodes, now);
                }
                Announced::Interrupted { channel } => self.consumers.interrupted(channel),
                Announced::Failed { channel, text } => self.consumers.failed(channel, text, &nodes, now),
            }
        }
    }

    fn take_came(&mut self, came: Vec<Came>, client: &RedisClient) {
        let clock = self.clock();
        let (appends, reads) = (client.nodes(self.appends), client.nodes(self.reads));
        for came in came {
            match came {
                Came::Reply { kind: Kind::Appends, group, place, reply } => {
                    self.producers.replied(group, place, reply.as_ref(), &appends, clock);
                }
                Came::Reply { kind: Kind::Reads, group, place, reply } => {
                    self.consumers.replied(group, place, &reply, &reads, clock.now);
                }
                Came::Prevented { kind: Kind::Appends, group, place, why, text } => {
                    self.producers.prevented(group, place..place + 1, why, &text, &appends, clock);
                }
                Came::Prevented { kind: Kind::Reads, group, place, why, text } => {
                    self.consumers.prevented(group, place..place + 1, why, &text, &reads, clock.now);
                }
                Came::Reordered => self.producers.reordered(),
                Came::Reconnected => self.producers.reconnected(clock.now),
            }
        }
    }

    /// Take what has happened to requests of producers.
    fn take_produced(
        &mut self,
        py: Python<'_>,
        client: &RedisClient,
        mut sockets: Option<&mut PeerSockets>,
        answers: &mut Answers,
        news: &mut Vec<News>,
    ) {
        use produce::Event;
        while let Some(event) = self.producers.next_event() {
            match event {
                Event::Answer { peer, number, response, throttle, reason } => {
                    answers.produce += 1;
                    if let Some(sockets) = sockets.as_deref_mut() {
                        sockets.put_answer(peer, number, [shared::Piece::Made(response)]);
                    }
                    answers.add(peer, throttle, reason);
                }
                Event::Close { peer, text, is_unanswered } => {
                    answers.ends.push((peer, if is_unanswered { "unanswered" } else { "failed" }, text));
                }
                Event::Room { peer } => self.ready.push_back(peer),
                Event::Appended { partition, end } => {
                    let (nodes, now) = (client.nodes(self.reads), self.now());
                    self.consumers.appended(&partition, end, &nodes, now);
                }
                Event::Asked { request, peer } => {
                    news.push(News::Asked("asked", request, owner_of(py, peer, sockets.as_deref())));
                }
                Event::Done { request } => news.push(News::Done(request)),
                Event::WantsEpoch { node } => news.push(News::Node("epoch", node)),
                Event::WantsPressure { node } => news.push(News::Node("pressure", node)),
                Event::MemoryFull { node } => news.push(News::Node("full", node)),
                Event::WantsMap => news.push(News::Word("map")),
                Event::Row { partition } => news.push(News::Partition("row", partition.keys.stream.to_string(), 0)),
                Event::Moved { partition, count } => {
                    news.push(News::Partition("moved", partition.keys.stream.to_string(), count));
                }
                Event::Noted => news.push(News::Word("noted")),
            }
        }
    }

    /// Take what has happened to requests of consumers; returns the logs that are to be listened to, or no more.
    fn take_fetched(
        &mut self,
        py: Python<'_>,
        mut sockets: Option<&mut PeerSockets>,
        answers: &mut Answers,
        news: &mut Vec<News>,
    ) -> Vec<(Arc<Partition>, bool)> {
        use fetch::Event;
        let mut listens = Vec::new();
        while let Some(event) = self.consumers.next_event() {
            match event {
                Event::Answer { peer, number, response, throttle, reason } => {
                    answers.fetch += 1;
                    if let Some(sockets) = sockets.as_deref_mut() {
                        sockets.put_answer(peer, number, response);
                    }
                    answers.add(peer, throttle, reason);
                }
                Event::Close { peer, text } => answers.ends.push((peer, "failed", text)),
                Event::Room { peer } => self.ready.push_back(peer),
                Event::Asked { request, peer } => {
                    news.push(News::Asked("fetch", request, owner_of(py, Some(peer), sockets.as_deref())));
                }
                Event::Listen { partition } => listens.push((partition, true)),
                Event::Unlisten { partition } => listens.push((partition, false)),
                Event::Seen { partition, epoch, end, epochs } => {
                    let stream = &partition.keys.stream;
                    if !self.producers.raise_end(stream, &partition.topic.id_text, epoch, end) {
                        let epochs = epochs.iter().map(|start| (start.epoch, start.start)).collect();
                        news.push(News::Seen(stream.to_string(), epoch, end, epochs));
                    }
                }
                Event::Foreign { partition, count } => {
                    news.push(News::Partition("foreign", partition.keys.stream.to_string(), count));
                }
                Event::Damaged { partition, offset, encoding } => {
                    news.push(News::Damaged(partition.keys.stream.to_string(), offset, encoding));
                }
                Event::WantsMap => news.push(News::Word("map")),
                Event::Timer => news.push(News::Word("timer")),
                Event::Noted => news.push(News::Word("noted")),
            }
        }
        listens
    }

    /// Write the answers, and do what else follows for their connections.
    fn write(&mut self, py: Python<'_>, sockets: &mut PeerSockets, answers: Answers) {
        let Answers { produce, fetch, mut peers, throttles, ends } = answers;
        peers.sort_unstable();
        peers.dedup();
        for peer in peers {
            self.ready.push_back(peer);
            if sockets.write_answers(peer) {
                self.consumers.written(peer);
            }
        }
        let now = self.now();
        self.producers.note_written(produce, now);
        self.consumers.note_written(fetch, now);
        for (peer, throttle, reason) in throttles {
            sockets.throttle(py, peer, throttle, reason);
        }
        for (peer, word, text) in ends {
            sockets.end_for(py, peer, word, text);
        }
        sockets.settle(py);
        let changed = sockets.take_changed();
        self.note(changed);
    }

    /// Begin the requests of a client that have arrived, as far as they are served here and may begin; others are Python's.
    fn take_frames(&mut self, py: Python<'_>, peer: PeerId, sockets: &mut PeerSockets, client: &RedisClient) {
        while let Some(key) = sockets.next_key(peer) {
            let clock = self.clock();
            if !self.serves(peer, key, clock.now) {
                if self.begun_by(peer) == 0 {
                    sockets.has_frame(py, peer);
                }
                return;
            }
            // Requests of another kind, and those that Python serves, are answered first.
            let (begun, is_free) = if key == PRODUCE {
                (self.producers.begun_by(peer), self.producers.may_begin(peer))
            } else {
                (0, true)
            };
            if sockets.peers.given(peer) > begun || !is_free {
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
            if key == FETCH {
                self.consumers.begin(peer, &incoming, &client.nodes(self.reads), clock.now);
                if self.consumers.is_metered() {
                    self.consumers.note_busy(peer, self.now().saturating_sub(clock.now));
                }
                continue;
            }
            self.producers.begin(peer, &incoming, &client.nodes(self.appends), clock);
            if self.producers.is_metered() {
                self.producers.note_busy(peer, self.now().saturating_sub(clock.now));
            }
        }
    }

    fn is_late(&self, came_after: Time, now: Time) -> bool {
        let Lease { end: Some(end), late_until, length } = self.lease else { return false };
        boot_time() >= end || came_after < late_until || now.saturating_sub(came_after) > length
    }

    /// Change something, and do what follows.
    pub(crate) fn change<R>(
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

impl Sends {
    fn is_empty(&self) -> bool {
        self.appends.is_empty() && self.reads.is_empty() && self.listens.is_empty()
    }
}

impl Answers {
    fn add(&mut self, peer: PeerId, throttle: Time, reason: u32) {
        self.peers.push(peer);
        if !throttle.is_zero() {
            self.throttles.push((peer, throttle, reason));
        }
    }
}

fn owner_of(py: Python<'_>, peer: Option<PeerId>, sockets: Option<&PeerSockets>) -> Option<Py<PyAny>> {
    peer.zip(sockets).and_then(|(peer, sockets)| sockets.owner(py, peer))
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
            News::Asked(word, request, owner) => list.append((word, request.as_u64(), owner))?,
            News::Done(request) => list.append(("done", request.as_u64(), 0))?,
            News::Node(word, node) => list.append((word, node, 0))?,
            News::Partition(word, name, count) => list.append((word, name, count))?,
            News::Damaged(stream, offset, encoding) => list.append(("damaged", stream, (offset, encoding)))?,
            News::Seen(stream, epoch, end, epochs) => list.append(("seen", stream, (epoch, end, epochs)))?,
            News::Word(word) => list.append((word, 0, 0))?,
        }
    }
    Ok(list)
}
