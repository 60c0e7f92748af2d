//! What the owner reads of the connections of a lane to a node, and says about them.

use super::{Caller, Client, ConnectionId, LaneId, NodeId, Time};
use crate::pipeline::Packed;

impl<T: Caller, B: AsRef<[u8]>> Client<T, B> {
    /// Keep a feed connected to a node, or not any more; `pings`: find out whether it lives.
    pub fn keep(&mut self, lane: LaneId, node: NodeId, is_kept: bool, pings: bool, now: Time) {
        if self.lanes.get(lane).is_none_or(|lane| lane.is_closed || !lane.is_feed()) {
            return;
        }
        let Some(link) = self.made_link(node, lane) else { return };
        (link.is_kept, link.pings) = (is_kept, pings);
        self.tick_link(node, lane, now);
        let due = self.link(node, lane).and_then(|link| link.due(now));
        self.wake_at(due);
    }

    /// Send commands over a feed; nobody waits for an answer.
    pub fn send(&mut self, lane: LaneId, node: NodeId, packed: Packed<B>) -> Option<ConnectionId> {
        let id = self.link(node, lane)?.connection?;
        self.connections.get_mut(id)?.pipeline.push_unasked(packed);
        Some(id)
    }

    /// Whether a call would be sent at once.
    pub fn is_ready(&self, lane: LaneId, node: NodeId) -> bool {
        let Some(link) = self.link(node, lane).filter(|link| !link.has_waiting()) else { return false };
        link.connection.and_then(|id| self.connections.get(id)).is_some_and(|open| open.pipeline.has_room(1))
    }

    /// Whether anything is under way, or about to be.
    pub fn is_busy(&self, lane: LaneId, node: NodeId) -> bool {
        let Some(link) = self.link(node, lane) else { return false };
        link.has_waiting() || link.attempt.is_some() || self.under_way(lane, node).0 > 0
    }

    /// Commands, bytes, and bytes of large replies that are under way.
    pub fn under_way(&self, lane: LaneId, node: NodeId) -> (usize, usize, usize) {
        let connection = self.link(node, lane).and_then(|link| link.connection);
        connection.and_then(|id| self.connections.get(id)).map_or((0, 0, 0), |open| open.pipeline.under_way())
    }

    /// How many pieces wait for a connection or for room; and how many of them for room for large replies.
    pub fn waiting(&self, lane: LaneId, node: NodeId) -> (usize, usize) {
        self.link(node, lane).map_or((0, 0), |link| (link.waiting.len(), link.waiting_large.len()))
    }

    /// Note the history of a connection, which may change under it: a master begins one with its first replica.
    pub fn set_history(&mut self, lane: LaneId, node: NodeId, history: String) {
        if let Some(link) = self.link_mut(node, lane) {
            link.history = history;
        }
    }

    /// The history of the present or last connection.
    pub fn history(&self, lane: LaneId, node: NodeId) -> &str {
        self.link(node, lane).map_or("", |link| &link.history)
    }

    /// Set until when a node takes scripts that need a lease; without a node, the lease of new nodes.
    pub fn set_lease(&mut self, lane: LaneId, node: Option<NodeId>, end_ms: i64) {
        let Some(node) = node else {
            self.first_lease_end_ms = end_ms;
            return;
        };
        if let Some(link) = self.made_link(node, lane) {
            (link.lease_end_ms, link.lease_ended) = (end_ms, false);
        }
    }

    /// Until when a node takes scripts that need a lease.
    pub fn lease_end_ms(&self, lane: LaneId, node: NodeId) -> i64 {
        self.link(node, lane).map_or(self.first_lease_end_ms, |link| link.lease_end_ms)
    }

    /// Whether a script came after the end of the lease since that was set.
    pub fn lease_ended(&self, lane: LaneId, node: NodeId) -> bool {
        self.link(node, lane).is_some_and(|link| link.lease_ended)
    }
}
