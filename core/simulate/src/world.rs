//! The world of a history: workers, servers, the network between them, and time.

use std::time::Duration;

use korvet_proto::client::{Address, LaneOptions, Login, Options, Target};
use korvet_proto::pipeline::Time;

use crate::caller::{Worker, packed_words};
use crate::chance::Chance;
use crate::check::Ledger;
use crate::plan::{Kind, Place, Plan, SCRIPTS, TAGS};
use crate::server::{Host, PASSWORD, Servers, first_scripts};
use crate::step::{self, Step};
use crate::topology::{HOST, Topology, port};
use crate::wire::Wire;

/// A fault of the driver that is planted on purpose, to show that the checks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// What is unknown is sent again.
    SentAgain,
    /// A reply is given to the next caller.
    OtherAnswer,
    /// A byte of what has arrived is dropped.
    DroppedByte,
    /// A piece is pushed to another node.
    OtherNode,
    /// MULTI..EXEC is divided.
    DividedMulti,
    /// The end of a call is not heard.
    SwallowedEnd,
    /// That something was prevented is not heard.
    SwallowedOutcome,
    /// A message of a feed is not heard.
    SwallowedMessage,
    /// ASKING does not come directly before its command.
    AskingFirst,
    /// A connection is not closed.
    LeftOpen,
    /// Time passes, and nobody looks.
    NoTick,
    /// Two chunks of what has arrived change places.
    SwappedBytes,
}

/// All of them.
pub const FAULTS: [Fault; 12] = [
    Fault::SentAgain,
    Fault::OtherAnswer,
    Fault::DroppedByte,
    Fault::OtherNode,
    Fault::DividedMulti,
    Fault::SwallowedEnd,
    Fault::SwallowedOutcome,
    Fault::SwallowedMessage,
    Fault::AskingFirst,
    Fault::LeftOpen,
    Fault::NoTick,
    Fault::SwappedBytes,
];

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // none follows from another
pub(crate) struct World {
    pub now: Time,
    pub workers: Vec<Worker>,
    pub wires: Vec<Wire>,
    pub servers: Servers,
    pub ledger: Ledger,
    pub dice: Chance,
    /// Whether anything may fail at all.
    pub is_faulty: bool,
    /// Nothing fails in this history: only slots move.
    pub is_calm: bool,
    /// Bytes need no longer than a few milliseconds.
    pub is_fast: bool,
    /// Workers look at the clock though nothing is due.
    pub looks_often: bool,
    /// Prints what happens.
    pub is_traced: bool,
    pub fault: Option<Fault>,
    pub has_password: bool,
    timeout: Duration,
    pub depth: usize,
    pub published: usize,
    /// How many slots are used.
    pub tags: usize,
}

/// How fast bytes and connections are while nothing fails.
pub(crate) const PROMPT: Duration = Duration::from_millis(1);

impl World {
    pub fn new(seed: u64, fault: Option<Fault>) -> Self {
        let mut dice = Chance::new(seed);
        let kind = dice.below(3);
        let mut servers = new_servers(kind);
        let has_password = dice.is(30);
        if kind != 1 && dice.is(10) {
            servers.hosts.iter_mut().for_each(|host| host.is_secret = true);
        }
        let is_calm = fault.is_none() && dice.is(15);
        let timeout = Duration::from_millis(if is_calm { 6_000 } else { dice.within(1_000, 6_000) as u64 });
        let mut world = Self {
            now: Time::from_secs(if dice.is(50) { 0 } else { 1_000 }),
            workers: Vec::new(),
            wires: Vec::new(),
            servers,
            ledger: Ledger { is_calm, is_cluster: kind == 2, timeout, ..Ledger::default() },
            is_faulty: true,
            is_calm,
            is_fast: is_calm || dice.is(20),
            looks_often: dice.is(50),
            is_traced: std::env::var_os("KORVET_TRACE").is_some(),
            fault,
            has_password,
            timeout,
            depth: 0,
            published: 0,
            tags: dice.within(1, TAGS + 1),
            dice,
        };
        for _ in 0..world.dice.within(1, 4) {
            world.add_worker(kind);
        }
        world
    }

    fn add_worker(&mut self, kind: usize) {
        let addresses: Vec<Address> = self.servers.hosts.iter().map(|host| host.address.clone()).collect();
        let target = match kind {
            0 => Target::Server(addresses[0].clone()),
            1 => Target::Sentinels { addresses: addresses[2..].to_vec(), master: "main".to_owned() },
            _ => Target::Cluster(addresses[..self.dice.within(1, 4)].to_vec()),
        };
        let password = if self.has_password { PASSWORD } else { "" };
        let options = Options {
            target,
            login: Login {
                username: String::new(),
                password: password.to_owned(),
                database: self.dice.below(2) as u32,
            },
            sentinel_login: Login::default(),
            timeout: self.timeout,
            connect_timeout: Duration::from_millis(self.dice.within(300, 2_000) as u64)
                * if self.is_calm { 6 } else { 1 },
            seed: self.dice.number(),
            is_watching: true,
        };
        let mut lanes: Vec<LaneOptions> = (0..self.dice.within(1, 3)).map(|_| self.new_lane()).collect();
        if self.dice.is(60) {
            let ping = Duration::from_millis(self.dice.within(500, 5_000) as u64);
            lanes.push(LaneOptions { ping: Some(ping), ..self.new_lane() });
        }
        self.ledger.add_worker(lanes.len());
        self.workers.push(Worker::new(options, &lanes));
    }

    fn new_lane(&mut self) -> LaneOptions {
        let (commands_max, bytes_max) = if self.dice.is(30) { (self.dice.within(1, 6), 300) } else { (1_000, 1 << 20) };
        let mut first = Vec::new();
        if self.dice.is(30) {
            first.push(packed_words(&["FIRST"]));
        }
        if self.dice.is(30) {
            first
                .extend(first_scripts().iter().map(|sha| packed_words(&["SCRIPT", "LOAD", &format!("text of {sha}")])));
        }
        LaneOptions { commands_max, bytes_max, reply_bytes_max: self.dice.within(1, 3_000), first, ping: None }
    }

    /// Whether the fault that is planted happens now.
    pub fn strikes(&mut self, fault: Fault) -> bool {
        self.fault == Some(fault) && self.is_faulty && self.dice.is(30)
    }

    // --- steps

    /// Print what happens if the history is traced.
    pub fn trace(&self, text: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{:?} {}", self.now, text());
        }
    }

    pub fn step(&mut self, step: &Step) {
        self.dice = Chance::new(step.dice);
        self.trace(|| format!("step {step:?}"));
        let is_harmless =
            matches!(step.kind, step::Kind::Ask | step::Kind::Run | step::Kind::Slots | step::Kind::Publish);
        if self.is_calm && !is_harmless {
            return;
        }
        if matches!(step.kind, step::Kind::Slots | step::Kind::Failover | step::Kind::Heal) {
            self.ledger.maps += 1;
        }
        match step.kind {
            step::Kind::Ask => {
                let worker = self.dice.below(self.workers.len());
                self.ask(worker);
            }
            step::Kind::Run => {
                let bound = [3, 30, 300, 3_000][self.dice.below(4)];
                let time = Duration::from_micros(self.dice.within(100, bound * 1_000) as u64);
                self.pass(time);
            }
            step::Kind::Wire => self.disturb_wire(),
            step::Kind::Host => self.disturb_host(),
            step::Kind::Slots => self.disturb_slots(),
            step::Kind::Failover => self.fail_over(),
            step::Kind::Own => {
                let worker = self.dice.below(self.workers.len());
                self.own(worker);
            }
            step::Kind::Clock => {
                let worker = self.dice.below(self.workers.len());
                let bound = [20, 1_000, 20_000][self.dice.below(3)];
                self.ledger.has_jumped = true;
                self.workers[worker].ahead += self.dice.below(bound) as i64 - bound as i64 / 3;
            }
            step::Kind::Publish => self.publish(),
            step::Kind::Heal => self.heal(),
        }
        for worker in 0..self.workers.len() {
            self.flush(worker);
        }
    }

    /// A caller asks for something.
    pub fn ask(&mut self, worker: usize) {
        let lanes: Vec<usize> =
            (0..self.workers[worker].lanes.len()).filter(|lane| !self.workers[worker].lanes[*lane]).collect();
        let lane = self.dice.pick(&lanes).copied().unwrap_or_default();
        let count = if self.dice.is(50) { 1 } else { self.dice.within(1, 12) };
        let is_scripts = self.dice.is(35);
        let mut places = Vec::new();
        let is_one_slot = self.dice.is(30);
        let mut tag = self.dice.below(self.tags);
        while places.len() < count {
            tag = if is_one_slot { tag } else { self.dice.below(self.tags) };
            let is_second = self.dice.is(30);
            let place = |kind| Place { kind, tag, is_second };
            if is_scripts {
                places.push(place(Kind::Script(self.dice.below(SCRIPTS))));
            } else if self.dice.is(15) {
                places.push(place(Kind::Multi));
                for _ in 0..self.dice.below(4) {
                    places.push(place(if self.dice.is(30) { Kind::Pair } else { Kind::Count }));
                }
                places.push(place(Kind::Exec));
            } else {
                let large = [10, 300, 300, 70_000][self.dice.below(4)];
                let kind =
                    [Kind::Count, Kind::Count, Kind::Large(large), Kind::Pair, Kind::Fail, Kind::Time, Kind::Blob(200)];
                places.push(place(kind[self.dice.below(kind.len())]));
            }
        }
        let is_large = !is_scripts && self.dice.is(15);
        if is_large {
            for place in &mut places {
                if place.kind == Kind::Count {
                    place.kind = Kind::Blob(self.dice.below(2_000));
                }
            }
        }
        let node = self.some_node(worker);
        let has_history = is_scripts && self.dice.is(if node.is_some() { 50 } else { 5 });
        let history = has_history.then(|| self.some_history(worker, lane, node.unwrap_or_default()));
        let is_rerun = is_scripts && self.dice.is(80);
        let reply_bytes = if is_large { self.dice.within(1, 2_000) } else { 0 };
        let number = self.ledger.next_number(worker);
        let asked =
            Plan { worker, number, lane, node, places, is_scripts, is_rerun, reply_bytes, history, ..Plan::default() };
        self.begin(asked);
    }

    /// By chance a node to which a call is sent whatever it has.
    fn some_node(&mut self, worker: usize) -> Option<usize> {
        if !self.dice.is(15) {
            return None;
        }
        let nodes: Vec<usize> = self.workers[worker].client.slots().iter().map(|(.., node)| *node).collect();
        self.dice.pick(&nodes).copied()
    }

    fn some_history(&mut self, worker: usize, lane: usize, node: usize) -> String {
        let known = self.workers[worker].client.history(lane, node).to_owned();
        if self.dice.is(20) { "another".to_owned() } else { known }
    }

    pub fn read_map(&mut self, worker: usize) {
        let number = self.ledger.next_number(worker);
        self.begin(Plan { worker, number, is_map: true, ..Plan::default() });
    }

    pub fn probe(&mut self, worker: usize, lane: usize) -> usize {
        let place = |tag| Place { kind: Kind::Fail, tag, is_second: false };
        let number = self.ledger.next_number(worker);
        self.begin(Plan { worker, number, lane, places: (0..TAGS).map(place).collect(), ..Plan::default() });
        number
    }

    /// Let a server begin another history under its connections, and the owner of one hear of it.
    fn begin_history(&mut self, worker: usize) {
        let up: Vec<(usize, usize, usize)> = self.workers[worker]
            .links
            .iter()
            .filter_map(|((lane, node), known)| Some((*lane, *node, known.wire?)))
            .collect();
        let Some((lane, node, wire)) = self.dice.pick(&up).copied() else { return };
        let history = format!("history {}", self.dice.below(1_000_000));
        self.wires[wire].session.histories.push(history.clone());
        self.workers[worker].client.set_history(lane, node, history);
    }

    /// The owner of a client does something.
    pub fn own(&mut self, worker: usize) {
        if self.depth > 0 {
            return;
        }
        self.depth += 1;
        let now = self.clock(worker);
        let lane = self.dice.below(self.workers[worker].lanes.len());
        let node = self.some_node(worker).unwrap_or_default();
        let is_feed = self.workers[worker].lanes[lane];
        let number = self.ledger.next_number(worker);
        match self.dice.below(15) {
            0 | 1 => self.ask(worker),
            2 | 3 if !is_feed => {
                let node = Some(node).filter(|_| self.dice.is(70));
                self.begin(Plan { worker, number, lane, node, ..Plan::default() });
            }
            4 => self.read_map(worker),
            5 => self.workers[worker].client.read_map_soon(now),
            6 => self.workers[worker].client.lose(lane, node, "lost by its owner", self.dice.is(50), now),
            7 if self.dice.is(20) => {
                self.workers[worker].client.close(lane, now);
                self.workers[worker].closed[lane] = true;
            }
            8..=10 => {
                let feed = self.workers[worker].feed.filter(|_| self.workers[worker].client.name(node).is_some());
                let Some(feed) = feed else { return self.depth -= 1 };
                let is_kept = self.dice.is(80);
                let pings = self.dice.is(80);
                self.workers[worker].client.keep(feed, node, is_kept, pings, now);
                let known = self.workers[worker].links.entry((feed, node)).or_default();
                (known.is_kept, known.pings) = (is_kept, pings);
            }
            11 if self.servers.cluster.is_some() => {
                let (tag, to) = (self.dice.below(self.tags), self.dice.below(self.servers.hosts.len()));
                self.workers[worker].client.moved(crate::plan::slot(tag), HOST, port(to), now);
            }
            12 => self.begin_history(worker),
            13 => {
                let node = Some(node).filter(|_| self.dice.is(70));
                self.workers[worker].client.set_lease(lane, node, self.dice.below(100) as i64);
            }
            _ => {}
        }
        self.pump(worker, None);
        self.depth -= 1;
    }
}

fn new_servers(kind: usize) -> Servers {
    let address = |host: &str, port| Address { host: host.to_owned(), port };
    let mut servers = Servers::default();
    match kind {
        0 => servers.hosts.push(Host::new(address("server", 6_379))),
        1 => {
            servers.has_sentinels = true;
            servers.hosts = [("m1", 6_379), ("m2", 6_379), ("s1", 26_379), ("s2", 26_379)]
                .map(|(host, port)| Host::new(address(host, port)))
                .into();
            servers.hosts[1].is_replica = true;
            servers.hosts[2].is_sentinel = true;
            servers.hosts[3].is_sentinel = true;
        }
        _ => {
            servers.hosts = (0..4).map(|node| Host::new(address(HOST, port(node)))).collect();
            servers.cluster = Some(Topology::new(4, 3));
        }
    }
    servers
}
