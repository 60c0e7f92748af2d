//! A stream of Redis: its entries by id, in nodes as XTRIM with `~` frees them, and what XADD and XSETID refuse.

use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::rc::Rc;

/// The id of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub ms: u64,
    pub sequence: u64,
}

impl Display for Id {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}-{}", self.ms, self.sequence)
    }
}

impl Id {
    pub const ZERO: Self = Self { ms: 0, sequence: 0 };
    pub const LAST: Self = Self { ms: u64::MAX, sequence: u64::MAX };

    /// The largest id below this one.
    pub fn before(self) -> Option<Self> {
        let Self { ms, sequence } = self;
        match sequence.checked_sub(1) {
            Some(sequence) => Some(Self { ms, sequence }),
            None => ms.checked_sub(1).map(|ms| Self { ms, sequence: u64::MAX }),
        }
    }

    pub fn parsed(text: &[u8]) -> Option<Self> {
        let (ms, sequence) = std::str::from_utf8(text).ok()?.split_once('-')?;
        Some(Self { ms: ms.parse().ok()?, sequence: sequence.parse().ok()? })
    }
}

/// Names and values, in turn.
pub(crate) type Fields = Rc<Vec<Vec<u8>>>;

const SMALL: &str = "ERR The ID specified in XADD is equal or smaller than the target stream top item";
const NOT_ZERO: &str = "ERR The ID specified in XADD must be greater than 0-0";
const EXHAUSTED: &str = "ERR The stream has exhausted the last possible ID, unable to add more items";

/// Entries that lie together in memory, the deleted ones among them without fields. Below a deleted one others may have
/// come since, by XSETID; below the first of the node none.
type Node = Vec<(Id, Option<Fields>)>;

#[derive(Clone, Debug)]
pub(crate) struct Stream {
    nodes: VecDeque<Node>,
    /// How many entries a node has (stream-node-max-entries); their bytes are not bounded.
    node_max: usize,
    pub length: usize,
    pub last_id: Id,
    /// How many entries were ever added.
    pub added: u64,
    /// The largest id that XDEL has deleted.
    pub deleted: Id,
}

fn live(node: &Node) -> usize {
    node.iter().filter(|(_, fields)| fields.is_some()).count()
}

impl Stream {
    pub fn new(node_max: usize) -> Self {
        Self { nodes: VecDeque::new(), node_max, length: 0, last_id: Id::ZERO, added: 0, deleted: Id::ZERO }
    }

    /// XADD.
    pub fn add(&mut self, id: Id, fields: Fields) -> Result<(), &'static str> {
        if id == Id::ZERO {
            return Err(NOT_ZERO);
        }
        if self.last_id == Id::LAST {
            return Err(EXHAUSTED);
        }
        if id <= self.last_id {
            return Err(SMALL);
        }
        match self.nodes.back_mut() {
            Some(node) if node.len() < self.node_max => node.push((id, Some(fields))),
            _ => self.nodes.push_back(vec![(id, Some(fields))]),
        }
        self.length += 1;
        self.added += 1;
        self.last_id = id;
        Ok(())
    }

    /// XADD after the last id, whatever that is.
    pub fn add_next(&mut self, fields: Fields) {
        let Id { ms, sequence } = self.last_id;
        let id = sequence.checked_add(1).map_or(Id { ms: ms + 1, sequence: 0 }, |sequence| Id { ms, sequence });
        self.add(id, fields).unwrap();
    }

    /// Where the node is in which an entry of this id would lie.
    fn node_of(&self, id: Id) -> usize {
        self.nodes.partition_point(|node| node.first().is_some_and(|(first, _)| *first <= id)).saturating_sub(1)
    }

    /// The entries with ids after this one, in their order.
    pub fn after(&self, id: Id) -> impl Iterator<Item = (Id, &Fields)> {
        self.nodes
            .range(self.node_of(id)..)
            .flatten()
            .filter(move |(other, _)| *other > id)
            .filter_map(|(id, fields)| Some((*id, fields.as_ref()?)))
    }

    /// XDEL.
    pub fn delete(&mut self, ids: &[Id]) -> usize {
        let mut count = 0;
        for id in ids {
            let index = self.node_of(*id);
            let Some(node) = self.nodes.get_mut(index) else { continue };
            let Some((_, fields)) = node.iter_mut().find(|(other, fields)| other == id && fields.is_some()) else {
                continue;
            };
            *fields = None;
            count += 1;
            self.length -= 1;
            self.deleted = self.deleted.max(*id);
            if live(node) == 0 {
                self.nodes.remove(index);
            }
        }
        count
    }

    /// XTRIM MAXLEN: the oldest go, until so many are left.
    pub fn trim_to_length(&mut self, length: usize) -> usize {
        let before = self.length;
        while self.length > length {
            let Some(node) = self.nodes.front_mut() else { break };
            let size = live(node);
            if self.length - size >= length {
                self.nodes.pop_front();
                self.length -= size;
                continue;
            }
            for (_, fields) in node.iter_mut().filter(|(_, fields)| fields.is_some()).take(self.length - length) {
                *fields = None;
            }
            self.length = length;
        }
        before - self.length
    }

    /// XTRIM MINID ~ .. LIMIT: whole nodes below an id, as many as do not exceed the limit.
    pub fn trim_nodes(&mut self, id: Id, limit: usize) -> usize {
        let mut count = 0;
        while let Some(node) = self.nodes.front() {
            let size = live(node);
            if count + size > limit || node.last().is_some_and(|(last, _)| *last >= id) {
                break;
            }
            self.nodes.pop_front();
            self.length -= size;
            count += size;
        }
        count
    }

    /// XSETID. The answer is Redis' refusal.
    pub fn set_id(&mut self, id: Id, added: Option<u64>, deleted: Option<Id>) -> Result<(), &'static str> {
        if deleted.is_some_and(|deleted| id < deleted) {
            return Err("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id");
        }
        if id < self.deleted {
            return Err("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id");
        }
        let top = self.nodes.iter().flatten().filter(|(_, fields)| fields.is_some()).map(|(id, _)| *id).next_back();
        if top.is_some_and(|top| id < top) {
            return Err("ERR The ID specified in XSETID is smaller than the target stream top item");
        }
        if added.is_some_and(|added| (self.length as u64) > added) {
            return Err("ERR The entries_added specified in XSETID is smaller than the target stream length");
        }
        self.last_id = id;
        self.added = added.unwrap_or(self.added);
        self.deleted = deleted.filter(|deleted| *deleted != Id::ZERO).unwrap_or(self.deleted);
        Ok(())
    }
}

/// The end of exact numbers in Lua: offsets and counters lie below it, or are it.
pub(crate) const EXACT_MAX: i64 = 1 << 53;

/// The number that Lua has for one beyond the exact ones.
fn rounded(number: u64) -> u64 {
    number as f64 as u64
}

/// The ids of a log's entries, by the offset just past each entry: its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    /// Of an offset the last so many bits are the sequence of an id, and the others its milliseconds. 0, and in layout
    /// `batch` -1: the id is `0-<end>`.
    pub bits: i64,
}

impl Ids {
    pub fn is_dense(self) -> bool {
        self.bits <= 0
    }

    pub fn width(self) -> i64 {
        1 << self.bits.max(0)
    }

    /// The id of an entry that ends there; 0-0 if there can be none.
    pub fn of_end(self, end: i64) -> Id {
        if self.is_dense() {
            return Id { ms: 0, sequence: rounded(end as u64) };
        }
        let offset = end.max(1) - 1;
        Id { ms: (offset / self.width()) as u64, sequence: (offset % self.width()) as u64 }
    }

    /// The end of an entry; `None` if its id names no offset.
    pub fn end_of(self, id: Id) -> Option<i64> {
        if self.is_dense() {
            return (id.ms == 0 && id.sequence < EXACT_MAX as u64).then_some(id.sequence as i64);
        }
        let width = self.width() as u64;
        (id.sequence < width && id.ms < EXACT_MAX as u64 / width).then(|| (id.ms * width + id.sequence + 1) as i64)
    }

    /// All entries below this id end there or before, and each of them has an offset.
    pub fn after(self, end: i64) -> Id {
        let id = self.of_end(end);
        Id { sequence: rounded(id.sequence + 1), ..id }
    }
}
