//! A worker whose servers, owner and clock are the test's.

use std::sync::Arc;
use std::time::Duration;

use korvet_proto::access::Session;
use korvet_proto::batch::Header;
use korvet_proto::client::Prevented;
use korvet_proto::compression::Codec;
use korvet_proto::failure::Failure;
use korvet_proto::partition::{Layout, Partition, Topic};
use korvet_proto::pipeline::{Packed, Time};
use korvet_proto::produce::{Decision, Event, Options, Producers, Question, RequestId, Script, ScriptText, Sending};
use korvet_proto::serving::{Clock, Incoming};
use korvet_proto::shared::Shared;
use korvet_proto::wire::{Reader, put_varint};

use crate::batches::{self, CONFIG, NOW, batch_of, valued};

#[path = "../support/servers.rs"]
mod servers;
pub use servers::peer;
use servers::{Servers, piece};

pub const TIMEOUT: Duration = Duration::from_secs(30);
pub const HISTORY: &str = "history";
pub const OPTIONS: Options =
    Options { plain_bytes_max: 1 << 20, held_bytes_max: 1 << 20, timeout: TIMEOUT, is_cluster: false, replicas: 0 };
pub const ID: i64 = 1000;

pub struct Worker {
    pub flow: Producers,
    pub servers: Servers,
    pub now: Time,
    numbers: u64,
}

/// What a client gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Got {
    /// The number of its request; index, code and base offset of each batch; and the throttle in milliseconds.
    Answer(u64, Vec<(i32, i16, i64)>, u128),
    Close {
        is_unanswered: bool,
    },
}

/// A partition of the topic `name`, in the slot of its index.
pub fn partition(name: &str, id: u8, index: i32, layout: Layout) -> Partition {
    let like = batches::partition(layout, CONFIG);
    let topic = Topic { name: name.into(), id: [id; 16], id_text: format!("id{id}").into(), config: CONFIG };
    let mut keys = like.keys.clone();
    keys.stream = format!("{name}:{index}").into();
    Partition { topic: Arc::new(topic), index, keys, slot: index as u16, ..(*like).clone() }
}

impl Worker {
    /// One that knows two servers, the first with slots 0 to 9, their epochs, and partitions 0 to 12 of the topic `a`.
    /// Client 1 may write everywhere.
    pub fn new(options: Options) -> Self {
        let script = |name: &str| {
            let text = |kind: &str| ScriptText { source: format!("{name} {kind}"), sha: format!("{name} {kind} sha") };
            Script { text: text("usual"), when_full: text("full") }
        };
        let slots = (0..13).map(|slot| Some(usize::from(slot >= 10))).collect();
        let servers = Servers { slots, histories: vec![HISTORY.into(), HISTORY.into()] };
        let flow = Producers::new(options, [script("batch"), script("record")]);
        let mut worker = Self { flow, servers, now: Duration::from_secs(100), numbers: 0 };
        for index in 0..13 {
            worker.flow.put_partition(partition("a", 1, index, Layout::Batch));
        }
        for node in [0, 1] {
            worker.flow.put_epoch(node, HISTORY, 1);
        }
        worker.flow.put_session(peer(1), Session { may_all: true, ends_at: None });
        worker
    }

    pub fn clock(&self) -> Clock {
        Clock { now: self.now, ms: NOW }
    }

    /// Begin a request of a client, whose number is returned.
    pub fn begin(&mut self, from: u64, frame: Vec<u8>) -> u64 {
        assert!(self.flow.may_begin(peer(from)));
        self.begin_as(from, Incoming { number: 0, frame: Shared::from(frame), arrived: self.now, late: None })
    }

    pub fn begin_as(&mut self, from: u64, incoming: Incoming) -> u64 {
        self.numbers += 1;
        let incoming = Incoming { number: self.numbers, ..incoming };
        self.flow.begin(peer(from), &incoming, &self.servers, self.clock());
        self.numbers
    }

    /// End a turn; returns what is to be sent.
    pub fn flush(&mut self) -> Vec<Sending> {
        self.flow.flush(&self.servers, self.clock());
        std::iter::from_fn(|| self.flow.next_send()).collect()
    }

    /// End a turn in which one group is sent, of so many calls.
    pub fn sent(&mut self, count: usize) -> Sending {
        let mut sends = self.flush();
        assert_eq!(sends.len(), 1, "{sends:?}");
        let sending = sends.remove(0);
        assert_eq!(sending.count, count);
        sending
    }

    /// The commands of a group that is sent.
    pub fn packed(&self, sending: &Sending) -> Option<Packed<Shared>> {
        self.flow.pack(sending.group, &piece(sending.count), self.clock())
    }

    /// Begin a request of client 1 that appends to partitions of the topic `a`, and send it.
    pub fn appending(&mut self, indexes: &[i32]) -> (u64, Sending) {
        let number = self.begin(1, plain(indexes));
        (number, self.sent(indexes.len()))
    }

    /// Have another client served, which may write everywhere.
    pub fn connect(&mut self, number: u64) {
        self.flow.put_session(peer(number), Session { may_all: true, ends_at: None });
    }

    pub fn replied(&mut self, sending: &Sending, call: usize, reply: &[u8]) {
        self.flow.replied(sending.group, call, reply, &self.servers, self.clock());
    }

    pub fn prevented(&mut self, sending: &Sending, kind: Prevented) {
        let calls = 0..sending.count;
        self.flow.prevented(sending.group, calls, kind, "why", &self.servers, self.clock());
    }

    pub fn events(&mut self) -> Vec<Event> {
        let events = std::iter::from_fn(|| self.flow.next_event());
        events
            .filter(|event| !matches!(event, Event::Noted | Event::WantsPressure { .. } | Event::Appended { .. }))
            .collect()
    }

    /// What clients get: nothing else has happened.
    pub fn got(&mut self) -> Vec<Got> {
        let events = self.events().into_iter();
        let got = events.map(|event| match event {
            Event::Answer { number, response, throttle, .. } => {
                Got::Answer(number, read(&response), throttle.as_millis())
            }
            Event::Close { is_unanswered, .. } => Got::Close { is_unanswered },
            other => panic!("{other:?}"),
        });
        got.collect()
    }

    /// The request that asks, and its questions: nothing else has happened.
    pub fn asked(&mut self) -> (RequestId, Vec<Question>) {
        let events = self.events();
        let [Event::Asked { request, .. }] = events[..] else { panic!("{events:?}") };
        (request, self.flow.questions(request).cloned().collect())
    }

    pub fn decide(&mut self, request: RequestId, decisions: Vec<Decision>) {
        self.flow.decide(request, decisions, &self.servers, self.clock());
    }

    /// Decide on the one question that is asked, which is returned.
    pub fn decided(&mut self, decision: Decision) -> Question {
        let (request, mut questions) = self.asked();
        assert_eq!(questions.len(), 1, "{questions:?}");
        self.decide(request, vec![decision]);
        questions.remove(0)
    }
}

/// A batch for a partition.
pub type Sent = (i32, Option<Vec<u8>>);

/// A request in version 9, without its size.
pub struct Frame {
    pub transactional_id: Option<&'static str>,
    pub acks: i16,
    pub topics: Vec<(&'static str, Vec<Sent>)>,
}

impl Frame {
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"\0\0\0\x09\0\0\0\x07\0\x02me\0".to_vec();
        put_string(&mut out, self.transactional_id.map(str::as_bytes));
        out.extend(self.acks.to_be_bytes());
        out.extend(30_000_i32.to_be_bytes());
        put_varint(&mut out, self.topics.len() as u32 + 1);
        for (name, batches) in &self.topics {
            put_string(&mut out, Some(name.as_bytes()));
            put_varint(&mut out, batches.len() as u32 + 1);
            for (index, records) in batches {
                out.extend(index.to_be_bytes());
                put_string(&mut out, records.as_deref());
                out.push(0);
            }
            out.push(0);
        }
        out.push(0);
        out
    }
}

fn put_string(out: &mut Vec<u8>, content: Option<&[u8]>) {
    put_varint(out, content.map_or(0, |content| content.len() as u32 + 1));
    out.extend_from_slice(content.unwrap_or_default());
}

/// A batch of a producer, from a sequence on.
pub fn batch(header: impl Fn(Header) -> Header) -> Vec<u8> {
    batch_of(&[valued(b"value")], Codec::None, header)
}

pub fn idempotent(sequence: i32) -> Vec<u8> {
    batch(|header| Header { producer_id: ID, producer_epoch: 0, base_sequence: sequence, ..header })
}

pub fn transactional(producer_epoch: i16, base_sequence: i32) -> Vec<u8> {
    batch(|header| Header { attributes: 0x10, producer_id: ID, producer_epoch, base_sequence, ..header })
}

/// A request with a batch for each of these partitions of the topic `a`.
pub fn request(acks: i16, indexes: &[i32], batch: &[u8]) -> Vec<u8> {
    let batches = indexes.iter().map(|index| (*index, Some(batch.to_vec()))).collect();
    Frame { transactional_id: None, acks, topics: vec![("a", batches)] }.bytes()
}

pub fn plain(indexes: &[i32]) -> Vec<u8> {
    request(1, indexes, &batch(|header| header))
}

/// Index, code and base offset of each batch in a response of version 9; none of an empty one.
pub fn read(response: &[u8]) -> Vec<(i32, i16, i64)> {
    let mut results = Vec::new();
    if response.is_empty() {
        return results;
    }
    let mut reader = Reader::new(9, true);
    for _ in 0..reader.count(response, "topics", false).unwrap().unwrap() {
        let size = reader.length(response, "name", true, false).unwrap().unwrap();
        reader.bytes(response, size).unwrap();
        for _ in 0..reader.count(response, "partitions", false).unwrap().unwrap() {
            let index = i32::from_be_bytes(reader.array(response).unwrap());
            let code = i16::from_be_bytes(reader.array(response).unwrap());
            results.push((index, code, i64::from_be_bytes(reader.array(response).unwrap())));
            reader.bytes(response, 16).unwrap();
            assert_eq!(reader.count(response, "record errors", false).unwrap(), Some(0));
            let size = reader.length(response, "message", true, true).unwrap().unwrap_or(0);
            reader.bytes(response, size).unwrap();
            reader.skip_tags(response).unwrap();
        }
        reader.skip_tags(response).unwrap();
    }
    results
}

/// The answer of a script with verdicts, each a number and a value: 0 is appended, 1 a duplicate, 2 to be verified, 3 a
/// fenced epoch, 5 a gap in the sequences, 13 for a full memory.
pub fn verdicts(verdicts: &[(u8, u64)]) -> Vec<u8> {
    verdicts_with(0, 0, verdicts)
}

pub fn verdicts_with(moved: u32, row_bytes: u64, verdicts: &[(u8, u64)]) -> Vec<u8> {
    let mut answer = [&[0][..], &moved.to_be_bytes(), &5_i64.to_be_bytes(), &row_bytes.to_be_bytes()].concat();
    for (number, value) in verdicts {
        answer.push(*number);
        answer.extend(value.to_be_bytes());
    }
    bulk(&answer)
}

/// The answer of a script that met entries of others.
pub fn external() -> Vec<u8> {
    bulk(b"\x01\0\0\0\0")
}

pub fn bulk(content: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", content.len()).as_bytes(), content, b"\r\n"].concat()
}

pub fn error(text: &str) -> Vec<u8> {
    format!("-{text}\r\n").into_bytes()
}

/// A refusal by the owner.
pub fn refusal(code: korvet_proto::ErrorCode) -> Decision {
    Decision::Refuse(Failure::rule(code, "no"))
}
