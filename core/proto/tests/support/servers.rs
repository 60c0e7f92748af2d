//! Redis and clients, as what serves producers or consumers knows them.

use korvet_proto::client::{CallId, NodeId, Piece, Span};
use korvet_proto::peer::PeerId;
use korvet_proto::serving::Nodes;

pub struct Servers {
    /// By slot, the server that has it.
    pub slots: Vec<Option<NodeId>>,
    /// That of the connection to each server.
    pub histories: Vec<String>,
}

impl Nodes for Servers {
    fn node_of(&self, slot: u16) -> Option<NodeId> {
        self.slots.get(usize::from(slot)).copied().flatten()
    }

    fn history(&self, node: NodeId) -> &str {
        self.histories.get(node).map_or("", String::as_str)
    }
}

pub fn peer(number: u64) -> PeerId {
    PeerId::from_u64(number)
}

/// The places of so many commands or scripts, as a client of Redis has them sent together.
pub fn piece(count: usize) -> Piece {
    Piece::new(CallId::from_u64(0), Span { first: 0, count, slot: None })
}
