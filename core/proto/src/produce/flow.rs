//! From a request to its scripts, and from their answers to its response.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::group::{Entry, Groups, Sending};
use super::noted::Noted;
use super::pending::{Asked, Connection, Owner, Pending, Place, Stage, State};
use super::settle::fault;
use super::unverified::Refusals;
use super::{End, Event, GroupId, Options, Outcome, Pressure, Question, Request, RequestId, Script, VERSIONS, read};
use crate::ErrorCode;
use crate::access::{Right, Session};
use crate::append::{Number, Rules, looked_at_max, marker, prepare};
use crate::client::{NodeId, Piece};
use crate::failure::{Failure, FailureKind};
use crate::frame::request_header;
use crate::partition::Partition;
use crate::peer::PeerId;
use crate::pipeline::{Packed, Time};
use crate::serving::{Clock, Incoming, Nodes};
use crate::shared::Shared;
use crate::slab::Slab;
use crate::table::Table;

pub(super) const ACKS_ALL: i16 = -1;
/// From this version of Produce on a producer may send zstd (KIP-110).
const ZSTD_FROM: i16 = 7;
/// How much of one request is prepared, or looked at, in one turn: that takes time, in which nobody else is served.
const WAVE_BYTES_MAX: usize = 8 << 20;
/// Logs whose end is remembered; beyond it all are forgotten.
const ENDS_MAX: usize = 50_000;

/// The requests of producers of one worker.
#[derive(Debug)]
pub struct Producers {
    pub(super) options: Options,
    scripts: [Script; 2],
    pub(super) table: Table,
    pub(super) connections: HashMap<PeerId, Connection>,
    pub(super) requests: Slab<Pending>,
    pub(super) groups: Groups,
    /// Changes whenever what was refused may not be refused any more.
    pub(super) order: u64,
    held_bytes: usize,
    waiting_for_room: Vec<PeerId>,
    pub(super) refusals: Refusals,
    /// When Redis was last away.
    pub(super) away_at: Option<Time>,
    pub(super) ends: HashMap<Box<str>, End>,
    noted: Noted,
    has_noted: bool,
    /// Until when rights are believed; `None`: always.
    pub(super) rights_until: Option<Time>,
    /// Whether requests are charged to quotas.
    pub(super) is_metered: bool,
    pub(super) full_throttle_ms: u32,
    pub(super) events: VecDeque<Event>,
}

impl Producers {
    /// Begin without connections; `scripts` are those of layouts batch and record.
    pub fn new(options: Options, scripts: [Script; 2]) -> Self {
        Self {
            options,
            scripts,
            table: Table::default(),
            connections: HashMap::new(),
            requests: Slab::default(),
            groups: Groups::default(),
            order: 0,
            held_bytes: 0,
            waiting_for_room: Vec::new(),
            refusals: Refusals::default(),
            away_at: None,
            ends: HashMap::new(),
            noted: Noted::default(),
            has_noted: false,
            rights_until: None,
            is_metered: false,
            full_throttle_ms: 0,
            events: VecDeque::new(),
        }
    }

    /// The next thing that has happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // --- what the owner decides on

    /// Put a partition in the place of what was known of it. What was refused by another incarnation of its topic may not be
    /// refused from now on.
    pub fn put_partition(&mut self, partition: Partition) {
        self.order += u64::from(self.table.put(partition));
    }

    /// Forget a topic, which has changed.
    pub fn forget_topic(&mut self, name: &str) {
        self.order += u64::from(self.table.forget_topic(name));
    }

    /// Forget all topics.
    pub fn forget_topics(&mut self) {
        self.table.clear();
        self.order += 1;
    }

    /// Put what a client may do.
    pub fn put_session(&mut self, peer: PeerId, session: Session) {
        self.connections.entry(peer).or_default().session = session;
    }

    /// Forget a client, whose connection is over. What has begun is done to its end.
    pub fn forget_session(&mut self, peer: PeerId) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        connection.is_over = true;
        if connection.begun.is_empty() {
            self.connections.remove(&peer);
        }
    }

    /// Note a right of a client.
    pub fn grant(&mut self, peer: PeerId, right: Right) {
        if let Some(connection) = self.connections.get_mut(&peer) {
            connection.rights.grant(right);
        }
    }

    /// Forget the rights of all clients.
    pub fn forget_rights(&mut self) {
        self.connections.values_mut().for_each(|connection| connection.rights.forget());
    }

    /// Believe the rights of clients until then; after that all are asked for again.
    pub fn trust_rights(&mut self, until: Time) {
        self.rights_until = Some(until);
    }

    /// Have all requests charged, or none.
    pub fn set_metered(&mut self, is_metered: bool) {
        self.is_metered = is_metered;
    }

    /// Put how many servers are in sync with a node in a history, the node among them, and until when that counts.
    pub fn put_insync(&mut self, node: NodeId, history: &str, count: u32, until: Time) {
        self.groups.node(node).insync = Some((history.into(), count, until));
    }

    /// Have clients wait for so long after a request that Redis has refused for want of memory.
    pub fn set_full_throttle(&mut self, throttle_ms: u32) {
        self.full_throttle_ms = throttle_ms;
    }

    /// Note that what was refused until now may not be refused from now on: a slot has moved, a leader epoch or a script is
    /// known.
    pub fn reordered(&mut self) {
        self.order += 1;
    }

    /// Note that a connection to Redis was there again after a loss.
    pub fn reconnected(&mut self, now: Time) {
        self.away_at = Some(now);
    }

    /// Put the leader epoch of a node in a history; what waits for it goes with the next `flush`.
    pub fn put_epoch(&mut self, node: NodeId, history: &str, epoch: i32) {
        self.groups.put_epoch(node, history, epoch);
    }

    /// Give up what waits for the leader epoch of a node.
    pub fn no_epoch(&mut self, node: NodeId, text: &str, nodes: &impl Nodes, clock: Clock) {
        let failure = self.away(text);
        for group in self.groups.take_waiting(node) {
            self.give_up(group, Some(&failure), nodes, clock);
        }
    }

    /// Put what applies to what is written to a node.
    pub fn put_pressure(&mut self, node: NodeId, pressure: Pressure) {
        let node = self.groups.node(node);
        (node.pressure, node.is_pressure_wanted) = (pressure, false);
    }

    /// Note where a log ended in a leader epoch.
    pub fn put_end(&mut self, stream: &str, end: End) {
        if self.ends.len() >= ENDS_MAX && !self.ends.contains_key(stream) {
            self.ends.clear();
        }
        self.ends.insert(stream.into(), end);
    }

    // --- what the owner reads

    /// Take what was counted.
    pub fn take_noted(&mut self) -> Noted {
        self.has_noted = false;
        std::mem::take(&mut self.noted)
    }

    /// Note that so many answers, the last ones, are written.
    pub fn note_written(&mut self, count: usize, now: Time) {
        self.noted.written(count, now);
    }

    /// How many requests have begun and are not answered.
    pub fn count(&self) -> usize {
        self.requests.len()
    }

    /// How many requests of a client have begun and are not answered.
    pub fn begun_by(&self, peer: PeerId) -> usize {
        self.connections.get(&peer).map_or(0, |connection| connection.begun.len())
    }

    pub(super) fn noted(&mut self) -> &mut Noted {
        if !std::mem::replace(&mut self.has_noted, true) {
            self.events.push_back(Event::Noted);
        }
        &mut self.noted
    }

    // --- requests

    /// Whether a client's requests are served now: it has a session that has not ended.
    pub fn serves(&self, peer: PeerId, now: Time) -> bool {
        let connection = self.connections.get(&peer).filter(|connection| !connection.is_over);
        connection.is_some_and(|connection| connection.session.ends_at.is_none_or(|ends_at| now < ends_at))
    }

    /// Whether the next request of a client may begin, if it is Produce. If not there will be `Event::Room`, or an answer to
    /// one before it.
    pub fn may_begin(&mut self, peer: PeerId) -> bool {
        let Some(connection) = self.connections.get_mut(&peer) else { return false };
        if connection.closes_at.is_some() {
            return false;
        }
        if !connection.begun.is_empty() && (connection.is_held || connection.order != self.order) {
            return false;
        }
        if let Some((_, is_waited_for)) = &mut connection.asks {
            *is_waited_for = true;
            return false;
        }
        // Nobody passes those who wait.
        let has_room = self.held_bytes < self.options.held_bytes_max && self.waiting_for_room.is_empty();
        if !has_room && connection.begun.is_empty() && !std::mem::replace(&mut connection.waits_for_room, true) {
            self.waiting_for_room.push(peer);
        }
        has_room
    }

    /// Begin a request of a client whose `put_session` was called.
    pub fn begin(&mut self, peer: PeerId, incoming: &Incoming, nodes: &impl Nodes, clock: Clock) {
        let frame_bytes = incoming.frame.as_ref().len();
        let request = match read(incoming.frame.as_ref()) {
            Ok(request) => request,
            Err(malformed) => {
                let text = malformed.to_string();
                if let Some(connection) = self.connections.get_mut(&peer) {
                    connection.closes_at.get_or_insert(incoming.number);
                }
                return self.events.push_back(Event::Close { peer, text, is_unanswered: false });
            }
        };
        let places = Place::all_of(&request, &incoming.frame);
        let mut pending = Pending::new(Owner::Peer(peer, incoming.number), request, places);
        pending.frame_bytes = frame_bytes;
        self.held_bytes += pending.held_bytes;
        if self.is_metered {
            pending.client_id = client_id_of(incoming.frame.as_ref());
        }
        // Without a response nobody waits for one.
        pending.late = incoming.late.filter(|_| pending.request.acks != 0);
        pending.times.arrived = incoming.arrived;
        let noted = self.noted();
        noted.begun += 1;
        noted.received_bytes += frame_bytes as u64 + 4;
        let id = self.insert(pending, clock);
        let order = self.order;
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        if connection.begun.is_empty() {
            (connection.order, connection.is_held) = (order, false);
        }
        connection.begun.push_back(id);
        self.advance(id, nodes, clock);
    }

    /// Note how long the last request of a client kept the worker busy until now, if that is charged.
    pub fn note_busy(&mut self, peer: PeerId, busy: Duration) {
        let last = self.connections.get(&peer).and_then(|connection| connection.begun.back().copied());
        if let Some(pending) = last.and_then(|last| self.requests.get_mut(last)) {
            pending.busy += busy;
        }
    }

    /// Whether requests are charged.
    pub fn is_metered(&self) -> bool {
        self.is_metered
    }

    /// Begin to append for the owner itself; there will be `Event::Done`.
    ///
    /// A batch of a transaction has its number.
    pub fn append(
        &mut self,
        asked: Vec<(Arc<Partition>, Asked, Option<i64>)>,
        nodes: &impl Nodes,
        clock: Clock,
    ) -> RequestId {
        let place =
            |(partition, asked, number)| Place { partition: Some(partition), number, ..Place::new(asked, 0, 0) };
        let pending = Pending::new(Owner::Own, own_request(), asked.into_iter().map(place).collect());
        let id = self.insert(pending, clock);
        self.advance(id, nodes, clock);
        id
    }

    /// Take the outcomes of a request of the owner itself, which is done.
    pub fn take_outcomes(&mut self, id: RequestId) -> Vec<Outcome> {
        let places = self.requests.remove(id).map(|pending| pending.places).unwrap_or_default();
        let outcome = |place: Place| {
            if let State::Done(outcome) = place.state { outcome } else { Err(fault("nothing has come of it")) }
        };
        places.into_iter().map(outcome).collect()
    }

    fn insert(&mut self, mut pending: Pending, clock: Clock) -> RequestId {
        let times = &mut pending.times;
        (times.begun, times.sent, times.answered) = (clock.now, clock.now, clock.now);
        self.requests.insert(pending)
    }

    /// Do what a request needs next, until it has to wait; once it is answered, what the next of its connection needs.
    pub(super) fn advance(&mut self, mut id: RequestId, nodes: &impl Nodes, clock: Clock) {
        while let Some(pending) = self.requests.get(id) {
            if pending.under_way > 0 || !pending.questions.is_empty() {
                return;
            }
            let next = match pending.stage {
                Stage::Admit => self.admit(id, nodes, clock).then_some(id),
                Stage::Append => (self.append_more(id, nodes, clock) && self.finish(id, clock)).then_some(id),
                Stage::Times | Stage::Confirm => self.finish(id, clock).then_some(id),
                Stage::Answer if self.closes(id) && !self.is_turn(id) => {
                    // What came before it is answered yet.
                    self.hold(id);
                    None
                }
                Stage::Answer => self.answer(id, clock),
            };
            let Some(next) = next else { return };
            id = next;
        }
    }

    /// Send what is left of a request, or what is to be sent again. Returns whether all places are done.
    fn append_more(&mut self, id: RequestId, nodes: &impl Nodes, clock: Clock) -> bool {
        let closes_at = self.connection_of(id).and_then(|connection| connection.closes_at);
        let Some(pending) = self.requests.get_mut(id) else { return false };
        if matches!((pending.owner, closes_at), (Owner::Peer(_, number), Some(closes_at)) if number > closes_at) {
            for place in pending.places.iter_mut().filter(|place| !place.is_done()) {
                place.refuse(Failure::unavailable("a batch before it may be written or not"));
            }
        }
        if pending.places.iter().all(Place::is_done) {
            self.end_admission(id);
            return true;
        }
        let is_settled = pending.places.iter().all(|place| matches!(place.state, State::Left | State::Done(_)));
        if (pending.was_sent || self.overtakes(id)) && !self.is_turn(id) {
            self.hold(id);
            return false;
        }
        self.end_admission(id);
        let is_enough = is_settled && self.send_left(id, nodes, clock);
        if !is_settled {
            self.settle(id, clock);
        }
        let Some(pending) = self.requests.get(id) else { return false };
        if pending.under_way > 0 || !pending.questions.is_empty() {
            return false;
        }
        // What could not be sent has its outcome already.
        if is_enough {
            self.put_questions(id, vec![(Question::Rest, Vec::new())])
        } else {
            self.append_more(id, nodes, clock)
        }
    }

    /// Whether the request would overtake an earlier request of its connection: one that is to be sent again, or may be.
    fn overtakes(&self, id: RequestId) -> bool {
        let Some(Owner::Peer(peer, _)) = self.requests.get(id).map(|pending| pending.owner) else { return false };
        let connection = self.connections.get(&peer);
        connection.is_some_and(|connection| connection.is_held || connection.order != self.order)
    }

    /// Let the next request of the same connection begin if it has waited for the questions of this one.
    fn end_admission(&mut self, id: RequestId) {
        let Some(Owner::Peer(peer, _)) = self.requests.get(id).map(|pending| pending.owner) else { return };
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        if let Some((_, is_waited_for)) = connection.asks.take_if(|(asking, _)| *asking == id) {
            if is_waited_for {
                self.events.push_back(Event::Room { peer });
            }
        }
    }

    /// Whether all requests before this one are answered.
    fn is_turn(&self, id: RequestId) -> bool {
        self.connection_of(id).is_none_or(|connection| connection.begun.front() == Some(&id))
    }

    /// The connection that a request came with.
    fn connection_of(&self, id: RequestId) -> Option<&Connection> {
        match self.requests.get(id)?.owner {
            Owner::Peer(peer, _) => self.connections.get(&peer),
            Owner::Own => None,
        }
    }

    /// Let no request of the same connection begin until all that have begun are answered.
    pub(super) fn hold(&mut self, id: RequestId) {
        let owner = self.requests.get(id).map(|pending| pending.owner);
        if let Some(Owner::Peer(peer, _)) = owner {
            if let Some(connection) = self.connections.get_mut(&peer) {
                connection.is_held = true;
            }
        }
    }

    /// Prepare and send what is left, as much as may be held of it or looked at in one turn; of each partition the first, for
    /// if that had to be sent again the next could overtake it. Returns whether enough was looked at, and more is left.
    fn send_left(&mut self, id: RequestId, nodes: &impl Nodes, clock: Clock) -> bool {
        let (order, mut prepared_bytes, mut has_more) = (self.order, 0, false);
        let Some(pending) = self.requests.get_mut(id) else { return false };
        let wave_bytes_max = self.options.plain_bytes_max.min(WAVE_BYTES_MAX);
        let mut streams: HashSet<Box<str>> = HashSet::new();
        let is_alone = pending.places.len() == 1;
        let (is_rerun, is_own) = (pending.is_rerun, matches!(pending.owner, Owner::Own));
        for (index, place) in pending.places.iter_mut().enumerate() {
            if !matches!(place.state, State::Left) {
                continue;
            }
            let Some(partition) = place.partition.clone() else { continue };
            if prepared_bytes >= wave_bytes_max || streams.contains(&partition.keys.stream) {
                has_more = true;
                continue;
            }
            let Some(node) = nodes.node_of(partition.slot) else {
                let text = format!("no master of the Redis cluster has slot {}", partition.slot);
                place.refuse(Failure::new(ErrorCode::KafkaStorageError, text, FailureKind::NodeAway));
                self.events.push_back(Event::WantsMap);
                continue;
            };
            let at_node = self.groups.node(node);
            if clock.now >= at_node.pressure.due && !std::mem::replace(&mut at_node.is_pressure_wanted, true) {
                self.events.push_back(Event::WantsPressure { node });
            }
            let pressure = &at_node.pressure;
            if clock.now < pressure.until {
                if let (Asked::Batch(_), Some(refusal)) = (&place.asked, &pressure.refusal) {
                    place.refuse(Failure::new(ErrorCode::KafkaStorageError, refusal.clone(), FailureKind::NoRoom));
                    pending.throttle_ms = pending.throttle_ms.max(pressure.throttle_ms);
                    continue;
                }
                pending.throttle_ms = pending.throttle_ms.max(pressure.throttle_ms);
            }
            let rules = Rules {
                zstd_known: pending.request.version >= ZSTD_FROM,
                plain_bytes_max: self.options.plain_bytes_max,
                now_ms: clock.ms,
            };
            // Of a client that is sent again it is asked for again: its topic may be another one by then.
            let verified = if is_own { place.number } else { place.number.take() };
            let number = match (verified, &pending.request.transactional_id) {
                (Some(number), _) => Number::Verified(number),
                (None, Some(_)) => Number::Unverified,
                (None, None) => Number::NotTransactional,
            };
            let prepared = match &place.asked {
                Asked::Batch(sent) => prepare(&partition, sent.as_ref(), number, &rules),
                Asked::Marker(ended) => Ok(marker(&partition, *ended, clock.ms)),
            };
            match prepared {
                Ok(batch) => {
                    prepared_bytes += batch.held_bytes.max(batch.plain_bytes);
                    self.held_bytes += batch.held_bytes;
                    if !is_alone {
                        streams.insert(partition.keys.stream.clone());
                    }
                    place.state = State::Sent;
                    pending.under_way += 1;
                    self.groups.add(node, order, is_rerun, Entry { request: id, place: index, batch });
                }
                Err(failure) => {
                    if let Asked::Batch(sent) = &place.asked {
                        prepared_bytes += looked_at_max(sent.as_ref(), &rules);
                    }
                    place.refuse(failure);
                }
            }
        }
        pending.was_sent = true;
        if has_more {
            self.hold(id);
        }
        has_more && prepared_bytes >= wave_bytes_max
    }

    // --- scripts

    /// Have sent what has been gathered: the end of a turn.
    pub fn flush(&mut self, nodes: &impl Nodes, clock: Clock) {
        loop {
            for node in self.groups.take_open() {
                let history = nodes.history(node);
                match self.groups.send(node, history, self.order, clock.now) {
                    Some(unsent) => {
                        for group in unsent {
                            self.give_up(group, None, nodes, clock);
                        }
                    }
                    None if std::mem::replace(&mut self.groups.node(node).wants_epoch, true) => {}
                    None => self.events.push_back(Event::WantsEpoch { node }),
                }
            }
            // What the order has left behind may have its turn already.
            if !self.groups.has_open() {
                return;
            }
        }
    }

    /// The next group that is to be sent.
    pub fn next_send(&mut self) -> Option<Sending> {
        self.groups.next_send()
    }

    /// The commands of a piece of a group; `None` if it is gone.
    pub fn pack(&self, group: GroupId, piece: &Piece, clock: Clock) -> Option<Packed<Shared>> {
        self.groups.get(group).map(|group| group.packed(piece, &self.scripts, clock.ms))
    }

    /// Note that memory is free again, and let all begin who have waited for that once half of it is free: to wake them for
    /// each reply would take longer than to serve them.
    pub(super) fn release(&mut self, bytes: usize) {
        self.held_bytes = self.held_bytes.saturating_sub(bytes);
        if self.held_bytes > self.options.held_bytes_max / 2 {
            return;
        }
        for peer in std::mem::take(&mut self.waiting_for_room) {
            if let Some(connection) = self.connections.get_mut(&peer) {
                connection.waits_for_room = false;
                self.events.push_back(Event::Room { peer });
            }
        }
    }
}

fn client_id_of(frame: &[u8]) -> Option<String> {
    request_header(frame, |_| None).ok()?.client_id.map(Cow::into_owned)
}

/// What stands for a request where the owner itself appends.
fn own_request() -> Request {
    Request { version: *VERSIONS.end(), correlation_id: 0, transactional_id: None, acks: ACKS_ALL, topics: Vec::new() }
}
