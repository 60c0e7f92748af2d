//! Servers of Redis that run the scripts of the model: one server, or the nodes of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use korvet_proto::client::{Address, slot_of};
use korvet_proto::pipeline::Time;

use super::model::{Log, Model, Reply, Script, stream_of};

const SCRIPTS: [Script; 5] =
    [Script::AppendBatch, Script::AppendRecord, Script::Expel, Script::Renumber, Script::Epoch];
/// How many entries a node of a stream has.
const NODE_MAX: usize = 5;
pub(super) const PORT: u16 = 7_000;
/// The key of the leader epoch, of which each node has its own.
pub(super) const EPOCH_KEY: &str = "epoch";

/// The SHA-1 of a script, as far as this Redis is concerned.
pub(super) fn sha(script: Script, is_full: bool) -> String {
    format!("{}{}", script.name(), if is_full { " when full" } else { "" })
}

fn script_of(sha: &str) -> Option<(Script, bool)> {
    let all = SCRIPTS.into_iter().flat_map(|script| [(script, false), (script, true)]);
    all.into_iter().find(|(script, is_full)| self::sha(*script, *is_full) == sha)
}

#[derive(Debug)]
pub(super) struct Host {
    pub address: Address,
    pub model: Model,
    /// What its replica has of it.
    pub replica: Model,
    pub scripts: BTreeSet<String>,
    pub is_up: bool,
    pub loads_until: Time,
    /// It takes no connection before.
    pub opens_at: Time,
    pub is_full: bool,
}

/// A slot on its way to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// Some of its keys are there.
    Begun(usize),
    /// All are.
    Moved(usize),
}

#[derive(Debug)]
pub(super) struct Servers {
    pub hosts: Vec<Host>,
    pub is_cluster: bool,
    /// The node of each stream, and where its slot is going.
    pub owners: BTreeMap<String, (usize, Option<Move>)>,
    histories: usize,
    /// Logs seem to end after what other clients have put there.
    pub shows_early: bool,
    /// Replies that are errors, by their first word, and runs of scripts.
    pub seen: Vec<String>,
}

impl Servers {
    pub fn new(count: usize) -> Self {
        let mut servers = Self {
            hosts: Vec::new(),
            is_cluster: count > 1,
            owners: BTreeMap::new(),
            histories: 0,
            shows_early: false,
            seen: Vec::new(),
        };
        for number in 0..count {
            let address = Address { host: "node".to_owned(), port: PORT + number as u16 };
            let model = Model::new(servers.new_history(), NODE_MAX);
            let (replica, scripts) = (model.clone(), BTreeSet::new());
            let (is_up, loads_until, opens_at, is_full) = (true, Time::ZERO, Time::ZERO, false);
            servers.hosts.push(Host { address, model, replica, scripts, is_up, loads_until, opens_at, is_full });
        }
        servers
    }

    fn new_history(&mut self) -> String {
        self.histories += 1;
        format!("history{}", self.histories)
    }

    /// The host that has a log.
    pub fn home(&self, stream: &str) -> usize {
        match self.owners.get(stream) {
            Some((_, Some(Move::Moved(to)))) => *to,
            Some((owner, _)) => *owner,
            None => 0,
        }
    }

    /// The log of a stream, where it is.
    pub fn log(&self, stream: &str) -> Option<&Log> {
        self.hosts[self.home(stream)].model.logs.get(stream.as_bytes())
    }

    /// Let the replica of a host have all that it has.
    pub fn replicate(&mut self, host: usize) {
        self.hosts[host].replica = self.hosts[host].model.clone();
    }

    /// Let a host start again, or its replica take over.
    pub fn restart(&mut self, host: usize, is_failover: bool, loads_until: Time) {
        let history = self.new_history();
        let host = &mut self.hosts[host];
        if is_failover {
            host.model = host.replica.clone();
        }
        host.model.history = history;
        host.model.published.clear();
        host.replica = host.model.clone();
        host.scripts.clear();
        host.loads_until = loads_until;
        host.is_up = true;
    }

    /// Begin to move the slot of a log, or go on with that.
    pub fn move_on(&mut self, stream: &str, to: usize) {
        let Some((owner, moving)) = self.owners.get(stream).copied() else { return };
        let next = match moving {
            None if to == owner => (owner, None),
            None => (owner, Some(Move::Begun(to))),
            Some(Move::Begun(to)) => {
                if let Some(log) = self.hosts[owner].model.logs.remove(stream.as_bytes()) {
                    self.hosts[to].model.logs.insert(stream.as_bytes().to_vec(), log);
                }
                // Replicas get it in the same step.
                self.replicate(owner);
                self.replicate(to);
                (owner, Some(Move::Moved(to)))
            }
            Some(Move::Moved(to)) => (to, None),
        };
        self.owners.insert(stream.to_owned(), next);
    }

    pub fn evaluate(&mut self, number: usize, name: &str, words: &[Vec<u8>], is_asked: bool, now: Time) -> Reply {
        let count: usize = std::str::from_utf8(&words[0]).unwrap().parse().unwrap();
        let (keys, arguments) = words[1..].split_at(count);
        if self.hosts[number].loads_until > now {
            return Reply::Error("LOADING Redis is loading the dataset in memory".to_owned());
        }
        if let Some(refusal) = self.elsewhere(number, &keys[0], is_asked, true) {
            return Reply::Error(refusal);
        }
        let host = &mut self.hosts[number];
        if !host.scripts.contains(name) {
            return Reply::Error("NOSCRIPT No matching script. Please use EVAL.".to_owned());
        }
        let (script, is_full) = script_of(name).unwrap();
        let is_append = matches!(script, Script::AppendBatch | Script::AppendRecord);
        if host.is_full && is_append && !is_full {
            return Reply::Error("OOM command not allowed when used memory > 'maxmemory'.".to_owned());
        }
        // The text for a full memory is sent to a server whose memory was full.
        host.model.run(script, keys, arguments, is_full)
    }

    /// The refusal of a node that does not have the log of a key; `has_more`: another key of that is named too.
    pub fn elsewhere(&self, host: usize, key: &[u8], is_asked: bool, has_more: bool) -> Option<String> {
        let stream = String::from_utf8_lossy(stream_of(key)).into_owned();
        let (owner, moving) = self.owners.get(&stream).copied()?;
        let slot = slot_of(key);
        let at = |node: usize| format!("{slot} {}", self.hosts[node].address);
        let is_half = || Some("TRYAGAIN Multiple keys request during rehashing of slot".to_owned());
        match moving {
            _ if !self.is_cluster => None,
            Some(Move::Begun(_)) if host == owner && !has_more => None,
            Some(Move::Begun(to)) if host == owner || host == to && is_asked => is_half(),
            Some(Move::Moved(to)) if host == owner => Some(format!("ASK {}", at(to))),
            Some(Move::Moved(to)) if host == to && is_asked => None,
            _ if host == owner => None,
            _ => Some(format!("MOVED {}", at(owner))),
        }
    }

    /// The answer to CLUSTER SLOTS: streams by their slots, all others at the first node.
    pub fn slots(&self) -> Reply {
        let known = self.owners.iter().map(|(stream, (owner, _))| (slot_of(stream.as_bytes()), *owner));
        let known: BTreeMap<u16, usize> = known.collect();
        let mut ranges = Vec::new();
        let mut put = |first: u16, last: u16, owner: usize| {
            let Address { host, port } = &self.hosts[owner].address;
            let node = Reply::Array(vec![Reply::text(host), Reply::Integer((*port).into()), Reply::text("id")]);
            ranges.push(Reply::Array(vec![Reply::Integer(first.into()), Reply::Integer(last.into()), node]));
        };
        let mut next = 0;
        for (slot, owner) in known {
            if slot > next {
                put(next, slot - 1, 0);
            }
            put(slot, slot, owner);
            next = slot + 1;
        }
        put(next, 16_383, 0);
        Reply::Array(ranges)
    }
}
