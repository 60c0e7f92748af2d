//! What the scripts under lua/ do to logs, in plain Rust: a second text of the same rules, to read and to compare.
//!
//! Theory of operation. A [`Model`] is what one Redis holds of Korvet: for each partition a [`Log`], for each slot a
//! leader epoch. [`Model::run`] runs a script with its keys and arguments, and gives the reply that the Lua gives, byte
//! for byte; a program of this crate (`compare`) checks that against a server, call by call. A clone of a model is a
//! replica, or what a server has kept of its writes.
//!
//! Files: `stream` has Redis' streams and the ids of entries, `state` the hash of a partition, `call` the form of
//! appends; `append` runs those, `external` deals with entries of other clients, `upkeep` has what else changes a log, and
//! `reads` answers what reads of logs send.
//!
//! Left out are Redis groups of a stream, compaction and the lake, and keys that somebody has damaged.

mod append;
mod bytes;
pub(crate) mod call;
mod external;
mod reads;
pub(crate) mod state;
pub(crate) mod stream;
mod upkeep;

use std::collections::BTreeMap;
use std::fmt::Display;

use state::{Counters, State};
use stream::{EXACT_MAX, Stream};

/// A script, by its place under lua/.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Script {
    AppendBatch,
    AppendRecord,
    Expel,
    Renumber,
    Trim,
    Expire,
    Epoch,
    Create,
    Clear,
}

impl Script {
    pub fn name(self) -> &'static str {
        match self {
            Self::AppendBatch => "log/append_batch",
            Self::AppendRecord => "log/append_record",
            Self::Expel => "log/expel",
            Self::Renumber => "log/renumber",
            Self::Trim => "log/trim",
            Self::Expire => "producer/expire",
            Self::Epoch => "broker/epoch",
            Self::Create => "partition/create",
            Self::Clear => "topic/clear",
        }
    }
}

/// A reply, as RESP has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Null,
    Simple(&'static str),
    Bulk(Vec<u8>),
    Integer(i64),
    Error(String),
    Array(Vec<Reply>),
}

impl Reply {
    pub fn text(text: impl Display) -> Self {
        Self::Bulk(format!("{text}").into_bytes())
    }

    pub fn packed(&self) -> Vec<u8> {
        match self {
            Self::Null => b"$-1\r\n".to_vec(),
            Self::Simple(text) => format!("+{text}\r\n").into_bytes(),
            Self::Bulk(bytes) => [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat(),
            Self::Integer(number) => format!(":{number}\r\n").into_bytes(),
            Self::Error(text) => format!("-{text}\r\n").into_bytes(),
            Self::Array(replies) => {
                let mut packed = format!("*{}\r\n", replies.len()).into_bytes();
                for reply in replies {
                    packed.extend(reply.packed());
                }
                packed
            }
        }
    }
}

/// A script's own error.
type Refusal = Reply;

fn storage_error<V>(text: &str) -> Result<V, Refusal> {
    Err(Reply::Error(format!("KAFKA_STORAGE_ERROR {text}")))
}

/// A sorted set: members and their scores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SortedSet(BTreeMap<String, i64>);

impl SortedSet {
    pub fn add(&mut self, score: i64, member: impl Into<String>) {
        self.0.insert(member.into(), score);
    }

    pub fn remove(&mut self, member: &str) {
        self.0.remove(member);
    }

    pub fn remove_below(&mut self, score: i64) {
        self.0.retain(|_, other| *other >= score);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Scores and members, in Redis' order.
    pub fn sorted(&self) -> Vec<(i64, &str)> {
        let mut members: Vec<(i64, &str)> = self.0.iter().map(|(member, score)| (*score, member.as_str())).collect();
        members.sort_unstable();
        members
    }
}

/// The keys of a partition; without a state there is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub state: Option<State>,
    pub stream: Option<Stream>,
    pub moving: Option<Stream>,
    pub index: SortedSet,
    pub open: SortedSet,
    pub aborted: SortedSet,
}

/// The distances of two rows of the index.
const RECORDS_PER_ROW: i64 = 2_048;
const BYTES_PER_ROW: i64 = 524_288;

/// Writes the rows of the index in one run of a script.
struct IndexRows {
    records: i64,
    bytes: i64,
}

impl IndexRows {
    fn new(log: &Counters) -> Self {
        Self { records: log.records, bytes: log.bytes }
    }

    /// Write a row if records or bytes have come to the next one since the last time; the answer is these bytes.
    fn write(&mut self, index: &mut SortedSet, needs_index: &mut bool, log: &mut Counters) -> Option<i64> {
        let is_crossed = log.records / RECORDS_PER_ROW > self.records / RECORDS_PER_ROW
            || log.bytes / BYTES_PER_ROW > self.bytes / BYTES_PER_ROW;
        *self = Self::new(log);
        if !is_crossed {
            return None;
        }
        if index.is_empty() {
            // The rows that were there are deleted: this one stands for all before it.
            log.interval = log.largest;
            *needs_index = true;
        }
        index.add(log.next, format!("{}:{}:{}:{}", log.records, log.bytes, log.largest, log.interval));
        log.interval = -1;
        Some(log.bytes)
    }
}

/// The leader epoch of a slot, and the history of writes that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HistoryEpoch {
    pub history: String,
    pub epoch: i64,
}

/// What one Redis holds.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// By the name of the stream.
    pub logs: BTreeMap<Vec<u8>, Log>,
    pub epochs: BTreeMap<Vec<u8>, HistoryEpoch>,
    /// The replication id.
    pub history: String,
    pub now_ms: i64,
    /// How many entries a node of a stream has.
    pub node_max: usize,
    /// What was published: channel and message.
    pub published: Vec<(Vec<u8>, String)>,
}

/// The stream whose partition has a key: `{stream}:state` and others are named by it.
pub(crate) fn stream_of(key: &[u8]) -> &[u8] {
    let end = key.iter().position(|byte| *byte == b'}');
    end.and_then(|end| key.strip_prefix(b"{")?.get(..end - 1)).unwrap_or(key)
}

fn shown(key: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(key)
}

impl Model {
    pub fn new(history: String, node_max: usize) -> Self {
        let (logs, epochs) = (BTreeMap::new(), BTreeMap::new());
        Self { logs, epochs, history, now_ms: 0, node_max, published: Vec::new() }
    }

    /// Run a script; `is_full`: as its text for a full memory.
    pub fn run(&mut self, script: Script, keys: &[Vec<u8>], arguments: &[Vec<u8>], is_full: bool) -> Reply {
        let done = match script {
            Script::AppendBatch => self.append(keys, arguments, true, is_full),
            Script::AppendRecord => self.append(keys, arguments, false, is_full),
            Script::Expel => self.expel(keys, arguments),
            Script::Renumber => self.renumber(keys, arguments),
            Script::Trim => self.trim(keys, arguments),
            Script::Expire => Ok(self.expire_producers(&keys[0], arguments)),
            Script::Epoch => self.begin_epoch(&keys[0], arguments),
            Script::Create => self.create(keys, arguments),
            Script::Clear => Ok(self.clear(keys, arguments)),
        };
        done.unwrap_or_else(|refusal| refusal)
    }

    pub fn log(&mut self, key: &[u8]) -> &mut Log {
        self.logs.entry(stream_of(key).to_vec()).or_default()
    }

    /// The log of a partition that belongs to a topic, as all scripts ask for it.
    fn open_log(&mut self, state: &[u8], topic: &[u8]) -> Result<(&mut Log, i64), Refusal> {
        let now_ms = self.now_ms;
        let log = self.log(state);
        if log.state.as_ref().is_some_and(|held| held.topic == topic) {
            return Ok((log, now_ms));
        }
        let (state, topic) = (shown(state), shown(topic));
        Err(Reply::Error(format!("UNKNOWN_TOPIC_OR_PARTITION {state} does not belong to topic id {topic}")))
    }
}

/// Refuse a worker whose leader epoch is not the newest; the answer is whether its epoch begins now.
fn check_epoch(state: &[u8], log: &Counters, leader_epoch: i64) -> Result<bool, Refusal> {
    if leader_epoch < log.epoch {
        let (state, epoch) = (shown(state), log.epoch);
        let text = format!("NOT_LEADER_OR_FOLLOWER {state} has leader epoch {epoch}, not {leader_epoch}");
        return Err(Reply::Error(text));
    }
    Ok(leader_epoch > log.epoch)
}

/// The least of a number that Lua knows exactly.
fn exact(number: i64) -> i64 {
    number.min(EXACT_MAX)
}
