//! A worker: callers, and the driver of a client with its sockets.

use std::collections::BTreeMap;
use std::rc::Rc;

use korvet_proto::client::{
    Address, Begin, CallId, Client, ConnectionId, Event, LaneId, LaneOptions, NodeId, Options, Prevented, Ready, Span,
};
use korvet_proto::pipeline::{Packed, Time};
use korvet_proto::resp::{Scanner, put_argument, put_count};

use crate::plan::{Plan, Token, one_command};
use crate::wire::{Stage, Wire};
use crate::world::{Fault, World};

/// What the worker knows of the connection of a lane to a node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    pub wire: Option<usize>,
    pub was_up: bool,
    pub is_kept: bool,
    pub pings: bool,
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub client: Client<Token, Vec<u8>>,
    pub lanes: Vec<bool>,
    pub feed: Option<LaneId>,
    pub closed: Vec<bool>,
    /// Of each lane: how many commands and bytes may be under way.
    limits: Vec<(usize, usize)>,
    /// How far its clock is ahead.
    pub ahead: i64,
    pub wires: BTreeMap<ConnectionId, usize>,
    pub links: BTreeMap<(LaneId, NodeId), Known>,
    pub calls: BTreeMap<CallId, Rc<Plan>>,
    to_flush: Vec<usize>,
    /// When it looks at the clock.
    pub due: Option<Time>,
    /// When sockets were to be opened.
    pub opened: Vec<Time>,
    /// The call whose outcome a fault gives to another one.
    stolen: Option<Vec<u8>>,
    delayed: Vec<u8>,
}

/// What one tick begins may be due at once.
const TICKS_MAX: usize = 3;

impl Worker {
    pub fn new(options: Options, lanes: &[LaneOptions]) -> Self {
        let mut client = Client::new(options);
        let mut feed = None;
        for lane in lanes {
            let id = client.add_lane(lane.clone());
            feed = feed.or(lane.ping.map(|_| id));
        }
        Self {
            client,
            lanes: lanes.iter().map(|lane| lane.ping.is_some()).collect(),
            feed,
            closed: vec![false; lanes.len()],
            limits: lanes.iter().map(|lane| (lane.commands_max, lane.bytes_max)).collect(),
            ahead: 0,
            wires: BTreeMap::new(),
            links: BTreeMap::new(),
            calls: BTreeMap::new(),
            to_flush: Vec::new(),
            due: None,
            opened: Vec::new(),
            stolen: None,
            delayed: Vec::new(),
        }
    }
}

/// Bytes of one command.
pub(crate) fn packed_words(words: &[&str]) -> Vec<u8> {
    let mut text = Vec::new();
    put_count(&mut text, words.len());
    for word in words {
        put_argument(&mut text, word.as_bytes());
    }
    text
}

impl World {
    /// What the clock of a worker shows.
    pub fn clock(&self, worker: usize) -> Time {
        let ahead = self.workers[worker].ahead;
        let shift = Time::from_millis(ahead.unsigned_abs());
        if ahead < 0 { self.now.saturating_sub(shift) } else { self.now + shift }
    }

    // --- calls

    pub fn begin(&mut self, plan: Plan) {
        let (worker, now) = (plan.worker, self.clock(plan.worker));
        let plan = Rc::new(plan);
        self.ledger.ask(&plan, now);
        self.trace(|| format!("worker {worker} asks {plan:?}"));
        let client = &mut self.workers[worker].client;
        let call = if plan.is_map {
            client.read_map(Token(plan.clone()), now)
        } else {
            let is_whole = self.servers.cluster.is_none() || plan.node.is_some();
            let whole = [Span { first: 0, count: plan.places.len(), slot: None }];
            let spans = if is_whole && !plan.places.is_empty() { whole.to_vec() } else { plan.spans() };
            let begin = Begin {
                token: Token(plan.clone()),
                lane: plan.lane,
                node: plan.node,
                reply_bytes: plan.reply_bytes,
                is_scripts: plan.is_scripts,
                is_rerun: plan.is_rerun,
                history: plan.history.clone(),
            };
            client.begin(begin, &spans, now)
        };
        self.workers[worker].calls.insert(call, plan);
        self.pump(worker, None);
    }

    // --- what the client says

    /// Do what the client says until it says nothing more. `received` are bytes that have come over a wire.
    pub fn pump(&mut self, worker: usize, mut received: Option<(usize, Vec<u8>)>) {
        for _ in 0..20_000 {
            if let Some(event) = self.workers[worker].client.next_event() {
                self.event(worker, event, received.as_ref());
                continue;
            }
            if let Some((wire, bytes)) = received.take() {
                let connection = self.wires[wire].connection;
                self.workers[worker].client.give_back(connection, bytes);
            }
            let Some(ready) = self.workers[worker].client.next_ready() else { return self.check_room(worker) };
            self.send(worker, ready);
        }
        self.ledger.fail("the client has always something to say");
    }

    /// Nothing waits for a connection that is there and has room.
    fn check_room(&mut self, worker: usize) {
        let Worker { client, links, limits, .. } = &self.workers[worker];
        for ((lane, node), known) in links {
            let (commands, bytes, _) = client.under_way(*lane, *node);
            let has_room = limits.get(*lane).is_some_and(|(most, bytes_max)| commands < *most && bytes < *bytes_max);
            if self.depth == 0 && known.wire.is_some() && has_room && client.waiting(*lane, *node).0 > 0 {
                return self.ledger.fail(format!("something waits for {lane} to {node}, which has room"));
            }
        }
    }

    fn send(&mut self, worker: usize, mut ready: Ready) {
        let now = self.clock(worker);
        let Some(plan) = self.workers[worker].calls.get(&ready.piece.call).cloned() else {
            return self.ledger.fail("a piece of a call is ready that is finished");
        };
        self.trace(|| format!("worker {worker} sends {}.{} {ready:?}", plan.worker, plan.number));
        let mut packed = plan.packed(&ready.piece, ready.lease_end_ms);
        if ready.piece.way.asks && self.strikes(Fault::AskingFirst) {
            // ASKING, and another command before its own.
            let text = packed.joined();
            let asking = packed_words(&["ASKING", &plan.name(ready.piece.first).to_string()]);
            packed = Packed::default();
            packed.text = text
                .strip_prefix(asking.as_slice())
                .map_or(text.clone(), |rest| [asking.as_slice(), &packed_words(&["FIRST"]), rest].concat());
        }
        let is_divided = plan.transaction(ready.piece.first).is_some() && self.strikes(Fault::DividedMulti);
        let delayed = std::mem::take(&mut self.workers[worker].delayed);
        if is_divided || !delayed.is_empty() {
            let mut text = packed.joined();
            if is_divided {
                // The end comes behind what is sent next.
                let middle = Scanner::default().scan(&text).ok().flatten().unwrap_or_default();
                self.workers[worker].delayed = text.split_off(middle);
            }
            packed = Packed::default();
            packed.text = [text, delayed].concat();
        }
        if self.dice.is(6) && self.is_faulty && !self.is_calm {
            // To pack a command may run anything.
            self.own(worker);
        }
        if self.is_faulty && !self.is_calm && self.dice.is(1) {
            self.workers[worker].client.give_up(&ready, "its commands cannot be packed", now);
            return;
        }
        if self.strikes(Fault::OtherNode) {
            ready.node += 1;
        }
        let Some(pushed) = self.workers[worker].client.push(&ready, packed, now) else { return };
        let Some(wire) = self.workers[worker].wires.get(&pushed.connection).copied() else {
            return self.ledger.fail("a piece was pushed to a connection that is closed");
        };
        if self.workers[worker].client.history(ready.lane, ready.node) != self.wires[wire].session.history() {
            self.ledger.fail("a piece was pushed to a connection with another history than that of its node");
        }
        if pushed.was_idle && self.dice.is(80) { self.write(wire) } else { self.workers[worker].to_flush.push(wire) }
    }

    fn event(&mut self, worker: usize, event: Event, received: Option<&(usize, Vec<u8>)>) {
        self.trace(|| format!("worker {worker}: {event:?}"));
        let text = format!("{event:?}");
        self.ledger.see(&format!("Event::{}", text.split(' ').next().unwrap_or_default()));
        match event {
            Event::Reply { call, place, range } => {
                let Some((wire, reply)) = received.and_then(|(wire, bytes)| Some((*wire, bytes.get(range)?))) else {
                    return self.ledger.fail("a reply lies where nothing was received");
                };
                let connection = self.wires[wire].connection;
                self.reply(worker, connection, call, place, reply);
            }
            Event::Prevented { call, first, count, kind, text } => {
                self.prevented(worker, call, first, count, kind, &text);
            }
            Event::Finished { call, .. } => self.finished(worker, call),
            Event::FeedReply { lane, node, range } => {
                let Some((wire, reply)) = received.and_then(|(wire, bytes)| Some((*wire, bytes.get(range)?))) else {
                    return self.ledger.fail("a message lies where nothing was received");
                };
                if self.strikes(Fault::SwallowedMessage) {
                    return;
                }
                self.heard(wire, (lane, node), reply);
            }
            Event::Open { connection, address, is_sentinel } => self.open(worker, connection, &address, is_sentinel),
            Event::Close { connection } => self.close_wire(worker, connection),
            Event::Flush { connection } => {
                if let Some(wire) = self.workers[worker].wires.get(&connection) {
                    let wire = *wire;
                    self.workers[worker].to_flush.push(wire);
                }
            }
            Event::Connected { lane, node, history, is_again } => {
                self.connected(worker, (lane, node), &history, is_again, received.map(|(wire, _)| *wire));
            }
            Event::Refused { lane, node, text } => self.down(worker, (lane, node), false, &text),
            Event::Lost { lane, node, text } => self.down(worker, (lane, node), true, &text),
            // Calls that waited for the first map keep their order.
            Event::Map => self.ledger.maps += usize::from(self.workers[worker].client.map_version() > 1),
            Event::Timer => self.workers[worker].due = self.workers[worker].client.due(),
            Event::Reordered | Event::Failover => {}
        }
    }

    fn finished(&mut self, worker: usize, call: CallId) {
        if self.strikes(Fault::SwallowedEnd) {
            return;
        }
        let Some(plan) = self.workers[worker].calls.remove(&call) else {
            return self.ledger.fail("a call is finished that is not under way");
        };
        let now = self.clock(worker);
        self.ledger.finish(&plan, now);
        if self.workers[worker].client.finish(call).is_none() {
            self.ledger.fail(format!("the token of {}.{} is gone", worker, plan.number));
        }
    }

    /// A connection is lost, or an attempt to connect has failed.
    fn down(&mut self, worker: usize, link: (LaneId, NodeId), was_up: bool, text: &str) {
        let known = self.workers[worker].links.entry(link).or_default();
        if known.wire.take().is_some() != was_up {
            self.ledger
                .fail(format!("{link:?} is down though it was {}: {text}", if was_up { "not up" } else { "up" }));
        }
    }

    fn reply(&mut self, worker: usize, connection: ConnectionId, call: CallId, place: usize, reply: &[u8]) {
        let Some(plan) = self.workers[worker].calls.get(&call).cloned() else {
            return self.ledger.fail("a reply of a call that is not under way");
        };
        if !matches!(Scanner::default().scan(reply), Ok(Some(size)) if size == reply.len()) {
            self.ledger.fail(format!("{} has a reply that is not whole", plan.name(place)));
        }
        let mut reply = reply.to_vec();
        if self.strikes(Fault::OtherAnswer) || self.workers[worker].stolen.is_some() {
            let stolen = self.workers[worker].stolen.replace(reply.clone());
            reply = stolen.unwrap_or(reply);
        }
        self.ledger.reply(&plan, place, &reply);
        if self.workers[worker].wires.get(&connection).is_none_or(|wire| self.wires[*wire].link.is_none()) {
            self.ledger.fail("a reply comes over a connection that is not up");
        }
        let link = self.workers[worker].wires.get(&connection).and_then(|wire| self.wires[*wire].link);
        let (Some((lane, node)), true) = (link, plan.is_scripts && reply.starts_with(b"-STALE_BROKER_EPOCH")) else {
            return;
        };
        if !self.workers[worker].client.lease_ended(lane, node) {
            self.ledger.fail(format!("a script came after the end of the lease of {node}, which is not noted"));
        }
    }

    fn prevented(&mut self, worker: usize, call: CallId, first: usize, count: usize, kind: Prevented, text: &str) {
        let Some(plan) = self.workers[worker].calls.get(&call).cloned() else {
            return self.ledger.fail(format!("an outcome of a call that is not under way: {text}"));
        };
        if self.strikes(Fault::SwallowedOutcome) {
            return;
        }
        self.ledger.prevented(&plan, first, count, kind, text);
        if kind == Prevented::Unknown && count > 0 && self.strikes(Fault::SentAgain) {
            let own = |((lane, _), known): (&(LaneId, NodeId), &Known)| known.wire.filter(|_| *lane == plan.lane);
            let Some(wire) = self.workers[worker].links.iter().find_map(own) else { return };
            if self.workers[worker].client.pieces(self.wires[wire].connection) == 0 {
                let text = one_command(&plan, first);
                self.wires[wire].up.extend(text);
            }
        }
    }

    fn heard(&mut self, wire: usize, link: (LaneId, NodeId), reply: &[u8]) {
        let wire = &mut self.wires[wire];
        let expected = wire.session.feed.get(wire.heard).map(|(_, text)| text.as_slice());
        let is_right = wire.link == Some(link) && (expected == Some(reply) || wire.is_spoiled);
        let number = wire.heard;
        wire.heard += 1;
        if !is_right {
            let text = String::from_utf8_lossy(reply).into_owned();
            self.ledger.fail(format!("a feed heard {text:?}, the {number}th, and it was to hear another one"));
        }
    }

    fn connected(&mut self, worker: usize, link: (LaneId, NodeId), history: &str, is_again: bool, wire: Option<usize>) {
        let known = self.workers[worker].links.entry(link).or_default();
        if known.wire.is_some() || known.was_up != is_again {
            self.ledger.fail(format!("{link:?} was connected, though it was {known:?} ({is_again})"));
        }
        let Some(wire) = wire else { return self.ledger.fail("connected without an answer") };
        (known.wire, known.was_up) = (Some(wire), true);
        let told = self.wires[wire].session.history();
        if told != history {
            self.ledger.fail(format!("{link:?} was connected to {history}, and the server said {told}"));
        }
        if history.is_empty() && self.servers.has_sentinels {
            self.ledger.fail(format!("{link:?} was connected to a server that is no master"));
        }
        self.wires[wire].link = Some(link);
        if self.workers[worker].lanes[link.0] {
            self.subscribe(worker, link, &["SUBSCRIBE", "news"]);
            if self.dice.is(50) {
                self.subscribe(worker, link, &["SSUBSCRIBE", "shard"]);
            }
        }
    }

    pub fn subscribe(&mut self, worker: usize, (lane, node): (LaneId, NodeId), words: &[&str]) {
        let mut packed = Packed::default();
        packed.text = packed_words(words);
        let connection = self.workers[worker].client.send(lane, node, packed);
        if let Some(wire) = connection.and_then(|id| self.workers[worker].wires.get(&id).copied()) {
            self.workers[worker].to_flush.push(wire);
        }
    }

    // --- sockets

    fn open(&mut self, worker: usize, connection: ConnectionId, address: &Address, is_sentinel: bool) {
        let host = self.servers.hosts.iter().position(|host| host.address == *address);
        let Some(host) = host else {
            return self.ledger.fail(format!("a connection to {address}, which is nobody's"));
        };
        if self.servers.hosts[host].is_sentinel != is_sentinel {
            self.ledger.fail(format!("a connection to {address}, which is a Sentinel or is not"));
        }
        let opened_at = self.now;
        self.workers[worker].opened.push(opened_at);
        let stage = self.opening(host);
        let room = if self.is_faulty && !self.is_calm && self.dice.is(20) { self.dice.within(1, 200) } else { 1 << 20 };
        self.wires.push(Wire::new(worker, connection, Some(host), stage, room));
        if self.workers[worker].wires.insert(connection, self.wires.len() - 1).is_some() {
            self.ledger.fail("the number of a connection was given twice");
        }
    }

    fn close_wire(&mut self, worker: usize, connection: ConnectionId) {
        if self.strikes(Fault::LeftOpen) {
            return;
        }
        let Some(wire) = self.workers[worker].wires.remove(&connection) else {
            return self.ledger.fail("a connection is closed that is not open");
        };
        let is_lost = self.dice.is(50);
        let wire = &mut self.wires[wire];
        if is_lost {
            // What the kernel has may get lost, or be cut anywhere.
            let kept = self.dice.below(wire.up.len() + 1);
            wire.up.truncate(kept);
        }
        wire.is_late = matches!(wire.stage, Stage::Opening { .. });
        wire.stage = Stage::Left;
    }

    /// Let the kernel take bytes.
    pub fn write(&mut self, wire: usize) {
        let (worker, connection) = (self.wires[wire].worker, self.wires[wire].connection);
        if !self.wires[wire].is_held() || self.wires[wire].is_cut {
            return;
        }
        let client = &mut self.workers[worker].client;
        let pieces: Vec<&[u8]> = client.unwritten(connection).collect();
        if pieces.len() != client.pieces(connection) || pieces.iter().any(|piece| piece.is_empty()) {
            self.ledger.fail("a piece that is to be written is empty, or not counted");
        }
        let bytes = pieces.concat();
        let room = self.wires[wire].room.saturating_sub(self.wires[wire].up.len());
        let taken = room.min(bytes.len());
        let taken = if self.is_faulty && self.dice.is(15) { self.dice.below(taken + 1) } else { taken };
        client.wrote(connection, taken);
        self.wires[wire].is_stuck = taken < bytes.len();
        self.wires[wire].up.extend_from_slice(&bytes[..taken]);
    }

    /// Write what is to be written at the end of a turn.
    pub fn flush(&mut self, worker: usize) {
        let wires = std::mem::take(&mut self.workers[worker].to_flush);
        for wire in wires {
            self.write(wire);
        }
    }

    /// Look at the clock of a worker.
    pub fn tick(&mut self, worker: usize) {
        let now = self.clock(worker);
        for _ in 0..TICKS_MAX {
            self.workers[worker].client.tick(now);
            self.pump(worker, None);
            self.flush(worker);
            if self.workers[worker].due.is_none_or(|due| due > now) {
                return;
            }
        }
        self.ledger.fail(format!("after {TICKS_MAX} ticks at {now:?} another one is due"));
    }
}
