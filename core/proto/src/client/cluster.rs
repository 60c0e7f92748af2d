//! A cluster: reading the map of its slots, and sending pieces again whose slot is elsewhere or on its way.
//!
//! The map is read when it is first needed, when a node says that a slot has moved, and after a request has failed.

use std::collections::VecDeque;
use std::time::Duration;

use super::link::{Purpose, Waiting};
use super::reply::Refusal;
use super::slots::Range;
use super::{
    Address, Begin, CallId, Caller, Client, ConnectionId, Event, LaneId, NodeId, Piece, Prevented, Target, Time, Way,
};

/// Until a piece is sent again whose slot is on its way: a slot with a small log takes a few ms.
const MOVING_MIN: Duration = Duration::from_millis(20);
const MOVING_MAX: Duration = Duration::from_millis(320);
/// After this time without an answer another node is asked for the map as well.
const HANGS_AFTER: Duration = Duration::from_millis(250);

/// The nodes that are asked for the map; the first answer counts.
#[derive(Debug)]
pub(crate) struct Reading {
    left: VecDeque<Address>,
    asked: Vec<ConnectionId>,
    next_at: Option<Time>,
    callers: Vec<CallId>,
    failure: String,
}

impl<T: Caller, B: AsRef<[u8]>> Client<T, B> {
    /// The node of a piece by its slot. Without a map the piece waits for it; without a master it is prevented.
    pub(super) fn route(&mut self, piece: Piece, now: Time) -> Option<NodeId> {
        if !self.is_cluster() {
            return Some(0);
        }
        let slot = piece.slot.unwrap_or_default();
        if self.map.version == 0 {
            let deadline = now + self.options.timeout;
            self.unrouted.push(Waiting { piece, deadline });
            self.wake_at(Some(deadline));
            self.read_map_now(now);
            return None;
        }
        let master = self.map.master_of(slot);
        if master.is_none() {
            self.prevent(piece, Prevented::Away, &format!("no master of the Redis cluster has slot {slot}"), now);
        }
        master
    }

    // --- the map

    /// Read the map for a caller, who has no places: its call is finished when it is read.
    pub fn read_map(&mut self, token: T, now: Time) -> CallId {
        let begin =
            Begin { token, lane: 0, node: None, reply_bytes: 0, is_scripts: false, is_rerun: false, history: None };
        let call = self.insert_call(begin, 1, now);
        self.read_map_now(now);
        match &mut self.reading {
            Some(reading) => reading.callers.push(call),
            None => self.complete(call, 1, now),
        }
        call
    }

    /// Read the map in the background, unless that was done just now.
    pub fn read_map_soon(&mut self, now: Time) {
        if self.is_cluster() && self.reading.is_none() && self.map.may_be_read(now) {
            self.read_map_now(now);
        }
    }

    fn read_map_now(&mut self, now: Time) {
        let Target::Cluster(named) = &self.options.target else { return };
        if self.reading.is_some() {
            return;
        }
        let mut left: Vec<Address> =
            self.nodes.iter().filter(|node| node.is_master).map(|node| node.address.clone()).collect();
        for address in named {
            if !left.contains(address) {
                left.push(address.clone());
            }
        }
        // Another one first each time: one whose map is old must not be believed every time.
        let first = self.chance(left.len());
        left.rotate_left(first);
        self.reading = Some(Reading {
            left: left.into(),
            asked: Vec::new(),
            next_at: None,
            callers: Vec::new(),
            failure: "the Redis cluster has no node".to_owned(),
        });
        self.ask_for_map(now);
    }

    /// Ask the next node for the map.
    fn ask_for_map(&mut self, now: Time) {
        let deadline = now + self.options.connect_timeout;
        let Some(reading) = &mut self.reading else { return };
        let Some(address) = reading.left.pop_front() else {
            reading.next_at = None;
            if reading.asked.is_empty() {
                self.map_unread(now);
            }
            return;
        };
        reading.next_at = Some(now + HANGS_AFTER);
        let connection = self.open(address, Purpose::Slots, deadline, now);
        if let Some(reading) = &mut self.reading {
            reading.asked.push(connection);
        }
        self.wake_at(Some(now + HANGS_AFTER));
    }

    pub(super) fn slots_refused(&mut self, id: ConnectionId, text: &str, now: Time) {
        let Some(reading) = &mut self.reading else { return };
        reading.asked.retain(|asked| *asked != id);
        text.clone_into(&mut reading.failure);
        self.ask_for_map(now);
    }

    /// No node has given the map: those who wait for it hear why.
    fn map_unread(&mut self, now: Time) {
        let Some(reading) = self.reading.take() else { return };
        self.map.was_read(now);
        for call in reading.callers {
            let (first, count, kind) = (0, 0, Prevented::Away);
            self.events.push_back(Event::Prevented { call, first, count, kind, text: reading.failure.clone() });
            self.complete(call, 1, now);
        }
        for Waiting { piece, .. } in std::mem::take(&mut self.unrouted) {
            self.prevent(piece, Prevented::Away, &reading.failure, now);
        }
    }

    /// Read the map no more: the client is closed.
    pub(super) fn forget_map(&mut self, now: Time) {
        let (kind, text) = (Prevented::Closed, format!("the connection to Redis at {} is closed", self.options.target));
        for call in self.reading.take().map(|reading| reading.callers).unwrap_or_default() {
            self.events.push_back(Event::Prevented { call, first: 0, count: 0, kind, text: text.clone() });
            self.complete(call, 1, now);
        }
        for Waiting { piece, .. } in std::mem::take(&mut self.unrouted) {
            self.prevent(piece, kind, &text, now);
        }
    }

    pub(super) fn take_map(&mut self, ranges: Vec<Range>, now: Time) {
        let Some(reading) = self.reading.take() else { return };
        for id in reading.asked {
            self.close_question(id);
        }
        let ranges: Vec<(u16, u16, NodeId)> =
            ranges.into_iter().map(|range| (range.first, range.last, self.node_of(&range.master))).collect();
        self.map.was_read(now);
        if self.map.take(&ranges, now) {
            self.map_changed(now);
        }
        self.wake_at(self.map.read_again_at);
        for call in reading.callers {
            self.complete(call, 1, now);
        }
        for Waiting { piece, .. } in std::mem::take(&mut self.unrouted) {
            self.dispatch(piece, now);
        }
    }

    /// Note which nodes have slots, and close the idle connections to others.
    fn map_changed(&mut self, now: Time) {
        let mut masters = vec![false; self.nodes.len()];
        for (.., node) in self.map.ranges() {
            if let Some(is_master) = masters.get_mut(node) {
                *is_master = true;
            }
        }
        for (node, is_master) in masters.into_iter().enumerate() {
            let Some(known) = self.nodes.get_mut(node) else { continue };
            known.is_master = is_master;
            let lanes = known.links.len();
            for lane in (0..lanes).filter(|_| !is_master) {
                self.leave(node, lane, now);
            }
        }
        self.tell_map();
    }

    /// Say that the map is another one, once for all changes until this is heard.
    fn tell_map(&mut self) {
        if std::mem::take(&mut self.map.is_told) {
            self.events.push_back(Event::Map);
            self.events.push_back(Event::Reordered);
        }
    }

    fn leave(&mut self, node: NodeId, lane: LaneId, now: Time) {
        let lease_end_ms = self.first_lease_end_ms;
        if self.is_busy(lane, node) || self.lanes.get(lane).is_none_or(super::Lane::is_feed) {
            return;
        }
        let Some(link) = self.link_mut(node, lane) else { return };
        link.lease_end_ms = lease_end_ms;
        if let Some(connection) = link.connection {
            self.lose_connection(connection, "it has no slots any more", now);
        }
    }

    // --- pieces that were refused

    /// Whether a piece is sent again that was refused for where its slot is.
    pub(super) fn follows(&self, piece: Piece, now: Time) -> bool {
        let call = self.calls.get(piece.call);
        self.is_cluster() && call.is_some_and(|call| call.node.is_none() && now < call.follows_until)
    }

    /// Send a piece to the node that a refusal names, or to the master of its slot, the later the more often it was
    /// refused. Two nodes may each name the other one for a moment.
    pub(super) fn follow(&mut self, piece: Piece, refusal: Refusal, asked: NodeId, now: Time) {
        let attempt = piece.attempt + 1;
        let mut next = Piece { to: None, attempt, way: Way { asks: false, ..piece.way }, ..piece };
        let mut is_now = false;
        match refusal {
            Refusal::Moved { slot, host, port } => {
                is_now = piece.attempt == 0;
                self.note_moved(slot, &host, port, Some(asked), now);
            }
            Refusal::Ask { host, port } if !piece.way.asks => {
                if let Some(address) = self.named(&host, port, Some(asked)) {
                    next.to = Some(self.node_of(&address));
                    next.way.asks = true;
                    is_now = true;
                }
            }
            _ => {}
        }
        // What was asked before it, and is put off for the same slot, goes before it.
        let earlier = self.paused.iter().filter(|(_, paused)| paused.slot == piece.slot).map(|(at, _)| *at).max();
        if is_now && earlier.is_none() {
            self.events.push_back(Event::Reordered);
            return self.dispatch(next, now);
        }
        let pause = MOVING_MAX.min(MOVING_MIN * 2_u32.pow(piece.attempt.min(8)));
        let at = earlier.map_or(now + pause, |earlier| earlier.max(now));
        (next.to, next.way.asks) = (None, false);
        self.paused.push((at, next));
        self.wake_at(Some(at));
    }

    /// The address that a refusal names; an empty host is that of who says so.
    fn named(&self, host: &str, port: u16, asked: Option<NodeId>) -> Option<Address> {
        if port == 0 {
            return None;
        }
        let own = || asked.and_then(|node| self.nodes.get(node)).map(|node| node.address.host.clone());
        match host {
            "?" => None,
            "" => own().map(|host| Address { host, port }),
            _ => Some(Address { host: host.to_owned(), port }),
        }
    }

    fn note_moved(&mut self, slot: u16, host: &str, port: u16, asked: Option<NodeId>, now: Time) {
        if let Some(address) = self.named(host, port, asked).filter(|_| self.map.version > 0) {
            let node = self.node_of(&address);
            if self.map.note_moved(slot, node, now) {
                // Which nodes have no slots any more is found out with the whole map.
                if let Some(known) = self.nodes.get_mut(node) {
                    known.is_master = true;
                }
                self.tell_map();
            }
        }
        self.read_map_soon(now);
    }

    /// Note what a MOVED said that the caller has seen.
    pub fn moved(&mut self, slot: u16, host: &str, port: u16, now: Time) {
        let asked = self.map.master_of(slot);
        self.note_moved(slot, host, port, asked, now);
    }

    /// Give up a connection whose node answers nothing if another one has its slots by now.
    pub(super) fn node_is_silent(&mut self, id: ConnectionId, node: NodeId, now: Time) {
        if self.map.version > 0 && self.nodes.get(node).is_some_and(|node| !node.is_master) {
            self.lose_connection(id, "it is silent, and no master of the cluster any more", now);
        }
        self.read_map_soon(now);
    }

    // --- what is due

    pub(super) fn tick_cluster(&mut self, now: Time) {
        if self.reading.as_ref().and_then(|reading| reading.next_at).is_some_and(|at| at <= now) {
            self.ask_for_map(now);
        }
        if self.map.read_again_at.is_some_and(|at| at <= now) {
            self.map.read_again_at = None;
            self.read_map_soon(now);
        }
        for (at, piece) in std::mem::take(&mut self.paused) {
            if at > now {
                self.paused.push((at, piece));
                continue;
            }
            self.events.push_back(Event::Reordered);
            self.dispatch(piece, now);
        }
        for waiting in std::mem::take(&mut self.unrouted) {
            if waiting.deadline > now {
                self.unrouted.push(waiting);
            } else {
                let text = format!("the map of {} could not be read in time", self.options.target);
                self.prevent(waiting.piece, Prevented::Away, &text, now);
            }
        }
    }

    pub(super) fn cluster_due(&self) -> Option<Time> {
        let paused = self.paused.iter().map(|(at, _)| *at);
        let unrouted = self.unrouted.iter().map(|waiting| waiting.deadline);
        let reading = self.reading.as_ref().and_then(|reading| reading.next_at);
        paused.chain(unrouted).chain(reading).chain(self.map.read_again_at).min()
    }

    // --- what the owner reads

    /// Changes with the map of the cluster; 0 until it is known.
    pub fn map_version(&self) -> u64 {
        self.map.version
    }

    /// The master of a slot, as far as is known.
    pub fn node_at(&self, slot: u16) -> Option<NodeId> {
        if self.is_cluster() { self.map.master_of(slot) } else { Some(0) }
    }

    /// The ranges of slots, both ends included, and their masters.
    pub fn slots(&self) -> Vec<(u16, u16, NodeId)> {
        if self.is_cluster() { self.map.ranges() } else { vec![(0, super::SLOTS - 1, 0)] }
    }
}
