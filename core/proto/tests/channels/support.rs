//! Channels, a map of slots, and a clock of the test. What is said is text: a line an action, or an event.

use std::collections::BTreeMap;
use std::time::Duration;

use korvet_proto::channels::{Action, Announced, Channels, Event, Message, Nodes, Options, Time};
use korvet_proto::client::NodeId;
use korvet_proto::resp::{Element, Elements, Inbox, put_argument, put_count};

pub const LINGER: u64 = 5_000;
pub const TIMEOUT: u64 = 10_000;
/// Between two times that channels follow their slots, and between two looks for the node of a slot.
pub const FOLLOW_PAUSE: u64 = 20;
pub const SEARCH_PAUSE: u64 = 1_000;

pub fn at(milliseconds: u64) -> Time {
    Duration::from_millis(milliseconds)
}

/// Which node has which slot.
#[derive(Clone, Default)]
pub struct Map {
    pub is_known: bool,
    pub masters: BTreeMap<u16, NodeId>,
    names: Vec<String>,
}

impl Map {
    pub fn of(is_known: bool, masters: &[(u16, NodeId)]) -> Self {
        let names = (0..10).map(|node| format!("h:{node}")).collect();
        Self { is_known, masters: masters.iter().copied().collect(), names }
    }
}

impl Nodes for Map {
    fn has_map(&self) -> bool {
        self.is_known
    }

    fn node_of(&self, slot: u16) -> Option<NodeId> {
        self.masters.get(&slot).copied()
    }

    fn name_of(&self, node: NodeId) -> &str {
        &self.names[node]
    }
}

/// The commands among packed ones, words by spaces.
pub fn commands_of(packed: &[u8]) -> Vec<Vec<String>> {
    let mut inbox = Inbox::default();
    inbox.room(packed.len()).unwrap().extend_from_slice(packed);
    let mut commands = Vec::new();
    while let Some(range) = inbox.next_reply().unwrap() {
        let words = Elements::of(&packed[range]).filter_map(|element| match element {
            Element::Bulk(word) => Some(String::from_utf8(word.to_vec()).unwrap()),
            _ => None,
        });
        commands.push(words.collect());
    }
    commands
}

/// What a node says of a channel, or over it.
pub fn push(kind: &str, channel: &str, content: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    put_count(&mut text, 3);
    put_argument(&mut text, kind.as_bytes());
    put_argument(&mut text, channel.as_bytes());
    if kind == "smessage" {
        put_argument(&mut text, content);
    } else {
        text.extend(b":1\r\n");
    }
    text
}

pub struct World {
    pub channels: Channels<u32>,
    pub map: Map,
    pub now: Time,
    said: Vec<String>,
}

/// Channels at one server, which is node 0.
pub fn one_server() -> World {
    World::new(false, Map::of(true, &[(0, 0)]))
}

/// Channels at the nodes of a cluster.
pub fn cluster(masters: &[(u16, NodeId)]) -> World {
    World::new(true, Map::of(true, masters))
}

impl World {
    pub fn new(is_cluster: bool, map: Map) -> Self {
        let options = Options { is_cluster, linger: at(LINGER), timeout: at(TIMEOUT) };
        Self { channels: Channels::new(options), map, now: at(0), said: Vec::new() }
    }

    /// Do what follows, and note what is said.
    pub fn turn(&mut self) {
        while self.channels.is_due() {
            self.channels.serve(&self.map, self.now);
            self.note();
        }
        self.note();
    }

    fn note(&mut self) {
        while let Some(action) = self.channels.next_action() {
            let line = match action {
                Action::Keep { node, is_kept: false, .. } => format!("{node} is not kept"),
                Action::Keep { node, pings: false, .. } => format!("{node} is kept"),
                Action::Keep { node, .. } => format!("{node} is kept, and asked"),
                Action::Lose { node, reason, pauses: false } => format!("{node} is left: {reason}"),
                Action::Lose { node, reason, .. } => format!("{node} is left for a while: {reason}"),
                Action::Send { node, commands } => {
                    let commands: Vec<_> = commands_of(&commands).iter().map(|words| words.join(" ")).collect();
                    format!("to {node}: {}", commands.join(", "))
                }
                Action::Moved { slot, host, port } => format!("{slot} is at {host}:{port}"),
                Action::ReadMap => "the map is read".to_owned(),
            };
            self.said.push(line);
        }
        while let Some(event) = self.channels.next_event() {
            self.said.push(match event {
                Event::Live { channel } => format!("{channel} is live"),
                Event::Again { channel } => format!("{channel} again"),
                Event::Failed { channel, text } => format!("{channel} failed: {text}"),
            });
        }
    }

    /// What was said since this was last asked.
    pub fn said(&mut self) -> Vec<String> {
        self.turn();
        std::mem::take(&mut self.said)
    }

    pub fn listen(&mut self, channel: &str, slot: u16, listener: u32) -> bool {
        let is_live = self.channels.listen(channel, slot, listener, self.now);
        self.turn();
        is_live
    }

    pub fn forget(&mut self, channel: &str, listener: u32) {
        self.channels.forget(channel, &listener, self.now);
        self.turn();
    }

    pub fn connect(&mut self, node: NodeId) {
        self.channels.connected(node);
        self.turn();
    }

    pub fn refuse(&mut self, node: NodeId, reason: &str) {
        self.channels.refused(node, reason);
        self.turn();
    }

    pub fn lose(&mut self, node: NodeId, reason: &str) {
        self.channels.lost(node, reason, self.now);
        self.turn();
    }

    pub fn change_map(&mut self, masters: &[(u16, NodeId)]) {
        self.map = Map::of(true, masters);
        self.channels.map_changed();
        self.turn();
    }

    /// Have a node answer; returns what it says over a channel, and to whom.
    pub fn answer(&mut self, node: NodeId, reply: &[u8]) -> Vec<(u32, String)> {
        let heard = self.channels.received(node, reply, self.now).map(|Message { payload, listeners }| {
            let payload = String::from_utf8(payload.to_vec()).unwrap();
            listeners.iter().map(|listener| (*listener, payload.clone())).collect()
        });
        let heard = heard.unwrap_or_default();
        self.turn();
        heard
    }

    pub fn confirm(&mut self, node: NodeId, channels: &[&str]) {
        for channel in channels {
            assert_eq!(self.answer(node, &push("ssubscribe", channel, b"")), []);
        }
    }

    pub fn unsubscribe(&mut self, node: NodeId, channel: &str) {
        assert_eq!(self.answer(node, &push("sunsubscribe", channel, b"")), []);
    }

    pub fn publish(&mut self, node: NodeId, channel: &str, message: &str) -> Vec<(u32, String)> {
        self.answer(node, &push("smessage", channel, message.as_bytes()))
    }

    pub fn wait(&mut self, milliseconds: u64) {
        let until = self.now + at(milliseconds);
        while let Some(due) = self.channels.due().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.channels.tick(self.now);
            self.turn();
            assert!(self.channels.due().is_none_or(|due| due > self.now), "it is due again at once");
        }
        self.now = until;
    }

    /// What was announced since this was last asked.
    pub fn announced(&mut self) -> Vec<String> {
        self.turn();
        let announced = self.channels.take_announced().into_iter().map(|announced| match announced {
            Announced::End { channel, end } => format!("{channel} ends at {end}"),
            Announced::Live { channel } => format!("{channel} is live"),
            Announced::Interrupted { channel } => format!("{channel} is interrupted"),
            Announced::Again { channel } => format!("{channel} again"),
            Announced::Failed { channel, text } => format!("{channel} failed: {text}"),
        });
        announced.collect()
    }

    /// A channel with a listener, live at its node, which is connected.
    pub fn live(&mut self, channel: &str, slot: u16, listener: u32) {
        let node = self.map.node_of(slot).unwrap();
        assert!(!self.listen(channel, slot, listener));
        if !self.said().iter().any(|line| line.starts_with(&format!("to {node}: "))) {
            self.connect(node);
        }
        self.confirm(node, &[channel]);
        assert!(self.channels.is_live(channel));
        self.said();
    }
}

/// Messages as they are heard.
pub fn heard(messages: &[(u32, &str)]) -> Vec<(u32, String)> {
    messages.iter().map(|(listener, message)| (*listener, (*message).to_owned())).collect()
}
