//! Whatever listeners and nodes do, in any order: who waits is answered, what was missed is read again, and nothing stays
//! behind.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use korvet_proto::channels::{Action, Announced, Event};
use korvet_proto::client::NodeId;
use proptest::collection::vec;
use proptest::prelude::*;

use super::support::{LINGER, Map, TIMEOUT, World, at, commands_of, push};

const NODES: usize = 3;
const SLOTS: u16 = 4;
const CHANNELS: u16 = 6;
const LISTENERS: u32 = 3;

#[derive(Clone, Debug)]
enum Act {
    Listen(u16, u32),
    Forget(u16, u32),
    Watch(u16),
    Unwatch(u16),
    Publish(u16),
    /// The node of a slot is another one from now on.
    Move(u16, NodeId),
    Kill(NodeId),
    Revive(NodeId),
    Cut(NodeId),
    /// What a node has said arrives, that many replies.
    Deliver(NodeId, usize),
    /// Connections are made or refused, and the map is read.
    Connect,
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..CHANNELS, 0..LISTENERS).prop_map(|(channel, listener)| Act::Listen(channel, listener)),
        3 => (0..CHANNELS, 0..LISTENERS).prop_map(|(channel, listener)| Act::Forget(channel, listener)),
        3 => (0..CHANNELS).prop_map(Act::Watch),
        1 => (0..CHANNELS).prop_map(Act::Unwatch),
        6 => (0..CHANNELS).prop_map(Act::Publish),
        2 => (0..SLOTS, 0..NODES).prop_map(|(slot, node)| Act::Move(slot, node)),
        1 => (0..NODES).prop_map(Act::Kill),
        2 => (0..NODES).prop_map(Act::Revive),
        1 => (0..NODES).prop_map(Act::Cut),
        8 => (0..NODES, 1_usize..8).prop_map(|(node, count)| Act::Deliver(node, count)),
        6 => Just(Act::Connect),
        2 => prop_oneof![Just(1), Just(20), Just(LINGER), Just(TIMEOUT)].prop_map(Act::Wait),
    ]
}

/// What a listener, or the watch, has of a channel.
#[derive(Default)]
struct Place {
    listeners: BTreeSet<u32>,
    is_watched: bool,
    /// The message that was published last when all that listen were last live, or last read again.
    read: Option<u64>,
    /// Since when a confirmation is waited for, by listeners and by the watch.
    waits: [Option<u64>; 2],
    /// A message after `read` was missed.
    is_owed: bool,
    /// Whether the watch believes that it hears all.
    hears: bool,
}

impl Place {
    fn is_unheard(&self) -> bool {
        self.listeners.is_empty() && !self.is_watched
    }
}

/// A reply, and the number of the message that it is.
type Said = (Option<u64>, Vec<u8>);

#[derive(Default)]
struct Server {
    is_dead: bool,
    is_kept: bool,
    /// What is subscribed to over the connection, and what was said over it and has not arrived.
    connection: Option<(BTreeSet<String>, VecDeque<Said>)>,
}

struct Redis {
    world: World,
    is_cluster: bool,
    owners: BTreeMap<u16, NodeId>,
    servers: Vec<Server>,
    places: BTreeMap<String, Place>,
    is_map_read: bool,
    published: u64,
}

fn name_of(channel: u16) -> String {
    format!("channel {channel}")
}

fn slot_of(name: &str) -> u16 {
    name.split(' ').nth(1).unwrap().parse::<u16>().unwrap() % SLOTS
}

impl Redis {
    fn new(is_cluster: bool) -> Self {
        let owners: BTreeMap<_, _> =
            (0..SLOTS).map(|slot| (slot, if is_cluster { usize::from(slot) % NODES } else { 0 })).collect();
        let masters: Vec<_> = owners.iter().map(|(slot, node)| (*slot, *node)).collect();
        let servers = (0..NODES).map(|_| Server::default()).collect();
        let world = World::new(is_cluster, Map::of(true, &masters));
        Self { world, is_cluster, owners, servers, places: BTreeMap::new(), is_map_read: false, published: 0 }
    }

    fn ms(&self) -> u64 {
        self.world.now.as_millis() as u64
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Listen(channel, listener) => self.join(channel, Some(listener)),
            Act::Watch(channel) => self.join(channel, None),
            Act::Forget(channel, listener) => {
                let name = name_of(channel);
                let gone = self.world.channels.forget(&name, &listener, self.world.now);
                let place = self.places.entry(name).or_default();
                assert_eq!(gone.is_some(), place.listeners.remove(&listener));
                self.turn();
                self.leave();
            }
            Act::Unwatch(channel) => {
                self.world.channels.unwatch(&name_of(channel), self.world.now);
                let place = self.places.entry(name_of(channel)).or_default();
                (place.is_watched, place.hears, place.waits[1]) = (false, false, None);
                self.leave();
            }
            Act::Publish(channel) => self.publish(&name_of(channel)),
            Act::Move(slot, node) if self.is_cluster => self.move_slot(slot, node),
            Act::Kill(node) => {
                self.servers[node].is_dead = true;
                self.cut(node);
            }
            Act::Revive(node) => self.servers[node].is_dead = false,
            Act::Cut(node) => self.cut(node),
            Act::Deliver(node, count) => self.deliver(node, count),
            Act::Connect => self.connect(),
            Act::Wait(ms) => self.wait(ms),
            Act::Move(..) => {}
        }
        self.turn();
        for (name, place) in &self.places {
            assert!(
                !place.hears || self.world.channels.is_live(name),
                "the watch does not know that {name} is interrupted"
            );
            for since in place.waits.iter().flatten() {
                assert!(self.ms() <= since + TIMEOUT, "nobody says what became of {name}");
            }
        }
    }

    /// Have a listener, or the watch, hear a channel.
    fn join(&mut self, channel: u16, listener: Option<u32>) {
        let (name, now) = (name_of(channel), self.world.now);
        let is_live = match listener {
            Some(listener) => self.world.channels.listen(&name, slot_of(&name), listener, now),
            None => self.world.channels.watch(&name, slot_of(&name), now),
        };
        let (published, ms) = (self.published, self.ms());
        let place = self.places.entry(name).or_default();
        if is_live && place.is_unheard() {
            place.read = Some(published);
        }
        if let Some(listener) = listener {
            place.listeners.insert(listener);
        } else {
            (place.is_watched, place.hears) = (true, is_live);
        }
        if !is_live {
            place.waits[usize::from(listener.is_none())].get_or_insert(ms);
        }
    }

    fn leave(&mut self) {
        self.places.retain(|_, place| !place.is_unheard());
    }

    fn publish(&mut self, name: &str) {
        self.published += 1;
        let node = self.owners[&slot_of(name)];
        let message = push("smessage", name, self.published.to_string().as_bytes());
        match &mut self.servers[node].connection {
            Some((subscribed, said)) if subscribed.contains(name) => said.push_back((Some(self.published), message)),
            _ => self.miss(name, self.published),
        }
    }

    /// Note that a message is not heard.
    fn miss(&mut self, name: &str, number: u64) {
        if let Some(place) = self.places.get_mut(name) {
            place.is_owed |= place.read.is_some_and(|read| number > read);
        }
    }

    /// A slot goes to another node: the one that had it unsubscribes its clients.
    fn move_slot(&mut self, slot: u16, node: NodeId) {
        let from = self.owners.insert(slot, node).unwrap();
        if let Some((subscribed, said)) = self.servers[from].connection.as_mut().filter(|_| from != node) {
            for name in std::mem::take(subscribed) {
                if slot_of(&name) == slot {
                    said.push_back((None, push("sunsubscribe", &name, b"")));
                } else {
                    subscribed.insert(name);
                }
            }
        }
    }

    fn cut(&mut self, node: NodeId) {
        let Some((_, said)) = self.servers[node].connection.take() else { return };
        self.world.channels.lost(node, "cut", self.world.now);
        for (number, message) in said {
            if let Some(number) = number {
                self.miss(&commands_of(&message)[0][1], number);
            }
        }
    }

    fn deliver(&mut self, node: NodeId, count: usize) {
        for _ in 0..count {
            let said = self.servers[node].connection.as_mut().and_then(|(_, said)| said.pop_front());
            let Some((number, reply)) = said else { return };
            let heard = self.world.channels.received(node, &reply, self.world.now);
            let heard: BTreeSet<u32> = heard.iter().flat_map(|message| message.listeners).copied().collect();
            if let Some(number) = number {
                let name = commands_of(&reply)[0][1].clone();
                let is_announced = self.take_announced().contains(&(name.clone(), number as i64));
                if heard.is_empty() && !is_announced {
                    // It is at another node by now, or interrupted and at none.
                    self.miss(&name, number);
                } else {
                    let place = &self.places[&name];
                    assert_eq!((&heard, is_announced), (&place.listeners, place.is_watched));
                }
            }
            self.turn();
        }
    }

    fn connect(&mut self) {
        for node in 0..NODES {
            let server = &mut self.servers[node];
            if !server.is_kept || server.connection.is_some() {
                continue;
            }
            if server.is_dead {
                self.world.channels.refused(node, "away");
            } else {
                server.connection = Some(Default::default());
                self.world.channels.connected(node);
            }
            self.turn();
        }
        if std::mem::take(&mut self.is_map_read) {
            self.world.map.masters.clone_from(&self.owners);
            self.world.channels.map_changed();
        }
    }

    fn wait(&mut self, ms: u64) {
        let until = self.world.now + at(ms);
        while let Some(due) = self.world.channels.due().filter(|due| *due <= until) {
            self.world.now = self.world.now.max(due);
            self.world.channels.tick(self.world.now);
            self.turn();
        }
        self.world.now = until;
    }

    /// Do what follows, as the client of Redis would.
    fn turn(&mut self) {
        while self.world.channels.is_due() {
            self.world.channels.serve(&self.world.map, self.world.now);
            while let Some(action) = self.world.channels.next_action() {
                self.take_action(action);
            }
        }
        while let Some(event) = self.world.channels.next_event() {
            let (channel, is_answer, is_read) = match event {
                Event::Live { channel } => (channel, true, true),
                Event::Failed { channel, .. } => (channel, true, false),
                Event::Again { channel } => (channel, false, true),
            };
            self.note(&channel, 0, is_answer, is_read);
        }
        self.take_announced();
    }

    /// Take what is announced; returns the ends.
    fn take_announced(&mut self) -> Vec<(String, i64)> {
        let mut ends = Vec::new();
        for announced in self.world.channels.take_announced() {
            match announced {
                Announced::Live { channel } => self.note(&channel, 1, true, true),
                Announced::Failed { channel, .. } => self.note(&channel, 1, true, false),
                Announced::Again { channel } => self.note(&channel, 1, false, true),
                Announced::Interrupted { channel } => self.note(&channel, 1, false, false),
                Announced::End { channel, end } => ends.push((channel.to_string(), end)),
            }
        }
        ends
    }

    /// Note that listeners or the watch heard the outcome of a channel, or are to read.
    fn note(&mut self, channel: &str, which: usize, is_answer: bool, is_read: bool) {
        let Some(place) = self.places.get_mut(channel) else { return };
        if is_answer {
            place.waits[which] = None;
        }
        if which == 1 {
            place.hears = is_read;
        }
        if is_read {
            (place.read, place.is_owed) = (Some(self.published), false);
        }
    }

    fn take_action(&mut self, action: Action) {
        match action {
            Action::Keep { node, is_kept, .. } => self.servers[node].is_kept = is_kept,
            Action::Lose { node, .. } => self.cut(node),
            Action::ReadMap => self.is_map_read = true,
            Action::Moved { slot, port, .. } => {
                if self.world.map.masters.insert(slot, usize::from(port)) != Some(usize::from(port)) {
                    self.world.channels.map_changed();
                }
            }
            Action::Send { node, commands } => {
                let Some((subscribed, said)) = &mut self.servers[node].connection else { return };
                for words in commands_of(&commands) {
                    let owner = self.owners[&slot_of(&words[1])];
                    if owner != node {
                        let refusal = format!("-MOVED {} h:{owner}\r\n", slot_of(&words[1]));
                        said.push_back((None, refusal.into_bytes()));
                        continue;
                    }
                    for name in &words[1..] {
                        if words[0] == "SSUBSCRIBE" {
                            subscribed.insert(name.clone());
                        } else {
                            subscribed.remove(name);
                        }
                        said.push_back((None, push(&words[0].to_lowercase(), name, b"")));
                    }
                }
            }
        }
    }

    /// Let all nodes live, and all arrive.
    fn settle(&mut self) {
        for node in 0..NODES {
            self.act(&Act::Revive(node));
        }
        for _ in 0..20 {
            self.act(&Act::Connect);
            for node in 0..NODES {
                self.act(&Act::Deliver(node, usize::MAX));
            }
            self.act(&Act::Wait(20));
        }
    }

    fn check(&mut self) {
        self.settle();
        for (name, place) in &self.places {
            assert!(self.world.channels.is_live(name), "{name}");
            assert_eq!((place.waits, place.hears), ([None, None], place.is_watched), "{name}");
            assert!(!place.is_owed, "what was missed of {name} is not read");
        }
        let names: Vec<_> = self.places.keys().cloned().collect();
        for name in names {
            self.publish(&name);
            let node = self.owners[&slot_of(&name)];
            let (_, said) = self.servers[node].connection.as_mut().unwrap();
            let (number, reply) = said.pop_front().unwrap();
            let heard = self.world.channels.received(node, &reply, self.world.now);
            let heard: BTreeSet<u32> = heard.iter().flat_map(|message| message.listeners).copied().collect();
            assert_eq!(heard, self.places[&name].listeners);
            let ends = if self.places[&name].is_watched { vec![(name, number.unwrap() as i64)] } else { Vec::new() };
            assert_eq!(self.take_announced(), ends);
        }
        for channel in 0..CHANNELS {
            self.act(&Act::Unwatch(channel));
            (0..LISTENERS).for_each(|listener| self.act(&Act::Forget(channel, listener)));
        }
        self.settle();
        self.act(&Act::Wait(LINGER));
        assert_eq!(self.world.channels.count(), 0);
        assert_eq!(self.world.channels.due(), None);
        assert!(self.servers.iter().all(|server| !server.is_kept));
    }
}

proptest! {
    #[test]
    fn who_listens_hears_or_reads_again_and_nothing_stays_behind(
        is_cluster in any::<bool>(), acts in vec(act(), 1..80)
    ) {
        let mut redis = Redis::new(is_cluster);
        for act in &acts {
            redis.act(act);
        }
        redis.check();
    }
}
