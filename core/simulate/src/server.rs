//! Servers of Redis: they take commands in bytes, run them or refuse, and tell the ledger.

use std::collections::BTreeSet;

use korvet_proto::client::Address;
use korvet_proto::pipeline::Time;
use korvet_proto::resp::{Element, Elements, Inbox};

use crate::check::{Ledger, bad_script};
use crate::plan::{BAD_SCRIPT, Kind, Name, SCRIPTS, TAGS, key, sha};
use crate::topology::{Topology, Verdict};

pub(crate) const PASSWORD: &str = "secret";

/// How a host takes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    Open,
    /// Refuses at once.
    Refuses,
    /// Never answers.
    Silent,
    /// Takes connections, and closes them.
    Closes,
    /// Has too many already: says so, and closes them.
    Full,
}

/// Which master a Sentinel names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Host(usize),
    Nobody,
    /// It answers with an error.
    Refused,
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // none follows from another
pub(crate) struct Host {
    pub address: Address,
    pub door: Door,
    pub is_sentinel: bool,
    pub names: Named,
    pub is_replica: bool,
    pub history: String,
    pub scripts: BTreeSet<String>,
    pub loads_until: Time,
    pub is_full: bool,
    /// Refuses scripts also with their texts for a full memory.
    pub is_stuffed: bool,
    pub is_locked: bool,
    /// Says nothing of its history.
    pub is_secret: bool,
    /// Leases that end earlier have ended.
    pub fence_ms: i64,
    /// How many commands it ran.
    count: usize,
}

impl Host {
    pub fn new(address: Address) -> Self {
        Self {
            history: format!("history of {address}"),
            address,
            door: Door::Open,
            is_sentinel: false,
            names: Named::Host(0),
            is_replica: false,
            scripts: BTreeSet::new(),
            loads_until: Time::ZERO,
            is_full: false,
            is_stuffed: false,
            is_locked: false,
            is_secret: false,
            fence_ms: 0,
            count: 0,
        }
    }
}

/// What a server remembers of a connection.
#[derive(Debug, Default)]
pub(crate) struct Session {
    inbox: Inbox,
    is_known: bool,
    asking: Option<Name>,
    transaction: Option<Transaction>,
    pub channels: BTreeSet<String>,
    /// The histories that it was given, and the ones begun since.
    pub histories: Vec<String>,
    /// What it sent that is of a feed, and the end of each among all bytes it sent.
    pub feed: Vec<(usize, Vec<u8>)>,
    pub sent: usize,
}

#[derive(Debug)]
struct Transaction {
    multi: Name,
    queued: Vec<Vec<String>>,
    is_asked: bool,
    is_bad: bool,
}

/// Where a command came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From {
    pub host: usize,
    pub wire: usize,
    pub is_closed: bool,
    pub now: Time,
    pub has_password: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Servers {
    pub hosts: Vec<Host>,
    pub cluster: Option<Topology>,
    pub has_sentinels: bool,
}

impl Session {
    /// Write a message, an answer of a feed.
    pub fn tell(&mut self, down: &mut Vec<u8>, reply: &[u8]) {
        down.extend_from_slice(reply);
        self.sent += reply.len();
        self.feed.push((self.sent, reply.to_vec()));
    }

    /// Its present history.
    pub fn history(&self) -> &str {
        self.histories.last().map(String::as_str).unwrap_or_default()
    }

    fn put(&mut self, down: &mut Vec<u8>, reply: &[u8]) {
        down.extend_from_slice(reply);
        self.sent += reply.len();
    }
}

pub(crate) fn bulks(words: &[&str]) -> Vec<u8> {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text.extend([format!("${}\r\n{word}\r\n", word.len())]);
    }
    text.into_bytes()
}

fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

impl Servers {
    /// Take bytes of a connection. Returns false if they are no commands.
    pub fn take(
        &mut self,
        session: &mut Session,
        from: From,
        bytes: &[u8],
        down: &mut Vec<u8>,
        ledger: &mut Ledger,
    ) -> bool {
        if let Ok(room) = session.inbox.room(bytes.len()) {
            room.extend_from_slice(bytes);
        }
        loop {
            let range = match session.inbox.next_reply() {
                Ok(Some(range)) => range,
                Ok(None) => return true,
                Err(malformed) => {
                    ledger.fail(format!("a server got what is no command: {malformed}"));
                    return false;
                }
            };
            let mut words = Vec::new();
            for element in Elements::of(session.inbox.bytes().get(range).unwrap_or_default()) {
                match element {
                    Element::Bulk(word) => words.push(String::from_utf8_lossy(word).into_owned()),
                    Element::Array(_) => {}
                    other => ledger.fail(format!("a server got {other:?}")),
                }
            }
            self.command(session, from, &words, down, ledger);
        }
    }

    fn command(
        &mut self,
        session: &mut Session,
        from: From,
        words: &[String],
        down: &mut Vec<u8>,
        ledger: &mut Ledger,
    ) {
        let text: Vec<&str> = words.iter().map(String::as_str).collect();
        let asking = session.asking.take();
        let host = &mut self.hosts[from.host];
        match text.as_slice() {
            ["AUTH", password] => {
                session.is_known = *password == PASSWORD && !host.is_locked;
                let reply: &[u8] = if session.is_known { b"+OK\r\n" } else { b"-WRONGPASS invalid password\r\n" };
                return session.put(down, reply);
            }
            _ if from.has_password && !session.is_known && !host.is_sentinel => {
                if let Some(name) = text.iter().find_map(|word| Name::parsed(word)) {
                    ledger.fail(format!("{name} came before AUTH"));
                }
                return session.put(down, b"-NOAUTH Authentication required.\r\n");
            }
            ["CLIENT", ..] => return session.put(down, b"-ERR unknown subcommand\r\n"),
            ["SELECT", _] | ["FIRST"] => return session.put(down, b"+OK\r\n"),
            ["PING"] if session.channels.is_empty() => return session.put(down, b"+PONG\r\n"),
            ["PING"] => return session.put(down, b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"),
            ["SUBSCRIBE" | "SSUBSCRIBE", channel] => {
                session.channels.insert((*channel).to_owned());
                return session.tell(down, &bulks(&["subscribe", channel, "1"]));
            }
            ["INFO" | "SENTINEL" | "CLUSTER" | "SCRIPT", ..] => {
                let reply = self.about(session, from.host, &text, ledger);
                return session.put(down, &reply);
            }
            ["ASKING", name] => {
                session.asking = Name::parsed(name);
                return session.put(down, b"+OK\r\n");
            }
            _ => {}
        }
        let Some(name) = text.iter().find_map(|word| Name::parsed(word)) else {
            return ledger.fail(format!("a server got the command {text:?}"));
        };
        if asking.is_some_and(|asked| asked != name) {
            ledger.fail(format!("{name} came after an ASKING that is not its own"));
        }
        let reply = self.named(session, from, name, words, asking.is_some(), ledger);
        session.put(down, &reply);
    }

    /// Answer what a client asks about a server, or has it load.
    fn about(&mut self, session: &mut Session, from_host: usize, words: &[&str], ledger: &mut Ledger) -> Vec<u8> {
        let host = &mut self.hosts[from_host];
        match words {
            ["INFO", "replication"] if host.is_secret => {
                session.histories.push(String::new());
                b"-NOPERM this user has no permissions to run the 'info' command\r\n".to_vec()
            }
            ["INFO", "replication"] => {
                let role = if host.is_replica { "slave" } else { "master" };
                session.histories.push(if host.is_replica { String::new() } else { host.history.clone() });
                bulk(&format!("role:{role}\r\nmaster_replid:{}\r\n", host.history))
            }
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => {
                let named = match host.names {
                    Named::Host(named) => self.hosts[named].address.clone(),
                    Named::Nobody => return b"*-1\r\n".to_vec(),
                    Named::Refused => return b"-IDONTKNOW I know nothing\r\n".to_vec(),
                };
                bulks(&[&named.host, &named.port.to_string()])
            }
            ["CLUSTER", "SLOTS"] => {
                let slots = self.cluster.as_ref().map(|cluster| cluster.slots(from_host));
                slots.unwrap_or(b"-ERR This instance has cluster support disabled\r\n".to_vec())
            }
            ["SCRIPT", "LOAD", source] => load(host, source.trim_start_matches("text of ")),
            _ => {
                ledger.fail(format!("a server got the command {words:?}"));
                Vec::new()
            }
        }
    }

    /// Run or refuse a command that has a name.
    fn named(
        &mut self,
        session: &mut Session,
        from: From,
        name: Name,
        words: &[String],
        is_asked: bool,
        ledger: &mut Ledger,
    ) -> Vec<u8> {
        let word = words.first().map(String::as_str).unwrap_or_default();
        match word {
            "MULTI" => {
                if let Some(open) = &session.transaction {
                    ledger.fail(format!("{name} came within the transaction {}", open.multi));
                }
                session.transaction = Some(Transaction { multi: name, queued: Vec::new(), is_asked, is_bad: false });
                let reply = format!("+OK {name}\r\n").into_bytes();
                ledger.answered(name, &reply);
                reply
            }
            "EXEC" => self.exec(session, from, name, ledger),
            _ => {
                let is_within = session.transaction.as_ref().is_some_and(|transaction| transaction.is_asked);
                let refusal = self.refusal(session, from, name, words, is_asked || is_within, ledger);
                match (&mut session.transaction, refusal) {
                    (transaction, Some(refusal)) => {
                        if let Some(transaction) = transaction {
                            follows(transaction, name, ledger);
                            transaction.is_bad = true;
                            transaction.queued.push(words.to_vec());
                        }
                        let reply = format!("-{refusal} {name}\r\n").into_bytes();
                        ledger.refused(name, &reply, from.now);
                        reply
                    }
                    (Some(transaction), None) => {
                        follows(transaction, name, ledger);
                        transaction.queued.push(words.to_vec());
                        let reply = format!("+QUEUED {name}\r\n").into_bytes();
                        ledger.queued(name, &reply);
                        reply
                    }
                    (None, None) => {
                        let reply = self.run(session, from, name, words, ledger);
                        ledger.answered(name, &reply);
                        reply
                    }
                }
            }
        }
    }

    fn exec(&mut self, session: &mut Session, from: From, name: Name, ledger: &mut Ledger) -> Vec<u8> {
        let Some(transaction) = session.transaction.take() else {
            ledger.fail(format!("{name} came without its MULTI"));
            return b"-ERR EXEC without MULTI\r\n".to_vec();
        };
        follows(&transaction, name, ledger);
        let names = transaction.queued.iter().filter_map(|words| words.iter().find_map(|word| Name::parsed(word)));
        let queued: Vec<(Name, Vec<String>)> = names.zip(transaction.queued.clone()).collect();
        let mut refusal =
            transaction.is_bad.then(|| "EXECABORT Transaction discarded because of previous errors.".to_owned());
        for (name, words) in &queued {
            // Slots may have moved since.
            refusal = refusal.or_else(|| self.elsewhere(from.host, words, transaction.is_asked, *name, ledger));
        }
        if let Some(refusal) = refusal {
            let reply = format!("-{refusal} {name}\r\n").into_bytes();
            ledger.refused(name, &reply, from.now);
            return reply;
        }
        let mut reply = format!("*{}\r\n${}\r\n{name}\r\n", queued.len() + 1, name.to_string().len()).into_bytes();
        for (name, words) in &queued {
            reply.extend(self.run(session, from, *name, words, ledger));
        }
        ledger.answered(name, &reply);
        reply
    }

    /// The words of the refusal for where the keys of a command are.
    fn elsewhere(
        &self,
        host: usize,
        words: &[String],
        is_asked: bool,
        name: Name,
        ledger: &mut Ledger,
    ) -> Option<String> {
        let cluster = self.cluster.as_ref()?;
        let plan = ledger.plan(name)?;
        let place = plan.places.get(name.place)?;
        let keys: &[usize] = match place.kind {
            Kind::Time => return None,
            Kind::Pair => &[0, 1],
            _ if place.is_second => &[1],
            _ => &[0],
        };
        if !words.iter().any(|word| *word == key(place.tag, place.is_second)) {
            ledger.fail(format!("{name} came without its key"));
        }
        match cluster.verdict(host, place.tag, keys, is_asked) {
            Verdict::Runs => None,
            Verdict::RunsAsked => {
                ledger.see("ran after ASKING");
                None
            }
            Verdict::Refused(text) => Some(text),
        }
    }

    /// The words of the refusal of a command that is not run.
    fn refusal(
        &mut self,
        _session: &Session,
        from: From,
        name: Name,
        words: &[String],
        is_asked: bool,
        ledger: &mut Ledger,
    ) -> Option<String> {
        let host = &self.hosts[from.host];
        let word = words.first().map(String::as_str).unwrap_or_default();
        if host.loads_until > from.now {
            return Some("LOADING Redis is loading the dataset in memory".to_owned());
        }
        if let Some(refusal) = self.elsewhere(from.host, words, is_asked, name, ledger) {
            return Some(refusal);
        }
        let host = &self.hosts[from.host];
        let (is_script, sha) = (word == "EVALSHA", words.get(1).map(String::as_str).unwrap_or_default());
        if is_script && !host.scripts.contains(sha) {
            return Some("NOSCRIPT No matching script.".to_owned());
        }
        if host.is_replica && word != "TIME" && word != "BLOB" {
            return Some("READONLY You can't write against a read only replica.".to_owned());
        }
        let lease = words.get(5).and_then(|lease| lease.parse::<i64>().ok()).unwrap_or_default();
        if is_script && lease != 0 && lease < host.fence_ms {
            return Some("STALE_BROKER_EPOCH".to_owned());
        }
        let needs_memory =
            matches!(word, "COUNT" | "PAIR") || is_script && (host.is_stuffed || !sha.starts_with("full"));
        if host.is_full && needs_memory {
            return Some("OOM command not allowed when used memory > 'maxmemory'.".to_owned());
        }
        None
    }

    fn run(&mut self, session: &Session, from: From, name: Name, words: &[String], ledger: &mut Ledger) -> Vec<u8> {
        let host = &mut self.hosts[from.host];
        host.count += 1;
        if words.get(1).is_some_and(|sha| sha.starts_with("full")) {
            ledger.see("ran as its text for a full memory");
        }
        let count = host.count;
        ledger.run(name, from.wire, from.is_closed, &session.histories);
        match words.first().map(String::as_str) {
            Some("FAIL") => format!("-ERR wrong kind of value {name} {count}\r\n").into_bytes(),
            Some("BLOB") => {
                let size = words.get(3).and_then(|size| size.parse().ok()).unwrap_or_default();
                bulk(&format!("{name}{}", "b".repeat(size)))
            }
            Some("EVALSHA") => format!("*3\r\n+{name}\r\n:{count}\r\n*1\r\n$-1\r\n").into_bytes(),
            Some("TIME") => bulks(&[&name.to_string(), &count.to_string()]),
            _ => format!("+{name} {count}\r\n").into_bytes(),
        }
    }
}

/// Check that a command is the next one of a transaction.
fn follows(transaction: &Transaction, name: Name, ledger: &mut Ledger) {
    let Name { worker, call, place } = transaction.multi;
    let next = Name { worker, call, place: place + transaction.queued.len() + 1 };
    if name != next {
        ledger.fail(format!("{name} came within the transaction {}, and {next} was to follow", transaction.multi));
    }
}

fn load(host: &mut Host, name: &str) -> Vec<u8> {
    if [false, true].iter().any(|is_full| name == sha(BAD_SCRIPT, *is_full)) {
        return bad_script(name);
    }
    host.scripts.insert(name.to_owned());
    bulk(name)
}

/// The texts of all scripts that a lane may load first.
pub(crate) fn first_scripts() -> Vec<String> {
    (0..SCRIPTS.min(TAGS)).map(|script| sha(script, false)).collect()
}
