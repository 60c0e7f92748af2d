//! Connections of clients whose bytes arrive by hand, on a clock of the test.

#![allow(dead_code)] // no file uses all of it

use std::time::Duration;

use korvet_proto::peer::{Event, Frame, Limits, PeerId, Peers, Reason};
use korvet_proto::pipeline::Time;

pub const RECEIVE: Duration = Duration::from_secs(30);
pub const IDLE: Duration = Duration::from_secs(600);
pub const METADATA: i16 = 3;
pub const PRODUCE: i16 = 0;
pub const KIB: usize = 1024;

pub fn at(milliseconds: u64) -> Time {
    Duration::from_millis(milliseconds)
}

pub fn limits() -> Limits {
    Limits {
        idle: Some(IDLE),
        receive: RECEIVE,
        produce_frame: 1_000 * KIB,
        other_frame: 100 * KIB,
        frames_max: 5,
        ahead_bytes: 300 * KIB,
        budget: 400 * KIB,
        login_budget: 100 * KIB,
        halves_budget: 100 * KIB,
        handshakes_max: 3,
    }
}

/// A frame of an API whose rest is filled with a byte.
pub fn frame(api_key: i16, size: usize, filling: u8) -> Vec<u8> {
    let mut bytes = (size as u32).to_be_bytes().to_vec();
    bytes.extend(api_key.to_be_bytes());
    bytes.resize(4 + size, filling);
    bytes
}

pub fn over(bytes_max: usize) -> Reason {
    Reason::OverBudget(format!("requests of more than {bytes_max} bytes are being received or served"))
}

pub struct World {
    pub peers: Peers<Vec<u8>>,
    pub now: Time,
    pub events: Vec<Event>,
}

impl World {
    pub fn new(limits: Limits) -> Self {
        Self { peers: Peers::new(limits), now: at(0), events: Vec::new() }
    }

    pub fn turn(&mut self) {
        while let Some(event) = self.peers.next_event() {
            if event != Event::Timer {
                self.events.push(event);
            }
        }
    }

    pub fn accept(&mut self) -> PeerId {
        let peer = self.peers.accept(None, false, self.now);
        self.turn();
        peer
    }

    pub fn send(&mut self, peer: PeerId, bytes: &[u8]) {
        self.peers.received(peer, bytes, 0, true, self.now);
        self.turn();
    }

    pub fn take(&mut self, peer: PeerId) -> Option<Frame> {
        let frame = self.peers.next_frame(peer, self.now);
        self.turn();
        frame
    }

    pub fn answer(&mut self, peer: PeerId, frame: &Frame, answer: &[u8]) {
        self.peers.answer(peer, frame.number, vec![answer.to_vec()], self.now);
        self.turn();
    }

    pub fn read_max(&mut self, peer: PeerId) -> usize {
        let size = self.peers.read_max(peer, self.now);
        self.turn();
        size
    }

    /// Write all of a peer's answers, and return them.
    pub fn write(&mut self, peer: PeerId) -> Vec<u8> {
        let bytes = self.peers.unwritten(peer).collect::<Vec<_>>().concat();
        self.peers.wrote(peer, bytes.len(), false, self.now);
        self.turn();
        bytes
    }

    pub fn wait(&mut self, milliseconds: u64) {
        let until = self.now + at(milliseconds);
        while let Some(due) = self.peers.due().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.peers.tick(self.now);
            self.turn();
            assert!(self.peers.due().is_none_or(|due| due > self.now), "it is due again at once");
        }
        self.now = until;
    }

    pub fn closed(&self, peer: PeerId) -> Option<&Reason> {
        self.events.iter().find_map(|event| match event {
            Event::Closed { peer: closed, reason } if *closed == peer => Some(reason),
            _ => None,
        })
    }

    /// Whether the peer is read, as was said last.
    pub fn reads(&self, peer: PeerId) -> bool {
        let watch = self.events.iter().rev().find_map(|event| match event {
            Event::Watch { peer: watched, reads, .. } if *watched == peer => Some(*reads),
            _ => None,
        });
        watch.unwrap()
    }
}
