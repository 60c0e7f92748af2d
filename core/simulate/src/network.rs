//! Time passes, and bytes are on their way.

use std::time::Duration;

use crate::server::{Door, From};
use crate::wire::Stage;
use crate::world::{Fault, PROMPT, World};

/// How long a turn of a fast network takes.
const FAST: Duration = Duration::from_millis(10);

impl World {
    /// How a connection to a host begins.
    pub fn opening(&mut self, host: usize) -> Stage {
        let door = self.servers.hosts[host].door;
        let slow = if self.is_faulty && !self.is_calm && self.dice.is(5) { 3_000 } else { 3 };
        let at =
            Some(self.now + if self.is_faulty { Duration::from_millis(self.dice.below(slow) as u64) } else { PROMPT });
        match door {
            Door::Open | Door::Closes | Door::Full => Stage::Opening { at, opens: true },
            Door::Refuses => Stage::Opening { at, opens: false },
            Door::Silent => Stage::Opening { at: None, opens: false },
        }
    }

    /// Let time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let turns = if self.is_fast {
            (time.as_micros() / FAST.as_micros()) as u32 + 1
        } else {
            self.dice.within(2, 12) as u32
        };
        loop {
            self.turn();
            if self.now >= end || self.ledger.failure.is_some() {
                return;
            }
            let pause = (time / turns).max(Duration::from_micros(50));
            self.now = end.min(self.now + pause);
        }
    }

    /// Let each connection and each clock go on once.
    pub fn turn(&mut self) {
        for wire in 0..self.wires.len() {
            if self.wires[wire].stage != Stage::Gone && !(self.wires[wire].hangs || self.is_faulty && self.dice.is(20))
            {
                self.move_wire(wire);
            }
        }
        for worker in 0..self.workers.len() {
            self.flush(worker);
            let is_late = self.is_faulty && self.dice.is(10);
            let now = self.clock(worker);
            let is_due = self.workers[worker].due.is_some_and(|due| due <= now);
            if (is_due && !is_late || self.is_faulty && self.looks_often && self.dice.is(2))
                && self.fault != Some(Fault::NoTick)
            {
                self.tick(worker);
            }
        }
    }

    fn chunk(&mut self, size: usize) -> usize {
        match self.dice.below(10) {
            _ if !self.is_faulty => size,
            0 => size.min(1),
            1..=3 => self.dice.below(size + 1),
            _ => size,
        }
    }

    fn move_wire(&mut self, wire: usize) {
        match self.wires[wire].stage {
            Stage::Opening { at, opens } if at.is_some_and(|at| at <= self.now) => return self.opened(wire, opens),
            Stage::Opening { .. } | Stage::Gone => return,
            Stage::Open | Stage::Left => {}
        }
        if self.wires[wire].is_stuck {
            self.write(wire);
        }
        if !self.wires[wire].is_cut {
            let size = self.chunk(self.wires[wire].up.len());
            let bytes: Vec<u8> = self.wires[wire].up.drain(..size).collect();
            self.arrive(wire, &bytes);
        }
        if self.wires[wire].stage == Stage::Left { self.end_wire(wire) } else { self.move_down(wire) }
    }

    fn opened(&mut self, wire: usize, opens: bool) {
        let (worker, connection) = (self.wires[wire].worker, self.wires[wire].connection);
        let now = self.clock(worker);
        if opens {
            self.wires[wire].stage = Stage::Open;
            self.greet(wire);
            self.workers[worker].client.opened(connection, now);
        } else {
            self.workers[worker].client.failed(connection, "refused", now);
        }
        self.pump(worker, None);
        self.flush(worker);
    }

    /// Let the rest reach the server of a connection that its client has closed.
    fn end_wire(&mut self, wire: usize) {
        let (worker, connection) = (self.wires[wire].worker, self.wires[wire].connection);
        if self.wires[wire].is_late && self.dice.is(20) {
            self.wires[wire].is_late = false;
            // The attempt had ended before the driver heard that it was given up.
            let now = self.clock(worker);
            self.workers[worker].client.opened(connection, now);
            self.workers[worker].client.failed(connection, "late", now);
            let is_gone = self.workers[worker].client.room(connection, 1).is_none();
            if !is_gone || self.workers[worker].client.pieces(connection) > 0 {
                self.ledger.fail("a connection that was closed is there");
            }
            self.pump(worker, None);
        }
        if !self.wires[wire].is_late && (self.wires[wire].up.is_empty() || self.wires[wire].is_cut) {
            self.wires[wire].stage = Stage::Gone;
        }
    }

    /// Let a client read what has arrived, and hear when the connection is closed.
    fn move_down(&mut self, wire: usize) {
        let (worker, connection) = (self.wires[wire].worker, self.wires[wire].connection);
        let size = self.chunk(self.wires[wire].down.len());
        let size = self.wires[wire].cut_after.map_or(size, |left| size.min(left));
        let mut bytes: Vec<u8> = self.wires[wire].down.drain(..size).collect();
        if let Some(left) = &mut self.wires[wire].cut_after {
            *left -= size;
            self.wires[wire].is_cut |= *left == 0;
        }
        if !bytes.is_empty() {
            if self.strikes(Fault::DroppedByte) {
                bytes.remove(0);
            }
            if bytes.len() > 4 && self.strikes(Fault::SwappedBytes) {
                let middle = bytes.len() / 2;
                bytes.rotate_left(middle);
            }
            self.deliver(wire, &bytes);
        }
        let is_over =
            self.wires[wire].is_cut && (self.wires[wire].down.is_empty() || self.wires[wire].cut_after == Some(0));
        let closes = self.wires[wire].host.is_some_and(|host| self.servers.hosts[host].door == Door::Closes);
        if (is_over || closes && self.dice.is(50)) && self.wires[wire].is_held() {
            let now = self.clock(worker);
            self.wires[wire].is_cut = true;
            self.workers[worker].client.failed(connection, "it closed the connection", now);
            self.pump(worker, None);
            self.flush(worker);
        }
    }

    /// Let a server that has too many connections say so.
    fn greet(&mut self, wire: usize) {
        let host = self.wires[wire].host;
        if host.is_some_and(|host| self.servers.hosts[host].door == Door::Full) {
            self.wires[wire].down.extend_from_slice(b"-ERR max number of clients reached\r\n");
            self.wires[wire].is_cut = true;
            self.wires[wire].is_spoiled = true;
        }
    }

    /// Bytes reach a server.
    pub fn arrive(&mut self, wire: usize, bytes: &[u8]) {
        let Some(host) = self.wires[wire].host.filter(|_| !bytes.is_empty()) else { return };
        let is_closed = self.wires[wire].stage == Stage::Left;
        let from = From { host, wire, is_closed, now: self.now, has_password: self.has_password };
        let mut session = std::mem::take(&mut self.wires[wire].session);
        let mut down = std::mem::take(&mut self.wires[wire].down);
        self.trace(|| format!("wire {wire} to {host}: {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(600)])));
        let is_right = self.servers.take(&mut session, from, bytes, &mut down, &mut self.ledger);
        self.wires[wire].session = session;
        self.wires[wire].down = down;
        self.wires[wire].is_cut |= !is_right;
    }

    /// Bytes reach a client.
    pub fn deliver(&mut self, wire: usize, bytes: &[u8]) {
        let (worker, connection) = (self.wires[wire].worker, self.wires[wire].connection);
        let now = self.clock(worker);
        self.trace(|| {
            format!("wire {wire} to worker {worker}: {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(600)]))
        });
        let client = &mut self.workers[worker].client;
        match client.room(connection, bytes.len()) {
            Some(Ok(room)) => room.extend_from_slice(bytes),
            Some(Err(_)) => return self.ledger.fail("there is no memory"),
            None => return self.ledger.fail("bytes come over a connection that is gone, and was not closed"),
        }
        client.received(connection, now);
        let lent = client.lend(connection);
        self.pump(worker, Some((wire, lent)));
        self.flush(worker);
        let wire = &mut self.wires[wire];
        wire.delivered += bytes.len();
        let is_feed = wire.link.is_some_and(|(lane, _)| self.workers[worker].lanes[lane]);
        let expected = wire.session.feed.iter().filter(|(end, _)| *end <= wire.delivered).count();
        if is_feed && !wire.is_spoiled && wire.heard != expected && (wire.is_held() || wire.heard > expected) {
            self.ledger.fail(format!("a feed heard {} messages of {expected}", wire.heard));
        }
    }
}
