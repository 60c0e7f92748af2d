//! Reads that are sent together, and whose they are.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::ahead::Start;
use super::{GroupId, RequestId};
use crate::client::{NodeId, Piece, Span};
use crate::log::{Known, Read, Sent, put_search};
use crate::partition::Partition;
use crate::pipeline::{Packed, Time};
use crate::resp::{put_argument, put_count};
use crate::shared::Shared;
use crate::slab::Slab;

/// What the commands of a read take, about.
const COMMANDS_BYTES: usize = 384;

/// Whose a read is.
#[derive(Clone, Debug)]
pub(super) enum Whose {
    /// A place of a request.
    Place(RequestId, usize),
    /// A place of a request that is answered with what was read ahead: this asks for the bounds of now.
    Bounds(RequestId, usize, Start),
    /// Nobody's yet.
    Ahead(Start),
    /// A request that wants to know whether anything has come to a log, by the key of that for its reader and an offset.
    Search(RequestId, u64, i64),
}

impl Whose {
    pub fn request(&self) -> Option<RequestId> {
        match self {
            Self::Place(id, _) | Self::Bounds(id, ..) | Self::Search(id, ..) => Some(*id),
            Self::Ahead(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
enum Asked {
    Read(Read, Sent),
    Search(Arc<Partition>),
}

/// A read that is sent.
#[derive(Debug)]
pub(super) struct Entry {
    pub whose: Whose,
    pub node: Option<NodeId>,
    /// To which history it is sent; empty without a connection, until one was made.
    pub history: Arc<str>,
    /// What its reply may weigh.
    pub bytes: i64,
    asked: Asked,
    text: Vec<u8>,
    /// Its commands among those of the group, as their places.
    first: usize,
    count: usize,
    /// Why Redis did not run it, by the first error among its replies.
    error: Option<String>,
    is_answered: bool,
}

impl Entry {
    /// The read and how it was sent; `None` for a search.
    pub fn read(&self) -> Option<(&Read, Sent)> {
        match &self.asked {
            Asked::Read(read, sent) => Some((read, *sent)),
            Asked::Search(_) => None,
        }
    }

    pub fn partition(&self) -> &Arc<Partition> {
        match &self.asked {
            Asked::Read(read, _) => &read.partition,
            Asked::Search(partition) => partition,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Group {
    entries: Vec<Entry>,
    count: usize,
    left: usize,
    pub sent_at: Time,
}

/// A group that is to be sent: its commands, and in which pieces a cluster takes them.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Sending {
    pub group: GroupId,
    pub spans: Vec<Span>,
    /// What the replies may weigh, for the limit of large replies.
    pub reply_bytes: usize,
}

impl Group {
    pub fn add_read(&mut self, whose: Whose, read: Read, known: &Known, bytes: i64, at: (Option<NodeId>, Arc<str>)) {
        let mut text = Vec::with_capacity(COMMANDS_BYTES);
        let (count, sent) = read.put(known, &mut text);
        self.add(whose, Asked::Read(read, sent), (text, count), bytes, at);
    }

    pub fn add_search(&mut self, whose: Whose, partition: Arc<Partition>, offset: i64) {
        let mut text = Vec::with_capacity(COMMANDS_BYTES);
        put_search(&partition, offset, &mut text);
        self.add(whose, Asked::Search(partition), (text, 1), 0, (None, Arc::default()));
    }

    fn add(
        &mut self,
        whose: Whose,
        asked: Asked,
        commands: (Vec<u8>, usize),
        bytes: i64,
        at: (Option<NodeId>, Arc<str>),
    ) {
        let ((node, history), (text, count), first) = (at, commands, self.count);
        let (error, is_answered) = (None, false);
        self.entries.push(Entry { whose, node, history, bytes, asked, text, first, count, error, is_answered });
        self.count += count;
        self.left += 1;
    }

    /// The places of its reads that have some of these commands.
    fn indexes_of(&self, places: &Range<usize>) -> Range<usize> {
        let first = self.entries.partition_point(|entry| entry.first + entry.count <= places.start);
        let end = self.entries.partition_point(|entry| entry.first < places.end);
        first..end.max(first)
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// What became of a read.
#[derive(Debug)]
pub(super) enum Reply {
    /// The last reply to its commands, or the error among them.
    Bytes(Shared),
    Error(String),
}

#[derive(Debug, Default)]
pub(super) struct Groups {
    sent: Slab<Group>,
    sends: VecDeque<Sending>,
}

impl Groups {
    /// Have a group sent.
    pub fn send(&mut self, group: Group) {
        let span = |entry: &Entry| Span { first: entry.first, count: entry.count, slot: Some(entry.partition().slot) };
        let spans = group.entries.iter().map(span).collect();
        let bytes: i64 = group.entries.iter().map(|entry| entry.bytes).sum();
        let reply_bytes = usize::try_from(bytes).unwrap_or(0);
        let group = self.sent.insert(group);
        self.sends.push_back(Sending { group, spans, reply_bytes });
    }

    pub fn next_send(&mut self, now: Time) -> Option<Sending> {
        let sending = self.sends.pop_front()?;
        if let Some(group) = self.sent.get_mut(sending.group) {
            group.sent_at = now;
        }
        Some(sending)
    }

    /// The commands of a piece, after those that its way puts first.
    pub fn pack(&self, group: GroupId, piece: &Piece) -> Option<Packed<Shared>> {
        let group = self.sent.get(group)?;
        let mut packed = Packed::default();
        if piece.way.asks {
            put_count(&mut packed.text, 1);
            put_argument(&mut packed.text, b"ASKING");
        }
        let indexes = group.indexes_of(&(piece.first..piece.first + piece.count));
        for entry in group.entries.get(indexes).unwrap_or_default() {
            packed.text.extend_from_slice(&entry.text);
        }
        Some(packed)
    }

    /// Take the reply at a place of a group. Returns the read that has its last one with that.
    pub fn replied(&mut self, id: GroupId, place: usize, reply: &Shared) -> Option<(Entry, Reply, Time)> {
        let group = self.sent.get_mut(id)?;
        let index = group.entries.partition_point(|entry| entry.first + entry.count <= place);
        let entry = group.entries.get_mut(index).filter(|entry| !entry.is_answered)?;
        if let [b'-', text @ ..] = reply.as_ref() {
            let text = String::from_utf8_lossy(text.strip_suffix(b"\r\n").unwrap_or(text)).into_owned();
            entry.error.get_or_insert(text);
        }
        (place + 1 == entry.first + entry.count).then_some(())?;
        let reply = entry.error.take().map_or_else(|| Reply::Bytes(reply.clone()), Reply::Error);
        self.end(id, index).map(|(entry, sent_at)| (entry, reply, sent_at))
    }

    /// Take the reads of some places of a group, which have no reply.
    pub fn prevented(&mut self, id: GroupId, places: &Range<usize>) -> Vec<Entry> {
        let indexes = self.sent.get(id).map(|group| group.indexes_of(places)).unwrap_or_default();
        indexes.filter_map(|index| self.end(id, index).map(|(entry, _)| entry)).collect()
    }

    /// Take a read that has not ended yet.
    fn end(&mut self, id: GroupId, index: usize) -> Option<(Entry, Time)> {
        let group = self.sent.get_mut(id)?;
        let sent_at = group.sent_at;
        let entry = group.entries.get_mut(index).filter(|entry| !entry.is_answered)?;
        entry.is_answered = true;
        let ended = Entry {
            whose: entry.whose.clone(),
            history: Arc::clone(&entry.history),
            asked: entry.asked.clone(),
            text: std::mem::take(&mut entry.text),
            error: None,
            ..*entry
        };
        group.left -= 1;
        if group.left == 0 {
            self.sent.remove(id);
        }
        Some((ended, sent_at))
    }
}
