//! The connections of a server: commands one after the other, transactions, and channels of sharded pub/sub.

use std::collections::BTreeSet;

use korvet_proto::pipeline::Time;
use korvet_proto::resp::{Element, Elements, Inbox};

use super::model::Reply;
use super::redis::Servers;

type Words = Vec<Vec<u8>>;

/// What a server remembers of a connection.
#[derive(Debug, Default)]
pub(super) struct Session {
    inbox: Inbox,
    is_asked: bool,
    /// The commands since MULTI.
    queued: Option<Vec<Words>>,
    /// Whether one of them was refused.
    is_refused: bool,
    pub channels: BTreeSet<Vec<u8>>,
}

fn message(words: &[&[u8]]) -> Reply {
    Reply::Array(words.iter().map(|word| Reply::Bulk(word.to_vec())).collect())
}

/// A message of a channel.
pub(super) fn announcement(channel: &[u8], text: &str) -> Vec<u8> {
    message(&[b"smessage", channel, text.as_bytes()]).packed()
}

/// Forget channels that are at another node now, and say so; what the server sends.
pub(super) fn left(session: &mut Session, is_elsewhere: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let gone: Vec<Vec<u8>> = session.channels.iter().filter(|channel| is_elsewhere(channel)).cloned().collect();
    let mut down = Vec::new();
    for channel in gone {
        session.channels.remove(&channel);
        down.extend(subscription(b"sunsubscribe", &channel, session.channels.len()).packed());
    }
    down
}

fn subscription(word: &[u8], channel: &[u8], count: usize) -> Reply {
    Reply::Array(vec![Reply::Bulk(word.to_vec()), Reply::Bulk(channel.to_vec()), Reply::Integer(count as i64)])
}

impl Servers {
    /// Take bytes of a connection to a host; what it answers.
    pub fn take(&mut self, session: &mut Session, host: usize, bytes: &[u8], now: Time, now_ms: i64) -> Vec<u8> {
        session.inbox.room(bytes.len()).unwrap().extend_from_slice(bytes);
        let mut down = Vec::new();
        while let Some(range) = session.inbox.next_reply().unwrap() {
            let words: Words = Elements::of(&session.inbox.bytes()[range])
                .filter_map(|element| if let Element::Bulk(word) = element { Some(word.to_vec()) } else { None })
                .collect();
            self.hosts[host].model.now_ms = now_ms;
            down.extend(self.reply(host, session, words, now).packed());
        }
        down
    }

    fn reply(&mut self, number: usize, session: &mut Session, words: Words, now: Time) -> Reply {
        // ASKING is for the next command, and for all of a transaction that begins with that.
        let is_asked = session.is_asked;
        session.is_asked = words[0] == b"ASKING" || is_asked && (words[0] == b"MULTI" || session.queued.is_some());
        match words[0].as_slice() {
            b"INFO" => {
                let history = &self.hosts[number].model.history;
                Reply::text(format!("role:master\r\nmaster_replid:{history}\r\n"))
            }
            b"CLUSTER" => self.slots(),
            b"SCRIPT" => {
                let name = String::from_utf8_lossy(&words[2]).trim_start_matches("text of ").to_owned();
                self.hosts[number].scripts.insert(name.clone());
                Reply::text(name)
            }
            b"EVALSHA" => {
                let name = String::from_utf8_lossy(&words[1]).into_owned();
                let reply = self.evaluate(number, &name, &words[2..], is_asked, now);
                let shown = match &reply {
                    Reply::Error(text) => text.split(' ').next().unwrap_or_default().to_owned(),
                    Reply::Array(_) => String::from_utf8_lossy(&reply.packed()).split_whitespace().collect(),
                    _ => "ran".to_owned(),
                };
                self.seen.push(format!("{name}: {shown}"));
                reply
            }
            b"PING" if session.channels.is_empty() => Reply::Simple("PONG"),
            b"PING" => message(&[b"pong", b""]),
            b"SSUBSCRIBE" | b"SUNSUBSCRIBE" => self.subscribe(number, session, &words),
            b"MULTI" => {
                (session.queued, session.is_refused) = (Some(Vec::new()), false);
                Reply::Simple("OK")
            }
            b"EXEC" => {
                session.is_asked = false;
                let queued = session.queued.take().unwrap();
                self.execute(number, &queued, session.is_refused, is_asked)
            }
            b"HMGET" | b"XRANGE" | b"ZRANGEBYSCORE" => {
                let refusal = self.refusal(number, &words[1], is_asked, false, now);
                match &mut session.queued {
                    Some(queued) if refusal.is_none() => {
                        queued.push(words);
                        Reply::Simple("QUEUED")
                    }
                    queued => {
                        session.is_refused |= queued.is_some();
                        refusal.map_or_else(|| self.hosts[number].model.query(&words), Reply::Error)
                    }
                }
            }
            _ => Reply::Simple("OK"),
        }
    }

    fn execute(&self, number: usize, queued: &[Words], is_refused: bool, is_asked: bool) -> Reply {
        if is_refused {
            return Reply::Error("EXECABORT Transaction discarded because of previous errors.".to_owned());
        }
        if let Some(refusal) = self.elsewhere(number, &queued[0][1], is_asked, queued.len() > 1) {
            return Reply::Error(refusal);
        }
        let model = &self.hosts[number].model;
        if !self.shows_early {
            return Reply::Array(queued.iter().map(|words| model.query(words)).collect());
        }
        let mut early = model.clone();
        early.end_after_all(&queued[0][1]);
        Reply::Array(queued.iter().map(|words| early.query(words)).collect())
    }

    fn refusal(&self, number: usize, key: &[u8], is_asked: bool, has_more: bool, now: Time) -> Option<String> {
        if self.hosts[number].loads_until > now {
            return Some("LOADING Redis is loading the dataset in memory".to_owned());
        }
        self.elsewhere(number, key, is_asked, has_more)
    }

    fn subscribe(&self, number: usize, session: &mut Session, words: &[Vec<u8>]) -> Reply {
        let channel = &words[1];
        if words[0] == b"SUNSUBSCRIBE" {
            session.channels.remove(channel);
            return subscription(b"sunsubscribe", channel, session.channels.len());
        }
        // The node has the channels of a slot until that has moved.
        let owner = self.owner(channel);
        if owner.is_some_and(|owner| owner != number) {
            return Reply::Error(self.elsewhere(number, channel, false, false).unwrap_or_default());
        }
        session.channels.insert(channel.clone());
        subscription(b"ssubscribe", channel, session.channels.len())
    }

    /// The node of a cluster that has the slot of a channel.
    pub fn owner(&self, channel: &[u8]) -> Option<usize> {
        let (owner, _) = self.owners.get(String::from_utf8_lossy(channel).as_ref())?;
        self.is_cluster.then_some(*owner)
    }
}
