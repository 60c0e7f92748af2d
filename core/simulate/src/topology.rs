//! The slots of a cluster: who has them, who is about to, and what each node knows of that.

use crate::plan::{TAGS, slot};

pub(crate) const SLOTS_LAST: u16 = 16_383;
/// The host part of all nodes.
pub(crate) const HOST: &str = "node";
const PORT: u16 = 7_000;

#[derive(Clone, Copy, Debug, Default)]
struct Moving {
    to: usize,
    /// Which of its keys are there already.
    keys: [bool; 2],
}

/// Whether a node runs a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Runs,
    /// Since it is receiving the slot, and was told ASKING.
    RunsAsked,
    Refused(String),
}

#[derive(Debug)]
pub(crate) struct Topology {
    pub members: Vec<bool>,
    owners: [usize; TAGS],
    /// What each node believes.
    views: Vec<[usize; TAGS]>,
    moving: [Option<Moving>; TAGS],
    /// Slots whose nodes have not heard yet that they have them.
    unheard: [bool; TAGS],
    /// The host that nodes name in their answers: that one, none, or an unknown one.
    pub own_host: &'static str,
    /// No node has this slot.
    pub lost: Option<usize>,
    pub changes: usize,
}

pub(crate) fn port(node: usize) -> u16 {
    PORT + node as u16
}

impl Topology {
    pub fn new(nodes: usize, members: usize) -> Self {
        let mut owners = [0; TAGS];
        for (tag, owner) in owners.iter_mut().enumerate() {
            *owner = base_of(slot(tag)).min(members - 1);
        }
        let members = (0..nodes).map(|node| node < members).collect();
        Self {
            members,
            owners,
            views: vec![owners; nodes],
            moving: [None; TAGS],
            unheard: [false; TAGS],
            own_host: HOST,
            lost: None,
            changes: 0,
        }
    }

    /// Where a node sends whoever asks for a slot that another one has.
    fn named(&self, node: usize) -> String {
        format!("{}:{}", self.own_host, port(node))
    }

    /// Whether a node runs a command with these keys of a slot.
    pub fn verdict(&self, node: usize, tag: usize, keys: &[usize], is_asked: bool) -> Verdict {
        if !self.members[node] || self.lost == Some(tag) {
            return Verdict::Refused("CLUSTERDOWN Hash slot not served".to_owned());
        }
        let (slot, owner) = (slot(tag), self.owners[tag]);
        let moving = self.moving[tag];
        if owner == node && !self.unheard[tag] {
            let Some(moving) = moving else { return Verdict::Runs };
            let missing = keys.iter().filter(|key| moving.keys[**key]).count();
            return match missing {
                0 => Verdict::Runs,
                _ if missing == keys.len() => Verdict::Refused(format!("ASK {slot} {}", self.named(moving.to))),
                _ => Verdict::Refused("TRYAGAIN Multiple keys request during rehashing of slot".to_owned()),
            };
        }
        if let Some(moving) = moving.filter(|moving| moving.to == node && is_asked) {
            if keys.len() > 1 && !keys.iter().all(|key| moving.keys[*key]) {
                return Verdict::Refused("TRYAGAIN Multiple keys request during rehashing of slot".to_owned());
            }
            return Verdict::RunsAsked;
        }
        let known = self.views[node][tag];
        if known == node {
            return Verdict::Refused("CLUSTERDOWN Hash slot not served".to_owned());
        }
        Verdict::Refused(format!("MOVED {slot} {}", self.named(known)))
    }

    /// The node that has a slot.
    pub fn owner(&self, tag: usize) -> usize {
        self.owners[tag]
    }

    /// The answer to CLUSTER SLOTS.
    pub fn slots(&self, node: usize) -> Vec<u8> {
        if !self.members[node] {
            return b"*0\r\n".to_vec();
        }
        let mut used: Vec<(u16, usize)> = (0..TAGS).map(|tag| (slot(tag), self.views[node][tag])).collect();
        used.sort_unstable();
        let base = |first: u16| Some(base_of(first)).filter(|base| self.members[*base]).unwrap_or(node);
        let mut ranges: Vec<(u16, u16, usize)> = Vec::new();
        let mut next = 0;
        for (slot, owner) in used {
            if slot > next {
                ranges.push((next, slot - 1, base(next)));
            }
            if self.lost.is_none_or(|lost| slot != crate::plan::slot(lost)) {
                ranges.push((slot, slot, owner));
            }
            next = slot + 1;
        }
        ranges.push((next, SLOTS_LAST, base(next)));
        let mut text = format!("*{}\r\n", ranges.len());
        for (first, last, owner) in ranges {
            let host = if owner == node && self.own_host.is_empty() {
                "$0\r\n\r\n".to_owned()
            } else {
                format!("${}\r\n{HOST}\r\n", HOST.len())
            };
            text.extend([format!("*3\r\n:{first}\r\n:{last}\r\n*3\r\n{host}:{}\r\n$2\r\nid\r\n", port(owner))]);
        }
        text.into_bytes()
    }

    // --- what happens to it

    /// Begin to move a slot, move one of its keys, or end that.
    pub fn move_on(&mut self, tag: usize, to: usize) {
        self.changes += 1;
        match self.moving[tag] {
            None if to != self.owners[tag] && self.members[to] => {
                self.moving[tag] = Some(Moving { to, keys: [false; 2] });
            }
            None => {}
            Some(mut moving) => match moving.keys.iter().position(|is_there| !is_there) {
                Some(key) => {
                    moving.keys[key] = true;
                    self.moving[tag] = Some(moving);
                }
                None => self.give(tag, moving.to),
            },
        }
    }

    /// Give a slot to a node; only the two that are concerned know that at once.
    pub fn give(&mut self, tag: usize, to: usize) {
        self.changes += 1;
        let from = std::mem::replace(&mut self.owners[tag], to);
        self.moving[tag] = None;
        self.unheard[tag] = false;
        self.views[from][tag] = to;
        self.views[to][tag] = to;
    }

    /// Give a slot to a node that has not heard of it: both name the other one.
    pub fn give_unheard(&mut self, tag: usize, to: usize) {
        let from = self.owners[tag];
        if from != to {
            self.give(tag, to);
            self.views[to][tag] = from;
            self.unheard[tag] = true;
        }
    }

    /// Stop to move a slot; keys that were there come back.
    pub fn give_up(&mut self, tag: usize) {
        self.changes += 1;
        self.moving[tag] = None;
    }

    /// Let a node hear what the others know.
    pub fn hear(&mut self, node: usize) {
        self.views[node] = self.owners;
        for tag in 0..TAGS {
            self.unheard[tag] &= self.owners[tag] != node;
        }
    }

    /// Let a node go; all its slots go to another one.
    pub fn leave(&mut self, node: usize) {
        let Some(heir) = (0..self.members.len()).find(|other| *other != node && self.members[*other]) else { return };
        for tag in 0..TAGS {
            if self.owners[tag] == node || self.moving[tag].is_some_and(|moving| moving.to == node) {
                let owner = if self.owners[tag] == node { heir } else { self.owners[tag] };
                self.give(tag, owner);
            }
        }
        self.members[node] = false;
    }

    pub fn join(&mut self, node: usize) {
        self.members[node] = true;
        self.hear(node);
    }

    pub fn settle(&mut self) {
        self.changes += 1;
        self.moving = [None; TAGS];
        self.unheard = [false; TAGS];
        self.lost = None;
        self.own_host = HOST;
        for node in 0..self.views.len() {
            // Nodes that have left stay away, but for the one that every client was told to begin with.
            if node == 0 || self.members[node] {
                self.join(node);
            }
        }
    }
}

fn base_of(slot: u16) -> usize {
    usize::from(slot / 5_462)
}
