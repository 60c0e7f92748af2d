//! What is known of one connection of a client.

use std::collections::VecDeque;
use std::time::Duration;

use super::budget::Charge;
use super::{Limits, Reason, SMALL_FRAME_BYTES};
use crate::frame::Announced;
use crate::pipeline::Time;

/// The bytes of the size before a frame.
pub(super) const SIZE_BYTES: usize = 4;
/// A frame under way must bring this much in each `Limits::receive`, or its peer is too slow.
const RATE_BYTES: usize = 1 << 20;
/// How many reads of one connection are known apart.
const READS_MAX: usize = 8;

/// What a peer may send before it has logged in.
#[derive(Clone, Copy, Debug)]
pub struct Login {
    /// The largest frame.
    pub frame_max: usize,
    /// Whether the next frame is a SASL token without a request's header.
    pub is_token: bool,
    /// Until when it must have logged in.
    pub until: Time,
}

/// A request's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// By which it is answered; they count up.
    pub number: u64,
    /// The frame is what follows `begin`.
    pub bytes: Vec<u8>,
    #[allow(missing_docs)]
    pub begin: usize,
    /// Of the API that is asked.
    pub api_key: i16,
    /// When the last of it arrived.
    pub arrived: Time,
    /// When the socket was last found empty before the first of it arrived: it may have lain there since.
    pub came_after: Time,
}

/// A frame that the owner has.
#[derive(Debug)]
pub(super) struct Given<P> {
    pub number: u64,
    pub charge: Option<Charge>,
    pub answer: Option<Vec<P>>,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Its TLS handshake is under way.
    Shaking {
        until: Time,
    },
    Open,
    /// No further frame is taken. When all answers are written the peer is waited for, for so long.
    Leaving {
        linger: Duration,
        shuts_down: bool,
    },
    /// All is written; what arrives is dropped until the peer has closed too.
    Lingering {
        until: Time,
    },
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // none follows from another
pub(super) struct Peer<P> {
    pub stage: Stage,
    pub is_encrypted: bool,
    pub login: Option<Login>,
    /// What has arrived and is not given, from `begin` on.
    pub received: Vec<u8>,
    pub begin: usize,
    /// Bytes of it that TLS keeps until the rest of their record is here.
    pub withheld: usize,
    /// Of the frame at `begin`, once it is known.
    pub announced: Option<Announced>,
    /// When the first byte of that frame came, and for how long the peer was not read since.
    pub began_at: Time,
    pub unread: Duration,
    /// When reading went on, after it had stopped.
    pub resumed_at: Time,
    /// Since when the peer is not read; and since when that is for nothing but a full budget.
    pub unread_since: Option<Time>,
    pub held_up_since: Option<Time>,
    /// Its place among those who wait for the budget, if it does.
    pub waiting: Option<u64>,
    pub charge: Option<Charge>,
    pub half: Option<(Time, usize)>,
    pub given: VecDeque<Given<P>>,
    pub next_number: u64,
    pub outbox: VecDeque<P>,
    pub written: usize,
    pub muted_until: Option<Time>,
    pub heard_at: Time,
    /// When the socket was last found empty, and whether it has been watched ever since.
    pub emptied_at: Time,
    pub is_watched_since: bool,
    /// Of the bytes from `begin` on: how many each read has brought, and after when they came.
    pub came_after: VecDeque<(usize, Time)>,
    pub wrote_at: Time,
    /// How it is left after the frame that has arrived in part.
    pub leaves: Option<(Duration, bool)>,
    /// Why it ends once what is with the owner is answered.
    pub end: Option<Reason>,
    pub is_announced: bool,
    pub writes: bool,
    pub timer_at: Option<Time>,
}

impl<P> Peer<P> {
    pub fn new(login: Option<Login>, handshake_until: Option<Time>, now: Time) -> Self {
        Self {
            stage: handshake_until.map_or(Stage::Open, |until| Stage::Shaking { until }),
            is_encrypted: handshake_until.is_some(),
            login,
            received: Vec::new(),
            begin: 0,
            withheld: 0,
            announced: None,
            began_at: now,
            unread: Duration::ZERO,
            resumed_at: now,
            unread_since: None,
            held_up_since: None,
            waiting: None,
            charge: None,
            half: None,
            given: VecDeque::new(),
            next_number: 0,
            outbox: VecDeque::new(),
            written: 0,
            muted_until: None,
            heard_at: now,
            emptied_at: now,
            is_watched_since: true,
            came_after: VecDeque::new(),
            wrote_at: now,
            leaves: None,
            end: None,
            is_announced: false,
            writes: false,
            timer_at: None,
        }
    }

    pub fn backlog(&self) -> usize {
        self.received.len() - self.begin
    }

    /// Note that a read has brought bytes.
    pub fn note_read(&mut self, size: usize, now: Time) {
        let came_after = if self.is_watched_since { now } else { self.emptied_at };
        let is_full = self.came_after.len() == READS_MAX;
        match self.came_after.back_mut() {
            // Of many small pieces the first says when they came at the earliest.
            Some((bytes, _)) if is_full => *bytes += size,
            _ => self.came_after.push_back((size, came_after)),
        }
    }

    /// Return after when the first of the next bytes came, and forget them.
    pub fn take_read(&mut self, size: usize) -> Option<Time> {
        let first = self.came_after.front().map(|(_, came_after)| *came_after);
        let mut left = size;
        while let Some((bytes, _)) = self.came_after.front_mut() {
            if *bytes > left {
                *bytes -= left;
                break;
            }
            left -= *bytes;
            self.came_after.pop_front();
        }
        first
    }

    /// Give memory back that holds little.
    pub fn fit(&mut self) {
        let backlog = self.backlog();
        if backlog == 0 {
            (self.received, self.begin) = (Vec::new(), 0);
        } else if self.received.capacity() > SMALL_FRAME_BYTES.max(4 * backlog) {
            (self.received, self.begin) = (self.received.split_off(self.begin), 0);
        }
    }

    pub fn reads(&self) -> bool {
        self.unread_since.is_none()
    }

    /// Whether the frame at `begin` is whole.
    pub fn is_whole(&self) -> bool {
        self.announced.is_some_and(|announced| self.backlog() >= SIZE_BYTES + announced.size)
    }

    pub fn is_half(&self) -> bool {
        self.backlog() + self.withheld > 0 && !self.is_whole()
    }

    /// Whether a request of its login is with the owner: what may follow depends on the answer.
    pub fn logs_in(&self) -> bool {
        self.login.is_some() && !self.given.is_empty()
    }

    pub fn is_settled(&self) -> bool {
        self.given.is_empty() && self.outbox.is_empty()
    }

    pub fn may_give(&self, limits: &Limits) -> bool {
        matches!(self.stage, Stage::Open)
            && self.muted_until.is_none()
            && self.outbox.is_empty()
            && self.given.len() < limits.frames_max
    }

    /// When something is due if nothing happens.
    pub fn due(&self, limits: &Limits) -> Option<Time> {
        if let Stage::Shaking { until } | Stage::Lingering { until } = self.stage {
            return Some(until);
        }
        let writing = (self.writes || !self.outbox.is_empty()).then(|| self.wrote_at + limits.receive);
        let login = self.login.map(|login| login.until).filter(|_| self.given.is_empty());
        let reading = if self.muted_until.is_some() {
            self.muted_until
        } else if let Some(since) = self.held_up_since {
            Some(since + limits.receive)
        } else if self.is_half() && self.reads() && !self.logs_in() {
            let megabytes = self.announced.map_or(0, |announced| announced.size.div_ceil(RATE_BYTES));
            let whole = limits.receive * (1 + u32::try_from(megabytes).unwrap_or(u32::MAX - 1));
            Some((self.heard_at.max(self.resumed_at) + limits.receive).min(self.began_at + self.unread + whole))
        } else if self.is_settled() && self.backlog() == 0 {
            limits.idle.map(|idle| self.heard_at.max(self.wrote_at).max(self.resumed_at) + idle)
        } else {
            None
        };
        [writing, login, reading].into_iter().flatten().min()
    }
}
