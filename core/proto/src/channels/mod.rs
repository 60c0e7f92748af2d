//! The channels of sharded pub/sub to which a process listens, at all nodes of Redis.
//!
//! Theory of operation. A channel has listeners of the owner, and maybe a watch: that of the core's own readers. It
//! is subscribed to over the feed to the node that has its slot, and stays so for a while after its last listener:
//! who listens again and again sends no SSUBSCRIBE each time. The owner says what has happened and calls
//! [`Channels::serve`] when [`Channels::is_due`]; then it takes what the client of Redis is to do
//! ([`Channels::next_action`]), what listeners are to hear ([`Channels::next_event`]) and what is announced to the
//! watch ([`Channels::take_announced`]).
//!
//! * Delivery is not guaranteed: pub/sub forgets messages that nobody received. So a channel is **live** only once
//!   Redis has confirmed it: what is published from then on is heard, and what was read before may be old.
//! * A lost connection, or a slot that moves, **interrupts** a channel. Once it is live again its listeners read
//!   again.
//! * Who comes to a channel that is not live **waits**, and hears once that it is live, or why it is not: its node is
//!   away, no node has its slot, or it was not confirmed in time. It stays subscribed to, or is as soon as that can
//!   be.
//! * A node of a cluster unsubscribes its clients from a channel whose slot moves away, and refuses to subscribe to
//!   channels of other slots (MOVED). Channels follow the map of the cluster, and those of a node that is away wait
//!   for it alone.
//!
//! Files: `node` has the state of a node, `feed` reads what comes over its connection, `serve` acts on time and on the
//! map, `announced` keeps what the watch is to hear.

mod announced;
mod feed;
mod node;
mod serve;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Caller, Client, NodeId};
pub use crate::pipeline::Time;
use crate::slab::{Id, Slab};
pub use announced::Announced;
use announced::{Announcements, Place};
pub use feed::Message;
use node::Node;

/// The name of a channel.
pub type Name = Arc<str>;

const CLOSED: &str = "the subscriptions on Redis are closed";
const LEFT: &str = "it has no channels any more";
const UNHEARD: &str = "nobody listens to it any more";

/// How channels are kept.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether Redis is a cluster: channels follow their slots.
    pub is_cluster: bool,
    /// How long a channel stays subscribed to after its last listener.
    pub linger: Duration,
    /// How long a confirmation may take.
    pub timeout: Duration,
}

/// The nodes of Redis.
pub trait Nodes {
    /// Whether it is known which node has which slot.
    fn has_map(&self) -> bool;
    /// The node that has a slot, as far as is known.
    fn node_of(&self, slot: u16) -> Option<NodeId>;
    /// The name of a node.
    fn name_of(&self, node: NodeId) -> &str;
}

impl<T: Caller, B: AsRef<[u8]>> Nodes for Client<T, B> {
    fn has_map(&self) -> bool {
        self.node_at(0).is_some() || self.map_version() > 0
    }

    fn node_of(&self, slot: u16) -> Option<NodeId> {
        self.node_at(slot)
    }

    fn name_of(&self, node: NodeId) -> &str {
        self.name(node).unwrap_or_default()
    }
}

/// What the client of Redis is to do with the feed, in order.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Action {
    /// Keep a node connected, or not any more; `pings`: find out whether it lives.
    Keep { node: NodeId, is_kept: bool, pings: bool },
    /// Close the connection to a node; `pauses`: as after an attempt that failed.
    Lose { node: NodeId, reason: String, pauses: bool },
    /// Send commands, packed, if there is a connection.
    Send { node: NodeId, commands: Vec<u8> },
    /// Note where a node said that a slot is.
    Moved { slot: u16, host: String, port: u16 },
    /// Read the map of the cluster again.
    ReadMap,
}

/// What the listeners of a channel are to hear.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Event {
    /// To those that waited for it: messages are heard from now on.
    Live { channel: Name },
    /// To all: messages may have been missed, so they read again.
    Again { channel: Name },
    /// To listeners that waited for it: it did not become live in time. `Again` comes once it is.
    Failed { channel: Name, text: String },
}

#[derive(Debug)]
struct Channel<L> {
    name: Name,
    slot: u16,
    /// The node at which it is, once its slot was at one.
    node: Option<NodeId>,
    listeners: Vec<L>,
    is_watched: bool,
    /// Whether Redis has confirmed it over the present connection.
    is_live: bool,
    /// Whether messages may be missing that listeners were to hear: they read again once it is live.
    is_interrupted: bool,
    /// When it is unsubscribed from, if nobody listens.
    idle_until: Option<Time>,
    /// Until when somebody waits for the confirmation.
    waits_until: Option<Time>,
    /// Where its end lies among what is announced.
    announced: Option<Place>,
}

impl<L> Channel<L> {
    fn listener_count(&self) -> usize {
        self.listeners.len() + usize::from(self.is_watched)
    }
}

/// The channels of a process. `L` is a listener of the owner.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // none follows from another
pub struct Channels<L> {
    options: Options,
    entries: Slab<Channel<L>>,
    ids: HashMap<Name, Id>,
    nodes: BTreeMap<NodeId, Node>,
    /// Channels without listeners, by the time at which they are unsubscribed from.
    idle: BTreeSet<(Time, Id)>,
    /// Channels whose confirmation somebody waits for, by the end of that wait.
    waiting: BTreeSet<(Time, Id)>,
    /// Those that have not been at a node yet.
    unplaced: Vec<Id>,
    /// Whether some of these may have a node by now, and when to look again.
    places: bool,
    search_at: Option<Time>,
    is_map_changed: bool,
    /// Not before this time channels are taken to the nodes that have their slots.
    follow_at: Time,
    /// Slots that a node refused since that was last done.
    refused: BTreeSet<u16>,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    announced: Announcements,
    is_due: bool,
    is_closed: bool,
}

impl<L: PartialEq> Channels<L> {
    /// Begin without any.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            entries: Slab::default(),
            ids: HashMap::new(),
            nodes: BTreeMap::new(),
            idle: BTreeSet::new(),
            waiting: BTreeSet::new(),
            unplaced: Vec::new(),
            places: false,
            search_at: None,
            is_map_changed: false,
            follow_at: Time::ZERO,
            refused: BTreeSet::new(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            announced: Announcements::default(),
            is_due: false,
            is_closed: false,
        }
    }

    // --- who listens

    /// Have a listener hear a channel, once however often it is said. Returns whether the channel is live; if not, the
    /// listener waits, and an event says what became of that.
    pub fn listen(&mut self, name: &str, slot: u16, listener: L, now: Time) -> bool {
        let id = self.known(name, slot);
        let Some(channel) = self.entries.get_mut(id) else { return false };
        let is_new = !channel.listeners.contains(&listener);
        if is_new {
            channel.listeners.push(listener);
        }
        self.joined(id, is_new, now)
    }

    /// Have what comes over a channel announced to the core's own readers; otherwise as `listen`.
    pub fn watch(&mut self, name: &str, slot: u16, now: Time) -> bool {
        let id = self.known(name, slot);
        let Some(channel) = self.entries.get_mut(id) else { return false };
        let is_new = !std::mem::replace(&mut channel.is_watched, true);
        self.joined(id, is_new, now)
    }

    /// Have a listener hear a channel no more; returns it if it did.
    pub fn forget(&mut self, name: &str, listener: &L, now: Time) -> Option<L> {
        let id = *self.ids.get(name)?;
        let channel = self.entries.get_mut(id)?;
        let place = channel.listeners.iter().position(|known| known == listener)?;
        let gone = channel.listeners.remove(place);
        if channel.listeners.is_empty() && channel.waits_until.is_some() {
            let (channel, text) = (Name::clone(&channel.name), UNHEARD.to_owned());
            self.events.push_back(Event::Failed { channel, text });
        }
        self.left(id, now);
        Some(gone)
    }

    /// Announce no more what comes over a channel.
    pub fn unwatch(&mut self, name: &str, now: Time) {
        let Some(id) = self.ids.get(name).copied() else { return };
        let Some(channel) = self.entries.get_mut(id) else { return };
        if std::mem::take(&mut channel.is_watched) {
            self.left(id, now);
        }
    }

    /// The number of a channel, which is made if it is new.
    fn known(&mut self, name: &str, slot: u16) -> Id {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let name = Name::from(name);
        let id = self.entries.insert(Channel {
            name: Name::clone(&name),
            slot,
            node: None,
            listeners: Vec::new(),
            is_watched: false,
            is_live: false,
            is_interrupted: false,
            idle_until: None,
            waits_until: None,
            announced: None,
        });
        self.ids.insert(name, id);
        self.unplaced.push(id);
        id
    }

    fn joined(&mut self, id: Id, is_new: bool, now: Time) -> bool {
        let Some(channel) = self.entries.get_mut(id) else { return false };
        if let Some(until) = channel.idle_until.take() {
            self.idle.remove(&(until, id));
        }
        let node = channel.node.and_then(|node| self.nodes.get_mut(&node));
        let mut refusal = self.is_closed.then(|| CLOSED.to_owned());
        if let Some(node) = node {
            node.listeners += usize::from(is_new);
            self.is_due |= node.is_changed();
            refusal = refusal.or_else(|| node.is_away.then(|| node.refusal.clone()));
        } else {
            (self.places, self.is_due) = (true, true);
        }
        if channel.is_live {
            return true;
        }
        if channel.waits_until.is_none() {
            let until = now + self.options.timeout;
            channel.waits_until = Some(until);
            self.waiting.insert((until, id));
        }
        if let Some(refusal) = refusal {
            self.answer(id, Some(&refusal));
        }
        false
    }

    /// Note that a channel has one listener less.
    fn left(&mut self, id: Id, now: Time) {
        let Some(channel) = self.entries.get_mut(id) else { return };
        if let Some(node) = channel.node.and_then(|node| self.nodes.get_mut(&node)) {
            node.listeners = node.listeners.saturating_sub(1);
            self.is_due |= node.is_changed();
        }
        if channel.listener_count() == 0 {
            if let Some(until) = channel.waits_until.take() {
                self.waiting.remove(&(until, id));
            }
            self.release(id, now);
        }
    }

    /// Unsubscribe from a channel without listeners, now or after the linger.
    fn release(&mut self, id: Id, now: Time) {
        let Some(channel) = self.entries.get_mut(id) else { return };
        let is_connected = channel.node.and_then(|node| self.nodes.get(&node)).is_some_and(|node| node.is_connected);
        if channel.is_live {
            let until = now + self.options.linger;
            channel.idle_until = Some(until);
            self.idle.insert((until, id));
        } else if !is_connected {
            self.remove(id);
        }
        // Otherwise SSUBSCRIBE was sent, and its confirmation calls this again. If it was unsubscribed from before, the
        // late confirmation could pass for that of a later SSUBSCRIBE.
    }

    /// Forget a channel without unsubscribing.
    fn remove(&mut self, id: Id) {
        let Some(channel) = self.entries.remove(id) else { return };
        self.ids.remove(&channel.name);
        if let Some(until) = channel.idle_until {
            self.idle.remove(&(until, id));
        }
        if let Some(until) = channel.waits_until {
            self.waiting.remove(&(until, id));
        }
        if let Some(node) = channel.node.and_then(|node| self.nodes.get_mut(&node)) {
            node.channels = node.channels.saturating_sub(1);
            node.listeners = node.listeners.saturating_sub(channel.listener_count());
            self.is_due |= node.is_changed();
        }
    }

    /// Answer those that wait for a confirmation: it has come, or why they are not to wait.
    fn answer(&mut self, id: Id, refusal: Option<&str>) {
        let Some(channel) = self.entries.get_mut(id) else { return };
        let Some(until) = channel.waits_until.take() else { return };
        self.waiting.remove(&(until, id));
        channel.is_interrupted |= refusal.is_some();
        let name = || Name::clone(&channel.name);
        if !channel.listeners.is_empty() {
            self.events.push_back(match refusal {
                None => Event::Live { channel: name() },
                Some(text) => Event::Failed { channel: name(), text: text.to_owned() },
            });
        }
        if channel.is_watched {
            self.announced.put(match refusal {
                None => Announced::Live { channel: name() },
                Some(text) => Announced::Failed { channel: name(), text: text.to_owned() },
            });
        }
    }

    /// Note that messages of a channel may be missed from now on.
    fn interrupt(&mut self, id: Id) {
        let Some(channel) = self.entries.get_mut(id).filter(|channel| channel.is_live) else { return };
        (channel.is_live, channel.is_interrupted) = (false, true);
        if channel.is_watched {
            self.announced.put(Announced::Interrupted { channel: Name::clone(&channel.name) });
        }
    }

    /// Have the listeners of a channel read again. With a `refusal` that read finds out that the node is away.
    fn read_again(&mut self, id: Id, refusal: Option<&str>) {
        let Some(channel) = self.entries.get(id) else { return };
        let name = || Name::clone(&channel.name);
        if !channel.listeners.is_empty() {
            self.events.push_back(Event::Again { channel: name() });
        }
        if channel.is_watched {
            self.announced.put(match refusal {
                None => Announced::Again { channel: name() },
                Some(text) => Announced::Failed { channel: name(), text: text.to_owned() },
            });
        }
    }

    // --- what the owner reads and says

    /// Whether a channel is live.
    pub fn is_live(&self, name: &str) -> bool {
        self.ids.get(name).and_then(|id| self.entries.get(*id)).is_some_and(|channel| channel.is_live)
    }

    /// The listeners of a channel.
    pub fn listeners_of(&self, name: &str) -> &[L] {
        let channel = self.ids.get(name).and_then(|id| self.entries.get(*id));
        channel.map(|channel| channel.listeners.as_slice()).unwrap_or_default()
    }

    /// All listeners, each as often as it listens.
    pub fn listeners(&self) -> impl Iterator<Item = &L> {
        self.entries.iter().flat_map(|(_, channel)| &channel.listeners)
    }

    /// How many channels there are: live, waited for, or without a listener for a short time.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Close the connections, and subscribe over others: listeners read again.
    pub fn reconnect(&mut self, reason: &str) {
        for (node, _) in self.nodes.iter().filter(|(_, known)| known.is_connected) {
            let (node, reason) = (*node, reason.to_owned());
            self.actions.push_back(Action::Lose { node, reason, pauses: false });
        }
        self.is_due = true;
    }

    /// Listen to nothing any more; the owner closes the feed. Returns the listeners.
    pub fn close(&mut self) -> Vec<L> {
        self.is_closed = true;
        for id in self.entries.ids() {
            self.answer(id, Some(CLOSED));
        }
        self.ids.clear();
        self.nodes.clear();
        self.idle.clear();
        self.unplaced.clear();
        (self.search_at, self.is_map_changed) = (None, false);
        std::mem::take(&mut self.entries).into_values().flat_map(|channel| channel.listeners).collect()
    }

    /// What the client of Redis is to do next.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What listeners are to hear next.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether listeners are to hear something.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Take what is announced to the watch, in order.
    pub fn take_announced(&mut self) -> Vec<Announced> {
        self.announced.take()
    }

    /// Whether there is any.
    pub fn has_announced(&self) -> bool {
        !self.announced.is_empty()
    }
}
