//! Reading ahead: while a consumer is given one piece of a log, the next is on its way from Redis.
//!
//! Consumers that catch up ask for the pieces of a log one after the other, each when they have the one before. A piece
//! read ahead is served with the bounds that the log has then: its start may have moved. If several consumers read a log,
//! a piece that one of them got is held for the others.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::RequestId;
use crate::log::Found;
use crate::partition::Partition;
use crate::pipeline::Time;

/// What a worker reads ahead at most, by what the pieces are expected to weigh until they are there.
const HELD_BYTES_MAX: i64 = 32 << 20;
/// How long a piece is held for a consumer that does not ask for it.
const HELD: Duration = Duration::from_secs(2);

/// Logs whose consumers are known; beyond it all are forgotten.
const LOGS_MAX: usize = 50_000;

/// Where a piece begins: its stream and offset, and whether it is of a committed read, which finds less.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub(super) struct Start {
    pub stream: Box<str>,
    pub offset: i64,
    pub is_committed: bool,
}

impl Start {
    pub fn of(partition: &Partition, offset: i64, is_committed: bool) -> Self {
        Self { stream: partition.keys.stream.clone(), offset, is_committed }
    }
}

/// One read under way, or done.
#[derive(Debug)]
struct Piece {
    partition: Arc<Partition>,
    bytes: i64,
    begun_at: Time,
    /// To which history of writes it was sent.
    history: Arc<str>,
    found: Option<Found>,
    waiting: Vec<(RequestId, usize)>,
    /// Its place among those that another consumer got, if one did.
    taken: Option<u64>,
}

/// What is there of a piece that is asked for.
pub(super) enum Held {
    Found(Box<Found>),
    UnderWay,
}

/// What a worker has read ahead.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    pieces: HashMap<Start, Piece>,
    bytes: i64,
    /// When each piece began, in this order; some are gone.
    begun: VecDeque<(Time, Start)>,
    /// Pieces that a consumer got, by how many were before.
    taken: BTreeMap<u64, Start>,
    takings: u64,
    /// What was begun last of each log, and the logs of which a second consumer came no further than the first.
    fronts: HashMap<Box<str>, i64>,
    shared: HashSet<Box<str>>,
}

impl Ahead {
    /// Begin a piece, unless it is held already or too much is. Returns whether it is to be read.
    pub fn begin(&mut self, start: &Start, partition: &Arc<Partition>, bytes: i64, history: &str, now: Time) -> bool {
        if self.fronts.len() >= LOGS_MAX {
            self.fronts.clear();
            self.shared.clear();
        }
        match self.fronts.get(&start.stream).copied() {
            Some(front) if front >= start.offset => {
                self.shared.insert(start.stream.clone());
            }
            front => {
                self.fronts.insert(start.stream.clone(), start.offset);
                if let Some(offset) = front.filter(|_| !self.shared.contains(&start.stream)) {
                    // Its consumer has gone on without it.
                    self.remove(&Start { offset, ..start.clone() });
                }
            }
        }
        if self.is_held(start, partition, history) {
            return false;
        }
        self.remove(start);
        // One of before is still waited for, if it is there: who waits finds out what it is.
        if self.pieces.contains_key(start) || !self.has_room(bytes) {
            return false;
        }
        let piece = Piece {
            partition: Arc::clone(partition),
            bytes,
            begun_at: now,
            history: history.into(),
            found: None,
            waiting: Vec::new(),
            taken: None,
        };
        self.bytes += bytes;
        self.pieces.insert(start.clone(), piece);
        self.begun.push_back((now, start.clone()));
        true
    }

    /// Whether a piece is there, or on its way, of this partition and history.
    pub fn is_held(&self, start: &Start, partition: &Arc<Partition>, history: &str) -> bool {
        self.pieces.get(start).is_some_and(|piece| {
            // After a failover other records may lie at its offsets.
            piece.partition.topic.id_text == partition.topic.id_text && *piece.history == *history
        })
    }

    /// Take a piece of this partition and history, or wait for it. `None`: it is not there any more.
    pub fn take(&mut self, start: &Start, of: (&Arc<Partition>, &str), waiter: (RequestId, usize)) -> Option<Held> {
        if !self.is_held(start, of.0, of.1) {
            return None;
        }
        let is_shared = self.shared.contains(&start.stream);
        let piece = self.pieces.get_mut(start)?;
        let Some(found) = &piece.found else {
            piece.waiting.push(waiter);
            return Some(Held::UnderWay);
        };
        // Nothing is no news to others: they would get it again and again, whatever has come since.
        if is_shared && found.holds_any() {
            if piece.taken.is_none() {
                piece.taken = Some(self.takings);
                self.taken.insert(self.takings, start.clone());
                self.takings += 1;
            }
            return Some(Held::Found(Box::new(found.clone())));
        }
        let found = piece.found.take().map(Box::new);
        self.remove(start);
        found.map(Held::Found)
    }

    /// Note what a read of this partition and history has found, `None` if it has failed; returns those who wait for it.
    pub fn put(&mut self, start: &Start, of: (&Arc<Partition>, &str), found: Option<Found>) -> Vec<(RequestId, usize)> {
        // It may come after another was begun in its place.
        let is_of = self.is_held(start, of.0, of.1);
        let Some(piece) = self.pieces.get_mut(start).filter(|_| is_of) else { return Vec::new() };
        let waiting = std::mem::take(&mut piece.waiting);
        let is_found = found.is_some();
        if let Some(found) = found {
            let bytes = i64::try_from(found.size_bytes()).unwrap_or(i64::MAX);
            self.bytes += bytes - std::mem::replace(&mut piece.bytes, bytes);
            piece.found = Some(found.kept());
        }
        // Entries may have become much larger than expected; who waits for them has them.
        if !is_found || !self.has_room(0) && waiting.is_empty() {
            self.remove(start);
        }
        waiting
    }

    fn remove(&mut self, start: &Start) {
        if self.pieces.get(start).is_none_or(|piece| !piece.waiting.is_empty()) {
            return;
        }
        if let Some(piece) = self.pieces.remove(start) {
            self.bytes -= piece.bytes;
            if let Some(place) = piece.taken {
                self.taken.remove(&place);
            }
        }
    }

    /// Whether so much more may be held; what others got makes room, the oldest first.
    fn has_room(&mut self, bytes: i64) -> bool {
        while self.bytes + bytes > HELD_BYTES_MAX {
            let Some((_, start)) = self.taken.pop_first() else { return false };
            self.remove(&start);
        }
        true
    }

    /// When `tick` is to be called.
    pub fn due(&self) -> Option<Time> {
        self.begun.front().map(|(at, _)| *at + HELD)
    }

    /// Drop what was not asked for in time.
    pub fn tick(&mut self, now: Time) {
        while let Some((at, start)) = self.begun.pop_front() {
            if at + HELD > now {
                self.begun.push_front((at, start));
                return;
            }
            let Some(piece) = self.pieces.get_mut(&start).filter(|piece| piece.begun_at == at) else { continue };
            if piece.waiting.is_empty() {
                self.remove(&start);
            } else {
                piece.begun_at = now;
                self.begun.push_back((now, start));
            }
        }
        self.fronts.clear();
        self.shared.clear();
    }
}
