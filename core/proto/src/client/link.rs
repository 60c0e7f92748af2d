//! The connection of a lane to a node: attempts to connect, what waits for it, and its loss.

use std::collections::VecDeque;
use std::time::Duration;

use super::greeting::Greeting;
use super::sentinel::{Finding, Watch};
use super::{Address, Caller, Client, ConnectionId, Event, LaneId, Node, NodeId, Piece, Prevented, Target, Time, Way};
use crate::pipeline::{Due, Limits, Packed, Pipeline};
use crate::resp::Inbox;

/// Nothing was heard for so long while a reply is pending: somebody looks whether another server is the master.
const SILENCE: Duration = Duration::from_secs(1);
/// Callers with large replies wait so long for room: consumers wait as long for an answer (request.timeout.ms).
const REPLY_ROOM_WAIT: Duration = Duration::from_secs(30);
/// Pauses after failed attempts to connect. They differ by a quarter, which spreads the workers of a broker.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
const PAUSE_SPREAD: u32 = 4;

/// How long the next attempt waits after so many have failed.
pub(crate) fn pause_after(failures: u32) -> Duration {
    PAUSE_MAX.min(PAUSE_MIN * 2_u32.pow(failures.min(16)))
}

/// What a connection is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A lane.
    Link { node: NodeId, lane: LaneId },
    /// The map of the cluster.
    Slots,
    /// Which master a Sentinel names, for an attempt to connect.
    Master { node: NodeId, lane: LaneId },
    /// Which master a Sentinel names, for the watch.
    Named,
    /// Whether the server that a Sentinel names is a master, for the watch.
    Verified,
    /// To hear of a Sentinel when another server is the master.
    Watch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The owner opens the socket.
    Opening,
    /// It is there, and the answer to the first question is not.
    Greeting,
    /// It is in use.
    Up,
    /// It is gone; its bytes are here until the owner knows.
    Lost,
}

/// What has been seen of the oldest piece of a connection, of which not all replies are here.
#[derive(Debug, Default)]
pub(crate) struct Oldest {
    pub refusal: Option<super::reply::Refusal>,
    pub load_failed: bool,
    pub asking_failed: bool,
    pub again: Vec<(usize, Way)>,
}

#[derive(Debug)]
pub(crate) struct Connection<B> {
    pub address: Address,
    pub purpose: Purpose,
    pub stage: Stage,
    pub inbox: Inbox,
    pub pipeline: Pipeline<Piece, B>,
    pub greeting: Option<Greeting>,
    /// Replies that nobody needs come first.
    pub dropped: usize,
    pub oldest: Oldest,
    /// Since when it is up; before, since when it is opened.
    pub made_at: Time,
    /// Until when it must be open and greeted.
    pub deadline: Time,
}

impl<B: AsRef<[u8]>> Connection<B> {
    pub fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Greeting | Stage::Up)
    }

    pub fn due(&self) -> Option<Time> {
        match self.stage {
            Stage::Opening | Stage::Greeting => Some(self.deadline),
            Stage::Up => self.pipeline.due(),
            Stage::Lost => None,
        }
    }
}

/// A piece that waits: for a connection, for room, for the map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub piece: Piece,
    pub deadline: Time,
}

#[derive(Debug)]
pub(crate) struct Attempt {
    pub connection: ConnectionId,
    pub finding: Option<Finding>,
    pub begun_at: Time,
}

impl Attempt {
    fn is_finding(&self) -> bool {
        self.finding.is_some()
    }
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // none follows from another
pub(crate) struct Link {
    pub connection: Option<ConnectionId>,
    pub attempt: Option<Attempt>,
    /// Why the last attempt failed, if it did.
    pub refusal: Option<String>,
    failures: u32,
    pub not_before: Time,
    pub waiting: VecDeque<Waiting>,
    /// With large replies; what expects small ones passes them.
    pub waiting_large: VecDeque<Waiting>,
    /// A piece whose commands are being packed. Others wait, so that none overtakes it.
    pub packing: Option<Waiting>,
    pub history: String,
    was_connected: bool,
    led_to_replica: bool,
    // Of a feed.
    pub is_kept: bool,
    pub pings: bool,
    pinged_at: Option<Time>,
    pub lease_end_ms: i64,
    pub lease_ended: bool,
}

impl Link {
    fn new(lease_end_ms: i64) -> Self {
        Self {
            connection: None,
            attempt: None,
            refusal: None,
            failures: 0,
            not_before: Time::ZERO,
            waiting: VecDeque::new(),
            waiting_large: VecDeque::new(),
            packing: None,
            history: String::new(),
            was_connected: false,
            led_to_replica: false,
            is_kept: false,
            pings: false,
            pinged_at: None,
            lease_end_ms,
            lease_ended: false,
        }
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.waiting_large.is_empty() || self.packing.is_some()
    }

    /// When it needs to be looked at.
    pub fn due(&self, now: Time) -> Option<Time> {
        let waiting = self.waiting.iter().chain(&self.waiting_large).map(|waiting| waiting.deadline).min();
        let is_down = self.is_kept && self.connection.is_none() && self.attempt.is_none();
        let attempt = is_down.then(|| self.not_before.max(now));
        waiting.into_iter().chain(attempt).min()
    }
}

impl<T: Caller, B: AsRef<[u8]>> Client<T, B> {
    pub(super) fn made_link(&mut self, node: NodeId, lane: LaneId) -> Option<&mut Link> {
        let lease_end_ms = self.first_lease_end_ms;
        let links = &mut self.nodes.get_mut(node)?.links;
        while links.len() <= lane {
            links.push(Link::new(lease_end_ms));
        }
        links.get_mut(lane)
    }

    /// The node at an address, which is made if it is new.
    pub(super) fn node_of(&mut self, address: &Address) -> NodeId {
        if let Some(node) = self.nodes.iter().position(|node| node.address == *address) {
            return node;
        }
        let (address, name) = (address.clone(), address.to_string());
        self.nodes.push(Node { address, name, is_master: false, links: Vec::new() });
        self.nodes.len() - 1
    }

    pub(super) fn name_of(&self, node: NodeId) -> String {
        self.nodes.get(node).map(|node| node.name.clone()).unwrap_or_default()
    }

    // --- pieces

    /// Have a piece sent, now or when there is a connection and room.
    pub(super) fn dispatch(&mut self, piece: Piece, now: Time) {
        let Some(call) = self.calls.get(piece.call) else { return };
        let (lane, large, node, begun_at) = (call.lane, call.reply_bytes > 0, piece.to.or(call.node), call.begun_at);
        if self.lanes.get(lane).is_none_or(|lane| lane.is_closed) {
            let text = format!("the connection to Redis at {} is closed", self.options.target);
            return self.prevent(piece, Prevented::Closed, &text, now);
        }
        let Some(node) = node.or_else(|| self.route(piece, now)) else { return };
        let timeout = self.options.timeout;
        let fails_fast = self.is_cluster();
        let Some(link) = self.made_link(node, lane) else {
            return self.prevent(piece, Prevented::Away, "there is no such node of Redis", now);
        };
        let is_away = link.connection.is_none() && (link.attempt.is_none() && now < link.not_before)
            || fails_fast && link.attempt.as_ref().is_some_and(|attempt| attempt.begun_at < begun_at);
        if let Some(refusal) = link.refusal.clone().filter(|_| is_away) {
            return self.prevent(piece, Prevented::Away, &refusal, now);
        }
        let deadline = now + if large && link.connection.is_some() { REPLY_ROOM_WAIT } else { timeout };
        let queue = if large { &mut link.waiting_large } else { &mut link.waiting };
        queue.push_back(Waiting { piece, deadline });
        if link.connection.is_none() && link.attempt.is_none() {
            self.attempt(node, lane, now);
        }
        self.drain(node, lane, now);
        if self.link(node, lane).is_some_and(|link| !link.waiting.is_empty() || !link.waiting_large.is_empty()) {
            self.wake_at(Some(deadline));
        }
    }

    /// Have the oldest piece packed that waits for a connection with room, if there is.
    pub(super) fn drain(&mut self, node: NodeId, lane: LaneId, now: Time) {
        loop {
            let Some(link) = self.nodes.get_mut(node).and_then(|node| node.links.get_mut(lane)) else { return };
            let Some(connection) = link.connection.filter(|_| link.packing.is_none()) else { return };
            let Some(connection) = self.connections.get(connection) else { return };
            let oldest = if !link.waiting.is_empty() && connection.pipeline.has_room(0) {
                link.waiting.pop_front()
            } else if !link.waiting_large.is_empty() && link.waiting.is_empty() && connection.pipeline.has_room(1) {
                link.waiting_large.pop_front()
            } else {
                return;
            };
            let Some(waiting) = oldest else { return };
            if waiting.piece.count > 0 {
                link.packing = Some(waiting);
                self.ready.push_back((node, lane));
                return;
            }
            self.complete(waiting.piece.call, 1, now);
        }
    }

    // --- attempts to connect

    fn attempt(&mut self, node: NodeId, lane: LaneId, now: Time) {
        let deadline = now + self.options.connect_timeout;
        if matches!(self.options.target, Target::Sentinels { .. }) {
            return self.find_master(node, lane, now);
        }
        let Some(address) = self.nodes.get(node).map(|node| node.address.clone()) else { return };
        let connection = self.open(address, Purpose::Link { node, lane }, deadline, now);
        if let Some(link) = self.link_mut(node, lane) {
            link.attempt = Some(Attempt { connection, finding: None, begun_at: now });
        }
    }

    pub(super) fn open(&mut self, address: Address, purpose: Purpose, deadline: Time, now: Time) -> ConnectionId {
        let lane = match purpose {
            Purpose::Link { lane, .. } => self.lanes.get(lane).map(|lane| &lane.options),
            _ => None,
        };
        let limits = Limits {
            commands_max: lane.map_or(0, |lane| lane.commands_max),
            bytes_max: lane.map_or(0, |lane| lane.bytes_max),
            reply_bytes_max: lane.map_or(0, |lane| lane.reply_bytes_max),
            timeout: self.options.timeout,
            silence: Some(SILENCE),
        };
        let is_sentinel = matches!(purpose, Purpose::Master { .. } | Purpose::Named | Purpose::Watch);
        let connection = self.connections.insert(Connection {
            address: address.clone(),
            purpose,
            stage: Stage::Opening,
            inbox: Inbox::default(),
            pipeline: Pipeline::new(limits, Time::ZERO),
            greeting: None,
            dropped: 0,
            oldest: Oldest::default(),
            made_at: now,
            deadline,
        });
        self.events.push_back(Event::Open { connection, address, is_sentinel });
        self.wake_at(Some(deadline));
        connection
    }

    /// Note that a socket is open.
    pub fn opened(&mut self, id: ConnectionId, now: Time) {
        let Some(connection) = self.connections.get_mut(id).filter(|open| open.stage == Stage::Opening) else { return };
        let question: &[&str] = match &connection.purpose {
            Purpose::Link { .. } | Purpose::Verified => &["INFO", "replication"],
            Purpose::Slots => &["CLUSTER", "SLOTS"],
            Purpose::Watch => &["SUBSCRIBE", "+switch-master"],
            Purpose::Master { .. } | Purpose::Named => match &self.options.target {
                Target::Sentinels { master, .. } => &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", master],
                _ => return,
            },
        };
        let is_sentinel = matches!(connection.purpose, Purpose::Master { .. } | Purpose::Named | Purpose::Watch);
        let login = if is_sentinel { &self.options.sentinel_login } else { &self.options.login };
        let (greeting, text) = Greeting::begin(login, question);
        connection.greeting = Some(greeting);
        connection.stage = Stage::Greeting;
        connection.pipeline.heard(now);
        connection.pipeline.push_unasked(Packed::from(text));
        self.events.push_back(Event::Flush { connection: id });
    }

    /// Note that a socket could not be opened, or was lost; `reason` are the system's words.
    pub fn failed(&mut self, id: ConnectionId, reason: &str, now: Time) {
        self.lose_connection(id, reason, now);
    }

    /// End a connection that is not up yet; `text` says why.
    pub(super) fn refuse(&mut self, id: ConnectionId, text: &str, now: Time) {
        let Some(connection) = self.connections.get_mut(id).filter(|connection| connection.stage != Stage::Lost) else {
            return;
        };
        connection.stage = Stage::Lost;
        let (purpose, address) = (connection.purpose.clone(), connection.address.clone());
        self.events.push_back(Event::Close { connection: id });
        match purpose {
            Purpose::Link { node, lane } | Purpose::Master { node, lane } => {
                if self.link(node, lane).is_some_and(|link| link.attempt.as_ref().is_some_and(Attempt::is_finding)) {
                    return self.next_sentinel(node, lane, Some((address, text.to_owned())), now);
                }
                self.link_refused(node, lane, text, now);
            }
            Purpose::Slots => self.slots_refused(id, text, now),
            Purpose::Named | Purpose::Verified | Purpose::Watch => self.watch_failed(&purpose, now),
        }
    }

    /// End an attempt to connect.
    pub(super) fn link_refused(&mut self, node: NodeId, lane: LaneId, text: &str, now: Time) {
        self.pause_link(node, lane, now);
        let Some(link) = self.link_mut(node, lane) else { return };
        link.attempt = None;
        link.refusal = Some(text.to_owned());
        let waiting: Vec<Waiting> = link.waiting.drain(..).chain(link.waiting_large.drain(..)).collect();
        self.events.push_back(Event::Refused { lane, node, text: text.to_owned() });
        for Waiting { piece, .. } in waiting {
            self.prevent(piece, Prevented::Away, text, now);
        }
        if self.is_cluster() {
            self.read_map_soon(now);
        }
        let due = self.link(node, lane).and_then(|link| link.due(now));
        self.wake_at(due);
    }

    /// Let the next attempt wait, the longer the more have failed.
    fn pause_link(&mut self, node: NodeId, lane: LaneId, now: Time) {
        let by_chance = self.chance(1_000) as u32;
        let Some(link) = self.link_mut(node, lane) else { return };
        let pause = pause_after(link.failures);
        link.failures = link.failures.saturating_add(1);
        let least = pause / PAUSE_SPREAD * (PAUSE_SPREAD - 1);
        link.not_before = now + least + pause / PAUSE_SPREAD * 2 * by_chance / 1_000;
    }

    /// Begin to use a connection, whose server has answered the first question.
    pub(super) fn link_up(&mut self, id: ConnectionId, node: NodeId, lane: LaneId, history: String, now: Time) {
        let Some(options) = self.lanes.get(lane) else { return };
        let (is_feed, first) = (options.is_feed(), options.options.first.clone());
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.stage = Stage::Up;
        connection.made_at = now;
        connection.dropped = first.len();
        for text in first {
            connection.pipeline.push_unasked(Packed::from(text));
            self.events.push_back(Event::Flush { connection: id });
        }
        let Some(link) = self.link_mut(node, lane) else { return };
        link.attempt = None;
        link.refusal = None;
        link.connection = Some(id);
        link.history.clone_from(&history);
        link.pinged_at = None;
        // A feed works when its server has confirmed something.
        link.failures = if is_feed { link.failures.max(1) } else { 0 };
        let is_again = std::mem::replace(&mut link.was_connected, true);
        let is_failover = std::mem::take(&mut link.led_to_replica);
        for waiting in &mut link.waiting_large {
            waiting.deadline = now + REPLY_ROOM_WAIT;
        }
        self.events.push_back(Event::Connected { lane, node, history, is_again });
        if is_failover {
            self.events.push_back(Event::Failover);
        }
        self.drain(node, lane, now);
        self.tick_link(node, lane, now);
        self.begin_watch(id, now);
    }

    // --- the end of a connection

    /// End a connection; what is under way over it is unknown.
    pub(super) fn lose_connection(&mut self, id: ConnectionId, reason: &str, now: Time) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let Purpose::Link { node, lane } = connection.purpose else {
            let text = format!("Redis at {} cannot be reached: {reason}", connection.address);
            return self.refuse(id, &text, now);
        };
        match connection.stage {
            Stage::Opening | Stage::Greeting => {
                let text = format!("Redis at {} cannot be reached: {reason}", connection.address);
                self.refuse(id, &text, now);
            }
            Stage::Up => {
                connection.stage = Stage::Lost;
                let unanswered = connection.pipeline.lose();
                self.link_lost(id, node, lane, reason, &unanswered, now);
            }
            Stage::Lost => {}
        }
    }

    fn link_lost(&mut self, id: ConnectionId, node: NodeId, lane: LaneId, reason: &str, pieces: &[Piece], now: Time) {
        let lost = format!("the connection to Redis at {} was lost ({reason})", self.name_of(node));
        self.events.push_back(Event::Close { connection: id });
        self.events.push_back(Event::Lost { lane, node, text: reason.to_owned() });
        for piece in pieces {
            self.prevent(*piece, Prevented::Unknown, &format!("{lost}: the outcome of the request is unknown"), now);
        }
        let (is_feed, is_closed) = self.lanes.get(lane).map_or((false, true), |lane| (lane.is_feed(), lane.is_closed));
        let Some(link) = self.link_mut(node, lane) else { return };
        link.connection = None;
        if is_feed && link.failures > 0 {
            // It took the connection, and has confirmed nothing: such a server is away as well.
            self.pause_link(node, lane, now);
        }
        if let Some(link) = self.link(node, lane).filter(|_| !is_closed) {
            if link.is_kept && now >= link.not_before || link.has_waiting() {
                self.attempt(node, lane, now);
            }
        }
        let due = self.link(node, lane).and_then(|link| link.due(now));
        self.wake_at(due);
    }

    /// Close the connection of a lane to a node, and open another one when it is needed; a feed waits before.
    pub fn lose(&mut self, lane: LaneId, node: NodeId, reason: &str, pauses: bool, now: Time) {
        let Some(link) = self.link_mut(node, lane) else { return };
        if pauses {
            link.failures = link.failures.max(1);
        }
        if let Some(id) = link.connection {
            self.lose_connection(id, reason, now);
        }
    }

    /// Close a lane for good.
    pub fn close(&mut self, lane: LaneId, now: Time) {
        if let Some(closed) = self.lanes.get_mut(lane) {
            closed.is_closed = true;
        }
        for node in 0..self.nodes.len() {
            let Some(link) = self.link_mut(node, lane) else { continue };
            link.is_kept = false;
            let waiting: Vec<Waiting> = link.waiting.drain(..).chain(link.waiting_large.drain(..)).collect();
            let attempt = link.attempt.take().map(|attempt| attempt.connection);
            if let Some(id) = link.connection {
                self.lose_connection(id, "closed by this broker", now);
            }
            if let Some(connection) = attempt.and_then(|id| self.connections.get_mut(id)) {
                connection.stage = Stage::Lost;
                self.events.extend(attempt.map(|connection| Event::Close { connection }));
            }
            let text = format!("the connection to Redis at {} is closed", self.name_of(node));
            for Waiting { piece, .. } in waiting {
                self.prevent(piece, Prevented::Closed, &text, now);
            }
        }
        if self.lanes.iter().all(|lane| lane.is_closed) {
            self.forget_map(now);
            for id in self.connections.ids() {
                self.close_question(id);
            }
            self.watch = Watch::default();
        }
    }

    // --- what is due

    pub(super) fn tick_connection(&mut self, id: ConnectionId, now: Time) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        if connection.due().is_none_or(|due| due > now) {
            return;
        }
        if connection.stage != Stage::Up {
            let waited_ms = connection.deadline.saturating_sub(connection.made_at).as_millis();
            let text = format!("Redis at {} did not answer within {waited_ms} ms", connection.address);
            return self.refuse(id, &text, now);
        }
        let (mut overdue, purpose) = (Vec::new(), connection.purpose.clone());
        let due = connection.pipeline.tick(now, |piece| overdue.push(*piece));
        let Purpose::Link { node, .. } = purpose else { return };
        if due == Due::Loss {
            let reason = format!("nothing was heard for {} ms", self.options.timeout.as_millis());
            self.lose_connection(id, &reason, now);
        }
        let text =
            format!("Redis at {} did not answer in time: the outcome of the request is unknown", self.name_of(node));
        for piece in overdue {
            self.prevent(piece, Prevented::Unknown, &text, now);
        }
        if due == Due::Silence && self.is_cluster() {
            self.node_is_silent(id, node, now);
        }
    }

    pub(super) fn tick_link(&mut self, node: NodeId, lane: LaneId, now: Time) {
        let Some(link) = self.link_mut(node, lane) else { return };
        let is_up = link.connection.is_some();
        let mut overdue = Vec::new();
        for queue in [&mut link.waiting, &mut link.waiting_large] {
            overdue.extend(queue.iter().filter(|waiting| waiting.deadline <= now).map(|waiting| waiting.piece));
            queue.retain(|waiting| waiting.deadline > now);
        }
        if !overdue.is_empty() {
            let away = format!("Redis at {} could not be reached in time", self.name_of(node));
            let full = "too much is in flight to Redis: timed out before anything was sent";
            for piece in overdue {
                let (kind, text) = if is_up { (Prevented::Full, full) } else { (Prevented::Away, away.as_str()) };
                self.prevent(piece, kind, text, now);
            }
        }
        self.tick_feed(node, lane, now);
    }

    /// Connect a feed that is kept, and find out whether its server lives if nothing was heard for long.
    fn tick_feed(&mut self, node: NodeId, lane: LaneId, now: Time) {
        let Some(ping) = self.lanes.get(lane).and_then(|lane| lane.options.ping) else { return };
        let timeout = self.options.connect_timeout;
        let Some(link) = self.nodes.get_mut(node).and_then(|node| node.links.get_mut(lane)) else { return };
        let Some(id) = link.connection else {
            if link.is_kept && link.attempt.is_none() && now >= link.not_before {
                self.attempt(node, lane, now);
            }
            return;
        };
        if !link.pings {
            link.pinged_at = None;
            return;
        }
        let Some(connection) = self.connections.get_mut(id) else { return };
        let heard_at = connection.pipeline.heard_at();
        link.pinged_at = link.pinged_at.filter(|at| *at > heard_at);
        match link.pinged_at {
            Some(at) if now >= at + timeout => self.lose_connection(id, "it did not answer a PING", now),
            Some(at) => self.wake_at(Some(at + timeout)),
            None if now >= heard_at + ping => {
                link.pinged_at = Some(now);
                let text = super::greeting::packed(&["PING"]);
                connection.pipeline.push_unasked(Packed::from(text));
                self.events.push_back(Event::Flush { connection: id });
                self.wake_at(Some(now + timeout));
            }
            None => self.wake_at(Some(heard_at + ping)),
        }
    }

    /// Forget how often a feed has failed: its server has confirmed something.
    pub(super) fn feed_works(&mut self, node: NodeId, lane: LaneId) {
        if let Some(link) = self.link_mut(node, lane) {
            link.failures = 0;
        }
    }

    /// Note that a connection was refused a write, since it leads to a replica.
    pub(super) fn note_replica(&mut self, node: NodeId, lane: LaneId) {
        if let Some(link) = self.link_mut(node, lane) {
            link.led_to_replica = true;
        }
    }
}
