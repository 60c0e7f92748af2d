//! Appends that go to a node together: what is begun in one turn.
//!
//! Batches for one partition become one call of its script, whichever requests they came with: what a call costs beside
//! its batches is paid once. All calls for a node leave in one write. Nothing waits for more to come, but for the leader
//! epoch of the node.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::{GroupId, Pressure, RequestId, Script};
use crate::append::{Batch, put_call};
use crate::client::{NodeId, Piece};
use crate::partition::{Layout, Partition};
use crate::pipeline::{Packed, Time};
use crate::resp::{put_argument, put_count};
use crate::shared::Shared;
use crate::slab::Slab;

/// What one call of a script holds at most, so that it does not block Redis longer than one large batch does. One append
/// may be larger. The records are those of layout `record`, each of which is an entry.
const CALL_BYTES_MAX: usize = 1 << 20;
const CALL_RECORDS_MAX: u32 = 2_000;
const CALL_BATCHES_MAX: usize = 100;
/// A group of this size is closed: Redis may begin with it while the worker goes on.
const GROUP_BYTES: usize = 256 << 10;

/// A batch, and the place of the request that waits for it.
#[derive(Debug)]
pub(super) struct Entry {
    pub request: RequestId,
    pub place: usize,
    pub batch: Batch,
}

/// A call of a script.
#[derive(Debug)]
pub(super) struct Call {
    pub partition: Arc<Partition>,
    pub entries: Vec<Entry>,
    records: u32,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct Group {
    pub node: NodeId,
    pub calls: Vec<Call>,
    /// Calls without an outcome.
    pub left: usize,
    /// What was refused when it began may not be refused any more if it is another one now: then this would overtake it.
    pub order: u64,
    /// Whether it is sent again, so that scripts may run again which were missing.
    pub is_rerun: bool,
    pub history: Arc<str>,
    pub epoch: i32,
    pub sent_at: Time,
    bytes: usize,
    /// By the partition, where it lies in memory: its last call.
    last: HashMap<usize, usize>,
}

/// A group that is to be sent: a call of the client with so many scripts, to this node in this history only.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Sending {
    pub group: GroupId,
    pub node: NodeId,
    pub history: Arc<str>,
    pub count: usize,
    pub is_rerun: bool,
}

impl Group {
    fn new(node: NodeId, order: u64, is_rerun: bool) -> Self {
        Self {
            node,
            calls: Vec::new(),
            left: 0,
            order,
            is_rerun,
            history: Arc::default(),
            epoch: 0,
            sent_at: Time::ZERO,
            bytes: 0,
            last: HashMap::new(),
        }
    }

    fn add(&mut self, entry: Entry) {
        let partition = &entry.batch.partition;
        let (key, bytes) = (Arc::as_ptr(partition) as usize, entry.batch.stored_bytes);
        let records = if matches!(partition.layout, Layout::Batch) { 0 } else { entry.batch.record_count };
        self.bytes += bytes;
        let open = self.last.get(&key).and_then(|index| self.calls.get_mut(*index)).filter(|call| {
            call.bytes + bytes <= CALL_BYTES_MAX
                && call.records.saturating_add(records) <= CALL_RECORDS_MAX
                && call.entries.len() < CALL_BATCHES_MAX
        });
        if let Some(call) = open {
            (call.records, call.bytes) = (call.records + records, call.bytes + bytes);
            return call.entries.push(entry);
        }
        self.last.insert(key, self.calls.len());
        self.calls.push(Call { partition: Arc::clone(partition), entries: vec![entry], records, bytes });
        self.left += 1;
    }

    /// The commands of a piece, after those that its way puts first.
    pub fn packed(&self, piece: &Piece, scripts: &[Script; 2], sent_ms: i64) -> Packed<Shared> {
        let mut packed = Packed::default();
        for (index, call) in self.calls.iter().enumerate().skip(piece.first).take(piece.count) {
            let [batch, record] = scripts;
            let script = if matches!(call.partition.layout, Layout::Batch) { batch } else { record };
            let text = if piece.way.is_full { &script.when_full } else { &script.text };
            if piece.way.loads && index == piece.first {
                put_count(&mut packed.text, 3);
                for word in [&b"SCRIPT"[..], b"LOAD", text.source.as_bytes()] {
                    put_argument(&mut packed.text, word);
                }
            }
            if piece.way.asks && index == piece.first {
                put_count(&mut packed.text, 1);
                put_argument(&mut packed.text, b"ASKING");
            }
            let batches: Vec<&Batch> = call.entries.iter().map(|entry| &entry.batch).collect();
            put_call(&mut packed, text.sha.as_bytes(), self.epoch, sent_ms, &batches);
        }
        packed
    }
}

/// What is known of a node, and what waits for it.
#[derive(Debug, Default)]
pub(super) struct Node {
    epoch: Option<(Arc<str>, i32)>,
    /// Whether the owner was asked for it.
    pub wants_epoch: bool,
    waiting: VecDeque<Group>,
    pub pressure: Pressure,
    /// How many servers are in sync in a history, and until when that counts.
    pub insync: Option<(Box<str>, u32, Time)>,
    /// Whether the owner was asked for another reading of it.
    pub is_pressure_wanted: bool,
}

impl Node {
    fn epoch_of(&self, history: &str) -> Option<(Arc<str>, i32)> {
        self.epoch.clone().filter(|(known, _)| !history.is_empty() && **known == *history)
    }
}

#[derive(Debug, Default)]
pub(super) struct Groups {
    open: Vec<Group>,
    nodes: BTreeMap<NodeId, Node>,
    sent: Slab<Group>,
    sends: VecDeque<Sending>,
}

impl Groups {
    pub fn node(&mut self, node: NodeId) -> &mut Node {
        self.nodes.entry(node).or_default()
    }

    /// Have a batch sent at the end of this turn.
    pub fn add(&mut self, node: NodeId, order: u64, is_rerun: bool, entry: Entry) {
        let fits = |group: &&mut Group| {
            group.node == node && group.order == order && group.is_rerun == is_rerun && group.bytes < GROUP_BYTES
        };
        let mut open = self.open.iter_mut().rev();
        if let Some(group) = open.find(fits) {
            return group.add(entry);
        }
        let mut group = Group::new(node, order, is_rerun);
        group.add(entry);
        self.open.push(group);
    }

    /// The nodes to which something is to be sent.
    pub fn take_open(&mut self) -> Vec<NodeId> {
        for group in self.open.drain(..) {
            self.nodes.entry(group.node).or_default().waiting.push_back(group);
        }
        self.nodes.iter().filter(|(_, node)| !node.waiting.is_empty()).map(|(id, _)| *id).collect()
    }

    /// Whether anything has been gathered since.
    pub fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub fn put_epoch(&mut self, node: NodeId, history: &str, epoch: i32) {
        let node = self.node(node);
        node.wants_epoch = false;
        node.epoch = Some((Arc::from(history), epoch));
    }

    /// What waits for a node, which has no epoch.
    pub fn take_waiting(&mut self, node: NodeId) -> VecDeque<Group> {
        let node = self.node(node);
        node.wants_epoch = false;
        std::mem::take(&mut node.waiting)
    }

    /// Send the groups that wait for a node, in the epoch of the history to which its connection leads. Returns the groups
    /// that are not sent, for the order has changed; `None` if the epoch is not known.
    pub fn send(&mut self, id: NodeId, history: &str, order: u64, now: Time) -> Option<Vec<Group>> {
        let node = self.nodes.entry(id).or_default();
        let (history, epoch) = node.epoch_of(history)?;
        let mut unsent = Vec::new();
        for mut group in std::mem::take(&mut node.waiting) {
            // What is sent again has its turn: nothing was begun that it could overtake.
            if group.order != order && !group.is_rerun {
                unsent.push(group);
                continue;
            }
            (group.history, group.epoch, group.sent_at) = (Arc::clone(&history), epoch, now);
            let (count, is_rerun) = (group.calls.len(), group.is_rerun);
            let group = self.sent.insert(group);
            self.sends.push_back(Sending { group, node: id, history: Arc::clone(&history), count, is_rerun });
        }
        Some(unsent)
    }

    pub fn next_send(&mut self) -> Option<Sending> {
        self.sends.pop_front()
    }

    pub fn get(&self, group: GroupId) -> Option<&Group> {
        self.sent.get(group)
    }

    /// Take a call that has its outcome; the group goes with the last.
    pub fn take_call(&mut self, group: GroupId, index: usize) -> Option<(Call, Origin)> {
        let sent = self.sent.get_mut(group)?;
        let call = sent.calls.get_mut(index).filter(|call| !call.entries.is_empty())?;
        let emptied = Call { partition: Arc::clone(&call.partition), entries: Vec::new(), records: 0, bytes: 0 };
        let call = std::mem::replace(call, emptied);
        let (node, history, epoch, sent_at) = (sent.node, Arc::clone(&sent.history), sent.epoch, sent.sent_at);
        sent.left -= 1;
        if sent.left == 0 {
            self.sent.remove(group);
        }
        Some((call, Origin { node, history, epoch, sent_at }))
    }
}

/// Where a call was sent.
#[derive(Debug)]
pub(super) struct Origin {
    pub node: NodeId,
    pub history: Arc<str>,
    pub epoch: i32,
    pub sent_at: Time,
}
