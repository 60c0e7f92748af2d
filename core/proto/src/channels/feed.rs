//! What comes over the connections to nodes, and what becomes of these.

use super::{Action, Announced, Channels, Id, LEFT, Name, NodeId, Time};
use crate::client::Refusal;
use crate::resp::{Element, Elements};

/// How much is shown of an answer that means nothing here.
const SHOWN_CHARS: usize = 200;

/// A message, and who listens to its channel.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Message<'a, L> {
    pub payload: &'a [u8],
    pub listeners: &'a [L],
}

/// What a node says.
enum Said<'a> {
    Message(&'a [u8], &'a [u8]),
    Subscribed(&'a [u8]),
    Unsubscribed(&'a [u8]),
    Moved {
        slot: u16,
        host: String,
        port: u16,
    },
    Nothing,
    /// What it does not say to who subscribes.
    Other(String),
}

impl<'a> Said<'a> {
    fn of(reply: &'a [u8], is_cluster: bool) -> Self {
        let mut elements = Elements::of(reply);
        match elements.next() {
            Some(Element::Array(3) | Element::Push(3)) => match (elements.next(), elements.next(), elements.next()) {
                (Some(Element::Bulk(b"smessage")), Some(Element::Bulk(name)), Some(Element::Bulk(payload))) => {
                    Self::Message(name, payload)
                }
                (Some(Element::Bulk(b"ssubscribe")), Some(Element::Bulk(name)), Some(Element::Integer(_))) => {
                    Self::Subscribed(name)
                }
                (Some(Element::Bulk(b"sunsubscribe")), Some(Element::Bulk(name)), _) => Self::Unsubscribed(name),
                (Some(Element::Bulk(b"sunsubscribe")), ..) => Self::Nothing,
                _ => Self::Other(shown(reply)),
            },
            Some(Element::Error(text)) => match Refusal::of(reply) {
                Some(Refusal::Moved { slot, host, port }) if is_cluster => Self::Moved { slot, host, port },
                _ => Self::Other(shown(text)),
            },
            _ => Self::Other(shown(reply)),
        }
    }
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).trim_end().chars().take(SHOWN_CHARS).collect()
}

impl<L: PartialEq> Channels<L> {
    /// Subscribe to all channels of a node over a new connection.
    pub fn connected(&mut self, number: NodeId) {
        self.is_due = true;
        let Some(node) = self.nodes.get_mut(&number) else {
            // Its channels went while it was made. If it stayed, nobody would say that it is there once others come.
            return self.actions.push_back(Action::Lose { node: number, reason: LEFT.to_owned(), pauses: false });
        };
        (node.is_connected, node.is_confirmed) = (true, false);
        node.is_away &= self.options.is_cluster;
        for (_, channel) in self.entries.iter().filter(|(_, channel)| channel.node == Some(number)) {
            node.subscribe(&channel.name, channel.slot);
        }
    }

    /// Let nobody wait for a node that could not be reached.
    pub fn refused(&mut self, number: NodeId, reason: &str) {
        if let Some(node) = self.nodes.get_mut(&number) {
            reason.clone_into(&mut node.refusal);
            self.give_up(number);
        }
    }

    /// Note that the connection to a node is gone: messages may be missed from now on.
    pub fn lost(&mut self, number: NodeId, reason: &str, now: Time) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        node.clear();
        node.is_connected = false;
        node.refusal = format!("the connection to {} was lost ({reason})", node.name);
        let is_confirmed = node.is_confirmed;
        for id in self.channels_at(number) {
            self.interrupt(id);
            if self.entries.get(id).is_some_and(|channel| channel.listener_count() == 0) {
                self.release(id, now);
            }
        }
        // A Redis that accepts the connection and then refuses is away as well.
        if !is_confirmed {
            self.give_up(number);
        }
    }

    /// Take a reply that came from a node; returns a message that listeners are to hear.
    pub fn received<'a>(&'a mut self, number: NodeId, reply: &'a [u8], now: Time) -> Option<Message<'a, L>> {
        let node = self.nodes.get_mut(&number).filter(|node| node.is_connected)?;
        match Said::of(reply, self.options.is_cluster) {
            Said::Message(name, payload) => return self.take_message(number, name, payload),
            Said::Subscribed(name) => {
                (node.is_confirmed, node.is_away) = (true, false);
                if let Some(id) = self.channel_at(number, name) {
                    self.confirmed(id, now);
                }
            }
            Said::Unsubscribed(name) => {
                if let Some(id) = self.channel_at(number, name) {
                    self.unsubscribed(id);
                }
            }
            Said::Moved { slot, host, port } => {
                self.refused.insert(slot);
                self.actions.push_back(Action::Moved { slot, host, port });
                (self.is_map_changed, self.is_due) = (true, true);
            }
            Said::Nothing => {}
            Said::Other(text) => {
                // What comes before the loss is known is of this connection too, and nobody reads it.
                (node.is_connected, node.is_confirmed) = (false, false);
                let reason = format!("it answered {text}");
                self.actions.push_back(Action::Lose { node: number, reason, pauses: true });
                self.is_due = true;
            }
        }
        None
    }

    fn take_message<'a>(&'a mut self, number: NodeId, name: &[u8], payload: &'a [u8]) -> Option<Message<'a, L>> {
        let id = self.channel_at(number, name)?;
        let channel = self.entries.get_mut(id)?;
        if channel.is_watched {
            let end = std::str::from_utf8(payload).ok().and_then(|digits| digits.parse().ok());
            match end.filter(|end| *end >= 0) {
                Some(end) => self.announced.put_end(&channel.name, end, &mut channel.announced),
                None => self.announced.put(Announced::Again { channel: Name::clone(&channel.name) }),
            }
        }
        let listeners = channel.listeners.as_slice();
        (!listeners.is_empty()).then_some(Message { payload, listeners })
    }

    /// The channel of a name, if it is at that node.
    fn channel_at(&self, number: NodeId, name: &[u8]) -> Option<Id> {
        let id = *self.ids.get(std::str::from_utf8(name).ok()?)?;
        (self.entries.get(id)?.node == Some(number)).then_some(id)
    }

    fn channels_at(&self, number: NodeId) -> Vec<Id> {
        let channels = self.entries.iter().filter(|(_, channel)| channel.node == Some(number));
        channels.map(|(id, _)| id).collect()
    }

    fn confirmed(&mut self, id: Id, now: Time) {
        let Some(channel) = self.entries.get_mut(id) else { return };
        let was_live = std::mem::replace(&mut channel.is_live, true);
        let is_interrupted = std::mem::take(&mut channel.is_interrupted);
        let is_unheard = channel.listener_count() == 0;
        self.answer(id, None);
        if is_interrupted {
            self.read_again(id, None);
        }
        if is_unheard && !was_live {
            self.release(id, now);
        }
    }

    /// Subscribe again if it was the node that unsubscribed: its refusal says which node has the channel now.
    ///
    /// To a SUNSUBSCRIBE of this process it answers before it confirms a later subscription, which only then is live.
    fn unsubscribed(&mut self, id: Id) {
        let Some(channel) = self.entries.get(id).filter(|channel| channel.is_live) else { return };
        if channel.listener_count() == 0 {
            return self.remove(id);
        }
        self.interrupt(id);
        let Some(channel) = self.entries.get(id) else { return };
        if let Some(node) = channel.node.and_then(|node| self.nodes.get_mut(&node)) {
            node.subscribe(&channel.name, channel.slot);
            self.is_due = true;
        }
    }

    /// Fail the listeners that wait for a confirmation, and all later ones until there is a connection.
    ///
    /// In a cluster they fail until there is a confirmation, for they wait for channels of other nodes too. Those that
    /// listened when the node went away read again now, and find out.
    fn give_up(&mut self, number: NodeId) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        let was_away = std::mem::replace(&mut node.is_away, true);
        let refusal = node.refusal.clone();
        for id in self.channels_at(number) {
            let is_interrupted = self.entries.get(id).is_some_and(|channel| channel.is_interrupted);
            self.answer(id, Some(&refusal));
            if self.options.is_cluster && !was_away && is_interrupted {
                self.read_again(id, Some(&refusal));
            }
        }
        if self.options.is_cluster {
            // Another node may have its slots by now, or soon.
            self.actions.push_back(Action::ReadMap);
        }
        self.is_due = true;
    }
}
