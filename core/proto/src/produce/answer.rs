//! The end of a request: what is to be known before its answer, the answer, and what the next request may do then.

use std::sync::Arc;
use std::time::Duration;

use super::flow::{ACKS_ALL, Producers};
use super::pending::{Owner, Pending, Stage, State};
use super::settle::{Questions, ask, fault};
use super::{Event, Question, RequestId, Written, write};
use crate::ErrorCode;
use crate::failure::{Failure, FailureKind};
use crate::noted::Answered;
use crate::peer::PeerId;
use crate::serving::Clock;

/// How long after an outage a gap in the sequences is not taken for the producer's fault.
const RECOVERY: Duration = Duration::from_secs(5);

impl Producers {
    /// Ask for what is to be known before the answer, one thing after the other. Returns whether all of that is known.
    pub(super) fn finish(&mut self, id: RequestId, clock: Clock) -> bool {
        let Some(pending) = self.requests.get_mut(id) else { return false };
        let (stage, questions) = match pending.stage {
            Stage::Admit | Stage::Append => {
                self.note_ends(id, clock);
                self.note_closing(id);
                let Some(pending) = self.requests.get(id) else { return false };
                (Stage::Times, times_wanted(pending))
            }
            Stage::Times => (Stage::Confirm, confirmations_wanted(pending, self.options.replicas)),
            Stage::Confirm => {
                pending.times.confirmed = clock.now;
                let is_metered = self.is_metered && matches!(pending.owner, Owner::Peer(..));
                let (bytes, busy) = (pending.frame_bytes, pending.busy);
                let client_id = pending.client_id.take();
                let charge = || (Question::Charge { client_id, bytes, busy }, Vec::new());
                (Stage::Answer, is_metered.then(charge).into_iter().collect())
            }
            Stage::Answer => return true,
        };
        if let Some(pending) = self.requests.get_mut(id) {
            pending.stage = stage;
        }
        self.put_questions(id, questions)
    }

    /// Whether a request ends its connection.
    pub(super) fn closes(&self, id: RequestId) -> bool {
        self.requests.get(id).and_then(closing).is_some()
    }

    /// If a request ends its connection let nothing that came after it begin or be sent, though its turn may come later.
    fn note_closing(&mut self, id: RequestId) {
        let Some(Owner::Peer(peer, number)) = self.requests.get(id).map(|pending| pending.owner) else { return };
        if !self.closes(id) {
            return;
        }
        if let Some(connection) = self.connections.get_mut(&peer) {
            connection.closes_at = Some(connection.closes_at.map_or(number, |closes_at| closes_at.min(number)));
        }
        // What waits to be sent is looked at again.
        self.order += 1;
    }

    /// Note what became of the batches of a request in the end.
    fn note_ends(&mut self, id: RequestId, clock: Clock) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let failed = pending.places.iter().filter_map(|place| place.outcome()?.as_ref().err());
        let is_away = failed
            .clone()
            .any(|failure| failure.kind != FailureKind::Rule || failure.code == ErrorCode::NotEnoughReplicas);
        if is_away {
            self.away_at = Some(clock.now);
        }
        // The batch before it was refused, and will be sent again. OUT_OF_ORDER_SEQUENCE_NUMBER for those that were on their
        // way would make librdkafka take a new epoch, and write again what other partitions have already.
        let is_recovering = self.away_at.is_some_and(|away_at| clock.now.saturating_sub(away_at) < RECOVERY);
        for place in &mut pending.places {
            let State::Done(outcome) = &mut place.state else { continue };
            if is_recovering
                && outcome.as_ref().is_err_and(|failure| failure.code == ErrorCode::OutOfOrderSequenceNumber)
            {
                let text = "an earlier batch of this producer was not written while Redis was away";
                *outcome = Err(Failure::unavailable(text));
            }
            if let (Some(batch), Some(partition)) = (place.unverified, &place.partition) {
                self.refusals.note(&partition.keys.stream, batch, outcome.as_ref().err(), clock.now);
            }
        }
    }

    /// Answer a request. Returns the next of its connection, which may have waited for its turn.
    pub(super) fn answer(&mut self, id: RequestId, clock: Clock) -> Option<RequestId> {
        let Owner::Peer(peer, number) = self.requests.get(id)?.owner else {
            self.events.push_back(Event::Done { request: id });
            return None;
        };
        let pending = self.requests.remove(id)?;
        self.release(pending.held_bytes);
        let event = event_of(&pending, peer, number);
        let noted = self.noted();
        noted.ended += 1;
        noted.outcomes(pending.places.iter().filter_map(|place| place.outcome()));
        if let Event::Answer { response, .. } = &event {
            noted.sent_bytes += response.len() as u64;
            noted.answered.push(answered_of(&pending, clock));
        }
        self.events.push_back(event);
        let connection = self.connections.get_mut(&peer)?;
        if let Some(place) = connection.begun.iter().position(|begun| *begun == id) {
            connection.begun.remove(place);
        }
        let next = connection.begun.front().copied();
        if connection.is_over && next.is_none() {
            self.connections.remove(&peer);
        }
        next
    }
}

/// Questions for the times of duplicate batches: the log has the time of the first arrival.
fn times_wanted(pending: &Pending) -> Questions {
    let mut questions = Questions::new();
    for (index, place) in pending.places.iter().enumerate() {
        if let (Some(Ok(appended)), Some(partition)) = (place.outcome(), &place.partition) {
            if appended.is_duplicate && appended.timestamp >= 0 {
                let (partition, offset) = (Arc::clone(partition), appended.base_offset);
                ask(&mut questions, Question::TimeAt { partition, offset }, index);
            }
        }
    }
    questions
}

/// With acks=all replicas have to have what was appended.
fn confirmations_wanted(pending: &Pending, replicas: u32) -> Questions {
    let mut questions = Questions::new();
    if pending.request.acks != ACKS_ALL || matches!(pending.owner, Owner::Own) {
        return questions;
    }
    for (index, place) in pending.places.iter().enumerate() {
        if let (Some(Ok(appended)), Some(partition)) = (place.outcome(), &place.partition) {
            let replicas = replicas.max(partition.replicas);
            if replicas > 0 {
                let history = Arc::clone(&appended.history);
                ask(&mut questions, Question::Confirm { node: appended.node, history, replicas }, index);
            }
        }
    }
    questions
}

/// Why a request ends its connection, if it does, and whether it is for its client to find out what became of a batch.
fn closing(pending: &Pending) -> Option<(String, bool)> {
    let mut failed = pending.places.iter().filter_map(|place| place.outcome()?.as_ref().err());
    if !matches!(pending.owner, Owner::Peer(..)) {
        return None;
    }
    // Without a response, to close is the only way to say that records were lost, as Kafka's broker does.
    if pending.request.acks == 0 {
        return failed
            .next()
            .map(|failure| (format!("a produce request with acks 0 failed: {}", failure.message), false));
    }
    let failure = failed.find(|failure| failure.kind == FailureKind::Unknown { is_idempotent: true })?;
    Some((format!("a batch of an idempotent producer may be written or not: {}", failure.message), true))
}

fn event_of(pending: &Pending, peer: PeerId, number: u64) -> Event {
    if let Some((text, is_unanswered)) = closing(pending) {
        return Event::Close { peer, text, is_unanswered };
    }
    let response = if pending.request.acks == 0 {
        Vec::new()
    } else {
        let nothing = fault("nothing has come of it");
        let results = pending.places.iter().map(|place| match place.outcome() {
            Some(Ok(appended)) => Ok(Written {
                base_offset: appended.base_offset,
                append_time_ms: appended.timestamp,
                log_start: appended.log_start,
            }),
            Some(Err(failure)) => Err(failure),
            None => Err(&nothing),
        });
        write(&pending.request, results, i32::try_from(pending.throttle_ms).unwrap_or(i32::MAX))
    };
    let throttle = Duration::from_millis(pending.throttle_ms.into());
    Event::Answer { peer, number, response, throttle, reason: pending.throttle_reason }
}

fn answered_of(pending: &Pending, clock: Clock) -> Answered {
    let times = &pending.times;
    let ends = [times.begun, times.sent, times.answered, times.confirmed, clock.now];
    let mut before = times.arrived;
    let stages = ends.map(|end| {
        let stage = end.saturating_sub(before);
        before = before.max(end);
        stage
    });
    Answered { whole: clock.now.saturating_sub(times.arrived), stages, error: 0, until: clock.now }
}
