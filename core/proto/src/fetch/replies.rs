//! The replies to reads of logs: whose each is, and whether it is to be read again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::ahead::{Held, Start};
use super::flow::Consumers;
use super::pending::{Reading, Spent, Step};
use super::plan::{COUNT_MAX, Planned};
use super::reads::{Entry, Reply, Whose};
use super::settle::unknown;
use super::{Event, GroupId, RequestId};
use crate::ErrorCode;
use crate::client::{NodeId, Prevented};
use crate::failure::{Failure, FailureKind, call_failure};
use crate::log::{Found, NO_EPOCH, Outcome as ReadOutcome, Read};
use crate::partition::Partition;
use crate::pipeline::Time;
use crate::serving::Nodes;
use crate::shared::Shared;

impl Consumers {
    /// Take the reply at a place of a group of reads.
    pub fn replied(&mut self, group: GroupId, place: usize, reply: &Shared, nodes: &impl Nodes, now: Time) {
        let Some((mut entry, reply, sent_at)) = self.groups.replied(group, place, reply) else { return };
        if let (true, Some(node)) = (entry.history.is_empty(), entry.node) {
            // Without a connection it made one.
            entry.history = nodes.history(node).into();
        }
        self.noted().round_trips.push(now.saturating_sub(sent_at));
        if let Some(pending) = entry.whose.request().and_then(|id| self.requests.get_mut(id)) {
            pending.times.end(Spent::Decode, sent_at);
        }
        match (&entry.whose, reply) {
            (Whose::Search(id, key, end), reply) => {
                let is_empty = matches!(&reply, Reply::Bytes(bytes) if bytes.as_ref() == b"*0\r\n")
                    && !met_another_history(&entry, nodes);
                self.end_look(*id, (*key, *end), is_empty, now);
                self.advance(*id, nodes, now);
            }
            (_, Reply::Error(text)) => {
                let failure = call_failure(&text, &entry.partition().keys.stream).failure;
                self.end_read(&entry, ReadOutcome::Refused(failure), nodes, now);
            }
            (_, Reply::Bytes(bytes)) => {
                let Some((read, sent)) = entry.read() else { return };
                let outcome = read.outcome(sent, &bytes, &mut self.known);
                self.end_read(&entry, outcome, nodes, now);
            }
        }
        self.set_timer();
    }

    /// Take the reason for which places of a group of reads have no reply.
    pub fn prevented(
        &mut self,
        group: GroupId,
        places: Range<usize>,
        kind: Prevented,
        text: &str,
        nodes: &impl Nodes,
        now: Time,
    ) {
        let is_away = kind == Prevented::Away && self.options.is_cluster;
        let kind = if is_away { FailureKind::NodeAway } else { FailureKind::Unavailable };
        let failure = Failure::new(ErrorCode::KafkaStorageError, text, kind);
        for entry in self.groups.prevented(group, &places) {
            if let Whose::Search(id, key, end) = entry.whose {
                self.end_look(id, (key, end), false, now);
                self.advance(id, nodes, now);
            } else {
                self.end_read(&entry, ReadOutcome::Refused(failure.clone()), nodes, now);
            }
        }
        self.set_timer();
    }

    fn end_read(&mut self, entry: &Entry, outcome: ReadOutcome, nodes: &impl Nodes, now: Time) {
        if !matches!(outcome, ReadOutcome::Refused(_)) && met_another_history(entry, nodes) {
            return self.read_in_this_history(entry, nodes, now);
        }
        let outcome = match outcome {
            ReadOutcome::Again(mut read) if self.may_repeat(entry) => {
                if entry.read().is_some_and(|(before, _)| read.offset > before.offset) {
                    // There may be many entries that are not served.
                    read.entries_max = read.entries_max.max((2 * read.entries_max).min(COUNT_MAX));
                }
                let at = (entry.node, Arc::clone(&entry.history));
                self.open.add_read(entry.whose.clone(), read, &self.known, entry.bytes, at);
                return self.send_open();
            }
            ReadOutcome::Again(read) => ReadOutcome::Refused(read.misled()),
            outcome => outcome,
        };
        if let ReadOutcome::Found(found) | ReadOutcome::Unsettled(found) = &outcome {
            self.note_seen(found, entry, nodes);
        }
        if let (Whose::Place(id, index) | Whose::Bounds(id, index, _), Some(node)) = (&entry.whose, entry.node) {
            if let Some(reading) = self.reading(*id, *index) {
                reading.sent_to = Some((node, Arc::clone(&entry.history)));
            }
        }
        match (&entry.whose, outcome) {
            (Whose::Bounds(id, index, start), ReadOutcome::Found(bounds) | ReadOutcome::Unsettled(bounds)) => {
                let of = (entry.partition(), &*entry.history);
                match self.ahead.take(start, of, (*id, *index)) {
                    Some(Held::Found(found)) => self.put_ahead((*id, *index), *found, &bounds, now),
                    Some(Held::UnderWay) => {
                        if let Some(reading) = self.reading(*id, *index) {
                            reading.step = Step::Ahead(Box::new(bounds));
                        }
                    }
                    None => self.read_after_all(*id, *index, nodes, now),
                }
                self.advance(*id, nodes, now);
            }
            (Whose::Place(id, index) | Whose::Bounds(id, index, _), outcome) => {
                self.put(*id, *index, outcome, now);
                self.advance(*id, nodes, now);
            }
            (Whose::Ahead(start), outcome) => {
                let found = if let ReadOutcome::Found(found) = outcome { Some(found) } else { None };
                self.end_ahead(start, entry, found, nodes, now);
            }
            (Whose::Search(..), _) => {}
        }
    }

    /// Read again what was sent to one history, and answered by another.
    fn read_in_this_history(&mut self, entry: &Entry, nodes: &impl Nodes, now: Time) {
        match &entry.whose {
            Whose::Place(id, index) | Whose::Bounds(id, index, _) => {
                self.read_after_all(*id, *index, nodes, now);
                self.advance(*id, nodes, now);
            }
            Whose::Ahead(start) => self.end_ahead(start, entry, None, nodes, now),
            Whose::Search(..) => {}
        }
    }

    /// Note what was read ahead, and serve those who wait for it.
    fn end_ahead(&mut self, start: &Start, entry: &Entry, found: Option<Found>, nodes: &impl Nodes, now: Time) {
        let of = (entry.partition(), &*entry.history);
        for (id, index) in self.ahead.put(start, of, found) {
            self.end_wait_ahead((id, index), start, of, nodes, now);
            self.advance(id, nodes, now);
        }
    }

    /// Whether a read may be sent again as its outcome says. What is read ahead is read when it is asked for.
    fn may_repeat(&mut self, entry: &Entry) -> bool {
        let (Whose::Place(id, index) | Whose::Bounds(id, index, _)) = &entry.whose else { return false };
        self.reading(*id, *index).is_some_and(|reading| {
            reading.tries += 1;
            u32::from(reading.tries) < Read::TRIES_MAX
        })
    }

    fn reading(&mut self, id: RequestId, index: usize) -> Option<&mut Reading> {
        self.requests.get_mut(id)?.places.get_mut(index)?.reading.as_deref_mut()
    }

    /// Note where a log was found to end: that shows what of it was lost.
    fn note_seen(&mut self, found: &Found, entry: &Entry, nodes: &impl Nodes) {
        let epoch = entry.node.map_or(NO_EPOCH, |node| epoch_of(&self.epochs, node, nodes.history(node)));
        if epoch != NO_EPOCH {
            let (partition, epochs) = (Arc::clone(&found.partition), found.epochs.clone());
            self.events.push_back(Event::Seen { partition, epoch, end: found.log_end, epochs });
        }
    }

    /// Put what a read of a place has come to.
    fn put(&mut self, id: RequestId, index: usize, outcome: ReadOutcome, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        pending.end_one(Spent::Redis, now);
        let Some(place) = pending.places.get_mut(index) else { return };
        let Some(reading) = &mut place.reading else { return };
        match outcome {
            ReadOutcome::Found(found) => {
                reading.step = Step::Found { found: Box::new(found), is_unsettled: false, is_limited: false };
            }
            ReadOutcome::Unsettled(found) => {
                // Entries that came since wait for the next fetch.
                let is_unsettled = !reading.is_settled;
                reading.step = Step::Found { found: Box::new(found), is_unsettled, is_limited: false };
            }
            ReadOutcome::Refused(failure) if failure.code == ErrorCode::UnknownTopicOrPartition => {
                if std::mem::replace(&mut place.is_renewed, true) {
                    place.fail(&Failure { code: unknown(&place.name), ..failure });
                } else {
                    reading.step = Step::Stale;
                }
            }
            ReadOutcome::Refused(failure) if failure.kind == FailureKind::Unavailable && !self.options.is_cluster => {
                // All that it asks for is there.
                pending.refusal = Some(failure.code);
                self.note_away(&failure);
            }
            ReadOutcome::Refused(failure) => place.fail(&failure),
            ReadOutcome::Again(_) => {}
        }
    }

    fn note_away(&mut self, failure: &Failure) {
        let noted = self.noted();
        noted.away += 1;
        noted.away_text.get_or_insert_with(|| failure.message.clone());
    }

    /// Put what was read ahead, with the bounds of now.
    fn put_ahead(&mut self, (id, index): (RequestId, usize), mut found: Found, bounds: &Found, now: Time) {
        found.set_bounds(bounds);
        self.put(id, index, ReadOutcome::Found(found), now);
    }

    /// What was read ahead is there, or is not to be had.
    fn end_wait_ahead(
        &mut self,
        waiter: (RequestId, usize),
        start: &Start,
        of: (&Arc<Partition>, &str),
        nodes: &impl Nodes,
        now: Time,
    ) {
        let (id, index) = waiter;
        let Some(reading) = self.reading(id, index).filter(|reading| matches!(reading.step, Step::Ahead(_))) else {
            return;
        };
        let Step::Ahead(bounds) = std::mem::take(&mut reading.step) else { return };
        match self.ahead.take(start, of, waiter) {
            Some(Held::Found(found)) => self.put_ahead(waiter, *found, &bounds, now),
            _ => self.read_after_all(id, index, nodes, now),
        }
    }

    /// Read a place that nothing was read ahead for.
    fn read_after_all(&mut self, id: RequestId, index: usize, nodes: &impl Nodes, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        pending.end_one(Spent::Redis, now);
        if let Some(reading) = self.reading(id, index) {
            reading.step = Step::Idle;
        }
        self.send_read(id, Planned { place: index, entries: 1, expected_bytes: 0 }, nodes);
    }
}

/// Whether a reply is of another history than the read was sent to, as far as is known: the connection over which it came
/// leads to that, or the slot is at another node, and the read has followed it.
fn met_another_history(entry: &Entry, nodes: &impl Nodes) -> bool {
    let Some(node) = entry.node.filter(|_| !entry.history.is_empty()) else { return false };
    nodes.history(node) != &*entry.history || nodes.node_of(entry.partition().slot).is_some_and(|other| other != node)
}

/// The leader epoch of a node in a history, if that is known.
pub(super) fn epoch_of(epochs: &HashMap<NodeId, (Arc<str>, i32)>, node: NodeId, history: &str) -> i32 {
    let known = epochs.get(&node).filter(|(of, _)| !history.is_empty() && **of == *history);
    known.map_or(NO_EPOCH, |(_, epoch)| *epoch)
}
