//! Whatever happens, in any order: each request has one answer, consumers get all records once and in order, and nothing
//! stays behind.

use std::collections::BTreeMap;
use std::time::Duration;

use korvet_proto::ErrorCode;
use korvet_proto::client::Prevented;
use korvet_proto::fetch::{Options, Question};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::acts::{Act, CLIENTS, KINDS, Place, STREAMS, act};
use crate::redis::TRANSACTIONAL;
use crate::support::{LINGER, MS, OPTIONS, Worker, peer, refusal};
use crate::wire::{self, Asks, Fetch, Response, fetch};

/// Longer than any request waits.
const LONG: Duration = Duration::from_secs(20);
/// What a piece that was read ahead is held for, at most.
const AHEAD: Duration = Duration::from_secs(4);
const OUT_OF_RANGE: i16 = 1;
const UNKNOWN_NAME: i16 = 3;
const UNKNOWN_ID: i16 = 100;
/// The partition is elsewhere, or Redis cannot be read.
const AWAY: [i16; 2] = [6, 56];
const NOT_FOUND: i16 = 70;

/// A batch that was appended.
#[derive(Debug)]
struct Stored {
    offset: i64,
    next_offset: i64,
    rest: Vec<u8>,
    transaction: Option<usize>,
    /// In which step it was lost.
    lost_at: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Committed,
    Aborted,
}

/// A request under way: its number, the step in which it began, and its partitions.
type UnderWay = (u64, u64, Vec<(Place, i64)>);

struct Client {
    number: u64,
    kind: usize,
    /// The next epoch, with the id of the session.
    session: (i32, i32),
    /// What the session knows.
    named: BTreeMap<Place, i64>,
    positions: BTreeMap<Place, i64>,
    incarnation: u8,
    request: Option<UnderWay>,
}

impl Client {
    fn new(number: u64, kind: usize) -> Self {
        let positions = STREAMS.iter().map(|place| (*place, 0)).collect();
        let (named, request) = (BTreeMap::new(), None);
        Self { number, kind, session: (0, 0), named, positions, incarnation: 0, request }
    }

    fn has_session(&self) -> bool {
        self.session.1 > 0
    }

    fn asks(&mut self, wait_ms: i32, bytes_min: i32, bytes_max: i32) -> (Fetch, Vec<(Place, i64)>) {
        let (version, is_committed, wants_session) = CLIENTS[self.kind];
        let mut topics: Vec<(&str, Vec<Asks>)> = Vec::new();
        let mut named = Vec::new();
        for (place, offset) in &self.positions {
            if self.has_session() && self.named.get(place) == Some(offset) {
                continue;
            }
            if topics.last().is_none_or(|(name, _)| *name != place.0) {
                topics.push((place.0, Vec::new()));
            }
            topics.last_mut().unwrap().1.push(wire::at(place.1, *offset));
            named.push((*place, *offset));
        }
        let session = if wants_session { self.session } else { (0, -1) };
        let incarnation = self.incarnation;
        (
            Fetch { version, incarnation, wait_ms, bytes_min, bytes_max, is_committed, session, topics, ..fetch(&[]) },
            named,
        )
    }
}

struct World {
    worker: Worker,
    step: u64,
    stored: BTreeMap<String, Vec<Stored>>,
    /// Start and end of each log, from which step on; -1 as long as there is none.
    bounds: BTreeMap<String, Vec<(u64, i64, i64)>>,
    transactions: Vec<State>,
    /// The open transaction of a log.
    open: BTreeMap<String, usize>,
    clients: Vec<Client>,
    numbers: u64,
    histories: usize,
    room: usize,
}

fn stream_of((name, index): Place) -> String {
    format!("{name}:{index}")
}

impl World {
    fn new(is_cluster: bool) -> Self {
        let mut worker = Worker::new(Options { is_cluster, sessions_max: 1, ..OPTIONS });
        worker.is_prompt = false;
        worker.disconnect(1);
        worker.flow.set_metered(true);
        let room = worker.flow.room();
        let (stored, open, transactions) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let clients = (0..CLIENTS.len()).map(|kind| Client::new(kind as u64 + 1, kind)).collect();
        let (step, numbers, histories) = (0, CLIENTS.len() as u64, 0);
        let bounds = BTreeMap::new();
        let mut world = Self { worker, step, stored, bounds, transactions, open, clients, numbers, histories, room };
        for client in &world.clients {
            world.worker.connect(client.number, client.kind % 2 == 0);
        }
        world.note_bounds();
        world
    }

    fn act(&mut self, act: &Act) {
        self.step += 1;
        match *act {
            Act::Begin(client, wait_ms, bytes_min, bytes_max) => self.begin(client, wait_ms, bytes_min, bytes_max),
            Act::Append(log, count, bytes, is_announced) => {
                let stream = stream_of(STREAMS[log]);
                for _ in 0..count {
                    if self.worker.redis.logs.contains_key(&stream) {
                        self.worker.append_silently(&stream, 1 + bytes % 3, bytes, |_| {});
                        self.note_append(&stream, None);
                        if is_announced {
                            self.worker.announce(&stream);
                        }
                    }
                }
            }
            Act::Transact(log, what) => self.transact(log as i32, what),
            Act::DeleteRecords(log, count) => {
                let stream = stream_of(STREAMS[log]);
                if let Some(log) = self.worker.redis.logs.get_mut(&stream) {
                    log.delete_until(log.start + i64::from(count));
                }
                self.note_lost(&stream);
            }
            Act::Cut(log, count) => self.cut(log, count.into()),
            Act::DeleteTopic => {
                self.worker.delete("b");
                self.note_lost("b:0");
                self.note_lost("b:1");
            }
            Act::CreateTopic => {
                if !self.worker.owner.topics.contains_key("b") {
                    self.histories += 1;
                    self.worker.create("b", self.histories as u8);
                }
            }
            Act::Interrupt(channel) => {
                let channel = pick(self.worker.heard.len(), channel).and_then(|at| self.worker.heard.iter().nth(at));
                if let Some(channel) = channel.cloned() {
                    self.worker.interrupt(&channel);
                }
            }
            Act::Live(channel) => {
                if let Some(at) = pick(self.worker.asked.len(), channel) {
                    let channel = self.worker.asked.swap_remove(at);
                    self.worker.live(&channel);
                }
            }
            Act::Fail(channel) => {
                if let Some(at) = pick(self.worker.asked.len(), channel) {
                    let channel = self.worker.asked.swap_remove(at);
                    let Worker { flow, servers, now, .. } = &mut self.worker;
                    flow.failed(&channel, "away", servers, *now);
                }
            }
            Act::Reply(call) => {
                if let Some(call) = pick(self.worker.calls.len(), call).and_then(|at| self.worker.calls.remove(at)) {
                    self.worker.reply(&call);
                }
            }
            Act::Prevent(call, kind) => {
                if let Some(call) = pick(self.worker.calls.len(), call).and_then(|at| self.worker.calls.remove(at)) {
                    self.worker.prevent(&call, KINDS[kind]);
                }
            }
            Act::Decide(request, goes) => self.decide(request, goes),
            Act::Wait(ms) => self.wait(Duration::from_millis(ms)),
            Act::Disconnect(client) => self.disconnect(client),
            Act::ForgetTopics => self.worker.flow.forget_topics(),
            Act::Written(client) => self.worker.flow.written(peer(self.clients[client].number)),
        }
        self.worker.turn();
        self.note_bounds();
        self.take_answers();
    }

    fn begin(&mut self, client: usize, wait_ms: i32, bytes_min: i32, bytes_max: i32) {
        let client = &mut self.clients[client];
        if client.request.is_none() {
            let (asks, named) = client.asks(wait_ms, bytes_min, bytes_max);
            let number = self.worker.begin_as(client.number, &asks);
            client.request = Some((number, self.step, named));
        }
    }

    fn transact(&mut self, index: i32, what: u8) {
        let stream = format!("a:{index}");
        let open = self.open.get(&stream).copied();
        match (what, open) {
            (0..=2, _) => {
                let transaction = open.unwrap_or_else(|| {
                    self.transactions.push(State::Open);
                    self.transactions.len() - 1
                });
                self.open.insert(stream.clone(), transaction);
                // A producer has one transaction after the other.
                let end = self.worker.redis.log(&stream).end;
                self.worker.append_of(&stream, 7, TRANSACTIONAL);
                self.worker.redis.log(&stream).open.get_or_insert(end);
                self.note_append(&stream, Some(transaction));
                self.worker.announce(&stream);
            }
            (_, Some(transaction)) => {
                let commits = self.step % 2 == 0;
                self.open.remove(&stream);
                self.transactions[transaction] = if commits { State::Committed } else { State::Aborted };
                self.worker.end_transaction(index, 7, commits);
                self.note_append(&stream, None);
            }
            _ => {}
        }
    }

    /// Fail over to a replica that lacks the last entries of a log.
    fn cut(&mut self, log: usize, count: usize) {
        let stream = stream_of(STREAMS[log]);
        let Some(log) = self.worker.redis.logs.get_mut(&stream) else { return };
        let left = log.entries.len().saturating_sub(count);
        let end = left.checked_sub(1).map_or(log.start, |last| log.entries[last].end);
        log.cut(end);
        self.note_lost(&stream);
        self.histories += 1;
        let slot = STREAMS.iter().find(|place| stream_of(**place) == stream).unwrap().1 as usize;
        let nodes = self.worker.servers.histories.len();
        self.worker.servers.histories[slot % nodes] = format!("history {}", self.histories + 10);
        // What is under way is lost with the connection, and so is what is announced.
        let (lost, left) =
            self.worker.calls.drain(..).partition::<Vec<_>, _>(|call| usize::from(call.slot) % nodes == slot % nodes);
        self.worker.calls = left.into();
        for call in lost {
            self.worker.prevent(&call, Prevented::History);
        }
        for place in STREAMS {
            if place.1 as usize % nodes == slot % nodes {
                self.worker.interrupt(&stream_of(place));
            }
        }
    }

    fn decide(&mut self, request: usize, goes: bool) {
        let Some(at) = pick(self.worker.asking.len(), request) else { return };
        let request = self.worker.asking.swap_remove(at);
        if goes {
            return self.worker.decide(request);
        }
        let questions: Vec<Question> = self.worker.flow.questions(request).cloned().collect();
        let decisions = questions.iter().map(|_| refusal(ErrorCode::KafkaStorageError)).collect();
        let Worker { flow, servers, now, .. } = &mut self.worker;
        flow.decide(request, decisions, servers, *now);
    }

    fn wait(&mut self, time: Duration) {
        self.worker.now += time;
        if self.worker.flow.due().is_some_and(|due| due <= self.worker.now) {
            let Worker { flow, servers, now, .. } = &mut self.worker;
            flow.tick(servers, *now);
        }
        assert!(self.worker.flow.due().is_none_or(|due| due > self.worker.now));
    }

    /// The connection of a client ends; it comes again over another.
    fn disconnect(&mut self, client: usize) {
        let client = &mut self.clients[client];
        self.worker.disconnect(client.number);
        self.numbers += 1;
        (client.number, client.session, client.request) = (self.numbers, (0, 0), None);
        self.worker.connect(client.number, client.kind % 2 == 0);
    }

    // --- what was appended and lost

    fn note_append(&mut self, stream: &str, transaction: Option<usize>) {
        let log = self.worker.redis.log(stream);
        let entry = log.entries.last().unwrap();
        let batch = &entry.fields[0].1;
        let count = i64::from(i32::from_be_bytes(batch[23..27].try_into().unwrap())) + 1;
        let stored = Stored {
            offset: entry.end - count,
            next_offset: entry.end,
            rest: batch[16..].to_vec(),
            transaction,
            lost_at: None,
        };
        self.stored.entry(stream.into()).or_default().push(stored);
    }

    fn note_lost(&mut self, stream: &str) {
        let log = self.worker.redis.logs.get(stream);
        for stored in self.stored.entry(stream.into()).or_default() {
            let is_there =
                |entry: &crate::redis::Entry| entry.end == stored.next_offset && entry.fields[0].1[16..] == stored.rest;
            if !log.is_some_and(|log| log.entries.iter().any(is_there)) {
                stored.lost_at.get_or_insert(self.step);
            }
        }
    }

    fn note_bounds(&mut self) {
        for place in STREAMS {
            let stream = stream_of(place);
            let now = self.worker.redis.logs.get(&stream).map_or((-1, -1), |log| (log.start, log.end));
            let known = self.bounds.entry(stream).or_default();
            if known.last().is_none_or(|(_, start, end)| (*start, *end) != now) {
                known.push((self.step, now.0, now.1));
            }
        }
    }

    /// Whether the bounds of a log were such at any time since a step.
    fn had_bounds(&self, stream: &str, since: u64, are: impl Fn(i64, i64) -> bool) -> bool {
        let known = &self.bounds[stream];
        let ends = known.iter().skip(1).map(|(step, ..)| *step).chain([u64::MAX]);
        known.iter().zip(ends).any(|((_, start, end), until)| until >= since && are(*start, *end))
    }

    // --- what clients get

    fn take_answers(&mut self) {
        assert!(self.worker.closed.is_empty());
        while let Some((number, response)) = self.worker.answers.pop_front() {
            let is_asked = |client: &Client| client.request.as_ref().is_some_and(|(asked, ..)| *asked == number);
            let client = self.clients.iter().position(is_asked);
            let client = client.unwrap_or_else(|| panic!("{number} is answered, and was before or has no client"));
            self.take_answer(client, &response);
        }
    }

    fn take_answer(&mut self, client: usize, response: &Response) {
        let (_, begun, asked) = self.clients[client].request.take().unwrap();
        let asked_places: Vec<Place> = asked.iter().map(|(place, _)| *place).collect();
        let wants_session = CLIENTS[self.clients[client].kind].2;
        if response.error != 0 {
            assert!(response.error == NOT_FOUND || AWAY.contains(&response.error), "{response:?}");
            self.clients[client].session = (0, 0);
            return;
        }
        let mut answered: Vec<Place> = Vec::new();
        let mut is_gone = false;
        for result in &response.results {
            let place = STREAMS.into_iter().find(|(name, index)| *name == result.topic && *index == result.index);
            let place = place.unwrap();
            assert!(!answered.contains(&place), "{place:?} twice");
            answered.push(place);
            is_gone |= result.error == UNKNOWN_ID;
            self.take_result(client, place, begun, result);
        }
        let client = &mut self.clients[client];
        if wants_session {
            if !client.has_session() {
                assert_eq!(answered, asked_places);
                client.named.clear();
            }
            client.named.extend(asked);
            client.session = if response.session == 0 { (0, 0) } else { (response.session, client.session.1 + 1) };
        } else {
            assert_eq!(answered, asked_places);
        }
        if is_gone {
            client.session = (client.session.0, 0);
            client.incarnation = self.worker.owner.topics.get("b").copied().unwrap_or(0);
        }
    }

    fn take_result(&mut self, client: usize, place: Place, begun: u64, result: &wire::Result) {
        let stream = stream_of(place);
        let position = self.clients[client].positions[&place];
        match result.error {
            0 => {}
            OUT_OF_RANGE => {
                assert!(self.had_bounds(&stream, begun, |start, end| !(start..=end).contains(&position)));
                let log = self.worker.redis.logs.get(&stream);
                let position = log.map_or(0, |log| position.clamp(log.start, log.end));
                self.clients[client].positions.insert(place, position);
                return;
            }
            UNKNOWN_NAME | UNKNOWN_ID => {
                assert_eq!(place.0, "b");
                self.clients[client].positions.insert(place, 0);
                return;
            }
            code => {
                assert!(AWAY.contains(&code), "{result:?}");
                return;
            }
        }
        assert!(result.start <= result.high_watermark && result.stable <= result.high_watermark, "{result:?}");
        let mut next_offset = position;
        let mut aborted = result.aborted.clone().unwrap_or_default();
        aborted.sort_by_key(|(_, first)| *first);
        let mut skipped: Vec<i64> = Vec::new();
        let is_committed = CLIENTS[self.clients[client].kind].1;
        assert_eq!(result.aborted.is_some(), is_committed);
        for batch in &result.batches {
            let is_next = if next_offset == position {
                (batch.offset..batch.next_offset).contains(&position)
            } else {
                batch.offset == next_offset
            };
            assert!(is_next, "{place:?}: {next_offset} is not the beginning of {batch:?}");
            next_offset = batch.next_offset;
            let is_same = |stored: &&Stored| stored.offset == batch.offset && stored.rest == batch.rest;
            let stored = self.stored[&stream].iter().find(is_same);
            let stored = stored.unwrap_or_else(|| panic!("{place:?}: {batch:?} was never appended"));
            assert!(stored.lost_at.is_none_or(|at| at >= begun), "{place:?}: {batch:?} was lost before");
            if is_committed {
                assert!(batch.next_offset <= result.stable);
                while let Some((producer, _)) = aborted.first().filter(|(_, first)| *first < batch.next_offset) {
                    skipped.push(*producer);
                    aborted.remove(0);
                }
                if batch.is_control {
                    skipped.retain(|producer| *producer != batch.producer_id);
                } else if let Some(transaction) = stored.transaction {
                    let is_shown = !skipped.contains(&batch.producer_id);
                    let state = self.transactions[transaction];
                    let expected = if is_shown { State::Committed } else { State::Aborted };
                    assert_eq!(state, expected, "{place:?}: {batch:?} {:?}", result.aborted);
                }
            }
        }
        self.clients[client].positions.insert(place, next_offset);
    }

    // --- the end

    /// Answer and decide on all, and let the time of all requests end.
    fn settle(&mut self) {
        for _ in 0..4 {
            for _ in 0..5_000 {
                if self.worker.calls.is_empty() && self.worker.asking.is_empty() && self.worker.asked.is_empty() {
                    break;
                }
                self.act(&Act::Live(0));
                self.act(&Act::Decide(0, true));
                self.act(&Act::Reply(0));
            }
            assert!(self.worker.calls.is_empty() && self.worker.asking.is_empty());
            self.act(&Act::Wait(LONG.as_millis() as u64));
        }
        let waiting = self.clients.iter().filter(|client| client.request.is_some()).count();
        assert_eq!((waiting, self.worker.flow.count(), self.worker.flow.parked()), (0, 0, 0));
    }

    /// Have a client read all that it may see: that takes no more requests than there are batches, and a few.
    fn catch_up(&mut self, client: usize) {
        let behind = |world: &Self| {
            let of = &world.clients[client];
            let is_committed = CLIENTS[of.kind].1;
            let is_behind = |place: &Place| {
                let Some(log) = world.worker.redis.logs.get(&stream_of(*place)) else { return false };
                let stable = log.open.filter(|_| is_committed).map_or(log.end, |open| open.max(log.start));
                of.positions[place] != stable && !(of.positions[place] > stable && is_committed)
            };
            STREAMS.iter().any(is_behind)
        };
        for _ in 0..50 {
            if !behind(self) {
                return;
            }
            self.act(&Act::Begin(client, 500, 1, 50 << 20));
            self.settle();
        }
        panic!("client {client} does not get on: {:?}", self.clients[client].positions);
    }
}

fn pick(count: usize, any: usize) -> Option<usize> {
    (count > 0).then(|| any % count)
}

/// What is never there when nobody is: requests, readers, logs, groups, and what was read ahead.
fn assert_empty(world: &World) {
    let flow = &world.worker.flow;
    assert_eq!((flow.count(), flow.parked(), flow.due(), flow.room()), (0, 0, None, world.room));
    assert!(world.worker.heard.is_empty(), "{:?}", world.worker.heard);
    let held = format!("{flow:?}");
    for none in ["connections: {}", "timers: {}", "pieces: {}", "begun: []", "channels: {}", "ended: {}", "live: {}"] {
        assert!(held.contains(none), "{none}");
    }
    for value in ["Pending", "Reader", "Log", "Group"] {
        assert!(!held.contains(&format!("value: Some({value} ")), "{value}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_request_is_answered_once_and_consumers_get_all_in_order(
        is_cluster in any::<bool>(),
        acts in vec(act(), 1..250),
    ) {
        let mut world = World::new(is_cluster);
        for act in &acts {
            world.act(act);
        }
        world.settle();
        for client in 0..CLIENTS.len() {
            world.catch_up(client);
        }
        for client in &world.clients {
            world.worker.flow.forget_session(peer(client.number), world.worker.now);
        }
        for _ in 0..3 {
            world.worker.turn();
            world.wait(LINGER + AHEAD + MS);
        }
        world.worker.turn();
        assert_empty(&world);
    }
}
