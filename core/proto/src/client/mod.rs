//! A client of Redis: one server, the master that Sentinels name, or a cluster.
//!
//! Theory of operation. The owner has sockets, the clock and the callers; this has everything else. It hears what was
//! asked ([`Client::begin`]), which bytes arrived ([`Client::received`]) and the time ([`Client::tick`]). It says what to
//! send ([`Client::next_ready`]), and reports events ([`Client::next_event`]).
//!
//! * A **node** is a server. A **lane** is a connection of its own to each node for requests of one kind, so that large
//!   replies do not hold up small ones. A **feed** is a lane for pub/sub.
//! * A **call** is what one caller asked for: places, each a command or a script. It is sent in **pieces**. A piece is
//!   never divided: MULTI to EXEC is one, and with one server a whole call is.
//! * A piece that was refused without being run is sent again: its slot is at another node (MOVED), or on its way (ASK,
//!   TRYAGAIN); its script is missing (NOSCRIPT), or has another text for a full memory (OOM).
//! * What was sent and not answered is **unknown**, for it may have been run. It is never sent again.
//! * A connection is made when it is first needed, and again when it is needed after a loss. In the pause after a failure
//!   a call that needs it fails with the reason.
//!
//! Files: `options` are given at the start, `link` has the connection of a lane to a node, `state` what the owner reads of it, `reply` what arrives over it,
//! `cluster` the map of slots and pieces that follow theirs, `sentinel` the search for the master and the watch over it,
//! `greeting` the first commands of a connection.

mod cluster;
mod greeting;
mod link;
mod options;
mod reply;
mod sentinel;
mod slots;
mod state;

use std::collections::{TryReserveError, VecDeque};
use std::ops::Range;
use std::time::Duration;

pub use crate::pipeline::Time;
use crate::pipeline::{Packed, Request};
use crate::slab::Slab;
pub use crate::slab::{Id as CallId, Id as ConnectionId};
use cluster::Reading;
use link::{Connection, Link, Stage, Waiting};
pub use options::{Address, LaneOptions, Login, Options, Target};
pub(crate) use reply::Refusal;
use sentinel::Watch;
use slots::SlotMap;
pub use slots::{SLOTS, slot_of};

/// The number of a node: 0 for the one server, or the master that Sentinels name.
pub type NodeId = usize;
/// The number of a lane.
pub type LaneId = usize;

/// Places of a call that are one piece, and the slot of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Span {
    pub first: usize,
    pub count: usize,
    pub slot: Option<u16>,
}

/// What a caller asks for.
#[derive(Debug)]
pub struct Begin<T> {
    /// Comes back with [`Client::finish`].
    pub token: T,
    /// Over which connections.
    pub lane: LaneId,
    /// To which node; `None`: to the masters of the slots, also if these move meanwhile.
    pub node: Option<NodeId>,
    /// How large the replies are expected to be in all; 0 if they are small.
    pub reply_bytes: usize,
    /// Whether the places are scripts.
    pub is_scripts: bool,
    /// Whether scripts run again that were missing, or refused for want of memory.
    pub is_rerun: bool,
    /// Only if the connection leads to this history.
    pub history: Option<String>,
}

/// What a client asks of a token.
pub trait Caller {
    /// Whether the script at a place has another text for a server whose memory is full.
    fn runs_when_full(&self, place: usize) -> bool;
    /// Whether the scripts at two places are the same.
    fn is_same_script(&self, place: usize, other: usize) -> bool;
}

/// How a piece is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// After ASKING: the node is receiving the slot.
    pub asks: bool,
    /// After SCRIPT LOAD: the script is missing.
    pub loads: bool,
    /// As the script's text for a full memory.
    pub is_full: bool,
}

impl Way {
    /// How many commands stand before those of the piece.
    fn prefix(self) -> usize {
        usize::from(self.asks) + usize::from(self.loads)
    }
}

/// Places of a call that are sent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Whose it is.
    pub call: CallId,
    /// Its first place.
    pub first: usize,
    /// How many places.
    pub count: usize,
    /// How it is sent.
    pub way: Way,
    slot: Option<u16>,
    /// The node that a refusal named, if that is not the master of the slot.
    to: Option<NodeId>,
    attempt: u32,
}

impl Piece {
    /// Places of a call that were not sent yet.
    pub fn new(call: CallId, span: Span) -> Self {
        let Span { first, count, slot } = span;
        Self { call, first, count, way: Way::default(), slot, to: None, attempt: 0 }
    }
}

/// A piece whose commands are to be packed and pushed.
#[derive(Debug)]
pub struct Ready {
    /// The piece.
    pub piece: Piece,
    /// Where it goes.
    pub node: NodeId,
    /// Over which connection there.
    pub lane: LaneId,
    /// Until when the node takes scripts that need a lease; 0: at any time.
    pub lease_end_ms: i64,
}

/// A piece that is on its way.
#[derive(Debug)]
pub struct Pushed {
    /// Where bytes wait to be written.
    pub connection: ConnectionId,
    /// Whether nothing else was under way there.
    pub was_idle: bool,
}

/// Why there is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prevented {
    /// It was not sent: the node cannot be reached.
    Away,
    /// It was sent, and may have been run.
    Unknown,
    /// It was not sent: the server has another history of writes.
    History,
    /// It was not sent in time: too much is under way.
    Full,
    /// The lane is closed.
    Closed,
}

/// What has happened, in order.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Event {
    /// The reply at a place, among the bytes of the connection that were received. A later one takes its place.
    Reply { call: CallId, place: usize, range: Range<usize> },
    /// Why there is no reply at some places.
    Prevented { call: CallId, first: usize, count: usize, kind: Prevented, text: String },
    /// Each place has its outcome: `finish` is to be called.
    Finished { call: CallId, took: Duration },
    /// What nobody asked for, over a feed.
    FeedReply { lane: LaneId, node: NodeId, range: Range<usize> },
    /// A socket is to be opened; then `opened` or `failed` is to be called.
    Open { connection: ConnectionId, address: Address, is_sentinel: bool },
    /// A socket is to be closed, or not to be opened any more.
    Close { connection: ConnectionId },
    /// There are bytes to write.
    Flush { connection: ConnectionId },
    /// `due` is earlier than before.
    Timer,
    /// A connection of a lane is there, to this history.
    Connected { lane: LaneId, node: NodeId, history: String, is_again: bool },
    /// An attempt to connect has failed.
    Refused { lane: LaneId, node: NodeId, text: String },
    /// A connection of a lane is gone.
    Lost { lane: LaneId, node: NodeId, text: String },
    /// What is sent from now on is not refused for the reason for which something before was.
    Reordered,
    /// The map of the cluster is another one.
    Map,
    /// A connection is there after one that led to a replica.
    Failover,
}

#[derive(Debug)]
struct Call<T> {
    token: T,
    lane: LaneId,
    node: Option<NodeId>,
    reply_bytes: usize,
    is_scripts: bool,
    is_rerun: bool,
    history: Option<String>,
    /// Places without an outcome.
    left: usize,
    begun_at: Time,
    /// Until when pieces follow their slots.
    follows_until: Time,
}

#[derive(Debug)]
struct Lane {
    options: LaneOptions,
    is_closed: bool,
}

impl Lane {
    fn is_feed(&self) -> bool {
        self.options.ping.is_some()
    }
}

#[derive(Debug)]
struct Node {
    address: Address,
    name: String,
    is_master: bool,
    links: Vec<Link>,
}

/// The state of a client. `T` is a token of a caller, `B` a payload.
#[derive(Debug)]
pub struct Client<T, B> {
    options: Options,
    random: u64,
    lanes: Vec<Lane>,
    nodes: Vec<Node>,
    connections: Slab<Connection<B>>,
    calls: Slab<Call<T>>,
    ready: VecDeque<(NodeId, LaneId)>,
    events: VecDeque<Event>,
    due: Option<Time>,
    // Of a cluster: its map, pieces that wait for it, and pieces whose slots are on their way.
    map: SlotMap,
    reading: Option<Reading>,
    unrouted: Vec<Waiting>,
    paused: Vec<(Time, Piece)>,
    // Of Sentinels: in the order in which they are asked, and what is heard of them.
    sentinels: Vec<Address>,
    watch: Watch,
    /// The lease of new nodes.
    first_lease_end_ms: i64,
}

impl<T: Caller, B: AsRef<[u8]>> Client<T, B> {
    /// Begin without any connection.
    pub fn new(options: Options) -> Self {
        let sentinels = match &options.target {
            Target::Sentinels { addresses, .. } => addresses.clone(),
            _ => Vec::new(),
        };
        let mut client = Self {
            random: options.seed | 1,
            options,
            lanes: Vec::new(),
            nodes: Vec::new(),
            connections: Slab::default(),
            calls: Slab::default(),
            ready: VecDeque::new(),
            events: VecDeque::new(),
            due: None,
            map: SlotMap::new(),
            reading: None,
            unrouted: Vec::new(),
            paused: Vec::new(),
            sentinels,
            watch: Watch::default(),
            first_lease_end_ms: 0,
        };
        if !client.is_cluster() {
            let name = client.options.target.to_string();
            let address = match &client.options.target {
                Target::Server(address) => address.clone(),
                _ => Address { host: name.clone(), port: 0 },
            };
            client.nodes.push(Node { address, name, is_master: true, links: Vec::new() });
        }
        client
    }

    /// Add a lane.
    pub fn add_lane(&mut self, lane: LaneOptions) -> LaneId {
        self.lanes.push(Lane { options: lane, is_closed: false });
        self.lanes.len() - 1
    }

    fn is_cluster(&self) -> bool {
        matches!(self.options.target, Target::Cluster(_))
    }

    // --- calls

    /// Take what a caller asks for, in pieces; without any it has its outcome when there is a connection.
    pub fn begin(&mut self, mut begin: Begin<T>, spans: &[Span], now: Time) -> CallId {
        begin.reply_bytes = begin.reply_bytes.div_ceil(spans.len().max(1));
        let call = self.insert_call(begin, spans.iter().map(|span| span.count).sum::<usize>().max(1), now);
        let connecting = [Span { first: 0, count: 0, slot: None }];
        for span in if spans.is_empty() { &connecting } else { spans } {
            self.dispatch(Piece::new(call, *span), now);
        }
        call
    }

    fn insert_call(&mut self, begin: Begin<T>, left: usize, now: Time) -> CallId {
        let Begin { token, lane, node, reply_bytes, is_scripts, is_rerun, history } = begin;
        let follows_until = now + self.options.timeout;
        self.calls.insert(Call {
            token,
            lane,
            node,
            reply_bytes,
            is_scripts,
            is_rerun,
            history,
            left,
            begun_at: now,
            follows_until,
        })
    }

    /// The next piece to be packed and pushed: SCRIPT LOAD, ASKING, and the commands of its places, as its way says.
    pub fn next_ready(&mut self) -> Option<Ready> {
        while let Some((node, lane)) = self.ready.pop_front() {
            let Some(link) = self.link_mut(node, lane) else { continue };
            let lease_end_ms = link.lease_end_ms;
            if let Some(Waiting { piece, .. }) = link.packing {
                return Some(Ready { piece, node, lane, lease_end_ms });
            }
        }
        None
    }

    /// Send the commands of a piece; `None` if it cannot be sent over this connection: its call goes on by itself.
    pub fn push(&mut self, ready: &Ready, packed: Packed<B>, now: Time) -> Option<Pushed> {
        let Ready { piece, node, lane, .. } = *ready;
        let timeout = self.options.timeout;
        let packed_piece = self.link_mut(node, lane)?.packing.take()?;
        let call = self.calls.get(piece.call)?;
        let (reply_bytes, history) = (call.reply_bytes, call.history.clone());
        // The wait for room is part of the time of small replies, and not of large ones.
        let deadline = if reply_bytes > 0 { now + timeout } else { packed_piece.deadline };
        let link = self.link_mut(node, lane)?;
        let Some(connection) = link.connection else {
            self.dispatch(piece, now);
            // It is the oldest of those that wait.
            if let Some(link) = self.link_mut(node, lane) {
                let queue = if reply_bytes > 0 { &mut link.waiting_large } else { &mut link.waiting };
                if queue.back().is_some_and(|last| last.piece == piece) {
                    queue.rotate_right(1);
                }
            }
            return None;
        };
        if history.is_some_and(|history| history != link.history) {
            self.prevent(piece, Prevented::History, "Redis has another history: nothing was sent", now);
            self.drain(node, lane, now);
            return None;
        }
        let pipeline = &mut self.connections.get_mut(connection)?.pipeline;
        let (was_idle, count) = (pipeline.is_idle(), piece.count + piece.way.prefix());
        pipeline.push(Request { token: piece, packed, count, deadline, reply_bytes }, now);
        let due = pipeline.due();
        self.wake_at(due);
        self.drain(node, lane, now);
        Some(Pushed { connection, was_idle })
    }

    /// Give up a piece whose commands cannot be packed.
    pub fn give_up(&mut self, ready: &Ready, text: &str, now: Time) {
        if let Some(link) = self.link_mut(ready.node, ready.lane) {
            link.packing = None;
        }
        self.prevent(ready.piece, Prevented::Closed, text, now);
        self.drain(ready.node, ready.lane, now);
    }

    /// The token of a call that is not finished.
    pub fn token(&mut self, call: CallId) -> Option<&mut T> {
        self.calls.get_mut(call).map(|call| &mut call.token)
    }

    /// The tokens of all calls.
    pub fn tokens(&self) -> impl Iterator<Item = &T> {
        self.calls.iter().map(|(_, call)| &call.token)
    }

    /// Forget all calls, whose tokens are returned: nobody waits for them.
    pub fn forget_calls(&mut self) -> Vec<T> {
        std::mem::take(&mut self.calls).into_values().map(|call| call.token).collect()
    }

    /// Forget a call, and return its token.
    pub fn finish(&mut self, call: CallId) -> Option<T> {
        self.calls.remove(call).map(|call| call.token)
    }

    fn prevent(&mut self, piece: Piece, kind: Prevented, text: &str, now: Time) {
        let Piece { call, first, count, .. } = piece;
        if self.is_cluster() && matches!(kind, Prevented::Away | Prevented::Unknown) {
            // Another node may have the slots by now, or soon.
            self.read_map_soon(now);
        }
        self.events.push_back(Event::Prevented { call, first, count, kind, text: text.to_owned() });
        self.complete(call, count.max(1), now);
    }

    fn complete(&mut self, id: CallId, places: usize, now: Time) {
        let Some(call) = self.calls.get_mut(id) else { return };
        call.left = call.left.saturating_sub(places);
        if call.left == 0 {
            let took = now.saturating_sub(call.begun_at);
            self.events.push_back(Event::Finished { call: id, took });
        }
    }

    // --- what the owner reads and says

    /// The next thing that has happened.
    pub fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        match event {
            Some(Event::Close { connection }) => {
                self.connections.remove(connection);
            }
            Some(Event::Map) => self.map.is_told = true,
            _ => {}
        }
        event
    }

    /// When `tick` is to be called, if at all.
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    fn wake_at(&mut self, at: Option<Time>) {
        if let Some(at) = at.filter(|at| self.due.is_none_or(|due| *at < due)) {
            self.due = Some(at);
            self.events.push_back(Event::Timer);
        }
    }

    /// Do what is due.
    pub fn tick(&mut self, now: Time) {
        self.due = None;
        for id in self.connections.ids() {
            self.tick_connection(id, now);
        }
        for node in 0..self.nodes.len() {
            for lane in 0..self.nodes.get(node).map_or(0, |node| node.links.len()) {
                self.tick_link(node, lane, now);
            }
        }
        self.tick_cluster(now);
        self.tick_watch(now);
        let connections = self.connections.iter().filter_map(|(_, connection)| connection.due());
        let links = self.nodes.iter().flat_map(|node| &node.links).filter_map(|link| link.due(now));
        let next = connections.chain(links).chain(self.cluster_due()).chain(self.watch.due()).chain(self.due).min();
        self.due = next;
        self.events.push_back(Event::Timer);
    }

    // --- sockets

    /// Where the bytes of a connection are appended that have arrived; `None` if it is gone.
    pub fn room(&mut self, connection: ConnectionId, size: usize) -> Option<Result<&mut Vec<u8>, TryReserveError>> {
        let connection = self.connections.get_mut(connection).filter(|connection| connection.stage != Stage::Lost)?;
        Some(connection.inbox.room(size))
    }

    /// Take the received bytes of a connection away for as long as the replies of events are read.
    pub fn lend(&mut self, connection: ConnectionId) -> Vec<u8> {
        self.connections.get_mut(connection).map(|connection| connection.inbox.lend()).unwrap_or_default()
    }

    /// Give them back; nothing may arrive before.
    pub fn give_back(&mut self, connection: ConnectionId, bytes: Vec<u8>) {
        if let Some(connection) = self.connections.get_mut(connection) {
            connection.inbox.give_back(bytes);
        }
    }

    /// Give back what is not read of them: others keep the rest.
    pub fn give_back_rest(&mut self, connection: ConnectionId, bytes: &[u8]) {
        if let Some(connection) = self.connections.get_mut(connection) {
            connection.inbox.give_back_rest(bytes);
        }
    }

    /// The pieces of memory that are to be written next, in their order; none of them is empty.
    pub fn unwritten(&self, connection: ConnectionId) -> impl Iterator<Item = &[u8]> {
        let connection = self.connections.get(connection).filter(|connection| connection.is_open());
        connection.into_iter().flat_map(|connection| connection.pipeline.unwritten())
    }

    /// How many there are.
    pub fn pieces(&self, connection: ConnectionId) -> usize {
        let connection = self.connections.get(connection).filter(|connection| connection.is_open());
        connection.map_or(0, |connection| connection.pipeline.pieces())
    }

    /// Note how many bytes the kernel has taken.
    pub fn wrote(&mut self, connection: ConnectionId, size: usize) {
        if let Some(connection) = self.connections.get_mut(connection) {
            connection.pipeline.wrote(size);
        }
    }

    // --- nodes

    /// The address of a node, if it has one of its own.
    pub fn address(&self, node: NodeId) -> Option<&Address> {
        self.nodes.get(node).map(|node| &node.address)
    }

    /// The name of a node: its address, or that of what leads to it.
    pub fn name(&self, node: NodeId) -> Option<&str> {
        self.nodes.get(node).map(|node| node.name.as_str())
    }

    /// A number below `bound` by chance; 0 if that is 0.
    fn chance(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % bound.max(1) as u64) as usize
    }
}

impl<T, B> Client<T, B> {
    fn link_mut(&mut self, node: NodeId, lane: LaneId) -> Option<&mut Link> {
        self.nodes.get_mut(node)?.links.get_mut(lane)
    }

    fn link(&self, node: NodeId, lane: LaneId) -> Option<&Link> {
        self.nodes.get(node)?.links.get(lane)
    }
}
