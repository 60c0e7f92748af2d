//! What the owner of producers and consumers gives them: requests, times, and where the nodes of Redis are.

use crate::client::NodeId;
use crate::pipeline::Time;
use crate::shared::Shared;

/// The time since any beginning, and the wall clock in milliseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Clock {
    pub now: Time,
    pub ms: i64,
}

/// Where the nodes of Redis are, and to which history of writes each connection leads.
pub trait Nodes {
    /// The node that has a slot, if any has.
    fn node_of(&self, slot: u16) -> Option<NodeId>;
    /// The history to which the connection of a lane leads; empty without a connection.
    fn history(&self, node: NodeId) -> &str;
}

/// A frame that holds a request.
#[derive(Debug)]
pub struct Incoming {
    /// That of the frame among those of its connection.
    pub number: u64,
    /// The request, without its size.
    pub frame: Shared,
    /// When the last of it arrived.
    pub arrived: Time,
    /// If it may have waited for longer than the worker's lease: after when it came.
    pub late: Option<Time>,
}
