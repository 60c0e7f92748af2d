//! The steps of a history of appends, what happens in each, and the end, when everything must settle.

use std::time::Duration;

use korvet_proto::pipeline::Time;

use super::model::stream::{Id, Ids};
use super::model::{Log, Script};
use super::producer::{Kind, Stage};
use super::topics::{Which, bits, create, stream};
use super::world::{AppendFault, Line, World};
use crate::chance::Chance;
use crate::history::{Failure, Seen, shrunk_by};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Produce,
    Run,
    /// A transaction ends, by its producer or its time.
    End,
    /// Something happens to a connection.
    Wire,
    Link,
    Consumer,
    Host,
    Failover,
    External,
    /// Old records and silent producers go.
    Upkeep,
    /// A topic is deleted, and created again.
    Topic,
    Slots,
    Clock,
    Heal,
}

const STEPS: [(Step, usize); 14] = [
    (Step::Produce, 30),
    (Step::Run, 34),
    (Step::End, 8),
    (Step::Wire, 8),
    (Step::Link, 3),
    (Step::Consumer, 5),
    (Step::Host, 5),
    (Step::Failover, 6),
    (Step::External, 6),
    (Step::Upkeep, 5),
    (Step::Topic, 1),
    (Step::Slots, 6),
    (Step::Clock, 1),
    (Step::Heal, 2),
];

/// The steps of a seed, with the seed of all that happens by chance in each.
fn steps(seed: u64) -> Vec<(usize, Step, u64)> {
    let mut dice = Chance::new(seed ^ 0x57e9);
    let mut kinds = STEPS;
    // Some things do not happen in some histories.
    for (kind, weight) in &mut kinds {
        if !matches!(kind, Step::Produce | Step::Run) && dice.is(30) {
            *weight = 0;
        }
    }
    let total = kinds.iter().map(|(_, weight)| weight).sum();
    (0..dice.within(20, 90))
        .map(|index| {
            let mut left = dice.below(total);
            let kind = kinds.iter().find(|(_, weight)| {
                let is_it = left < *weight;
                left = left.saturating_sub(*weight);
                is_it
            });
            (index, kind.map_or(Step::Run, |(kind, _)| *kind), dice.number())
        })
        .collect()
}

/// Run the history of appends of a seed.
pub fn run_appends(seed: u64, fault: Option<AppendFault>) -> Result<Seen, String> {
    let all: Vec<usize> = (0..steps(seed).len()).collect();
    run_append_steps(seed, &all, fault)
}

/// Run the history of appends of a seed with some of its steps.
pub fn run_append_steps(seed: u64, kept: &[usize], fault: Option<AppendFault>) -> Result<Seen, String> {
    crate::history::guarded(|| {
        let mut world = World::new(seed, fault);
        for (index, step, dice) in steps(seed).into_iter().filter(|(index, ..)| kept.contains(index)) {
            world.dice = Chance::new(dice);
            world.trace(|| format!("step {index} {step:?}"));
            world.step(step);
            world.publish();
            world.note_logs();
            if let Some(failure) = world.ledger.failure.take() {
                return Err(format!("{failure} (step {index}: {step:?})"));
            }
        }
        world.settle();
        match world.ledger.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(Seen::from([
                ("acknowledged records".to_owned(), world.ledger.count),
                ("records that consumers read".to_owned(), world.reads),
            ])),
        }
    })
}

/// Leave out steps of a history of appends that fails as long as it still fails.
pub fn shrunk_appends(seed: u64, fault: Option<AppendFault>) -> Option<Failure> {
    let all = steps(seed);
    let (steps, text) = shrunk_by(all.len(), |kept| run_append_steps(seed, kept, fault).map(drop))?;
    let shown = steps.iter().map(|index| format!("{index} {:?}", all[*index].1)).collect();
    Some(Failure { seed, steps, text, shown })
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Produce => {
                for _ in 0..self.dice.within(1, 5) {
                    let producer = self.dice.below(self.producers.len());
                    self.produce(producer);
                }
            }
            Step::Run => {
                let bound = [3, 30, 300, 3_000][self.dice.below(4)];
                let time = Duration::from_micros(self.dice.within(100, bound * 1_000) as u64);
                let turns = self.dice.within(2, 14) as u32;
                self.pass(time, turns);
            }
            Step::End => self.end(),
            Step::Wire => self.disturb_wire(),
            Step::Link => {
                let peers: Vec<u64> = self.links.keys().copied().collect();
                if let Some(peer) = self.dice.pick(&peers).copied() {
                    self.cut_link(peer);
                }
            }
            Step::Consumer => self.disturb_consumer(),
            Step::Host => self.disturb_host(),
            Step::Failover => {
                let host = self.dice.below(self.servers.hosts.len());
                // Then readers have what is lost.
                self.read_all();
                self.restart(host, true);
            }
            Step::External => self.external(),
            Step::Upkeep => self.upkeep(),
            Step::Topic => self.create_again(),
            Step::Slots => {
                let (which, to) = (self.some_partition(), self.dice.below(self.servers.hosts.len()));
                if self.servers.is_cluster && !self.is_cut(which) {
                    self.servers.move_on(&stream(which), to);
                }
            }
            Step::Clock => {
                let worker = self.dice.below(self.workers.len());
                self.ahead[worker] += self.dice.below(4_000) as i64 - 2_000;
            }
            Step::Heal => self.heal(),
        }
    }

    fn end(&mut self) {
        let producer = self.dice.below(self.producers.len());
        let commits = self.dice.is(70);
        if self.producers[producer].stage == Stage::Open {
            if self.dice.is(85) {
                self.producers[producer].stage = Stage::Ending { commits };
            } else {
                // Its time is over: it is aborted, and its producer fenced.
                self.coordinator.end(producer, false);
            }
        }
    }

    fn disturb_wire(&mut self) {
        let open: Vec<usize> = (0..self.wires.len()).filter(|wire| self.wires[*wire].line == Line::Open).collect();
        let Some(wire) = self.dice.pick(&open).copied() else { return };
        match self.dice.below(4) {
            0 => self.wires[wire].hangs ^= true,
            1 => self.wires[wire].is_cut = true,
            _ => {
                // What was written is run, and the replies are lost.
                let size = self.wires[wire].up.len();
                self.arrive(wire, size);
                self.wires[wire].down.clear();
                self.wires[wire].is_cut = true;
            }
        }
    }

    fn disturb_host(&mut self) {
        let host = self.dice.below(self.servers.hosts.len());
        match self.dice.below(5) {
            0 => self.servers.hosts[host].scripts.clear(),
            1 => self.servers.hosts[host].is_full ^= true,
            2 => {
                self.servers.hosts[host].is_up = false;
                self.cut_all(host);
            }
            _ => self.restart(host, false),
        }
    }

    fn cut_all(&mut self, host: usize) {
        for wire in self.wires.iter_mut().filter(|wire| wire.host == host && wire.line != Line::Gone) {
            wire.is_cut = true;
            wire.up.clear();
            if self.dice.is(50) {
                wire.down.clear();
            }
        }
    }

    fn end_moves(&mut self) {
        for which in self.all() {
            while self.servers.owners[&stream(which)].1.is_some() {
                self.servers.move_on(&stream(which), 0);
            }
        }
    }

    /// Whether a failover has cut a log, and its next epoch has not begun. If its slot moved now to a node whose epoch is no
    /// later than the one that was cut, no reader would see that.
    fn is_cut(&self, which: Which) -> bool {
        let state = self.servers.log(&stream(which)).and_then(|log| log.state.as_ref());
        self.cuts.get(&which).is_some_and(|epoch| state.is_none_or(|state| state.log.epoch <= *epoch))
    }

    /// Let a server start again, or its replica take over: that may have less.
    fn restart(&mut self, host: usize, is_failover: bool) {
        self.cut_all(host);
        self.end_moves();
        self.note_logs();
        let all = self.all();
        let here: Vec<Which> = all.into_iter().filter(|which| self.servers.home(&stream(*which)) == host).collect();
        let before = self.servers.hosts[host].model.clone();
        let loads_until = if self.dice.is(30) { self.now + Duration::from_millis(300) } else { Time::ZERO };
        self.servers.restart(host, is_failover, loads_until);
        // An epoch that is begun in the second of one that is lost could be the same (lua/broker/epoch.lua).
        self.servers.hosts[host].opens_at = self.now + Duration::from_millis(1_001);
        let acks: Vec<i16> = self.producers.iter().map(|producer| producer.acks).collect();
        for which in here.into_iter().filter(|_| is_failover) {
            let name = stream(which).into_bytes();
            if let Some(log) = before.logs.get(&name) {
                let after = self.servers.hosts[host].model.logs.get(&name);
                let epoch_of = |log: &Log| log.state.as_ref().map_or(-1, |state| state.log.epoch);
                let epoch = self.cuts.get(&which).copied().unwrap_or(-1).max(epoch_of(log));
                self.cuts.insert(which, epoch);
                self.ledger.lose(which, self.topics[which.0], log, after, &acks);
            }
            self.note_cut(which);
        }
    }

    fn external(&mut self) {
        let which = self.some_partition();
        let (name, of) = (stream(which), self.topics[which.0]);
        let home = self.servers.home(&name);
        let now_ms = self.now_ms();
        let model = &mut self.servers.hosts[home].model;
        model.now_ms = now_ms;
        let log = model.log(name.as_bytes());
        let (Some(state), Some(stream)) = (&log.state, &mut log.stream) else { return };
        let ids = Ids { bits: bits(of.layout) };
        let end = ids.of_end(state.log.next);
        if self.dice.is(25) {
            // Of what is not in the log yet.
            let past: Vec<Id> = stream.after(end).map(|(id, _)| id).collect();
            if let Some(id) = self.dice.pick(&past) {
                stream.delete(&[*id]);
            }
            return;
        }
        for _ in 0..self.dice.within(1, 4) {
            self.externals += 1;
            let last = model.log(name.as_bytes()).stream.as_ref().map_or(Id::ZERO, |stream| stream.last_id).max(end);
            let next = Id { sequence: last.sequence + 1, ..last };
            let now = Id { ms: now_ms as u64, sequence: self.dice.below(2_000) as u64 };
            let id = [next, now, Id { sequence: next.sequence + 3, ..next }][self.dice.below(3)];
            let mut fields = vec![b"value".to_vec(), format!("external{}", self.externals).into_bytes()];
            if self.dice.is(50) {
                fields.extend([b"timestamp".to_vec(), b"5".to_vec()]);
            }
            model.add_external(name.as_bytes(), id, fields);
        }
    }

    fn upkeep(&mut self) {
        let which = self.some_partition();
        let (name, of) = (stream(which), self.topics[which.0]);
        let home = self.servers.home(&name);
        let Some(log) = self.servers.log(&name) else { return };
        self.ledger.read(which, of, log);
        let Some(state) = &log.state else { return };
        let topic = state.topic.clone();
        let (start, end) = (state.log.start, state.open.unwrap_or(state.log.next));
        let side = |side: &str| format!("{{{name}}}:{side}").into_bytes();
        let texts = |numbers: &[i64]| numbers.iter().map(|number| number.to_string().into_bytes()).collect::<Vec<_>>();
        let now_ms = self.now_ms();
        let model = &mut self.servers.hosts[home].model;
        if self.dice.is(50) {
            let to = start + self.dice.below((end - start + 1) as usize) as i64;
            let sides = ["state", "index", "clean:0", "clean:1", "aborted"].map(side);
            let keys = [vec![name.clone().into_bytes()], sides.to_vec()].concat();
            let arguments = [vec![topic], texts(&[bits(of.layout), to, -1, 100, 1 << 20])].concat();
            model.run(Script::Trim, &keys, &arguments, false);
        } else {
            let silence = if self.fault == Some(AppendFault::ForgottenProducer) { -1 } else { 300_000 };
            model.run(Script::Expire, &[side("state")], &texts(&[0, 1_000, now_ms, silence]), false);
        }
    }

    fn create_again(&mut self) {
        let topic = self.dice.below(self.topics.len());
        self.note_logs();
        self.topics[topic].incarnation += 1;
        let of = self.topics[topic];
        for index in 0..of.partitions {
            create(&mut self.servers, (topic, index), of);
            self.ledger.create_again((topic, index), &self.producers);
        }
        for worker in 0..self.workers.len() {
            if self.dice.is(50) {
                let producers = &mut self.workers[worker].producers;
                producers.reordered();
                producers.forget_topic(&super::topics::name(topic));
                self.workers[worker].reading.consumers.forget_topic(&super::topics::name(topic));
            }
        }
    }

    /// End all that disturbs.
    fn heal(&mut self) {
        for host in 0..self.servers.hosts.len() {
            self.servers.hosts[host].is_full = false;
            self.servers.hosts[host].loads_until = Time::ZERO;
            self.servers.hosts[host].is_up = true;
        }
        self.wires.iter_mut().for_each(|wire| wire.hangs = false);
        self.end_moves();
        self.read_all();
    }

    /// Let the readers of all partitions go on.
    fn read_all(&mut self) {
        for which in self.all() {
            if let Some(log) = self.servers.log(&stream(which)) {
                self.ledger.read(which, self.topics[which.0], log);
            }
        }
    }

    // --- the end

    fn settle(&mut self) {
        self.dice = Chance::new(7);
        self.heal();
        self.publish();
        self.is_faulty = false;
        self.end_limits();
        // Connections are made again, after pauses.
        self.changed_at = self.now + Duration::from_secs(8);
        for round in 0..3 {
            for producer in 0..self.producers.len() {
                if self.producers[producer].stage == Stage::Open {
                    self.producers[producer].stage = Stage::Ending { commits: true };
                }
                if round == 1 && self.producers[producer].kind != Kind::Plain {
                    self.produce(producer);
                    self.produce(producer);
                }
            }
            let end = self.now + Duration::from_secs(40);
            while self.now < end && self.ledger.failure.is_none() && !(self.is_settled() && round > 0) {
                self.turn();
                self.watch_readers();
                self.now = self.next_due(end);
            }
        }
        self.check_settled();
        let end = self.now + Duration::from_secs(30);
        let is_settled = |world: &Self| world.watched_at >= world.changed_at && (world.is_shared() || world.now >= end);
        while !is_settled(self) && self.ledger.failure.is_none() {
            self.turn();
            self.watch_readers();
            self.now = self.next_due(Time::MAX);
        }
        if self.ledger.failure.is_none() {
            self.check_readers();
            self.check_group();
        }
        if self.ledger.failure.is_none() {
            let ends = self.coordinator.ends.clone();
            self.ledger.check(&self.topics, &self.servers, &ends, &self.workers);
        }
    }

    fn is_settled(&self) -> bool {
        self.workers.iter().all(super::worker::Worker::is_idle)
            && self.producers.iter().all(|producer| producer.is_idle() && producer.stage == Stage::None)
            && self.coordinator.ids.values().all(|id| id.partitions.is_empty())
    }

    /// Nothing fails any more: all that was asked is answered, and written.
    fn check_settled(&mut self) {
        for (number, worker) in self.workers.iter().enumerate() {
            if !worker.is_idle() {
                let (count, asks) = (worker.producers.count(), worker.shown());
                return self.ledger.fail(format!("worker {number} has {count} requests under way: {asks}"));
            }
        }
        for producer in &self.producers {
            if !producer.is_idle() || producer.stage != Stage::None {
                return self.ledger.fail(format!("producer {} is not done: {producer:?}", producer.number));
            }
        }
        for (producer, id) in &self.coordinator.ids {
            if !id.partitions.is_empty() {
                return self.ledger.fail(format!("the transaction of producer {producer} has no end: {id:?}"));
            }
        }
    }
}
