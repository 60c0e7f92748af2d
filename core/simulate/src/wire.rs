//! Connections between workers and servers: bytes on their way, in both directions.

use korvet_proto::client::{ConnectionId, LaneId, NodeId};
use korvet_proto::pipeline::Time;

use crate::server::Session;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Opens at this time, or fails if it is not to be.
    Opening {
        at: Option<Time>,
        opens: bool,
    },
    Open,
    /// Of no use for its client any more; bytes that were written may still reach the server.
    Left,
    /// Of no use for anybody.
    Gone,
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // none follows from another
pub(crate) struct Wire {
    pub worker: usize,
    pub connection: ConnectionId,
    /// `None` if there is no such host.
    pub host: Option<usize>,
    pub stage: Stage,
    /// What the client wrote and the server has not read.
    pub up: Vec<u8>,
    /// What the server wrote and the client has not read.
    pub down: Vec<u8>,
    /// How much `up` takes.
    pub room: usize,
    pub is_stuck: bool,
    /// Nothing moves.
    pub hangs: bool,
    /// The server closes it once so many more bytes were read from it.
    pub cut_after: Option<usize>,
    pub is_cut: bool,
    pub session: Session,
    /// How many bytes the client has read.
    pub delivered: usize,
    /// How many replies of a feed the client was given.
    pub heard: usize,
    /// The lane and node whose connection it became.
    pub link: Option<(LaneId, NodeId)>,
    /// It brought what is no RESP, or what nobody asked for.
    pub is_spoiled: bool,
    /// It was given up while it was opened.
    pub is_late: bool,
}

impl Wire {
    pub fn new(worker: usize, connection: ConnectionId, host: Option<usize>, stage: Stage, room: usize) -> Self {
        Self {
            worker,
            connection,
            host,
            stage,
            up: Vec::new(),
            down: Vec::new(),
            room,
            is_stuck: false,
            hangs: false,
            cut_after: None,
            is_cut: false,
            session: Session::default(),
            delivered: 0,
            heard: 0,
            link: None,
            is_spoiled: false,
            is_late: false,
        }
    }

    /// Whether the client has not closed it.
    pub fn is_held(&self) -> bool {
        matches!(self.stage, Stage::Opening { .. } | Stage::Open)
    }
}
