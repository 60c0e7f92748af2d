//! What follows from time and from the map: channels go to the nodes that have their slots, and leave after the linger.

use std::collections::VecDeque;
use std::time::Duration;

use super::node::Node;
use super::{Action, Channel, Channels, Id, LEFT, Name, NodeId, Nodes, Time};

/// Between two looks for channels whose slots moved: for a moment two nodes may each name the other one.
const FOLLOW_PAUSE: Duration = Duration::from_millis(20);
/// Between two looks for the nodes of channels whose slots no node has.
const SEARCH_PAUSE: Duration = Duration::from_secs(1);

impl<L: PartialEq> Channels<L> {
    /// Note that slots may be at other nodes.
    pub fn map_changed(&mut self) {
        if !self.is_closed {
            (self.places, self.is_due) = (true, true);
            self.is_map_changed |= self.options.is_cluster;
        }
    }

    /// When `tick` is to be called, if at all.
    pub fn due(&self) -> Option<Time> {
        let first = [self.idle.first(), self.waiting.first()].into_iter().flatten().map(|(at, _)| *at);
        first.chain(self.is_map_changed.then_some(self.follow_at)).chain(self.search_at).min()
    }

    /// Look whether anything is due.
    pub fn tick(&mut self, now: Time) {
        self.is_due |= self.due().is_some_and(|at| at <= now);
    }

    /// Whether `serve` is to be called.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// Do what follows from what was said.
    pub fn serve(&mut self, nodes: &impl Nodes, now: Time) {
        self.is_due = false;
        if self.is_closed {
            return self.unplaced.clear();
        }
        self.unsubscribe_idle(now);
        self.end_waits(now);
        self.place(nodes, now);
        if self.actions.iter().any(|action| matches!(action, Action::Moved { .. })) {
            // The map is to have it before channels follow.
            self.is_due = true;
        } else if self.is_map_changed && now >= self.follow_at {
            (self.is_map_changed, self.follow_at) = (false, now + FOLLOW_PAUSE);
            self.follow(nodes);
        }
        for (number, node) in &mut self.nodes {
            settle(*number, node, &mut self.actions);
        }
    }

    fn unsubscribe_idle(&mut self, now: Time) {
        while let Some(first) = self.idle.first().copied().filter(|(until, _)| *until <= now) {
            self.idle.remove(&first);
            let (_, id) = first;
            let Some(channel) = self.entries.get(id) else { continue };
            if let Some(node) = channel.node.and_then(|node| self.nodes.get_mut(&node)) {
                node.unsubscribe(&channel.name, channel.slot);
            }
            self.remove(id);
        }
    }

    fn end_waits(&mut self, now: Time) {
        while let Some(first) = self.waiting.first().copied().filter(|(until, _)| *until <= now) {
            self.waiting.remove(&first);
            let (_, id) = first;
            let Some(channel) = self.entries.get(id) else { continue };
            let text = match channel.node.and_then(|node| self.nodes.get(&node)) {
                Some(node) => {
                    let ms = self.options.timeout.as_millis();
                    format!("{} did not confirm a subscription within {ms} ms", node.name)
                }
                None => no_master(channel.slot),
            };
            self.answer(id, Some(&text));
        }
    }

    /// Take channels that are new to their nodes.
    fn place(&mut self, nodes: &impl Nodes, now: Time) {
        let searches = self.search_at.is_some_and(|at| at <= now);
        if !(self.places || searches) {
            return;
        }
        self.places = false;
        for id in std::mem::take(&mut self.unplaced) {
            let Some(channel) = self.entries.get(id).filter(|channel| channel.node.is_none()) else { continue };
            let slot = channel.slot;
            if let Some(node) = nodes.node_of(slot) {
                self.put_at(id, node, nodes);
                continue;
            }
            if nodes.has_map() {
                self.answer(id, Some(&no_master(slot)));
            }
            self.unplaced.push(id);
        }
        if self.unplaced.is_empty() {
            self.search_at = None;
        } else if searches || self.search_at.is_none() {
            self.actions.push_back(Action::ReadMap);
            self.search_at = Some(now + SEARCH_PAUSE);
        }
    }

    /// Take a channel that is not live to a node, and subscribe to it.
    fn put_at(&mut self, id: Id, number: NodeId, nodes: &impl Nodes) {
        let Some(channel) = self.entries.get_mut(id) else { return };
        let node = self.nodes.entry(number).or_insert_with(|| Node::new(nodes.name_of(number)));
        channel.node = Some(number);
        node.channels += 1;
        node.listeners += channel.listener_count();
        node.subscribe(&channel.name, channel.slot);
        if node.is_away {
            let refusal = node.refusal.clone();
            self.answer(id, Some(&refusal));
        }
    }

    /// Take each channel whose slot moved to the node that has it now.
    fn follow(&mut self, nodes: &impl Nodes) {
        let refused = std::mem::take(&mut self.refused);
        for id in self.entries.ids() {
            let Some(channel) = self.entries.get(id) else { continue };
            let (slot, Some(from)) = (channel.slot, channel.node) else { continue };
            match nodes.node_of(slot) {
                // Until the map has a master for it again, which is a change of the map.
                None => {
                    if refused.contains(&slot) {
                        self.refused.insert(slot);
                    }
                }
                Some(to) if to != from => self.move_to(id, from, to, nodes),
                Some(_) if refused.contains(&slot) && !channel.is_live => {
                    let name = Name::clone(&channel.name);
                    if let Some(node) = self.nodes.get_mut(&from) {
                        node.subscribe(&name, slot);
                    }
                }
                Some(_) => {}
            }
        }
        self.leave_unused();
    }

    /// The node from which it goes unsubscribes by itself when it learns that it has the slot no more.
    fn move_to(&mut self, id: Id, from: NodeId, to: NodeId, nodes: &impl Nodes) {
        let count = self.entries.get(id).map_or(0, Channel::listener_count);
        if count == 0 {
            return self.remove(id);
        }
        self.interrupt(id);
        if let Some(node) = self.nodes.get_mut(&from) {
            node.channels = node.channels.saturating_sub(1);
            node.listeners = node.listeners.saturating_sub(count);
        }
        self.put_at(id, to, nodes);
    }

    fn leave_unused(&mut self) {
        let actions = &mut self.actions;
        self.nodes.retain(|number, known| {
            let (node, is_used) = (*number, known.channels > 0);
            if !is_used {
                actions.push_back(Action::Keep { node, is_kept: false, pings: false });
            }
            if !is_used && known.is_connected {
                actions.push_back(Action::Lose { node, reason: LEFT.to_owned(), pauses: false });
            }
            is_used
        });
    }
}

/// Keep the connection to a node as its channels want it, and send what was queued.
fn settle(number: NodeId, node: &mut Node, actions: &mut VecDeque<Action>) {
    if node.is_changed() {
        node.kept = node.wanted();
        let (is_kept, pings) = node.kept;
        actions.push_back(Action::Keep { node: number, is_kept, pings });
        node.is_away &= is_kept;
    }
    let commands = node.take_commands();
    if !commands.is_empty() {
        actions.push_back(Action::Send { node: number, commands });
    }
}

fn no_master(slot: u16) -> String {
    format!("no master of the Redis cluster has slot {slot}")
}
