//! The connections of a worker's clients: frames in, answers out in their order, and bounds on all that enters.
//!
//! Theory of operation. The owner has the sockets and the clock; it says what arrived ([`Peers::received`]), what was
//! written and what time it is, takes frames ([`Peers::next_frame`]) and gives an answer to each ([`Peers::answer`]). What
//! it is to do are events.
//!
//! * A frame takes no more memory than what has arrived of it, however much its peer has announced. Bytes of large frames
//!   are charged to a budget until they are answered; over it nothing is read, except for the peer whose frame is the oldest.
//! * Incomplete small frames have a budget of their own. When that is full the peer goes that has been silent the longest.
//! * The bytes of an encrypted connection come decrypted, after its handshake. Of too many handshakes the oldest ends.
//! * Up to [`Limits::frames_max`] frames are with the owner at once. Answers leave in the order of the frames. As long as
//!   an answer is not written, and while a peer is muted, it gets no further frame: what it sends stays in the kernel.
//! * A peer that stalls within a frame, takes no answer, or says nothing for too long is closed, with the reason.
//!
//! Times count from any beginning. A clock that stops or goes back delays what is due, and does nothing else.

mod budget;
mod connection;
mod state;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::pipeline::Time;
use crate::slab::{Id, Slab};
use budget::Budget;
use state::Peer;
pub use state::{Frame, Login};

/// The number of a connection.
pub type PeerId = Id;

/// Frames up to this size are not charged to the budget when they are whole: a full budget delays no ordinary request.
pub(crate) const SMALL_FRAME_BYTES: usize = 64 << 10;

/// What connections may do. Sizes in bytes.
#[derive(Clone, Debug)]
pub struct Limits {
    /// A peer may say nothing for so long between two frames; `None`: for ever.
    pub idle: Option<Duration>,
    /// So long may the next bytes of a frame take, and the peer to take the next bytes of an answer.
    pub receive: Duration,
    /// The largest Produce request.
    pub produce_frame: usize,
    /// The largest request of another kind.
    pub other_frame: usize,
    /// How many requests of a peer may be with the owner.
    pub frames_max: usize,
    /// How much is read of a peer's next frames while its requests are served.
    pub ahead_bytes: usize,
    /// Bytes of large frames: of all peers that have logged in, and of all others.
    pub budget: usize,
    #[allow(missing_docs)]
    pub login_budget: usize,
    /// What incomplete small frames may hold.
    pub halves_budget: usize,
    /// How many TLS handshakes may be under way; each takes memory.
    pub handshakes_max: usize,
}

/// Why a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The peer has closed it, between two frames.
    Closed,
    /// The peer said nothing for too long.
    Idle,
    /// The peer took too long to send a frame, or to take an answer.
    Slow,
    /// The TLS handshake failed; a certificate that is not accepted is `Refused`.
    Handshake(String),
    #[allow(missing_docs)]
    Refused(String),
    /// The peer broke the protocol.
    Malformed(String),
    /// The worker held too many bytes of requests.
    OverBudget(String),
    /// The connection was lost.
    Lost(String),
    /// The owner has ended it.
    Ended,
}

/// What has happened, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// `next_frame` has something, after it or `next_key` had nothing.
    #[allow(missing_docs)]
    Frame { peer: PeerId },
    /// All answers that were given are with the kernel.
    #[allow(missing_docs)]
    Written { peer: PeerId },
    /// What the owner is to watch has changed.
    #[allow(missing_docs)]
    Watch { peer: PeerId, reads: bool, writes: bool },
    /// The connection is over: the socket is to be closed, and nothing of the peer comes after this.
    #[allow(missing_docs)]
    Closed { peer: PeerId, reason: Reason },
    /// The peer gets no more, and is to be told so by the end of what is sent (SHUT_WR).
    #[allow(missing_docs)]
    ShutDown { peer: PeerId },
    /// `due` is earlier than before.
    Timer,
}

/// All connections of a worker. `P` is a piece of an answer.
#[derive(Debug)]
pub struct Peers<P> {
    limits: Limits,
    connections: Slab<Peer<P>>,
    large: Budget,
    logins: Budget,
    /// Incomplete small frames: by when their peers were heard last, and the bytes of all.
    halves: BTreeSet<(Time, PeerId)>,
    halves_bytes: usize,
    /// Encrypted connections that are not opened yet, by the time at which they have to be.
    handshakes: BTreeSet<(Time, PeerId)>,
    /// When something may be due: one time for each peer, which may be too early.
    timers: BTreeSet<(Time, PeerId)>,
    due: Option<Time>,
    now: Time,
    events: VecDeque<Event>,
}

impl<P: AsRef<[u8]>> Peers<P> {
    /// Begin without connections.
    pub fn new(limits: Limits) -> Self {
        Self {
            large: Budget::new(limits.budget),
            logins: Budget::new(limits.login_budget),
            limits,
            connections: Slab::default(),
            halves: BTreeSet::new(),
            halves_bytes: 0,
            handshakes: BTreeSet::new(),
            timers: BTreeSet::new(),
            due: None,
            now: Time::ZERO,
            events: VecDeque::new(),
        }
    }

    /// The next thing that has happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When `tick` is to be called, if at all.
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    /// How many connections there are.
    pub fn count(&self) -> usize {
        self.connections.len()
    }

    /// Bytes of large frames that are held: of peers that have logged in, and of others; and of incomplete small ones.
    pub fn held(&self) -> (usize, usize, usize) {
        (self.large.held(), self.logins.held(), self.halves_bytes)
    }

    /// Do what is due.
    pub fn tick(&mut self, now: Time) {
        self.now = now;
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            if let Some(peer) = self.connections.get_mut(id) {
                peer.timer_at = None;
                self.tick_peer(id, now);
            }
        }
        self.due = self.timers.first().map(|(at, _)| *at);
        self.events.push_back(Event::Timer);
    }

    fn set_timer(&mut self, id: PeerId) {
        let Some(peer) = self.connections.get_mut(id) else { return };
        let Some(at) = peer.due(&self.limits).filter(|due| peer.timer_at.is_none_or(|at| *due < at)) else { return };
        if let Some(before) = peer.timer_at.replace(at) {
            self.timers.remove(&(before, id));
        }
        self.timers.insert((at, id));
        if self.due.is_none_or(|due| at < due) {
            self.due = Some(at);
            self.events.push_back(Event::Timer);
        }
    }
}
