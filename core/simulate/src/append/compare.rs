//! The model beside a server with the scripts of lua/: the same calls, the same replies, and the same keys afterwards.
//!
//! The server is empty, has these scripts loaded, and is of nobody else. In its scripts the list `clock` is in the place
//! of TIME: its seconds and microseconds are set before each call.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use korvet_proto::resp::{Element, Elements, Inbox, put_argument, put_count};

use super::model::stream::{Id, Stream};
use super::model::{Model, Reply, Script, SortedSet};
use crate::chance::Chance;
use crate::history::{Failure, Seen, shrunk_by};

pub(super) const STREAM: &str = "korvet:orders:0";
const NODES: [usize; 3] = [1, 3, 100];
const CLOCK_BEGINS_MS: i64 = 1_790_000_000_000;

/// A connection to a server.
struct Server {
    socket: UnixStream,
    inbox: Inbox,
}

impl Server {
    fn connected(path: &str) -> std::io::Result<Self> {
        Ok(Self { socket: UnixStream::connect(path)?, inbox: Inbox::default() })
    }

    fn send(&mut self, commands: &[Vec<Vec<u8>>]) {
        let mut text = Vec::new();
        for command in commands {
            put_count(&mut text, command.len());
            for word in command {
                put_argument(&mut text, word);
            }
        }
        self.socket.write_all(&text).unwrap();
    }

    fn reply(&mut self) -> Vec<u8> {
        loop {
            if let Some(range) = self.inbox.next_reply().unwrap() {
                return self.inbox.bytes()[range].to_vec();
            }
            let mut received = vec![0; 1 << 16];
            let size = self.socket.read(&mut received).unwrap();
            assert!(size > 0, "the server has closed the connection");
            self.inbox.room(size).unwrap().extend_from_slice(&received[..size]);
        }
    }

    fn ask(&mut self, commands: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
        self.send(commands);
        commands.iter().map(|_| self.reply()).collect()
    }
}

pub(super) fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// A reply, element by element.
fn flat(reply: &[u8]) -> Vec<String> {
    let element = |element| match element {
        Element::Bulk(bytes) | Element::Simple(bytes) => bytes.escape_ascii().to_string(),
        Element::Integer(number) => number.to_string(),
        Element::Array(count) => format!("[{count}"),
        Element::Error(text) => format!("-{}", text.escape_ascii()),
        other => format!("{other:?}"),
    };
    Elements::of(reply).map(element).collect()
}

fn flat_stream(stream: Option<&Stream>, shows_ids: bool) -> Vec<String> {
    let length = stream.map_or(0, |stream| stream.length);
    let mut flat = vec![format!("[{length}")];
    for (id, fields) in stream.into_iter().flat_map(|stream| stream.after(Id::ZERO)) {
        let id = if shows_ids { id.to_string() } else { String::new() };
        flat.extend(["[2".to_owned(), id, format!("[{}", fields.len())]);
        flat.extend(fields.iter().map(|field| field.escape_ascii().to_string()));
    }
    flat
}

fn flat_set(set: &SortedSet) -> Vec<String> {
    let sorted = set.sorted();
    let pairs = sorted.iter().flat_map(|(score, member)| [(*member).to_owned(), score.to_string()]);
    [format!("[{}", 2 * sorted.len())].into_iter().chain(pairs).collect()
}

/// What is compared after each call.
type Shown = BTreeMap<&'static str, Vec<String>>;

fn shown_by(model: &Model) -> Shown {
    let known = model.logs.get(STREAM.as_bytes()).cloned().unwrap_or_default();
    let ids = known
        .stream
        .as_ref()
        .map(|stream| vec![stream.last_id.to_string(), stream.added.to_string(), stream.deleted.to_string()]);
    let fields = known.state.as_ref().map(super::model::state::State::fields).unwrap_or_default();
    let pairs = fields.iter().flat_map(|(name, value)| [name, value]).map(|text| text.escape_ascii().to_string());
    let epoch = model
        .epochs
        .values()
        .flat_map(|held| [["epoch".to_owned(), held.epoch.to_string()], ["history".to_owned(), held.history.clone()]]);
    BTreeMap::from([
        ("stream", flat_stream(known.stream.as_ref(), true)),
        ("ids", ids.unwrap_or_default()),
        ("moving", flat_stream(known.moving.as_ref(), false)),
        ("state", pairs.collect()),
        ("index", flat_set(&known.index)),
        ("open", flat_set(&known.open)),
        ("aborted", flat_set(&known.aborted)),
        ("epoch", epoch.flatten().collect()),
    ])
}

/// One history at a server and in the model.
pub(super) struct Pair<'a> {
    server: &'a mut Server,
    listener: &'a mut Server,
    shas: &'a BTreeMap<String, String>,
    pub model: Model,
    pub dice: Chance,
    /// Offset sequence bits; -1: layout `batch`.
    pub bits: i64,
    pub leader_epoch: i64,
    pub counts: Seen,
    failure: Option<String>,
}

pub(super) fn key(name: &str) -> Vec<u8> {
    format!("{{{STREAM}}}:{name}").into_bytes()
}

impl Pair<'_> {
    pub fn fail(&mut self, text: String) {
        self.failure.get_or_insert(text);
    }

    /// Run a script at both.
    pub fn run(&mut self, script: Script, keys: &[Vec<u8>], arguments: &[Vec<u8>], is_full: bool) {
        let name = if is_full { format!("{} when full", script.name()) } else { script.name().to_owned() };
        let sha = self.shas[&name].clone();
        let count = keys.len().to_string().into_bytes();
        let command = [vec![b"EVALSHA".to_vec(), sha.into_bytes(), count], keys.to_vec(), arguments.to_vec()].concat();
        let expected = self.model.run(script, keys, arguments, is_full);
        let kind = match &expected {
            Reply::Error(text) => text.split(' ').next().unwrap_or_default().to_owned(),
            Reply::Bulk(bytes) if bytes[0] == 1 => "external".to_owned(),
            Reply::Bulk(bytes) => {
                bytes[21..].chunks(9).for_each(|verdict| self.note(&format!("verdict {}", verdict[0])));
                "answer".to_owned()
            }
            _ => "reply".to_owned(),
        };
        self.note(&format!("{name}: {kind}"));
        self.both(&command, &expected);
    }

    fn note(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    /// Send a command whose reply the model has given.
    pub fn both(&mut self, command: &[Vec<u8>], expected: &Reply) {
        let (seconds, micros) = (self.model.now_ms / 1_000, self.model.now_ms % 1_000 * 1_000);
        let (seconds, micros) = (seconds.to_string(), micros.to_string());
        let sets = ["index", "open", "aborted"].map(|name| String::from_utf8(key(name)).unwrap());
        let (state, moving) = (format!("{{{STREAM}}}:state"), format!("{{{STREAM}}}:moving"));
        let commands = [
            words(&["DEL", "clock"]),
            words(&["RPUSH", "clock", &seconds, &micros]),
            command.to_vec(),
            words(&["XRANGE", STREAM, "-", "+"]),
            words(&["XINFO", "STREAM", STREAM]),
            words(&["XRANGE", &moving, "-", "+"]),
            words(&["HGETALL", &state]),
            words(&["HGETALL", "epoch"]),
            words(&["ZRANGE", &sets[0], "0", "-1", "WITHSCORES"]),
            words(&["ZRANGE", &sets[1], "0", "-1", "WITHSCORES"]),
            words(&["ZRANGE", &sets[2], "0", "-1", "WITHSCORES"]),
        ];
        let replies = self.server.ask(&commands);
        if replies[2] != expected.packed() {
            let [got, wanted] = [&replies[2], &expected.packed()].map(|reply| reply.escape_ascii().to_string());
            self.fail(format!("the server answers {got}, and the model {wanted}"));
        }
        self.compare(&replies[3..]);
        if let Some(failure) = &mut self.failure {
            let shown =
                command.iter().map(|word| word.escape_ascii().to_string().chars().take(200).collect::<String>());
            *failure = format!("{failure}\nafter {}", shown.collect::<Vec<_>>().join(" "));
        }
    }

    /// Send a command of another client, and compare nothing.
    pub fn quietly(&mut self, command: &[Vec<u8>]) {
        self.server.ask(&[command.to_vec()]);
    }

    /// Compare what the server has with the model.
    fn compare(&mut self, replies: &[Vec<u8>]) {
        let hash = |reply: &[u8]| -> Vec<String> {
            let texts = flat(reply);
            let pairs: BTreeMap<&String, &String> = texts[1..].chunks(2).map(|pair| (&pair[0], &pair[1])).collect();
            pairs.into_iter().flat_map(|(name, value)| [name.clone(), value.clone()]).collect()
        };
        let info = flat(&replies[1]);
        let of_info = |name: &str| info.iter().position(|text| text == name).map(|index| info[index + 1].clone());
        let ids = ["last-generated-id", "entries-added", "max-deleted-entry-id"].map(of_info);
        let mut moving = flat(&replies[2]);
        let entries: Vec<usize> = (2..moving.len()).filter(|index| moving[index - 1] == "[2").collect();
        for index in entries {
            moving[index].clear();
        }
        let answered: Shown = BTreeMap::from([
            ("stream", flat(&replies[0])),
            ("ids", ids.into_iter().flatten().collect()),
            ("moving", moving),
            ("state", hash(&replies[3])),
            ("epoch", hash(&replies[4])),
            ("index", flat(&replies[5])),
            ("open", flat(&replies[6])),
            ("aborted", flat(&replies[7])),
        ]);
        for (name, wanted) in shown_by(&self.model) {
            if answered[name] != wanted {
                let short = |texts: &[String]| texts.join(" ").chars().take(3_000).collect::<String>();
                self.fail(format!("{name} is {}\nand in the model {}", short(&answered[name]), short(&wanted)));
            }
        }
        self.hear();
    }

    /// Compare what was published.
    fn hear(&mut self) {
        self.listener.send(&[words(&["PING"])]);
        let mut heard = Vec::new();
        loop {
            let message = flat(&self.listener.reply());
            if message[1] == "pong" {
                break;
            }
            heard.push(message[3].clone());
        }
        let wanted: Vec<String> = std::mem::take(&mut self.model.published).into_iter().map(|(_, text)| text).collect();
        if heard != wanted {
            self.fail(format!("{heard:?} was published, and by the model {wanted:?}"));
        }
    }
}

/// Runs histories at a server, by the path of its socket. `shas` are its scripts by their names, as "log/trim" and, as
/// text for a full memory, "log/append_batch when full".
pub struct Comparison {
    server: Server,
    listener: Server,
    shas: BTreeMap<String, String>,
}

impl Comparison {
    /// Connect.
    ///
    /// # Panics
    /// If there is no such server, or one of the scripts is not named.
    pub fn new(path: &str, shas: BTreeMap<String, String>) -> Self {
        let mut listener = Server::connected(path).unwrap();
        listener.ask(&[words(&["SSUBSCRIBE", STREAM])]);
        Self { server: Server::connected(path).unwrap(), listener, shas }
    }

    /// How many steps the history of a seed has.
    fn steps(seed: u64) -> usize {
        Chance::new(seed ^ 0x106).within(20, 120)
    }

    /// Run the history of a seed.
    pub fn run(&mut self, seed: u64) -> Result<Seen, String> {
        let all: Vec<usize> = (0..Self::steps(seed)).collect();
        self.run_steps(seed, &all)
    }

    /// Run it with some of its steps.
    pub fn run_steps(&mut self, seed: u64, kept: &[usize]) -> Result<Seen, String> {
        let mut dice = Chance::new(seed);
        let bits = [-1, -1, 0, 0, 10, 4][dice.below(6)];
        let nodes = NODES[dice.below(NODES.len())];
        let (server, listener) = (&mut self.server, &mut self.listener);
        let info = server.ask(&[
            words(&["FLUSHALL"]),
            words(&["CONFIG", "SET", "stream-node-max-entries", &nodes.to_string(), "stream-node-max-bytes", "0"]),
            words(&["INFO", "replication"]),
        ]);
        let text = String::from_utf8_lossy(&info[2]).into_owned();
        let history = text.lines().find_map(|line| line.strip_prefix("master_replid:")).unwrap_or_default();
        let mut model = Model::new(history.to_owned(), nodes);
        model.now_ms = CLOCK_BEGINS_MS + dice.below(1_000) as i64;
        let (shas, leader_epoch) = (&self.shas, 7);
        let (counts, failure) = (Seen::new(), None);
        let mut pair = Pair { server, listener, shas, model, dice, bits, leader_epoch, counts, failure };
        pair.create();
        for step in kept {
            pair.dice = Chance::new(seed ^ (*step as u64 + 1) << 20);
            pair.act();
            if let Some(failure) = pair.failure.take() {
                return Err(format!("step {step}, bits {bits}, nodes of {nodes}: {failure}"));
            }
        }
        Ok(pair.counts)
    }

    /// Leave out steps of a history that fails as long as it still fails.
    pub fn shrunk(&mut self, seed: u64) -> Option<Failure> {
        let (steps, text) = shrunk_by(Self::steps(seed), |kept| self.run_steps(seed, kept).map(drop))?;
        Some(Failure { seed, steps, text, shown: Vec::new() })
    }
}
