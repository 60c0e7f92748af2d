//! What requests may take of a worker's memory while they arrive and are served.

use std::collections::BTreeMap;

use super::{PeerId, SMALL_FRAME_BYTES};

/// Bytes that many hold together.
///
/// Whoever began first never waits: requests that have arrived in part could otherwise wait for each other for ever. What
/// is held may exceed the budget by that one.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: usize,
    held: usize,
    /// Whose request each is, by when it began.
    turns: BTreeMap<u64, PeerId>,
    begun: u64,
    /// Peers that are not read because it is full, by when they began to wait.
    waiting: BTreeMap<u64, PeerId>,
    waited: u64,
}

/// What one request holds; it is ended by its budget.
#[derive(Debug)]
pub(super) struct Charge {
    turn: u64,
    held: usize,
}

impl Budget {
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, held: 0, turns: BTreeMap::new(), begun: 0, waiting: BTreeMap::new(), waited: 0 }
    }

    /// Begin to hold bytes, whether there is room for them or not.
    pub fn begin(&mut self, peer: PeerId, bytes: usize) -> Charge {
        self.begun += 1;
        self.turns.insert(self.begun, peer);
        self.held += bytes;
        Charge { turn: self.begun, held: bytes }
    }

    /// Hold more or less.
    pub fn set(&mut self, charge: &mut Charge, bytes: usize) {
        self.held = self.held - charge.held + bytes;
        charge.held = bytes;
    }

    pub fn end(&mut self, charge: &Charge) {
        self.held -= charge.held;
        self.turns.remove(&charge.turn);
    }

    /// Have a peer wait for room; returns its place among those who do.
    pub fn wait(&mut self, peer: PeerId) -> u64 {
        self.waited += 1;
        self.waiting.insert(self.waited, peer);
        self.waited
    }

    /// Have a peer wait no more.
    pub fn leave(&mut self, place: u64) {
        self.waiting.remove(&place);
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Take those who wait out of the queue that have room, if each takes no more than a small frame.
    pub fn take_waiting(&mut self) -> Vec<PeerId> {
        let count = self.bytes_max.saturating_sub(self.held).div_ceil(SMALL_FRAME_BYTES).min(self.waiting.len());
        (0..count).filter_map(|_| self.waiting.pop_first()).map(|(_, peer)| peer).collect()
    }

    pub fn is_full(&self) -> bool {
        self.held >= self.bytes_max
    }

    /// Whether the holder of a charge may take more.
    pub fn has_room(&self, charge: &Charge) -> bool {
        !self.is_full() || self.turns.first_key_value().is_some_and(|(turn, _)| *turn == charge.turn)
    }

    /// Whose request began first.
    pub fn first(&self) -> Option<PeerId> {
        self.turns.first_key_value().map(|(_, peer)| *peer)
    }

    pub fn held(&self) -> usize {
        self.held
    }
}
