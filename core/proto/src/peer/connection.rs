//! A connection from its first byte to its end: bytes arrive, frames are taken and answered, answers are written.

use std::time::Duration;

use super::budget::Budget;
use super::state::{Frame, Given, Login, Peer, SIZE_BYTES, Stage};
use super::{Event, PeerId, Peers, Reason, SMALL_FRAME_BYTES};
use crate::frame::{Announced, Expected, announced};
use crate::pipeline::Time;

/// What is read at once.
const READ_BYTES: usize = 256 << 10;
/// The same of an encrypted connection: records of a byte each cost as much as full ones.
const ENCRYPTED_READ_BYTES: usize = 64 << 10;

impl<P: AsRef<[u8]>> Peers<P> {
    /// Take a new connection, which has to log in first if there is a `login`. If it `is_encrypted` its handshake comes
    /// before, until it is `opened`.
    pub fn accept(&mut self, login: Option<Login>, is_encrypted: bool, now: Time) -> PeerId {
        let until = now + self.limits.receive;
        let id = self.connections.insert(Peer::new(login, is_encrypted.then_some(until), now));
        self.events.push_back(Event::Watch { peer: id, reads: true, writes: false });
        self.set_timer(id);
        if is_encrypted {
            self.handshakes.insert((until, id));
            if let Some((_, oldest)) =
                self.handshakes.first().filter(|_| self.handshakes.len() > self.limits.handshakes_max)
            {
                let text = format!("more than {} others began after it", self.limits.handshakes_max);
                self.close(*oldest, Reason::Handshake(text));
            }
        }
        id
    }

    /// Note that the handshake is done.
    pub fn opened(&mut self, id: PeerId, now: Time) {
        if let Some(peer) = self.connections.get_mut(id) {
            if let Stage::Shaking { until } = peer.stage {
                (peer.stage, peer.heard_at) = (Stage::Open, now);
                self.handshakes.remove(&(until, id));
                self.set_timer(id);
            }
        }
    }

    /// How much may be read of a peer at once; 0: nothing now.
    pub fn read_max(&mut self, id: PeerId, now: Time) -> usize {
        self.watch(id, now); // others may have filled the budget since it was last looked at
        let Some(peer) = self.connections.get(id).filter(|peer| peer.reads()) else { return 0 };
        if matches!(peer.stage, Stage::Open) && self.budget_of(peer).is_full() {
            // A small frame, or what of a large one can be known by; the oldest of the large ones goes on.
            let left = (SIZE_BYTES + SMALL_FRAME_BYTES).saturating_sub(peer.backlog());
            return if peer.charge.is_some() { SMALL_FRAME_BYTES } else { left.max(1) };
        }
        if peer.is_encrypted { ENCRYPTED_READ_BYTES } else { READ_BYTES }
    }

    fn budget_of(&self, peer: &Peer<P>) -> &Budget {
        if peer.login.is_some() { &self.logins } else { &self.large }
    }

    /// Take what has arrived; `withheld` bytes of it are with TLS, and `is_all`: the socket has no more.
    pub fn received(&mut self, id: PeerId, data: &[u8], withheld: usize, is_all: bool, now: Time) {
        let Some(peer) = self.connections.get_mut(id).filter(|peer| peer.end.is_none()) else { return };
        if !matches!(peer.stage, Stage::Open) {
            return;
        }
        if peer.backlog() + peer.withheld == 0 {
            peer.began_at = now;
        }
        peer.withheld = withheld;
        if peer.backlog() == 0 {
            (peer.received, peer.begin) = (Vec::new(), 0);
        } else if peer.begin > 0 {
            peer.received.drain(..peer.begin);
            peer.begin = 0;
        }
        // A frame grows by what arrives, and not by what its peer has announced.
        let needed = peer.received.len() + data.len();
        if peer.received.capacity() < needed {
            peer.received.reserve_exact(data.len().max(peer.received.len() / 4));
        }
        peer.received.extend_from_slice(data);
        peer.note_read(data.len(), now);
        // What TLS itself says is no sign of life.
        if peer.backlog() + withheld > 0 {
            peer.heard_at = now;
        }
        peer.is_watched_since = is_all;
        if is_all {
            peer.emptied_at = now;
        }
        self.advance(id, now);
    }

    /// Note that the peer sends no more.
    pub fn ended(&mut self, id: PeerId, now: Time) {
        let Some(peer) = self.connections.get_mut(id) else { return };
        match peer.stage {
            Stage::Open => {}
            Stage::Shaking { .. } => {
                return self.close(id, Reason::Lost("closed before its TLS handshake was done".into()));
            }
            Stage::Leaving { .. } | Stage::Lingering { .. } => return self.close(id, Reason::Ended),
        }
        peer.end.get_or_insert(Reason::Closed);
        self.advance(id, now);
    }

    /// Whether `next_frame` has something.
    pub fn has_frame(&self, id: PeerId) -> bool {
        self.connections.get(id).is_some_and(|peer| peer.is_whole() && peer.may_give(&self.limits))
    }

    /// Whether a frame has arrived in part.
    pub fn has_half_frame(&self, id: PeerId) -> bool {
        self.connections.get(id).is_some_and(Peer::is_half)
    }

    /// The API that the next frame asks; `None`: `next_frame` has none.
    pub fn next_key(&mut self, id: PeerId) -> Option<i16> {
        let peer = self.connections.get_mut(id)?;
        let has_next = peer.is_whole() && peer.may_give(&self.limits);
        peer.is_announced &= has_next;
        peer.announced.filter(|_| has_next).map(|announced| announced.api_key)
    }

    /// Whether the connection is not over.
    pub fn is_there(&self, id: PeerId) -> bool {
        self.connections.get(id).is_some()
    }

    /// How many frames of a peer are with the owner.
    pub fn given(&self, id: PeerId) -> usize {
        self.connections.get(id).map_or(0, |peer| peer.given.len())
    }

    /// Take the next frame, if there is one and its peer may have it served now.
    pub fn next_frame(&mut self, id: PeerId, now: Time) -> Option<Frame> {
        let peer = self.connections.get_mut(id)?;
        if !peer.is_whole() || !peer.may_give(&self.limits) {
            peer.is_announced = false;
            return None;
        }
        let Announced { size, api_key } = peer.announced.take()?;
        let (start, end) = (peer.begin + SIZE_BYTES, peer.begin + SIZE_BYTES + size);
        let (bytes, begin) = if peer.begin == 0 && size >= peer.received.len() - end {
            // The frame takes the memory with it, and what follows gets its own.
            let rest = peer.received.split_off(end);
            (std::mem::replace(&mut peer.received, rest), start)
        } else {
            let bytes = peer.received.get(start..end).unwrap_or_default().to_vec();
            peer.begin = end;
            peer.fit();
            (bytes, 0)
        };
        let number = peer.next_number;
        peer.next_number += 1;
        let (arrived, came_after) = (peer.heard_at, peer.take_read(SIZE_BYTES + size).unwrap_or(now));
        (peer.began_at, peer.unread) = (now, Duration::ZERO);
        let budget = if peer.login.is_some() { &mut self.logins } else { &mut self.large };
        // It keeps its turn: as long as it is served nobody else may exceed the budget.
        let mut charge = peer.charge.take();
        if size <= SMALL_FRAME_BYTES {
            charge.take().iter().for_each(|charge| budget.end(charge));
        } else if let Some(charge) = &mut charge {
            budget.set(charge, size);
        } else {
            charge = Some(budget.begin(id, size));
        }
        peer.given.push_back(Given { number, charge, answer: None });
        if let Some((linger, shuts_down)) = peer.leaves.take() {
            peer.stage = Stage::Leaving { linger, shuts_down };
            self.forget_received(id);
        }
        self.advance(id, now);
        Some(Frame { number, bytes, begin, api_key, arrived, came_after })
    }

    /// Give the answer to a frame, which may be none; it leaves after those to the frames before it. Returns whether
    /// there is something to write.
    pub fn answer(&mut self, id: PeerId, number: u64, pieces: Vec<P>, now: Time) -> bool {
        let Some(peer) = self.connections.get_mut(id) else { return false };
        if let Some(given) = peer.given.iter_mut().find(|given| given.number == number) {
            given.answer = Some(pieces);
        }
        let mut charges = Vec::new();
        while let Some(answer) = peer.given.front_mut().and_then(|given| given.answer.take()) {
            if peer.outbox.is_empty() {
                peer.wrote_at = now;
            }
            peer.outbox.extend(answer.into_iter().filter(|piece| !piece.as_ref().is_empty()));
            charges.extend(peer.given.pop_front().and_then(|given| given.charge));
        }
        let (is_login, has_output) = (peer.login.is_some(), !peer.outbox.is_empty());
        for charge in &charges {
            if is_login { self.logins.end(charge) } else { self.large.end(charge) }
        }
        self.advance(id, now);
        has_output
    }

    /// The pieces that are to be written next, in their order; none of them is empty.
    pub fn unwritten(&self, id: PeerId) -> impl Iterator<Item = &[u8]> {
        let peer = self.connections.get(id);
        let mut written = peer.map_or(0, |peer| peer.written);
        let pieces = peer.into_iter().flat_map(|peer| &peer.outbox);
        pieces.map(move |piece| piece.as_ref().get(std::mem::take(&mut written)..).unwrap_or_default())
    }

    /// Note how many bytes the kernel has taken, and `is_stuck`: that it takes no more now. A connection is stuck too while
    /// what TLS itself has to say waits.
    pub fn wrote(&mut self, id: PeerId, size: usize, is_stuck: bool, now: Time) {
        let Some(peer) = self.connections.get_mut(id) else { return };
        let mut left = peer.written + size;
        while let Some(length) = peer.outbox.front().map(|piece| piece.as_ref().len()).filter(|length| left >= *length)
        {
            left -= length;
            peer.outbox.pop_front();
        }
        peer.written = left;
        if size > 0 {
            peer.wrote_at = now;
        }
        if peer.outbox.is_empty() && size > 0 {
            self.events.push_back(Event::Written { peer: id });
        }
        if peer.writes != is_stuck {
            if peer.outbox.is_empty() && size == 0 {
                peer.wrote_at = now;
            }
            peer.writes = is_stuck;
            self.events.push_back(Event::Watch { peer: id, reads: peer.reads(), writes: is_stuck });
        }
        self.advance(id, now);
    }

    /// Take no frame of a peer before `until` (KIP-219). One that leaves meanwhile is noticed afterwards: it is kept no
    /// longer than one that says nothing.
    pub fn mute(&mut self, id: PeerId, until: Time, now: Time) {
        let until = self.limits.idle.map_or(until, |idle| until.min(now + idle));
        if let Some(peer) = self.connections.get_mut(id) {
            peer.muted_until = Some(until.max(peer.muted_until.unwrap_or(until)));
        }
        self.advance(id, now);
    }

    /// Change what a peer may send before it has logged in; `None`: it has.
    pub fn set_login(&mut self, id: PeerId, login: Option<Login>, now: Time) {
        let Some(peer) = self.connections.get_mut(id) else { return };
        if peer.login.is_some() != login.is_some() {
            // The charges are those of another budget from now on.
            let charges = peer.given.iter_mut().filter_map(|given| given.charge.take()).chain(peer.charge.take());
            let budget = if peer.login.is_some() { &mut self.logins } else { &mut self.large };
            charges.for_each(|charge| budget.end(&charge));
            peer.waiting.take().into_iter().for_each(|place| budget.leave(place));
        }
        peer.login = login;
        self.advance(id, now);
    }

    /// Take no further frame, but one that has arrived in part while none is served, and end the connection when all
    /// answers are written and the peer has closed too, after `linger` at the latest. `shuts_down`: it sees the end of what
    /// is sent; else none before it closes.
    pub fn leave(&mut self, id: PeerId, linger: Duration, shuts_down: bool, now: Time) {
        if self.connections.get(id).is_some_and(|peer| matches!(peer.stage, Stage::Shaking { .. })) {
            return self.close(id, Reason::Ended);
        }
        if let Some(peer) = self.connections.get_mut(id).filter(|peer| matches!(peer.stage, Stage::Open)) {
            peer.muted_until = None;
            if peer.is_half() && peer.given.is_empty() {
                peer.leaves = Some((linger, shuts_down));
            } else {
                peer.stage = Stage::Leaving { linger, shuts_down };
                self.forget_received(id);
            }
        }
        self.advance(id, now);
    }

    /// End a connection when all answers are written that were given; there will be none to the other frames.
    pub fn end(&mut self, id: PeerId, now: Time) {
        self.forget_received(id);
        let Some(peer) = self.connections.get_mut(id) else { return };
        let budget = if peer.login.is_some() { &mut self.logins } else { &mut self.large };
        peer.given.drain(..).filter_map(|given| given.charge).for_each(|charge| budget.end(&charge));
        peer.end = Some(Reason::Ended);
        if !matches!(peer.stage, Stage::Open) {
            return self.close(id, Reason::Ended);
        }
        self.advance(id, now);
    }

    /// End a connection at once.
    pub fn close(&mut self, id: PeerId, reason: Reason) {
        self.forget_received(id);
        let Some(peer) = self.connections.remove(id) else { return };
        let budget = if peer.login.is_some() { &mut self.logins } else { &mut self.large };
        peer.given.iter().filter_map(|given| given.charge.as_ref()).for_each(|charge| budget.end(charge));
        peer.waiting.into_iter().for_each(|place| budget.leave(place));
        if let Stage::Shaking { until } = peer.stage {
            self.handshakes.remove(&(until, id));
        }
        if let Some(at) = peer.timer_at {
            self.timers.remove(&(at, id));
        }
        self.events.push_back(Event::Closed { peer: id, reason });
        self.read_again();
    }

    /// Drop what has arrived and is not given.
    fn forget_received(&mut self, id: PeerId) {
        let Some(peer) = self.connections.get_mut(id) else { return };
        (peer.received, peer.begin, peer.announced) = (Vec::new(), 0, None);
        peer.came_after.clear();
        if let Some((heard_at, bytes)) = peer.half.take() {
            self.halves.remove(&(heard_at, id));
            self.halves_bytes -= bytes;
        }
        let charge = peer.charge.take();
        let budget = if peer.login.is_some() { &mut self.logins } else { &mut self.large };
        if let Some(charge) = charge {
            budget.end(&charge);
        }
    }

    /// Do whatever follows from new bytes, from an answer, or from the time.
    fn advance(&mut self, id: PeerId, now: Time) {
        self.now = now;
        let Some(peer) = self.connections.get_mut(id) else { return };
        let is_sound = !matches!(peer.end, Some(Reason::Malformed(_)));
        if matches!(peer.stage, Stage::Open) && is_sound && peer.announced.is_none() && !peer.logs_in() {
            let expected = match peer.login {
                Some(Login { frame_max, is_token: true, .. }) => Expected::Token { max: frame_max as i64 },
                Some(Login { frame_max, .. }) => {
                    Expected::Request { produce_max: frame_max as i64, other_max: frame_max as i64 }
                }
                None => Expected::Request {
                    produce_max: self.limits.produce_frame as i64,
                    other_max: self.limits.other_frame as i64,
                },
            };
            match announced(peer.received.get(peer.begin..).unwrap_or_default(), expected) {
                Ok(known) => peer.announced = known,
                Err(malformed) => peer.end = Some(Reason::Malformed(malformed.to_string())),
            }
        }
        self.account(id);
        if !self.settle(id, now) {
            return;
        }
        let Some(peer) = self.connections.get_mut(id) else { return };
        if !peer.is_announced && peer.is_whole() && peer.may_give(&self.limits) {
            peer.is_announced = true;
            self.events.push_back(Event::Frame { peer: id });
        }
        self.watch(id, now);
        self.set_timer(id);
    }

    /// End a connection of which nothing is left to do. Returns whether it is still there.
    fn settle(&mut self, id: PeerId, now: Time) -> bool {
        let Some(peer) = self.connections.get_mut(id) else { return false };
        if !peer.is_settled() {
            return true;
        }
        if let Stage::Leaving { linger, shuts_down } = peer.stage {
            peer.stage = Stage::Lingering { until: now + linger };
            if shuts_down {
                self.events.push_back(Event::ShutDown { peer: id });
            }
            return true;
        }
        // Frames that came whole before the end are served first.
        if peer.end.is_some() && !(peer.is_whole() && matches!(peer.stage, Stage::Open)) {
            let reason = match peer.end.take() {
                Some(Reason::Closed) if peer.backlog() > 0 => {
                    let whole = peer.announced.map_or(String::new(), |frame| format!(" of {}", frame.size));
                    Reason::Malformed(format!("closed after {} bytes of a frame{whole}", peer.backlog()))
                }
                other => other.unwrap_or(Reason::Closed),
            };
            self.close(id, reason);
            return false;
        }
        true
    }

    /// Charge what has arrived, and let the peer go that has been silent the longest if incomplete frames are too many.
    fn account(&mut self, id: PeerId) {
        let Some(peer) = self.connections.get_mut(id) else { return };
        let budget = if peer.login.is_some() { &mut self.logins } else { &mut self.large };
        let (size, is_large) = (peer.received.capacity(), peer.backlog() > SIZE_BYTES + SMALL_FRAME_BYTES);
        match (&mut peer.charge, is_large) {
            (Some(charge), true) => budget.set(charge, size),
            (None, true) => peer.charge = Some(budget.begin(id, size)),
            (Some(charge), false) => {
                budget.end(charge);
                peer.charge = None;
            }
            (None, false) => {}
        }
        let half = (peer.is_half() && peer.charge.is_none()).then_some((peer.heard_at, size + peer.withheld));
        if half != peer.half {
            if let Some((heard_at, bytes)) = std::mem::replace(&mut peer.half, half) {
                self.halves.remove(&(heard_at, id));
                self.halves_bytes -= bytes;
            }
            if let Some((heard_at, bytes)) = half {
                self.halves.insert((heard_at, id));
                self.halves_bytes += bytes;
            }
        }
        while self.halves_bytes > self.limits.halves_budget {
            let Some((_, silent)) = self.halves.first().copied() else { break };
            self.close(silent, over_budget(self.limits.halves_budget));
        }
        self.read_again();
    }

    /// Read those again that a full budget has held up: as many as have room, and whoever began first.
    fn read_again(&mut self) {
        for is_login in [false, true] {
            let budget = if is_login { &mut self.logins } else { &mut self.large };
            if !budget.has_waiting() {
                continue;
            }
            let (first, ready) = (budget.first(), budget.take_waiting());
            for id in &ready {
                if let Some(peer) = self.connections.get_mut(*id) {
                    peer.waiting = None;
                }
            }
            for id in first.into_iter().chain(ready) {
                if self.connections.get(id).is_some_and(|peer| peer.held_up_since.is_some()) {
                    self.watch(id, self.now);
                }
            }
        }
    }

    fn is_over_budget(&self, peer: &Peer<P>) -> bool {
        let budget = self.budget_of(peer);
        let is_large = peer.announced.is_some_and(|announced| announced.size > SMALL_FRAME_BYTES);
        peer.charge.as_ref().map_or(is_large && budget.is_full(), |charge| !budget.has_room(charge))
    }

    /// Say whether the peer is to be read.
    fn watch(&mut self, id: PeerId, now: Time) {
        let Some(peer) = self.connections.get(id) else { return };
        let is_over_budget = !peer.is_whole() && self.is_over_budget(peer);
        let ahead_max = if self.budget_of(peer).is_full() { 0 } else { self.limits.ahead_bytes };
        let may_read = match peer.stage {
            Stage::Lingering { .. } => true,
            Stage::Leaving { .. } => false,
            Stage::Shaking { .. } => !peer.writes,
            Stage::Open => {
                peer.end.is_none()
                    && peer.muted_until.is_none()
                    && !peer.writes
                    && !(peer.logs_in() && peer.backlog() > 0)
                    && (!peer.is_whole() || peer.backlog() < ahead_max)
            }
        };
        let is_held_up = may_read && is_over_budget;
        let reads = may_read && !is_held_up;
        let Some(peer) = self.connections.get_mut(id) else { return };
        peer.held_up_since = is_held_up.then(|| peer.held_up_since.unwrap_or(now));
        if is_held_up && peer.waiting.is_none() {
            let budget = if peer.login.is_some() { &mut self.logins } else { &mut self.large };
            peer.waiting = Some(budget.wait(id));
        }
        if peer.reads() == reads {
            return;
        }
        if let Some(since) = peer.unread_since.take() {
            // The time in which nobody read it does not make the peer slow.
            peer.unread += now.saturating_sub(since);
            peer.resumed_at = now;
        } else {
            peer.unread_since = Some(now);
        }
        peer.is_watched_since &= reads;
        self.events.push_back(Event::Watch { peer: id, reads, writes: peer.writes });
    }

    /// Do what is due for a peer.
    pub(super) fn tick_peer(&mut self, id: PeerId, now: Time) {
        let Some(peer) = self.connections.get_mut(id) else { return };
        if peer.due(&self.limits).is_none_or(|due| due > now) {
            return self.set_timer(id);
        }
        if peer.muted_until.is_some_and(|until| until <= now) {
            peer.muted_until = None;
            return self.advance(id, now);
        }
        let reason = match peer.stage {
            Stage::Lingering { .. } => Reason::Ended,
            Stage::Shaking { .. } => {
                Reason::Handshake(format!("not done within {} s", self.limits.receive.as_secs_f64()))
            }
            _ if peer.held_up_since.is_some() && peer.outbox.is_empty() => {
                over_budget(if peer.login.is_some() { self.limits.login_budget } else { self.limits.budget })
            }
            _ if peer.is_half() || peer.writes || !peer.outbox.is_empty() => Reason::Slow,
            _ => Reason::Idle,
        };
        self.close(id, reason);
    }
}

fn over_budget(bytes_max: usize) -> Reason {
    Reason::OverBudget(format!("requests of more than {bytes_max} bytes are being received or served"))
}
