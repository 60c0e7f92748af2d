//! A worker whose Redis, owner and clock are the test's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use korvet_proto::ErrorCode;
use korvet_proto::access::{Right, Session};
use korvet_proto::client::{Prevented, SLOTS, Span};
use korvet_proto::compression::Codec;
use korvet_proto::failure::{Failure, FailureKind};
use korvet_proto::fetch::{Consumers, Decision, Event, GroupId, Options, Question, RequestId};
use korvet_proto::partition::{Keys, Layout, Partition, Topic, TopicConfig, TopicName};
use korvet_proto::peer::PeerId;
use korvet_proto::pipeline::Time;
use korvet_proto::serving::Incoming;
use korvet_proto::shared::Shared;

use crate::batches::{CONFIG, batch_of, valued};
use crate::redis::{CONTROL, Redis, TRANSACTIONAL};
use crate::wire::{self, Fetch, Response, joined};

#[path = "../support/servers.rs"]
mod servers;
use servers::piece;
pub use servers::{Servers, peer};

pub const MS: Duration = Duration::from_millis(1);
pub const LINGER: Duration = Duration::from_secs(5);
pub const OPTIONS: Options = Options {
    plain_bytes_max: 1 << 20,
    held_bytes_max: 64 << 20,
    sessions_max: 10,
    seed: 7,
    is_cluster: false,
    replicas: 0,
    linger: LINGER,
    wait_max: None,
};

/// A read under way: its group, the place of its first command, and the replies, which Redis has given already.
#[derive(Debug)]
pub struct Call {
    pub group: GroupId,
    pub first: usize,
    pub replies: Vec<Vec<u8>>,
    pub slot: u16,
}

/// What the owner decides on, unless the test does.
#[derive(Default)]
pub struct Owner {
    /// The topics that are there, by name: the number of the incarnation.
    pub topics: BTreeMap<String, u8>,
    /// How many partitions each has that is created from now on.
    pub partitions: i32,
    /// Those that clients may not read.
    pub denied: BTreeSet<&'static str>,
    pub limit: Option<i64>,
    pub throttle_ms: u32,
    /// The answers to other questions.
    pub decisions: VecDeque<Decision>,
    /// All questions that were asked.
    pub asked: Vec<Question>,
}

pub struct Worker {
    pub flow: Consumers,
    pub servers: Servers,
    pub redis: Redis,
    pub owner: Owner,
    pub now: Time,
    pub calls: VecDeque<Call>,
    /// Channels to subscribe to; channels subscribed to.
    pub asked: Vec<String>,
    pub heard: BTreeSet<String>,
    pub answers: VecDeque<(u64, Response)>,
    pub closed: Vec<PeerId>,
    pub others: Vec<Event>,
    pub asking: Vec<RequestId>,
    pub reply_bytes: usize,
    /// Whether questions are decided on, and channels listened to, as soon as they come.
    pub is_prompt: bool,
    /// How long it takes until reads are sent.
    pub sends_after: Duration,
    appended: u64,
    versions: BTreeMap<u64, i16>,
    numbers: u64,
    timer: Option<Time>,
    sets_timer: bool,
}

/// A partition of an incarnation of a topic, in layout `batch` and in the slot of its index.
pub fn partition(name: &str, incarnation: u8, index: i32) -> Partition {
    partition_with(name, incarnation, index, CONFIG)
}

pub fn partition_with(name: &str, incarnation: u8, index: i32, config: TopicConfig) -> Partition {
    let mut id = [name.as_bytes()[0]; 16];
    id[15] = incarnation;
    let topic = Topic { name: name.into(), id, id_text: format!("{name}{incarnation}").into(), config };
    let key = |suffix: &str| format!("{name}:{index}{suffix}").into();
    let keys = Keys {
        stream: key(""),
        state: key("/state"),
        index: key("/index"),
        open: key("/open"),
        aborted: key("/aborted"),
        compacted: [key("/clean0"), key("/clean1")],
        channel: key(""),
    };
    Partition { topic: Arc::new(topic), index, layout: Layout::Batch, keys, slot: index as u16, replicas: 0 }
}

impl Worker {
    /// One with the topics `a` and `b`. Client 1 may read everywhere.
    pub fn new(options: Options) -> Self {
        let count = if options.is_cluster { 2 } else { 1 };
        let histories = (0..count).map(|node| format!("history {node}")).collect();
        let slots = (0..SLOTS).map(|slot| Some(usize::from(slot) % count)).collect();
        let mut worker = Self {
            flow: Consumers::new(options),
            servers: Servers { slots, histories },
            redis: Redis::default(),
            owner: Owner { partitions: 6, ..Owner::default() },
            now: Duration::from_secs(1000),
            calls: VecDeque::new(),
            asked: Vec::new(),
            heard: BTreeSet::new(),
            answers: VecDeque::new(),
            closed: Vec::new(),
            others: Vec::new(),
            asking: Vec::new(),
            reply_bytes: 0,
            is_prompt: true,
            sends_after: Duration::ZERO,
            appended: 0,
            versions: BTreeMap::new(),
            numbers: 0,
            timer: None,
            sets_timer: false,
        };
        for node in 0..count {
            worker.flow.put_epoch(node, &worker.servers.histories[node], 1);
        }
        for name in ["a", "b"] {
            worker.create(name, 0);
        }
        worker.connect(1, true);
        worker
    }

    pub fn create(&mut self, name: &str, incarnation: u8) {
        self.owner.topics.insert(name.into(), incarnation);
        for index in 0..self.owner.partitions {
            self.redis.create(&partition(name, incarnation, index));
        }
    }

    /// Delete a topic, which is announced. Its partitions are known still.
    pub fn delete(&mut self, name: &str) {
        self.owner.topics.remove(name);
        for index in 0..self.owner.partitions {
            let stream = format!("{name}:{index}");
            self.redis.logs.remove(&stream);
            if self.heard.contains(&stream) {
                self.flow.live(&stream, &self.servers, self.now);
            }
        }
        self.turn();
    }

    pub fn connect(&mut self, number: u64, may_all: bool) {
        self.flow.put_session(peer(number), Session { may_all, ends_at: None });
    }

    pub fn disconnect(&mut self, number: u64) {
        self.flow.forget_session(peer(number), self.now);
        self.turn();
    }

    // --- what producers do

    /// Append a batch of a value of so many bytes to a partition of `a`, which is announced.
    pub fn append(&mut self, index: i32, bytes: usize) {
        self.append_silently(&format!("a:{index}"), 1, bytes, |_| {});
        self.announce(&format!("a:{index}"));
    }

    /// Append a batch of so many records, of a value of so many bytes each, which nobody hears of.
    pub fn append_silently(&mut self, stream: &str, count: usize, bytes: usize, change: impl Fn(&mut [u8])) {
        self.appended += 1;
        let value = format!("{stream} {} {}", self.appended, "v".repeat(bytes));
        let mut batch = batch_of(&vec![valued(value.as_bytes()); count], Codec::None, |header| header);
        change(&mut batch);
        self.redis.log(stream).append(count as i64, &[("batch", &batch)]);
    }

    /// Append a batch of a transaction of a producer, or its marker, which is announced.
    pub fn append_transactional(&mut self, index: i32, producer: i64) {
        let stream = format!("a:{index}");
        let end = self.redis.log(&stream).end;
        self.append_of(&stream, producer, TRANSACTIONAL);
        self.redis.log(&stream).open.get_or_insert(end);
        self.announce(&stream);
    }

    pub fn append_of(&mut self, stream: &str, producer: i64, attributes: i16) {
        self.append_silently(stream, 1, 8, |batch| {
            batch[21..23].copy_from_slice(&attributes.to_be_bytes());
            batch[43..51].copy_from_slice(&producer.to_be_bytes());
        });
    }

    /// End the only open transaction of a partition, which began there, and announce it.
    pub fn end_transaction(&mut self, index: i32, producer: i64, commits: bool) {
        let stream = format!("a:{index}");
        self.append_of(&stream, producer, TRANSACTIONAL | CONTROL);
        let log = self.redis.log(&stream);
        let first = log.open.take().unwrap();
        if !commits {
            log.rows.push((log.end - 1, format!("{producer}:{first}:{}", log.end)));
        }
        self.announce(&stream);
    }

    /// Announce where a log ends, if that is heard.
    pub fn announce(&mut self, stream: &str) {
        if self.heard.contains(stream) {
            let end = self.redis.log(stream).end;
            self.flow.announced(stream, end, &self.servers, self.now);
        }
        self.turn();
    }

    // --- what clients do

    /// Begin a request of client 1; returns its number.
    pub fn begin(&mut self, fetch: &Fetch) -> u64 {
        self.begin_as(1, fetch)
    }

    pub fn begin_as(&mut self, from: u64, fetch: &Fetch) -> u64 {
        assert!(self.flow.serves(peer(from), self.now));
        assert_eq!(self.flow.begun_by(peer(from)), 0);
        self.numbers += 1;
        self.versions.insert(self.numbers, fetch.version);
        let frame = Shared::from(fetch.bytes());
        let incoming = Incoming { number: self.numbers, frame, arrived: self.now, late: None };
        self.flow.begin(peer(from), &incoming, &self.servers, self.now);
        self.turn();
        self.numbers
    }

    /// The response to a request that waits for nothing but Redis.
    pub fn fetch(&mut self, fetch: &Fetch) -> Response {
        self.fetch_as(1, fetch)
    }

    pub fn fetch_as(&mut self, from: u64, fetch: &Fetch) -> Response {
        let number = self.begin_as(from, fetch);
        self.settle();
        self.answer(number)
    }

    /// The response to a request, which must be there, and be the only one.
    pub fn answer(&mut self, number: u64) -> Response {
        assert_eq!(self.answers.len(), 1, "{:?}", self.answers);
        let (answered, response) = self.answers.pop_front().unwrap();
        assert_eq!(answered, number);
        response
    }

    /// A request that is parked: it was read, and there was nothing.
    pub fn parked(&mut self, fetch: &Fetch) -> u64 {
        let parked = self.flow.parked();
        let number = self.begin(fetch);
        self.settle();
        assert_eq!((self.flow.parked(), self.answers.len()), (parked + 1, 0));
        number
    }

    // --- what Redis and the owner do

    /// Take what has happened, and run the reads that are sent.
    pub fn turn(&mut self) {
        loop {
            while let Some(event) = self.flow.next_event() {
                self.take(event);
            }
            while let Some(sending) = self.flow.next_send(self.now + self.sends_after) {
                self.reply_bytes = sending.reply_bytes;
                let count = sending.spans.iter().map(|span| span.count).sum();
                let text = self.flow.pack(sending.group, &piece(count)).unwrap().joined();
                let mut replies = self.redis.run(&text, |_| Layout::Batch).into_iter();
                for Span { first, count, slot } in sending.spans {
                    let replies = replies.by_ref().take(count).collect();
                    self.calls.push_back(Call { group: sending.group, first, replies, slot: slot.unwrap() });
                }
                assert!(replies.next().is_none());
            }
            if !self.is_prompt || (self.asking.is_empty() && self.asked.is_empty()) {
                break;
            }
            while let Some(request) = self.asking.pop() {
                self.decide(request);
            }
            while let Some(channel) = self.asked.pop() {
                self.live(&channel);
            }
        }
        // The owner hears of it at the end of its turn. Its timer is never later than what is due.
        if std::mem::take(&mut self.sets_timer) {
            self.timer = self.flow.take_timer();
        }
        assert!(self.flow.due().is_none_or(|due| self.timer.is_some_and(|timer| timer <= due)));
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Answer { number, response, .. } => {
                let response = wire::read(&joined(&response), self.versions[&number]);
                self.answers.push_back((number, response));
            }
            Event::Close { peer, .. } => self.closed.push(peer),
            Event::Asked { request, .. } => self.asking.push(request),
            Event::Listen { partition } => self.asked.push(partition.keys.channel.to_string()),
            Event::Unlisten { partition } => {
                self.heard.remove(&*partition.keys.channel);
                self.asked.retain(|channel| **channel != *partition.keys.channel);
            }
            Event::Timer => self.sets_timer = true,
            Event::Room { .. } | Event::Noted | Event::Seen { .. } => {}
            other => self.others.push(other),
        }
    }

    /// Have announcements of a channel heard from now on.
    pub fn live(&mut self, channel: &str) {
        self.heard.insert(channel.into());
        self.flow.live(channel, &self.servers, self.now);
    }

    /// Have announcements of a channel heard no more.
    pub fn interrupt(&mut self, channel: &str) {
        if self.heard.remove(channel) {
            self.flow.interrupted(channel);
            self.asked.push(channel.into());
        }
    }

    /// Give the replies to a read.
    pub fn reply(&mut self, call: &Call) {
        for (place, reply) in (call.first..).zip(&call.replies) {
            let reply = Shared::from(reply.clone());
            self.flow.replied(call.group, place, &reply, &self.servers, self.now);
        }
        self.turn();
    }

    /// Give an error for all commands of a read.
    pub fn reply_error(&mut self, call: &Call, text: &str) {
        let replies = call.replies.iter().map(|_| format!("-{text}\r\n").into_bytes()).collect();
        self.reply(&Call { replies, ..*call });
    }

    pub fn prevent(&mut self, call: &Call, kind: Prevented) {
        for place in call.first..call.first + call.replies.len() {
            self.flow.prevented(call.group, place..place + 1, kind, "why", &self.servers, self.now);
        }
        self.turn();
    }

    /// Give the replies to all reads, and to those that follow.
    pub fn settle(&mut self) {
        for _ in 0..20_000 {
            let Some(call) = self.calls.pop_front() else { return };
            self.reply(&call);
        }
        panic!("it reads without end");
    }

    /// Let time pass, with all that is due in it.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.flow.due().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.flow.tick(&self.servers, self.now);
            self.turn();
            self.settle();
        }
        self.now = until;
    }

    /// Decide on the questions of a request, which has none if it is gone.
    pub fn decide(&mut self, request: RequestId) {
        let questions: Vec<Question> = self.flow.questions(request).cloned().collect();
        let decisions = questions.iter().map(|question| self.decision(question)).collect();
        self.owner.asked.extend(questions);
        self.flow.decide(request, decisions, &self.servers, self.now);
    }

    fn decision(&mut self, question: &Question) -> Decision {
        match question {
            Question::Right(right) => {
                let Right::Topic(name) = right else { return self.next_decision() };
                if self.owner.denied.contains(&**name) {
                    return refusal(ErrorCode::TopicAuthorizationFailed);
                }
                Decision::Go
            }
            Question::Topic { name, index, .. } => self.resolve(name, *index),
            Question::Limit { .. } => self.owner.limit.map_or(Decision::Go, Decision::Number),
            Question::Charge { .. } => Decision::Throttle(self.owner.throttle_ms, 1),
            Question::Epoch { .. } => self.owner.decisions.pop_front().unwrap_or(Decision::Number(1)),
            _ => self.next_decision(),
        }
    }

    fn next_decision(&mut self) -> Decision {
        self.owner.decisions.pop_front().unwrap_or(Decision::Go)
    }

    /// Put a partition if it is there.
    fn resolve(&mut self, name: &TopicName, index: i32) -> Decision {
        let known = self.owner.topics.iter().find(|(known, incarnation)| match name {
            TopicName::Name(name) => ***known == **name,
            TopicName::Id(id) => partition(known, **incarnation, 0).topic.id == *id,
        });
        match known {
            Some((name, incarnation)) if index < self.owner.partitions => {
                self.flow.put_partition(partition(name, *incarnation, index));
                Decision::Go
            }
            _ => refusal(match name {
                TopicName::Name(_) => ErrorCode::UnknownTopicOrPartition,
                TopicName::Id(_) => ErrorCode::UnknownTopicId,
            }),
        }
    }

    /// The commands that were run since this was last called, and on how many streams: reads, questions for the bounds
    /// alone, and searches.
    pub fn ran(&mut self) -> (usize, usize, usize) {
        let ran = self.redis.take_ran();
        let is = |place: usize, command: &str, stream: &str| {
            ran.get(place).is_some_and(|(known, of)| known == command && of == stream)
        };
        let (mut reads, mut bounds, mut searches) = (0, 0, 0);
        for (place, (command, stream)) in ran.iter().enumerate() {
            match &**command {
                "HMGET" if is(place + 1, "XRANGE", stream) => reads += 1,
                "HMGET" => bounds += 1,
                "XRANGE" if place == 0 || !is(place - 1, "HMGET", stream) => searches += 1,
                _ => {}
            }
        }
        (reads, bounds, searches)
    }
}

/// A refusal by the owner.
pub fn refusal(code: ErrorCode) -> Decision {
    Decision::Refuse(Failure::rule(code, "no"))
}

pub fn away() -> Decision {
    Decision::Refuse(Failure::new(ErrorCode::KafkaStorageError, "away", FailureKind::Unavailable))
}
