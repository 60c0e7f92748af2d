//! The end of a history: nothing fails any more, time passes, and everything must settle.

use std::time::Duration;

use korvet_proto::pipeline::Time;

use crate::caller::Worker;
use crate::chance::Chance;
use crate::plan::{TAGS, slot};
use crate::wire::Stage;
use crate::world::{PROMPT, World};

const SECOND: Duration = Duration::from_secs(1);
/// In a second, by one worker with a few lanes to a few nodes.
const OPENED_MAX: usize = 40;

impl World {
    /// End all faults, let time pass, and look whether everything has settled.
    pub fn settle(&mut self) {
        self.dice = Chance::new(self.wires.len() as u64);
        self.heal();
        self.is_faulty = false;
        let behind = self.workers.iter().map(|worker| worker.ahead.unsigned_abs()).max().unwrap_or_default();
        self.pass_quietly(Duration::from_secs(40) + Duration::from_millis(behind));
        self.check_settled();
        self.check_opened();
        if self.ledger.failure.is_some() {
            return;
        }
        // A node of a cluster that was away is connected to by the first who needs it, and others fail meanwhile.
        for _ in 0..3 {
            self.probe_all();
        }
        let probes = self.probe_all();
        for (worker, lane, number) in probes {
            if !self.ledger.has_run(worker, number) {
                let outcomes = self.ledger.outcomes(worker, number);
                self.ledger.fail(format!("nothing fails any more, and a call over {lane} has not run: {outcomes}"));
            }
        }
        self.check_settled();
        self.check_maps();
        if self.ledger.failure.is_none() {
            self.ledger.is_calm = false;
            self.close_all();
        }
    }

    /// Ask for something over each lane, and publish something.
    fn probe_all(&mut self) -> Vec<(usize, usize, usize)> {
        let mut probes = Vec::new();
        for worker in 0..self.workers.len() {
            for lane in 0..self.workers[worker].lanes.len() {
                if !self.workers[worker].lanes[lane] && !self.workers[worker].closed[lane] {
                    probes.push((worker, lane, self.probe(worker, lane)));
                }
            }
            self.flush(worker);
        }
        for _ in 0..10 {
            self.publish();
        }
        self.pass_quietly(Duration::from_secs(6));
        probes
    }

    fn pass_quietly(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end && self.ledger.failure.is_none() {
            self.turn();
            let is_moving = self.wires.iter().any(|wire| match wire.stage {
                Stage::Opening { at, .. } => at.is_some(),
                Stage::Open | Stage::Left => {
                    !wire.up.is_empty() || !wire.down.is_empty() || wire.is_cut || wire.is_stuck
                }
                Stage::Gone => false,
            });
            let mut next = if is_moving { self.now + PROMPT } else { end };
            for worker in 0..self.workers.len() {
                let now = self.clock(worker);
                let left = self.workers[worker].due.map(|due| due.saturating_sub(now));
                next = left.map_or(next, |left| next.min(self.now + left.max(PROMPT)));
            }
            self.now = next;
        }
    }

    /// Nobody opens more connections than it has a use for.
    fn check_opened(&mut self) {
        for worker in 0..self.workers.len() {
            let opened = &self.workers[worker].opened;
            let within_s = |first: &Time| opened.iter().filter(|at| (*first..*first + SECOND).contains(at)).count();
            let most = opened.iter().map(within_s).max().unwrap_or_default();
            if most > OPENED_MAX {
                self.ledger.fail(format!("the worker {worker} opened {most} connections within a second"));
            }
        }
    }

    fn check_settled(&mut self) {
        self.ledger.check_all();
        for worker in 0..self.workers.len() {
            let Worker { client, links, wires, calls, lanes, closed, .. } = &self.workers[worker];
            let mut problems = Vec::new();
            if !calls.is_empty() {
                problems.push(format!("{} calls are under way", calls.len()));
            }
            let mut used: Vec<usize> = Vec::new();
            for ((lane, node), known) in links {
                used.extend(known.wire);
                if client.under_way(*lane, *node) != (0, 0, 0) || client.waiting(*lane, *node) != (0, 0) {
                    problems.push(format!("{lane} to {node} has something under way"));
                }
                if known.wire.is_some() != client.is_ready(*lane, *node) || client.is_busy(*lane, *node) {
                    problems.push(format!("{lane} to {node} is busy, or not ready"));
                }
                let is_dead = known.wire.is_some_and(|wire| self.wires[wire].hangs);
                if lanes[*lane] && known.is_kept && known.pings && is_dead {
                    problems.push(format!("the feed to {node} is dead, and that was not found out"));
                }
                if lanes[*lane] && known.is_kept && !closed[*lane] && known.wire.is_none() {
                    problems.push(format!("the feed to {node} is kept, and not connected"));
                }
            }
            let others = wires.values().filter(|wire| !used.contains(wire)).count();
            if others > usize::from(self.servers.has_sentinels) {
                problems.push(format!("{others} connections are of no use"));
            }
            if let Some(wire) = used.iter().find(|wire| !self.wires[**wire].is_held()) {
                problems.push(format!("the connection {wire} is in use, and closed"));
            }
            let master = usize::from(self.servers.hosts[0].is_replica);
            let is_elsewhere = |wire: &&usize| self.servers.has_sentinels && self.wires[**wire].host != Some(master);
            if used.iter().any(|wire| is_elsewhere(&wire)) {
                problems.push("a connection leads to another server than the master".to_owned());
            }
            for problem in problems {
                self.ledger.fail(format!("worker {worker}: {problem}"));
            }
        }
    }

    /// Who has sent something to each slot knows where they are.
    fn check_maps(&mut self) {
        let Some(cluster) = &self.servers.cluster else { return };
        for (number, worker) in self.workers.iter().enumerate() {
            let sends = (0..worker.lanes.len()).any(|lane| !worker.lanes[lane] && !worker.closed[lane]);
            for tag in (0..TAGS).filter(|_| sends) {
                let known = worker.client.node_at(slot(tag)).and_then(|node| worker.client.name(node));
                let owner = self.servers.hosts[cluster.owner(tag)].address.to_string();
                if known != Some(&owner) {
                    self.ledger
                        .fail(format!("worker {number} believes {known:?} to have the slot {tag}, and {owner} has it"));
                }
            }
        }
    }

    /// Close all lanes while calls are under way: they end, and no connection is left.
    fn close_all(&mut self) {
        for worker in 0..self.workers.len() {
            for _ in 0..self.dice.below(3) {
                self.read_map(worker);
                self.ask(worker);
            }
            let now = self.clock(worker);
            for lane in 0..self.workers[worker].lanes.len() {
                self.workers[worker].client.close(lane, now);
            }
            self.pump(worker, None);
            if !self.workers[worker].wires.is_empty() {
                self.ledger.fail("all lanes are closed, and connections are not");
            }
        }
        self.pass_quietly(SECOND);
        self.ledger.check_all();
    }
}
