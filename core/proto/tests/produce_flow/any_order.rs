//! Whatever Redis answers and the owner decides, in any order: each request has one end, and nothing stays behind.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use korvet_proto::ErrorCode;
use korvet_proto::access::Session;
use korvet_proto::append::Marker;
use korvet_proto::client::Prevented;
use korvet_proto::partition::Layout;
use korvet_proto::produce::{Asked, Decision, Event, GroupId, Options, Question, RequestId};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{
    Frame, OPTIONS, TIMEOUT, Worker, batch, error, external, idempotent, partition, peer, refusal, transactional,
    verdicts,
};

const PEERS: usize = 3;
const KINDS: [Prevented; 5] =
    [Prevented::Away, Prevented::Unknown, Prevented::History, Prevented::Full, Prevented::Closed];

#[derive(Clone, Debug)]
enum Act {
    /// The place of a client, whether it waits for all replicas or for nothing, and partitions.
    Begin(usize, i16, u8, Vec<i32>),
    /// The owner appends markers.
    Append(Vec<i32>),
    Flush,
    /// One of the calls that are under way, and how it ends.
    Reply(usize, u8),
    Prevent(usize, usize),
    /// One of the requests that ask, and whether its questions are decided on as it wants.
    Decide(usize, bool),
    Reorder,
    History(usize),
    Forget(usize),
    Wait(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let partitions = || vec(0..13, 1..4);
    prop_oneof![
        4 => (0..PEERS, -1_i16..2, 0_u8..3, partitions()).prop_map(|(peer, acks, kind, indexes)| {
            Act::Begin(peer, acks, kind, indexes)
        }),
        1 => partitions().prop_map(Act::Append),
        4 => Just(Act::Flush),
        6 => (any::<usize>(), 0_u8..12).prop_map(|(call, how)| Act::Reply(call, how)),
        1 => (any::<usize>(), 0..KINDS.len()).prop_map(|(call, kind)| Act::Prevent(call, kind)),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(request, goes)| Act::Decide(request, goes)),
        1 => Just(Act::Reorder),
        1 => (0_usize..2).prop_map(Act::History),
        1 => (0..PEERS).prop_map(Act::Forget),
        1 => (0_u8..20).prop_map(Act::Wait),
    ]
}

struct World {
    worker: Worker,
    calls: Vec<(GroupId, usize)>,
    asking: Vec<RequestId>,
    wants_epoch: BTreeSet<usize>,
    /// How often each request of a client was ended; and those of the owner that are not done.
    ends: BTreeMap<u64, usize>,
    own: Vec<RequestId>,
    closed: u64,
    /// The clients by their places: one whose connection has to close gets another.
    peers: [u64; PEERS],
    histories: usize,
}

impl World {
    fn new() -> Self {
        let mut worker = Worker::new(Options { replicas: 1, held_bytes_max: 20_000, is_cluster: true, ..OPTIONS });
        worker.flow.put_partition(partition("a", 1, 3, Layout::Record { bits: 20 }));
        worker.flow.set_metered(true);
        let (ends, own) = (BTreeMap::new(), Vec::new());
        let (calls, asking, wants_epoch) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut world =
            Self { worker, calls, asking, wants_epoch, ends, own, closed: 0, peers: [1, 2, 3], histories: 0 };
        world.log_in();
        world
    }

    /// Have each client served, also one that was forgotten and has none of its requests left.
    fn log_in(&mut self) {
        for (place, number) in self.peers.into_iter().enumerate() {
            let may_write_all = place == 0;
            self.worker.flow.put_session(peer(number), Session { may_all: may_write_all, ends_at: None });
        }
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Begin(from, acks, kind, indexes) => {
                let content = [batch(|header| header), idempotent(0), transactional(0, 0)][usize::from(*kind)].clone();
                let batches = indexes.iter().map(|index| (*index, Some(content.clone()))).collect();
                let transactional_id = (*kind == 2).then_some("t");
                let frame = Frame { transactional_id, acks: *acks, topics: vec![("a", batches)] };
                let from = self.peers[*from];
                if self.worker.flow.serves(peer(from), self.worker.now) && self.worker.flow.may_begin(peer(from)) {
                    let number = self.worker.begin(from, frame.bytes());
                    self.ends.insert(number, 0);
                }
            }
            Act::Append(indexes) => {
                let ended = Marker { producer_id: 1, epoch: 0, number: 1, commits: true };
                let marker = |index: &i32| {
                    let partition = partition("a", 1, *index, Layout::Batch);
                    (partition.into(), Asked::Marker(ended), None)
                };
                let clock = self.worker.clock();
                let asked = indexes.iter().map(marker).collect();
                let request = self.worker.flow.append(asked, &self.worker.servers, clock);
                self.own.push(request);
            }
            Act::Flush => {
                for sending in self.worker.flush() {
                    self.calls.extend((0..sending.count).map(|call| (sending.group, call)));
                }
            }
            Act::Reply(call, how) => self.end_call(*call, &reply(*how)),
            Act::Prevent(call, kind) => {
                if let Some((group, call)) = self.take_call(*call) {
                    let clock = self.worker.clock();
                    let Worker { flow, servers, .. } = &mut self.worker;
                    flow.prevented(group, call..call + 1, KINDS[*kind], "why", servers, clock);
                }
            }
            Act::Decide(request, goes) => {
                if !self.asking.is_empty() {
                    let request = self.asking.swap_remove(request % self.asking.len());
                    let questions: Vec<_> = self.worker.flow.questions(request).cloned().collect();
                    assert!(!questions.is_empty());
                    let decide = |question: &Question| match question {
                        _ if !goes => refusal(ErrorCode::KafkaStorageError),
                        Question::Verify { .. } | Question::TimeAt { .. } => Decision::Number(3),
                        Question::Charge { .. } => Decision::Throttle(5, 1),
                        _ => Decision::Go,
                    };
                    let decisions = questions.iter().map(decide).collect();
                    self.worker.decide(request, decisions);
                }
            }
            Act::Reorder => self.worker.flow.reordered(),
            Act::History(node) => {
                self.histories += 1;
                self.worker.servers.histories[*node] = format!("history {}", self.histories);
            }
            Act::Forget(from) => self.worker.flow.forget_session(peer(self.peers[*from])),
            Act::Wait(seconds) => self.worker.now += Duration::from_secs((*seconds).into()),
        }
        self.take_events();
    }

    fn take_call(&mut self, call: usize) -> Option<(GroupId, usize)> {
        let count = self.calls.len();
        (count > 0).then(|| self.calls.swap_remove(call % count))
    }

    fn end_call(&mut self, call: usize, reply: &[u8]) {
        if let Some((group, call)) = self.take_call(call) {
            let clock = self.worker.clock();
            self.worker.flow.replied(group, call, reply, &self.worker.servers, clock);
        }
    }

    fn take_events(&mut self) {
        for event in self.worker.events() {
            match event {
                Event::Answer { number, .. } => *self.ends.get_mut(&number).unwrap() += 1,
                Event::Close { peer: closed, .. } => {
                    self.closed += 1;
                    self.worker.flow.forget_session(closed);
                    for number in &mut self.peers {
                        *number += if peer(*number) == closed { PEERS as u64 } else { 0 };
                    }
                    self.log_in();
                }
                Event::Asked { request, .. } => self.asking.push(request),
                Event::Done { request } => {
                    let place = self.own.iter().position(|own| *own == request).unwrap();
                    self.own.remove(place);
                    assert!(!self.worker.flow.take_outcomes(request).is_empty());
                }
                Event::WantsEpoch { node } => assert!(self.wants_epoch.insert(node), "asked for twice"),
                _ => {}
            }
        }
    }

    /// Answer all that is asked until nothing is under way.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            for node in std::mem::take(&mut self.wants_epoch) {
                let history = self.worker.servers.histories[node].clone();
                self.worker.flow.put_epoch(node, &history, 2);
            }
            self.act(&Act::Flush);
            while !self.calls.is_empty() {
                self.end_call(0, &verdicts(&[(0, 1); 100]));
                self.take_events();
            }
            while !self.asking.is_empty() {
                self.act(&Act::Decide(0, true));
            }
            if self.worker.flow.count() == 0 {
                return;
            }
        }
        panic!("{} requests stay", self.worker.flow.count());
    }
}

fn reply(how: u8) -> Vec<u8> {
    match how {
        0 => external(),
        1 => error("NOSCRIPT No matching script."),
        2 => error("MOVED 1 10.0.0.1:7000"),
        3 => error("NOT_LEADER_OR_FOLLOWER the leader epoch is 4"),
        4 => error("UNKNOWN_TOPIC_OR_PARTITION the partition does not exist"),
        5 => error("OOM command not allowed when used memory > 'maxmemory'."),
        6 => b":1\r\n".to_vec(),
        7 => verdicts(&[(0, 1), (13, 0)]),
        8 => verdicts(&[(5, 1); 100]),
        9 => verdicts(&[(2, 0); 100]),
        10 => verdicts(&[(1, 7); 100]),
        _ => verdicts(&[(0, 1); 100]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_request_has_one_end_and_nothing_stays_behind(acts in vec(act(), 1..120)) {
        let mut world = World::new();
        for act in &acts {
            world.act(act);
        }
        world.settle();
        prop_assert!(world.ends.values().all(|ends| *ends <= 1));
        let unanswered = world.ends.values().filter(|ends| **ends == 0).count();
        prop_assert_eq!(unanswered as u64, world.closed);
        prop_assert!(world.own.is_empty());
        world.worker.now += TIMEOUT;
        world.log_in();
        for number in world.peers {
            prop_assert_eq!(world.worker.flow.begun_by(peer(number)), 0);
            // What was held is free again.
            prop_assert!(world.worker.flow.may_begin(peer(number)));
        }
    }
}
