//! What happens to connections, servers and slots.

use std::time::Duration;

use korvet_proto::pipeline::Time;

use crate::server::{Door, Named};
use crate::topology::HOST;
use crate::wire::{Stage, Wire};
use crate::world::World;

impl World {
    pub fn disturb_wire(&mut self) {
        let open: Vec<usize> = (0..self.wires.len()).filter(|wire| self.wires[*wire].is_held()).collect();
        let Some(wire) = self.dice.pick(&open).copied() else { return };
        match self.dice.below(7) {
            0 => self.wires[wire].hangs ^= true,
            1 => self.wires[wire].is_cut = true,
            2 | 3 => self.wires[wire].cut_after = Some(self.dice.below(200)),
            4 => {
                // The command is run, and its answer is lost.
                let bytes = std::mem::take(&mut self.wires[wire].up);
                self.arrive(wire, &bytes);
                self.wires[wire].down.clear();
                self.wires[wire].is_cut = true;
            }
            5 if self.wires[wire].down.is_empty()
                && !self.wires[wire].is_cut
                && self.wires[wire].stage == Stage::Open =>
            {
                let garbage: &[u8] = [&b"\0\0\0"[..], b"$-7\r\n", b"*1\n", b":x\r\n"][self.dice.below(4)];
                self.wires[wire].down.extend_from_slice(garbage);
                self.wires[wire].is_spoiled = true;
                self.wires[wire].is_cut = true;
            }
            6 => self.say_unasked(wire),
            _ => {}
        }
    }

    /// Let a server send what nobody asked for, where nothing else is on its way.
    fn say_unasked(&mut self, wire: usize) {
        let Wire { worker, connection, link: Some((lane, node)), .. } = self.wires[wire] else { return };
        let is_feed = self.workers[worker].lanes[lane];
        let is_idle = self.workers[worker].client.under_way(lane, node).0 == 0 && self.wires[wire].down.is_empty();
        let is_quiet = self.wires[wire].up.is_empty() && self.workers[worker].client.pieces(connection) == 0;
        if is_feed || !is_idle || !is_quiet || self.wires[wire].stage != Stage::Open || self.wires[wire].is_cut {
            return;
        }
        let is_all_read = self.wires[wire].delivered == self.wires[wire].session.sent;
        if !is_all_read {
            return;
        }
        self.wires[wire].is_spoiled = true;
        self.deliver(wire, b"+unasked\r\n");
        if self.wires[wire].is_held() {
            self.ledger.fail("a connection goes on after a reply that nobody asked for");
        }
    }

    pub fn disturb_host(&mut self) {
        let host = self.dice.below(self.servers.hosts.len());
        let until = self.now + Duration::from_millis(self.dice.below(4_000) as u64);
        let doors = [Door::Open, Door::Open, Door::Refuses, Door::Silent, Door::Closes, Door::Full];
        match self.dice.below(11) {
            0 | 1 => self.servers.hosts[host].door = doors[self.dice.below(doors.len())],
            2 | 3 => self.restart(host),
            4 => self.servers.hosts[host].scripts.clear(),
            5 | 6 => {
                self.servers.hosts[host].is_full ^= true;
                self.servers.hosts[host].is_stuffed = self.dice.is(20);
            }
            7 => self.servers.hosts[host].loads_until = until,
            8 => self.servers.hosts[host].is_locked ^= true,
            9 => self.servers.hosts[host].fence_ms = self.dice.below(100) as i64,
            _ => self.servers.hosts[host].names = [Named::Nobody, Named::Refused, Named::Host(0)][self.dice.below(3)],
        }
    }

    /// Let a server die, and maybe come back.
    fn restart(&mut self, host: usize) {
        for wire in &mut self.wires {
            if wire.host == Some(host) && wire.stage != Stage::Gone {
                wire.is_cut = true;
                wire.up.clear();
                if self.dice.is(50) {
                    wire.down.clear();
                }
            }
        }
        let door = [Door::Open, Door::Refuses, Door::Silent][self.dice.below(3)];
        let loads_until = if self.dice.is(50) { self.now + Duration::from_millis(500) } else { Time::ZERO };
        let host = &mut self.servers.hosts[host];
        host.scripts.clear();
        (host.door, host.loads_until) = (door, loads_until);
    }

    pub fn disturb_slots(&mut self) {
        let nodes = self.servers.hosts.len();
        let Some(cluster) = &mut self.servers.cluster else { return };
        let (tag, node) = (self.dice.below(self.tags), self.dice.below(nodes));
        let kind = self.dice.below(20);
        match kind {
            8..=10 | 16.. if self.is_calm => {}
            0..=7 => (0..self.dice.within(1, 3)).for_each(|_| cluster.move_on(tag, node)),
            10 => cluster.lost = cluster.lost.xor(Some(tag)),
            11 if cluster.members[node] => cluster.give(tag, node),
            8 | 9 if cluster.members[node] => cluster.give_unheard(tag, node),
            12 => cluster.give_up(tag),
            13..=15 => cluster.hear(node),
            16 | 17 => cluster.own_host = [HOST, "", "?"][self.dice.below(3)],
            _ if cluster.members[node] => cluster.leave(node),
            _ => cluster.join(node),
        }
    }

    /// Let another server become the master, without the last writes of the present one.
    pub fn fail_over(&mut self) {
        if self.servers.cluster.is_some() {
            let nodes = self.servers.hosts.len();
            let node = self.dice.below(nodes);
            self.restart(node);
            if let Some(cluster) = &mut self.servers.cluster {
                let heir = (node + 1) % nodes;
                cluster.members[heir] = true;
                cluster.leave(node);
            }
            return;
        }
        if !self.servers.has_sentinels {
            return;
        }
        let master = usize::from(self.servers.hosts[0].is_replica);
        let next = 1 - master;
        let number = self.dice.below(1_000_000);
        self.servers.hosts[next].is_replica = false;
        self.servers.hosts[next].history = format!("history {number}");
        if self.dice.is(60) {
            self.servers.hosts[master].is_replica = true;
            self.servers.hosts[master].history = format!("history {number}");
        }
        if self.dice.is(60) {
            self.restart(master);
            self.servers.hosts[master].is_replica = true;
        }
        for sentinel in 2..4 {
            if self.dice.is(70) {
                self.servers.hosts[sentinel].names = Named::Host(next);
                self.say_switched(sentinel);
            }
        }
    }

    fn say_switched(&mut self, sentinel: usize) {
        self.tell(sentinel, "+switch-master", "main m1 6379 m2 6379");
    }

    /// Send a message to all who have subscribed at a host.
    fn tell(&mut self, host: usize, channel: &str, text: &str) {
        for wire in &mut self.wires {
            let is_here = wire.host == Some(host) && wire.stage == Stage::Open && !wire.is_cut;
            if is_here && wire.session.channels.contains(channel) {
                let message = crate::server::bulks(&["message", channel, text]);
                wire.session.tell(&mut wire.down, &message);
            }
        }
    }

    pub fn publish(&mut self) {
        let (host, channel) = (self.dice.below(self.servers.hosts.len()), ["news", "shard"][self.dice.below(2)]);
        self.published += 1;
        let text = format!("message {}", self.published);
        self.tell(host, channel, &text);
    }

    /// End all faults.
    pub fn heal(&mut self) {
        for host in &mut self.servers.hosts {
            (host.door, host.is_full, host.is_locked, host.loads_until) = (Door::Open, false, false, Time::ZERO);
        }
        for (number, wire) in self.wires.iter_mut().enumerate() {
            // Of some connections nobody is ever told that they are dead.
            wire.hangs &= number % 2 == 0;
            wire.cut_after = wire.cut_after.filter(|_| wire.is_cut);
        }
        if let Some(cluster) = &mut self.servers.cluster {
            cluster.settle();
        }
        if self.servers.has_sentinels {
            let master = usize::from(self.servers.hosts[0].is_replica);
            self.servers.hosts[1 - master].is_replica = true;
            for sentinel in 2..4 {
                self.servers.hosts[sentinel].names = Named::Host(master);
                self.say_switched(sentinel);
            }
        }
    }
}
