//! What has arrived over a connection: whose it is, and what follows if a server refused.

use std::ops::Range;

use super::link::{Purpose, Stage};
use super::{Address, Caller, Client, ConnectionId, Event, LaneId, NodeId, Piece, Time, Way, greeting};
use crate::pipeline::Owner;
use crate::resp::{Element, Elements};

/// A connection to a replica is not closed earlier: if the address leads to the same replica again, once in this time.
const REPLICA_LEFT_AFTER: Time = Time::from_secs(1);
/// How much of a reply that nobody asked for is shown.
const SHOWN_BYTES: usize = 100;

/// An error reply from which something follows: the command was not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Another node has the slot; the host is empty if it is that of the node which says so.
    Moved { slot: u16, host: String, port: u16 },
    /// Another node is receiving the slot, and has the keys.
    Ask { host: String, port: u16 },
    /// The keys are at two nodes.
    TryAgain,
    /// The script is missing.
    NoScript,
    /// The server's memory is full.
    Full,
    /// The lease has ended.
    LeaseEnded,
    /// The server is a replica.
    Replica,
    /// The cluster does not work.
    ClusterDown,
}

impl Refusal {
    pub fn of(reply: &[u8]) -> Option<Self> {
        let text = reply.strip_prefix(b"-")?;
        let mut words = text.split(u8::is_ascii_whitespace);
        let name = words.next()?;
        let mut place = || {
            let slot = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
            let (host, port) = std::str::from_utf8(words.next()?).ok()?.rsplit_once(':')?;
            Some((slot, host.to_owned(), port.parse().ok()?))
        };
        match name {
            b"MOVED" => place().map(|(slot, host, port)| Self::Moved { slot, host, port }),
            b"ASK" => place().map(|(_, host, port)| Self::Ask { host, port }),
            b"TRYAGAIN" => Some(Self::TryAgain),
            b"NOSCRIPT" => Some(Self::NoScript),
            b"OOM" => Some(Self::Full),
            b"STALE_BROKER_EPOCH" => Some(Self::LeaseEnded),
            b"READONLY" => Some(Self::Replica),
            b"CLUSTERDOWN" => Some(Self::ClusterDown),
            _ => None,
        }
    }

    fn is_elsewhere(&self) -> bool {
        matches!(self, Self::Moved { .. } | Self::Ask { .. } | Self::TryAgain)
    }
}

impl<T: Caller, B: AsRef<[u8]>> Client<T, B> {
    /// Take in what was appended to the room of a connection.
    pub fn received(&mut self, id: ConnectionId, now: Time) {
        let Some(connection) = self.connections.get_mut(id).filter(|connection| connection.is_open()) else { return };
        connection.pipeline.heard(now);
        let mut leads_to_replica = false;
        while let Some(connection) = self.connections.get_mut(id).filter(|connection| connection.is_open()) {
            match connection.inbox.next_reply() {
                Ok(Some(range)) => leads_to_replica |= self.take_reply(id, range, now),
                Ok(None) => break,
                Err(malformed) => {
                    self.lose_connection(id, &format!("it sent what is not RESP: {malformed}"), now);
                }
            }
        }
        let Some(connection) = self.connections.get(id).filter(|connection| connection.stage == Stage::Up) else {
            return;
        };
        if let Purpose::Link { node, lane } = connection.purpose {
            if leads_to_replica && now >= connection.made_at + REPLICA_LEFT_AFTER {
                self.note_replica(node, lane);
                self.lose_connection(id, "the server is a read-only replica", now);
            }
            self.drain(node, lane, now);
        }
    }

    /// Take a reply; returns whether the server says that it is a replica.
    fn take_reply(&mut self, id: ConnectionId, range: Range<usize>, now: Time) -> bool {
        let Some(connection) = self.connections.get_mut(id) else { return false };
        let reply = connection.inbox.bytes().get(range.clone()).unwrap_or_default();
        if connection.stage == Stage::Greeting {
            let taken = connection.greeting.as_mut().map_or(Ok(true), |greeting| greeting.take(reply));
            match taken {
                Ok(false) => {}
                Ok(true) => {
                    let reply = reply.to_vec();
                    self.greeted(id, &reply, now);
                }
                Err(words) => {
                    let text = format!("Redis at {} {words}", connection.address);
                    self.refuse(id, &text, now);
                }
            }
            return false;
        }
        if connection.dropped > 0 {
            connection.dropped -= 1;
            return false;
        }
        let (node, lane) = match connection.purpose {
            Purpose::Link { node, lane } => (node, lane),
            Purpose::Watch => {
                let is_news = is_message(reply);
                self.watch_heard(is_news, now);
                return false;
            }
            _ => return false,
        };
        if let Some(ping) = self.lanes.get(lane).and_then(|lane| lane.options.ping) {
            if is_pong(reply) {
                self.wake_at(Some(now + ping));
                return false;
            }
            let is_error = reply.starts_with(b"-");
            self.events.push_back(Event::FeedReply { lane, node, range });
            if !is_error {
                self.feed_works(node, lane);
            }
            return false;
        }
        let refusal = Refusal::of(reply);
        let is_replica = refusal == Some(Refusal::Replica);
        let is_down = refusal == Some(Refusal::ClusterDown);
        match connection.pipeline.answer(now) {
            Owner::Part { token, index } => self.take_part(id, token, index, range, refusal),
            Owner::Last(answered) if answered.has_given_up => connection.oldest = super::link::Oldest::default(),
            Owner::Last(answered) => {
                self.take_part(id, answered.token, answered.count - 1, range, refusal);
                self.take_last(id, answered.token, (node, lane), now);
            }
            Owner::Dropped => {}
            Owner::Nobody => {
                let shown = String::from_utf8_lossy(reply.get(..SHOWN_BYTES).unwrap_or(reply)).trim_end().to_owned();
                self.lose_connection(id, &format!("it sent a reply without a request: {shown}"), now);
            }
        }
        if is_down {
            // So says a node that has left the cluster, too: another one may have its slots.
            self.read_map_soon(now);
        }
        is_replica
    }

    /// Take one of the replies to a piece, the `index`th.
    fn take_part(
        &mut self,
        id: ConnectionId,
        piece: Piece,
        index: usize,
        range: Range<usize>,
        refusal: Option<Refusal>,
    ) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let Purpose::Link { node, lane } = connection.purpose else { return };
        let Piece { call, first, way, .. } = piece;
        let bytes = connection.inbox.bytes();
        let is_error = bytes.get(range.start) == Some(&b'-');
        let oldest = &mut connection.oldest;
        let Some(index) = index.checked_sub(way.prefix()) else {
            // A script that does not compile fails when it is loaded, and that says why.
            if way.loads && index == 0 && is_error {
                oldest.load_failed = true;
                self.events.push_back(Event::Reply { call, place: first, range });
            } else {
                oldest.asking_failed |= is_error;
            }
            return;
        };
        let place = first + index;
        if oldest.load_failed {
            return;
        }
        self.events.push_back(Event::Reply { call, place, range });
        let (Some(refusal), Some(asked)) = (refusal, self.calls.get(call)) else { return };
        let lease_ended = asked.is_scripts && refusal == Refusal::LeaseEnded;
        match refusal {
            // A user who may not send ASKING waits for the slot.
            _ if refusal.is_elsewhere() && oldest.asking_failed => oldest.refusal = Some(Refusal::TryAgain),
            _ if refusal.is_elsewhere() => oldest.refusal = oldest.refusal.take().or(Some(refusal)),
            Refusal::NoScript if asked.is_rerun && !way.loads => {
                let is_loaded = |(other, way): &(usize, Way)| way.loads && asked.token.is_same_script(place, *other);
                let loads = !oldest.again.iter().any(is_loaded);
                oldest.again.push((place, Way { loads, ..way }));
            }
            Refusal::Full if asked.is_rerun && !way.is_full && asked.token.runs_when_full(place) => {
                oldest.again.push((place, Way { is_full: true, loads: false, ..way }));
            }
            _ => {}
        }
        if let Some(link) = self.link_mut(node, lane) {
            link.lease_ended |= lease_ended;
        }
    }

    /// Take the end of a piece: send again what was not run, and note that the rest has its outcome.
    fn take_last(&mut self, id: ConnectionId, piece: Piece, (node, lane): (NodeId, LaneId), now: Time) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let oldest = std::mem::take(&mut connection.oldest);
        if let Some(refusal) = oldest.refusal {
            if self.follows(piece, now) {
                return self.follow(piece, refusal, node, now);
            }
        }
        self.complete(piece.call, piece.count - oldest.again.len(), now);
        if oldest.again.is_empty() {
            return;
        }
        self.events.push_back(Event::Reordered);
        for (place, way) in oldest.again {
            self.dispatch(Piece { first: place, count: 1, way, ..piece }, now);
        }
        self.drain(node, lane, now);
    }

    /// Take the answer to the first question of a connection.
    fn greeted(&mut self, id: ConnectionId, reply: &[u8], now: Time) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let (purpose, address) = (connection.purpose.clone(), connection.address.clone());
        let refused = match purpose {
            Purpose::Link { node, lane } => match greeting::history_of(reply) {
                Ok(history) => return self.link_greeted(id, node, lane, history, now),
                Err(words) => words,
            },
            Purpose::Slots => match super::slots::parsed_ranges(reply, &address) {
                Ok(ranges) => {
                    self.close_question(id);
                    return self.take_map(ranges, now);
                }
                Err(words) => words,
            },
            Purpose::Master { node, lane } => match self.named_master(reply) {
                Ok(master) => {
                    self.close_question(id);
                    return self.master_named(node, lane, master, now);
                }
                Err(words) => words,
            },
            Purpose::Named => match self.named_master(reply) {
                Ok(master) => {
                    self.close_question(id);
                    return self.watch_named(master, now);
                }
                Err(words) => words,
            },
            Purpose::Verified => match greeting::history_of(reply) {
                Ok(history) => {
                    self.close_question(id);
                    return self.watch_verified(&address, !history.is_empty(), now);
                }
                Err(words) => words,
            },
            Purpose::Watch if reply.starts_with(b"-") => "refused to be watched".to_owned(),
            Purpose::Watch => {
                connection.stage = Stage::Up;
                return self.watch_begun(id, now);
            }
        };
        let server = if matches!(purpose, Purpose::Master { .. }) { "the Sentinel" } else { "Redis" };
        self.refuse(id, &format!("{server} at {address} {refused}"), now);
    }

    pub(super) fn close_question(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(id).filter(|connection| connection.stage != Stage::Lost) {
            connection.stage = Stage::Lost;
            self.events.push_back(Event::Close { connection: id });
        }
    }

    fn named_master(&self, reply: &[u8]) -> Result<Address, String> {
        match &self.options.target {
            super::Target::Sentinels { master, .. } => greeting::named_master(reply, master),
            _ => Err("was asked for a master".to_owned()),
        }
    }
}

/// Whether a reply is a message of a channel.
fn is_message(reply: &[u8]) -> bool {
    let mut elements = Elements::of(reply);
    matches!(elements.next(), Some(Element::Array(_) | Element::Push(_)))
        && elements.next() == Some(Element::Bulk(b"message"))
}

/// Whether a reply is one to PING, of a connection that has subscribed or not.
fn is_pong(reply: &[u8]) -> bool {
    let mut elements = Elements::of(reply);
    match elements.next() {
        Some(Element::Simple(word)) => word == b"PONG",
        Some(Element::Array(2)) => elements.next() == Some(Element::Bulk(b"pong")),
        _ => false,
    }
}
