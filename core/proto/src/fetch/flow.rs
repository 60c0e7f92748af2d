//! The requests of consumers of one worker, and their way from the frame to the answer.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::ahead::Ahead;
use super::noted::Noted;
use super::pending::{Pending, Spent, Stage};
use super::plan::AllFacts;
use super::reads::{Group, Groups, Sending};
use super::session::{FINAL_EPOCH, INITIAL_EPOCH, Sessions};
use super::wait::Logs;
use super::{Event, GroupId, Options, RequestId, read};
use crate::access::{Right, Rights, Session};
use crate::client::{NodeId, Piece};
use crate::log::Known;
use crate::partition::Partition;
use crate::peer::PeerId;
use crate::pipeline::{Packed, Time};
use crate::serving::{Incoming, Nodes};
use crate::shared::Shared;
use crate::slab::Slab;
use crate::table::Table;

/// What a fetch may hold though others hold all: all of them get on.
const HELD_BYTES_MIN: usize = 64 << 10;
/// A fetch may hold one part in so many of the free memory: answers that wait for slow clients leave some to others.
const HELD_SHARE: usize = 4;

/// The timer of the owner.
#[derive(Debug)]
enum Timer {
    /// It calls `tick` then, if at all.
    At(Option<Time>),
    /// It is to ask when that is, by `Event::Timer`.
    Old,
}

/// A connection of a client.
#[derive(Debug, Default)]
pub(super) struct Connection {
    pub session: Session,
    pub rights: Rights,
    pub current: Option<RequestId>,
    /// What answers hold that are not written.
    pub unwritten: usize,
}

/// The requests of consumers of one worker.
#[derive(Debug)]
pub struct Consumers {
    pub(super) options: Options,
    pub(super) bytes_max: usize,
    pub(super) table: Table,
    pub(super) connections: HashMap<PeerId, Connection>,
    pub(super) requests: Slab<Pending>,
    pub(super) sessions: Sessions,
    pub(super) known: Known,
    pub(super) facts: AllFacts,
    pub(super) ahead: Ahead,
    pub(super) groups: Groups,
    /// Reads that are begun in this step.
    pub(super) open: Group,
    pub(super) logs: Logs,
    /// The leader epochs of nodes, each in a history.
    pub(super) epochs: HashMap<NodeId, (Arc<str>, i32)>,
    held_bytes: usize,
    pub(super) timers: BTreeSet<(Time, RequestId)>,
    timer: Timer,
    pub(super) rights_until: Option<Time>,
    pub(super) is_metered: bool,
    pub(super) is_draining: bool,
    pub(super) parked: usize,
    /// Those of the requests that are parked.
    pub(super) parked_places: usize,
    noted: Noted,
    has_noted: bool,
    pub(super) events: VecDeque<Event>,
}

impl Consumers {
    /// Begin without connections.
    pub fn new(options: Options) -> Self {
        Self {
            bytes_max: usize::MAX,
            table: Table::default(),
            connections: HashMap::new(),
            requests: Slab::default(),
            sessions: Sessions::new(options.sessions_max, options.seed),
            known: Known::default(),
            facts: AllFacts::default(),
            ahead: Ahead::default(),
            groups: Groups::default(),
            open: Group::default(),
            logs: Logs::new(options.linger),
            options,
            epochs: HashMap::new(),
            held_bytes: 0,
            timers: BTreeSet::new(),
            timer: Timer::At(None),
            rights_until: None,
            is_metered: false,
            is_draining: false,
            parked: 0,
            parked_places: 0,
            noted: Noted::default(),
            has_noted: false,
            events: VecDeque::new(),
        }
    }

    /// The next thing that has happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // --- what the owner decides on

    /// Put a partition in the place of what was known of it.
    pub fn put_partition(&mut self, partition: Partition) {
        self.table.put(partition);
    }

    /// Forget a topic, which has changed.
    pub fn forget_topic(&mut self, name: &str) {
        self.table.forget_topic(name);
    }

    /// Forget all topics.
    pub fn forget_topics(&mut self) {
        self.table.clear();
    }

    /// Put what a client may do.
    pub fn put_session(&mut self, peer: PeerId, session: Session) {
        self.connections.entry(peer).or_default().session = session;
    }

    /// Forget a client, whose connection is over.
    pub fn forget_session(&mut self, peer: PeerId, now: Time) {
        let Some(connection) = self.connections.remove(&peer) else { return };
        self.held_bytes = self.held_bytes.saturating_sub(connection.unwritten);
        if let Some(pending) = connection.current.and_then(|id| self.remove(id, now)) {
            self.held_bytes = self.held_bytes.saturating_sub(pending.reserved);
            self.noted().ended += 1;
        }
        self.sessions.end(peer);
        self.end_sessions(now);
        self.set_timer();
    }

    /// Note a right of a client.
    pub fn grant(&mut self, peer: PeerId, right: Right) {
        if let Some(connection) = self.connections.get_mut(&peer) {
            connection.rights.grant(right);
        }
    }

    /// Forget the rights of all clients.
    pub fn forget_rights(&mut self) {
        for connection in self.connections.values_mut() {
            connection.rights.forget();
        }
    }

    /// Believe the rights of clients until then; after that all are asked for again.
    pub fn trust_rights(&mut self, until: Time) {
        self.rights_until = Some(until);
    }

    /// Have all requests charged, or none.
    pub fn set_metered(&mut self, is_metered: bool) {
        self.is_metered = is_metered;
    }

    /// Whether requests are charged.
    pub fn is_metered(&self) -> bool {
        self.is_metered
    }

    /// Answer no request with more than so many bytes, but for one batch.
    pub fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Put the leader epoch of a node in a history.
    pub fn put_epoch(&mut self, node: NodeId, history: &str, epoch: i32) {
        self.epochs.insert(node, (history.into(), epoch));
    }

    /// Answer all that wait with what there is, and have none wait from now on.
    pub fn drain(&mut self, nodes: &impl Nodes, now: Time) {
        self.is_draining = true;
        for id in self.requests.ids() {
            self.look(id, nodes, now);
        }
        self.set_timer();
    }

    /// What may be taken of the memory for answers, for who makes some elsewhere.
    pub fn room(&self) -> usize {
        (self.options.held_bytes_max.saturating_sub(self.held_bytes) / HELD_SHARE).max(HELD_BYTES_MIN)
    }

    /// Take bytes of that memory, or release what was taken.
    pub fn hold(&mut self, taken: usize, released: usize) {
        self.held_bytes = (self.held_bytes + taken).saturating_sub(released);
    }

    // --- requests

    /// How many requests are here.
    pub fn count(&self) -> usize {
        self.requests.len()
    }

    /// How many of them wait for records.
    pub fn parked(&self) -> usize {
        self.parked
    }

    /// Whether requests of a client are served here now.
    pub fn serves(&self, peer: PeerId, now: Time) -> bool {
        let session = self.connections.get(&peer).map(|connection| &connection.session);
        session.is_some_and(|session| session.ends_at.is_none_or(|ends_at| now < ends_at))
    }

    /// How many requests of a client are here.
    pub fn begun_by(&self, peer: PeerId) -> usize {
        usize::from(self.connections.get(&peer).is_some_and(|connection| connection.current.is_some()))
    }

    /// Begin a request of a client that has none here, and whose `put_session` was called.
    pub fn begin(&mut self, peer: PeerId, incoming: &Incoming, nodes: &impl Nodes, now: Time) {
        let request = match read(incoming.frame.as_ref()) {
            Ok(request) => request,
            Err(malformed) => {
                return self.events.push_back(Event::Close { peer, text: malformed.to_string() });
            }
        };
        let noted = self.noted();
        noted.begun += 1;
        noted.received_bytes += incoming.frame.as_ref().len() as u64 + 4;
        let mut pending = Pending::new(peer, incoming.number, request);
        (pending.times.arrived, pending.times.at) = (incoming.arrived, incoming.arrived);
        pending.times.end(Spent::Queue, now);
        let wait = Duration::from_millis(u64::try_from(pending.request.max_wait_ms).unwrap_or(0));
        pending.wait = self.options.wait_max.map_or(wait, |most| wait.min(most));
        if self.is_metered {
            pending.client_id = pending.request.client_id.take();
        }
        let limit = |bytes: i32| usize::try_from(bytes).unwrap_or(0);
        pending.bytes_max = limit(pending.request.max_bytes).min(self.bytes_max);
        pending.bytes_min = limit(pending.request.min_bytes).min(pending.bytes_max);
        self.begin_session(&mut pending, now);
        let id = self.requests.insert(pending);
        self.connections.entry(peer).or_default().current = Some(id);
        self.advance(id, nodes, now);
        self.set_timer();
    }

    /// Find the session of a request, or the partitions that it names.
    fn begin_session(&mut self, pending: &mut Pending, now: Time) {
        let request = &pending.request;
        let is_full = matches!(request.session_epoch, INITIAL_EPOCH | FINAL_EPOCH);
        if is_full {
            self.sessions.close(request.session_id, pending.peer);
        } else {
            match self.sessions.resume(pending.peer, request, now) {
                Ok(session) => {
                    pending.session = session;
                    if let Some(id) = session {
                        self.sessions.hold(id);
                    }
                }
                Err(code) => pending.refusal = Some(code),
            }
        }
        self.end_sessions(now);
        if let Some(session) = pending.session.and_then(|id| self.sessions.get_mut(id)) {
            let reader = *session.reader.get_or_insert_with(|| self.logs.add_reader());
            for key in session.take_released() {
                self.logs.unwatch(reader, key, now);
            }
            pending.reader = Some(reader);
        } else if pending.refusal.is_none() {
            pending.place_named();
        }
    }

    /// Have what watches for sessions that are gone watch no more.
    pub(super) fn end_sessions(&mut self, now: Time) {
        for session in self.sessions.take_removed() {
            if let Some(reader) = session.reader {
                self.logs.remove_reader(reader, now);
            }
        }
    }

    /// Note how long the last request of a client kept the worker busy until now, if that is charged.
    pub fn note_busy(&mut self, peer: PeerId, busy: Duration) {
        let current = self.connections.get(&peer).and_then(|connection| connection.current);
        if let Some(pending) = current.and_then(|id| self.requests.get_mut(id)) {
            pending.busy += busy;
        }
    }

    /// Do what a request needs next, until it has to wait.
    pub(super) fn advance(&mut self, id: RequestId, nodes: &impl Nodes, now: Time) {
        while let Some(pending) = self.requests.get(id) {
            if pending.under_way > 0 || !pending.questions.is_empty() || pending.parked_places.is_some() {
                break;
            }
            let goes_on = match pending.stage {
                _ if pending.refusal.is_some() => self.answer(id, now),
                Stage::Admit => self.admit(id, now),
                Stage::Read => self.read_on(id, nodes, now),
                Stage::Wait => self.wait(id, now),
                Stage::Search => self.end_search(id, now),
                Stage::Answer => self.answer(id, now),
            };
            if !goes_on {
                break;
            }
        }
        self.send_open();
    }

    pub(super) fn send_open(&mut self) {
        if !self.open.is_empty() {
            let group = std::mem::take(&mut self.open);
            self.groups.send(group);
        }
    }

    /// Begin to read what is due of a request.
    pub(super) fn begin_reads(&mut self, id: RequestId, now: Time) {
        let room = self.room();
        let Some(pending) = self.requests.get_mut(id) else { return };
        pending.deadline.get_or_insert(now + pending.wait);
        let held = pending.bytes();
        let more = pending.bytes_max.saturating_sub(held).min(room);
        let is_committed = pending.request.is_committed;
        for index in &pending.due {
            if let Some(place) = pending.places.get_mut(*index).filter(|place| !place.is_refused) {
                place.begin(is_committed);
            }
        }
        pending.left = i64::try_from(held + more).unwrap_or(i64::MAX) - i64::try_from(pending.bytes()).unwrap_or(0);
        // Nobody waits for what there is no memory for.
        pending.bytes_min = pending.bytes_min.min(held + more);
        pending.stage = Stage::Read;
        let reserved = std::mem::replace(&mut pending.reserved, held + more);
        self.hold(held + more, reserved);
    }

    // --- time, announcements, replies

    /// When `tick` is to be called, if at all.
    pub fn due(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(at, _)| *at);
        [timer, self.logs.due(), self.ahead.due()].into_iter().flatten().min()
    }

    /// Have the owner call `tick` in time.
    pub(super) fn set_timer(&mut self) {
        let due = self.due();
        let Timer::At(timer) = self.timer else { return };
        if due.is_some_and(|due| timer.is_none_or(|timer| due < timer)) {
            self.renew_timer();
        }
    }

    fn renew_timer(&mut self) {
        if let Timer::At(_) = std::mem::replace(&mut self.timer, Timer::Old) {
            self.events.push_back(Event::Timer);
        }
    }

    /// After `Event::Timer`: when `tick` is to be called, if at all.
    pub fn take_timer(&mut self) -> Option<Time> {
        let due = self.due();
        self.timer = Timer::At(due);
        due
    }

    /// Do what is due.
    pub fn tick(&mut self, nodes: &impl Nodes, now: Time) {
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            self.look(id, nodes, now);
        }
        self.logs.tick(now, &mut self.events);
        self.ahead.tick(now);
        self.renew_timer();
    }

    /// Note that a log has got an end.
    pub fn announced(&mut self, channel: &str, end: i64, nodes: &impl Nodes, now: Time) {
        let woken = self.logs.announced(channel, end);
        self.look_all(woken, nodes, now);
    }

    /// Note that an append of this worker has given a partition an end.
    pub fn appended(&mut self, partition: &Partition, end: i64, nodes: &impl Nodes, now: Time) {
        let woken = self.logs.appended(partition, end);
        self.look_all(woken, nodes, now);
    }

    /// Note that announcements of a log may be lost until now, but are not from now on.
    pub fn live(&mut self, channel: &str, nodes: &impl Nodes, now: Time) {
        let woken = self.logs.live(channel);
        self.look_all(woken, nodes, now);
    }

    /// Note that announcements of a log may be lost from now on, until it is live again.
    pub fn interrupted(&mut self, channel: &str) {
        self.logs.interrupted(channel);
    }

    /// Note why a log cannot be listened to.
    pub fn failed(&mut self, channel: &str, text: &str, nodes: &impl Nodes, now: Time) {
        let woken = self.logs.failed(channel, text);
        self.look_all(woken, nodes, now);
    }

    fn look_all(&mut self, woken: Vec<RequestId>, nodes: &impl Nodes, now: Time) {
        for id in woken {
            self.look(id, nodes, now);
        }
        self.set_timer();
    }

    /// The next reads that are to be sent.
    pub fn next_send(&mut self, now: Time) -> Option<Sending> {
        self.groups.next_send(now)
    }

    /// The commands of a piece of reads; `None` if they are gone.
    pub fn pack(&self, group: GroupId, piece: &Piece) -> Option<Packed<Shared>> {
        self.groups.pack(group, piece)
    }

    // --- the end of a request

    /// Take a request, which has an answer or needs none.
    pub(super) fn remove(&mut self, id: RequestId, now: Time) -> Option<Pending> {
        self.unpark(id, now);
        let pending = self.requests.remove(id)?;
        if let Some(session) = pending.session {
            self.sessions.release(session);
            self.end_sessions(now);
        } else if let Some(reader) = pending.reader {
            self.logs.remove_reader(reader, now);
        }
        Some(pending)
    }

    /// Note that all answers of a client are with the kernel.
    pub fn written(&mut self, peer: PeerId) {
        if let Some(connection) = self.connections.get_mut(&peer) {
            self.held_bytes = self.held_bytes.saturating_sub(std::mem::take(&mut connection.unwritten));
        }
    }

    pub(super) fn noted(&mut self) -> &mut Noted {
        if !std::mem::replace(&mut self.has_noted, true) {
            self.events.push_back(Event::Noted);
        }
        &mut self.noted
    }

    /// Take what was counted.
    pub fn take_noted(&mut self) -> Noted {
        self.has_noted = false;
        let mut noted = std::mem::take(&mut self.noted);
        (noted.parked, noted.sessions) = (self.parked, self.sessions.counts());
        noted
    }

    /// Count the time until now to the last answers, for writing them.
    pub fn note_written(&mut self, count: usize, now: Time) {
        if count > 0 {
            self.noted.written(count, now);
        }
    }
}
