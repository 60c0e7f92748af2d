//! The outcome of each batch, from the outcome of its script call.

use std::ops::Range;
use std::sync::Arc;

use super::flow::Producers;
use super::group::{Call, Entry, Group, Origin};
use super::pending::{Place, State};
use super::unverified::Unverified;
use super::{Appended, Event, GroupId};
use crate::ErrorCode;
use crate::append::{Answer, Reply, Verdict};
use crate::client::Prevented;
use crate::failure::{Failure, FailureKind, NotRun};
use crate::failure::{call_failure, malformed_answer};
use crate::partition::{Layout, Partition};
use crate::pipeline::Time;
use crate::resp::{Element, Elements};
use crate::serving::{Clock, Nodes};

/// Where a log ended in a leader epoch, after what this worker appended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct End {
    pub topic_id: Box<str>,
    pub epoch: i32,
    pub end: i64,
}

impl Producers {
    /// The end of a log after the last append of this worker.
    pub fn end_of(&self, stream: &str) -> Option<&End> {
        self.ends.get(stream)
    }

    /// Note that a log goes on at least as far in a leader epoch. Returns whether its end in that was known.
    pub fn raise_end(&mut self, stream: &str, topic_id: &str, epoch: i32, end: i64) -> bool {
        let known = self.ends.get_mut(stream).filter(|last| *last.topic_id == *topic_id && last.epoch == epoch);
        let Some(last) = known else { return false };
        last.end = last.end.max(end);
        true
    }

    /// Take the reply to a call of a group.
    pub fn replied(&mut self, group: GroupId, call: usize, reply: &[u8], nodes: &impl Nodes, clock: Clock) {
        let Some((call, origin)) = self.groups.take_call(group, call) else { return };
        let script = script_of(&call.partition);
        if let Some(trips) = self.noted().round_trips.get_mut(script) {
            trips.push(clock.now.saturating_sub(origin.sent_at));
        }
        match Elements::of(reply).next() {
            Some(Element::Bulk(answer)) => self.answered(&call, Reply::read(answer), &origin, clock),
            Some(Element::Error(text)) => self.refused(&call, &String::from_utf8_lossy(text), &origin, clock),
            _ => self.answered(&call, None, &origin, clock),
        }
        self.go_on(call, nodes, clock);
    }

    /// Take the reason for which calls of a group have no reply.
    pub fn prevented(
        &mut self,
        group: GroupId,
        calls: Range<usize>,
        kind: Prevented,
        text: &str,
        nodes: &impl Nodes,
        clock: Clock,
    ) {
        for index in calls {
            let Some((call, _)) = self.groups.take_call(group, index) else { continue };
            for entry in &call.entries {
                let state = match kind {
                    Prevented::Unknown => {
                        let is_idempotent = entry.batch.producer_id >= 0;
                        let kind = FailureKind::Unknown { is_idempotent };
                        State::Done(Err(Failure::new(ErrorCode::RequestTimedOut, text, kind)))
                    }
                    Prevented::History => State::Unsent { is_of_another_history: true },
                    _ => State::Done(Err(self.away(text))),
                };
                self.put_state(entry, state, clock.now, clock);
            }
            self.go_on(call, nodes, clock);
        }
    }

    /// Note that nothing of a group was sent.
    pub(super) fn give_up(&mut self, group: Group, failure: Option<&Failure>, nodes: &impl Nodes, clock: Clock) {
        for call in group.calls {
            for entry in &call.entries {
                let unsent = State::Unsent { is_of_another_history: false };
                let state = failure.map_or(unsent, |failure| State::Done(Err(failure.clone())));
                self.put_state(entry, state, clock.now, clock);
            }
            self.go_on(call, nodes, clock);
        }
    }

    /// The failure of what could not be sent.
    pub(super) fn away(&self, text: &str) -> Failure {
        let kind = if self.options.is_cluster { FailureKind::NodeAway } else { FailureKind::Unavailable };
        Failure::new(ErrorCode::KafkaStorageError, text, kind)
    }

    /// Go on with the requests that waited for a call.
    fn go_on(&mut self, call: Call, nodes: &impl Nodes, clock: Clock) {
        for Entry { request, .. } in call.entries {
            self.advance(request, nodes, clock);
        }
    }

    /// Take an answer, `None` for what is none.
    fn answered(&mut self, call: &Call, reply: Option<Reply<'_>>, origin: &Origin, clock: Clock) {
        let partition = &call.partition;
        if let Some(Reply::External { moved } | Reply::Answer(Answer { moved, .. })) = &reply {
            if *moved > 0 {
                self.events.push_back(Event::Moved { partition: Arc::clone(partition), count: *moved });
            }
        }
        for (index, entry) in call.entries.iter().enumerate() {
            let state = match &reply {
                Some(Reply::External { .. }) => State::External,
                Some(Reply::Answer(answer)) => match answer.verdict(index, &entry.batch) {
                    Some(verdict) => self.state_by(entry, answer, verdict, origin),
                    None => State::Done(Err(malformed_answer(&partition.keys.stream))),
                },
                None => State::Done(Err(malformed_answer(&partition.keys.stream))),
            };
            self.put_state(entry, state, origin.sent_at, clock);
        }
        if let Some(Reply::Answer(answer)) = &reply {
            if answer.row_bytes > 0 {
                self.events.push_back(Event::Row { partition: Arc::clone(partition) });
            }
        }
    }

    fn state_by(&mut self, entry: &Entry, answer: &Answer<'_>, verdict: Verdict, origin: &Origin) -> State {
        let (base_offset, is_duplicate) = match verdict {
            Verdict::Appended { base_offset } => (base_offset, false),
            Verdict::Duplicate { base_offset } => (base_offset, true),
            Verdict::Verify => return State::Unverified(Unverified::of(&entry.batch)),
            Verdict::MemoryFull => {
                self.events.push_back(Event::MemoryFull { node: origin.node });
                let text = "Redis refused: its memory is full (maxmemory), and only markers are written";
                let failure = Failure::new(ErrorCode::KafkaStorageError, text, FailureKind::MemoryFull);
                return State::Done(Err(failure));
            }
            Verdict::Refused(failure) => {
                self.note_script_error(entry, &failure);
                return match failure.code {
                    ErrorCode::OutOfOrderSequenceNumber => State::Early(failure),
                    _ => State::Done(Err(failure)),
                };
            }
        };
        let batch = &entry.batch;
        if !is_duplicate {
            self.note_append(entry, base_offset.saturating_add(i64::from(batch.record_count)), origin.epoch);
        }
        State::Done(Ok(Appended {
            base_offset,
            log_start: answer.log_start,
            is_duplicate,
            row_bytes: answer.row_bytes,
            timestamp: batch.append_time.unwrap_or(-1),
            node: origin.node,
            history: Arc::clone(&origin.history),
        }))
    }

    /// Take an error reply, which is about all batches of a call.
    fn refused(&mut self, call: &Call, text: &str, origin: &Origin, clock: Clock) {
        let refused = call_failure(text, &call.partition.keys.stream);
        let is_full = refused.failure.kind == FailureKind::MemoryFull;
        if is_full {
            self.events.push_back(Event::MemoryFull { node: origin.node });
        }
        for entry in &call.entries {
            let failure = refused.failure.clone();
            let state = match &refused.not_run {
                Some(not_run) => State::NotRun(origin.node, not_run.clone(), failure),
                None if is_full && entry.batch.is_marker() => State::NotRun(origin.node, NotRun::Missing, failure),
                None if failure.code == ErrorCode::UnknownTopicOrPartition => State::Stale(failure),
                None => State::Done(Err(failure)),
            };
            if refused.not_run.is_none() {
                self.note_script_error(entry, &refused.failure);
            }
            self.put_state(entry, state, origin.sent_at, clock);
        }
    }

    /// Note how far a batch has come, which is in no group any more.
    fn put_state(&mut self, entry: &Entry, state: State, sent_at: Time, clock: Clock) {
        self.release(entry.batch.held_bytes);
        let Some(pending) = self.requests.get_mut(entry.request) else { return };
        pending.under_way -= 1;
        (pending.times.sent, pending.times.answered) = (sent_at, clock.now);
        let is_plain = matches!(state, State::Done(_));
        if matches!(&state, State::Done(Err(failure)) if failure.kind == FailureKind::MemoryFull) {
            pending.throttle_ms = pending.throttle_ms.max(self.full_throttle_ms);
        }
        if let Some(place) = pending.places.get_mut(entry.place) {
            place.state = state;
        }
        if !is_plain {
            self.hold(entry.request);
        }
    }

    fn note_append(&mut self, entry: &Entry, end: i64, epoch: i32) {
        let batch = &entry.batch;
        self.events.push_back(Event::Appended { partition: Arc::clone(&batch.partition), end });
        let topic = &batch.partition.topic;
        let pending = self.requests.get(entry.request);
        let sent = pending.and_then(|pending| pending.places.get(entry.place)).map_or(0, Place::sent_bytes);
        if !entry.batch.is_marker() {
            let (topic, records) = (Arc::clone(topic), batch.record_count);
            self.noted().append(&topic, records, sent);
        }
        match self.ends.get_mut(&*batch.partition.keys.stream) {
            // A later epoch is left to the next read: only that shows where the log was cut.
            Some(last) if last.topic_id == topic.id_text && last.epoch != epoch => {}
            Some(last) if last.topic_id == topic.id_text => last.end = last.end.max(end),
            _ => self.put_end(&batch.partition.keys.stream, End { topic_id: topic.id_text.clone(), epoch, end }),
        }
    }

    fn note_script_error(&mut self, entry: &Entry, failure: &Failure) {
        let script = script_of(&entry.batch.partition);
        if let Some(errors) = self.noted().script_errors.get_mut(script) {
            *errors.entry(failure.code as i16).or_default() += 1;
        }
    }
}

fn script_of(partition: &Partition) -> usize {
    usize::from(!matches!(partition.layout, Layout::Batch))
}
