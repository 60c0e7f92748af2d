//! The world of a history of appends: producers, consumers, workers, servers of Redis, the coordinator, and time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use korvet_proto::client::{Address, CallId, LaneOptions, Login, Options, Target};
use korvet_proto::fetch;
use korvet_proto::partition::Layout;
use korvet_proto::pipeline::Time;
use korvet_proto::produce::{self, RequestId};
use korvet_proto::serving::Clock;

use super::consumer::Consumer;
use super::ledger::Ledger;
use super::producer::{Kind, Producer};
use super::redis::{PORT, Servers};
use super::sessions::Session;
use super::shares::Group;
use super::topics::{TopicOf, Which, create, partition, stream};
use super::transactions::Coordinator;
use super::worker::{Faults, Worker};
use super::written::Written;
use crate::chance::Chance;

/// A fault of an owner of the core that is planted on purpose, to show that the checks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendFault {
    /// Replies of a group change places.
    OtherReply,
    /// The epoch of a node's history before is put for its present one.
    OldEpoch,
    /// A group goes to whichever history there is.
    AnyHistory,
    /// The number of a transaction is made up.
    Unverified,
    /// A marker that could not be written counts as written.
    LostMarker,
    /// What got no reply is sent again.
    SentAgain,
    /// Two responses to a client change places.
    OtherAnswer,
    /// Requests begin that may not yet.
    BeginsHeld,
    /// Two frames of a client change places.
    SwappedFrames,
    /// What no replica has counts as confirmed.
    Unconfirmed,
    /// Producers are forgotten that go on.
    ForgottenProducer,
    /// Nobody asks for the epoch that is wanted.
    SwallowedEpoch,
    /// A consumer goes on one offset late after an answer that a limit has cut.
    LateStart,
    /// Of aborted transactions nothing is said.
    NoAborted,
    /// What no replica has is shown.
    Unreplicated,
    /// The incarnation of a topic before is put for its present one.
    OldTopic,
    /// An end that is announced while something is read is not heard.
    LostEnd,
    /// A channel counts as live before that is confirmed, and after its connection was lost.
    EarlyLive,
    /// No leader epoch is over.
    Unfenced,
    /// A read of a log gets the reply to an earlier one of another offset.
    OtherOffset,
    /// Two reads that are sent together get the replies to each other.
    OtherRead,
    /// Entries of other clients are shown before the log has taken them in.
    EarlyEntries,
    /// A member of a share group acquires what another one has.
    SharedLock,
}

/// All of them.
pub const APPEND_FAULTS: [AppendFault; 23] = [
    AppendFault::OtherReply,
    AppendFault::OldEpoch,
    AppendFault::AnyHistory,
    AppendFault::Unverified,
    AppendFault::LostMarker,
    AppendFault::SentAgain,
    AppendFault::OtherAnswer,
    AppendFault::BeginsHeld,
    AppendFault::SwappedFrames,
    AppendFault::Unconfirmed,
    AppendFault::ForgottenProducer,
    AppendFault::SwallowedEpoch,
    AppendFault::LateStart,
    AppendFault::NoAborted,
    AppendFault::Unreplicated,
    AppendFault::OldTopic,
    AppendFault::LostEnd,
    AppendFault::EarlyLive,
    AppendFault::Unfenced,
    AppendFault::OtherOffset,
    AppendFault::OtherRead,
    AppendFault::EarlyEntries,
    AppendFault::SharedLock,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Opening(Time),
    Open,
    /// Closed by its worker: what was written may still arrive.
    Left,
    Gone,
}

/// A connection of a worker to a server.
pub(super) struct Wire {
    pub worker: usize,
    pub connection: CallId,
    pub host: usize,
    pub line: Line,
    pub up: Vec<u8>,
    pub down: Vec<u8>,
    pub hangs: bool,
    pub is_cut: bool,
    pub session: Session,
}

/// A client, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientOf {
    Producer(usize),
    Consumer(usize),
}

/// A connection of a client to a worker.
pub(super) struct ClientLink {
    pub client: ClientOf,
    pub worker: usize,
    pub up: VecDeque<Vec<u8>>,
    /// Responses; `None`: the connection closes.
    pub down: VecDeque<Option<Vec<u8>>>,
    /// When it last brought a response, or something to wait for.
    pub since: Time,
}

/// Markers under way.
pub(super) struct Marking {
    pub worker: usize,
    pub request: RequestId,
    pub producer: usize,
    pub partitions: Vec<Which>,
}

pub(super) struct World {
    pub now: Time,
    pub dice: Chance,
    pub servers: Servers,
    pub workers: Vec<Worker>,
    /// How far the clock of each worker is ahead (ms).
    pub ahead: Vec<i64>,
    pub wires: Vec<Wire>,
    pub links: BTreeMap<u64, ClientLink>,
    pub next_peer: u64,
    pub producers: Vec<Producer>,
    /// The number of the open transaction of a producer.
    pub numbers: Vec<Option<i64>>,
    pub topics: Vec<TopicOf>,
    pub coordinator: Coordinator,
    pub markings: Vec<Marking>,
    pub ledger: Ledger,
    pub consumers: Vec<Consumer>,
    pub written: Written,
    pub group: Option<Group>,
    /// How many records consumers have read.
    pub reads: usize,
    /// When an end of a log last changed, and the last such time after which the readers were watched.
    pub changed_at: Time,
    pub watched_at: Time,
    pub fault: Option<AppendFault>,
    pub is_faulty: bool,
    pub is_traced: bool,
    pub externals: usize,
    /// The last epoch of each log that a failover has cut.
    pub cuts: BTreeMap<Which, i64>,
}

/// The wall clock at the beginning.
const BEGINS_MS: i64 = 1_800_000_000_000;
const TIMEOUT: Duration = Duration::from_secs(4);

impl World {
    pub fn new(seed: u64, fault: Option<AppendFault>) -> Self {
        let mut dice = Chance::new(seed ^ 0xa99e);
        let nodes = if dice.is(40) { 3 } else { 1 };
        let mut servers = Servers::new(nodes);
        let layouts = [Layout::Batch, Layout::Batch, Layout::Record { bits: 0 }, Layout::Record { bits: 10 }];
        let topics: Vec<TopicOf> = (0..dice.within(1, 3))
            .map(|_| TopicOf {
                layout: layouts[dice.below(layouts.len())],
                partitions: dice.within(1, 3) as i32,
                incarnation: 0,
                replicas: u32::from(dice.is(30)),
            })
            .collect();
        servers.shows_early = fault == Some(AppendFault::EarlyEntries);
        for (topic, of) in topics.iter().enumerate() {
            for index in 0..of.partitions {
                servers.owners.insert(stream((topic, index)), (dice.below(nodes), None));
                create(&mut servers, (topic, index), *of);
            }
        }
        let count = dice.within(2, 4);
        let kinds = [Kind::Plain, Kind::Idempotent, Kind::Idempotent, Kind::Transactional];
        let mut producers = Vec::new();
        let mut coordinator = Coordinator::default();
        for number in 0..dice.within(2, 5) {
            let kind = kinds[dice.below(kinds.len())];
            let acks = if kind == Kind::Plain { [0, 1, -1][dice.below(3)] } else { -1 };
            producers.push(Producer::new(number, kind, acks));
            if kind == Kind::Transactional {
                coordinator.add_id(number, producers[number].id);
            }
        }
        let numbers = vec![None; producers.len()];
        let mut world = Self {
            now: Time::from_secs(1_000),
            servers,
            workers: Vec::new(),
            ahead: vec![0; count],
            wires: Vec::new(),
            links: BTreeMap::new(),
            next_peer: 1,
            producers,
            numbers,
            topics,
            coordinator,
            markings: Vec::new(),
            ledger: Ledger::default(),
            consumers: Vec::new(),
            written: Written::default(),
            group: None,
            reads: 0,
            changed_at: Time::ZERO,
            watched_at: Time::ZERO,
            fault,
            is_faulty: true,
            is_traced: std::env::var_os("KORVET_TRACE").is_some(),
            externals: 0,
            cuts: BTreeMap::new(),
            dice,
        };
        for _ in 0..count {
            world.add_worker(nodes);
        }
        world.add_consumers();
        world.add_group();
        // A worker that serves has a map.
        for worker in &mut world.workers {
            worker.client.read_map_soon(world.now);
        }
        world.is_faulty = false;
        world.pass(Duration::from_millis(100), 20);
        world.is_faulty = true;
        world
    }

    fn add_worker(&mut self, nodes: usize) {
        let address = |node: usize| Address { host: "node".to_owned(), port: PORT + node as u16 };
        let target =
            if nodes == 1 { Target::Server(address(0)) } else { Target::Cluster((0..nodes).map(address).collect()) };
        let options = Options {
            target,
            login: Login::default(),
            sentinel_login: Login::default(),
            timeout: TIMEOUT,
            connect_timeout: Duration::from_secs(3),
            seed: self.dice.number(),
            is_watching: true,
        };
        let commands_max = if self.dice.is(50) { self.dice.within(1, 5) } else { 1_000 };
        let (bytes_max, reply_bytes_max, first) = (1 << 20, 1 << 20, Vec::new());
        let lane = LaneOptions { commands_max, bytes_max, reply_bytes_max, first, ping: None };
        let reply_bytes_max = if self.dice.is(30) { 2_000 } else { 1 << 20 };
        let commands_max = if self.dice.is(30) { self.dice.within(8, 20) } else { 1_000 };
        let first = Vec::new();
        let of_reads = LaneOptions { commands_max, bytes_max, reply_bytes_max, first, ping: None };
        let reads = fetch::Options {
            plain_bytes_max: 1 << 20,
            held_bytes_max: if self.dice.is(20) { 2_000 } else { 1 << 20 },
            sessions_max: if self.dice.is(20) { 1 } else { 10 },
            seed: self.dice.number(),
            is_cluster: nodes > 1,
            replicas: 0,
            linger: [Duration::from_millis(20), Duration::from_secs(5)][self.dice.below(2)],
            wait_max: None,
        };
        let of = produce::Options {
            plain_bytes_max: 1 << 20,
            held_bytes_max: if self.dice.is(20) { 500 } else { 1 << 20 },
            timeout: TIMEOUT,
            is_cluster: nodes > 1,
            replicas: 0,
        };
        let is = |fault| self.fault == Some(fault);
        let faults = Faults {
            other_reply: is(AppendFault::OtherReply),
            old_epoch: is(AppendFault::OldEpoch),
            any_history: is(AppendFault::AnyHistory),
            sent_again: is(AppendFault::SentAgain),
            other_answer: is(AppendFault::OtherAnswer),
            begins_held: is(AppendFault::BeginsHeld),
            swapped_frames: is(AppendFault::SwappedFrames),
            swallowed_epoch: is(AppendFault::SwallowedEpoch),
            lost_end: is(AppendFault::LostEnd),
            early_live: is(AppendFault::EarlyLive),
            unfenced: is(AppendFault::Unfenced),
            other_offset: is(AppendFault::OtherOffset),
            other_read: is(AppendFault::OtherRead),
        };
        self.workers.push(Worker::new(options, (lane, of_reads), (of, reads), faults));
    }

    pub fn trace(&self, text: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{:?} {}", self.now, text());
        }
    }

    /// The wall clock.
    pub fn now_ms(&self) -> i64 {
        BEGINS_MS + self.now.as_millis() as i64
    }

    /// What the clocks of a worker show.
    pub fn clock(&self, worker: usize) -> Clock {
        Clock { now: self.now, ms: self.now_ms() + self.ahead[worker] }
    }

    pub fn partition(&self, which: Which) -> korvet_proto::partition::Partition {
        partition(which, self.topics[which.0])
    }

    pub fn some_partition(&mut self) -> Which {
        let topic = self.dice.below(self.topics.len());
        (topic, self.dice.below(self.topics[topic].partitions as usize) as i32)
    }

    /// All partitions.
    pub fn all(&self) -> Vec<Which> {
        let topics = self.topics.iter().enumerate();
        topics.flat_map(|(topic, of)| (0..of.partitions).map(move |index| (topic, index))).collect()
    }

    /// Have markers written of the transactions whose end is decided.
    pub fn mark(&mut self) {
        let waiting = self.coordinator.ids.iter().filter(|(_, id)| id.state.is_prepared() && !id.is_marking);
        for producer in waiting.map(|(producer, _)| *producer).collect::<Vec<_>>() {
            let worker = self.dice.below(self.workers.len());
            let clock = self.clock(worker);
            let id = self.coordinator.ids[&producer].clone();
            let marker = id.marker();
            let (mut asked, mut partitions) = (Vec::new(), Vec::new());
            for (which, incarnation) in id.partitions {
                if self.topics[which.0].incarnation == incarnation {
                    let partition = Arc::new(self.partition(which));
                    asked.push((partition, produce::Asked::Marker(marker), None));
                    partitions.push(which);
                } else {
                    self.coordinator.marked(producer, which);
                }
            }
            if asked.is_empty() {
                self.coordinator.marked(producer, (usize::MAX, 0));
                continue;
            }
            self.trace(|| format!("worker {worker} marks {marker:?} in {partitions:?}"));
            let request = self.workers[worker].append(asked, clock);
            self.markings.push(Marking { worker, request, producer, partitions });
            if let Some(id) = self.coordinator.ids.get_mut(&producer) {
                id.is_marking = true;
            }
        }
    }
}
