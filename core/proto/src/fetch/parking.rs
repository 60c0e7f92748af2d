//! Requests that wait: until when, and what ends it.

use std::time::Duration;

use super::RequestId;
use super::flow::Consumers;
use super::pending::{Outcome, Spent, Stage};
use crate::ErrorCode;
use crate::failure::{Failure, FailureKind};
use crate::pipeline::Time;
use crate::serving::Nodes;

/// How old a high watermark below the end of a log may be.
const WITHHELD_AGE: Duration = Duration::from_secs(1);
/// Places of all requests that wait, at about a quarter of a KiB each; one that would have more is answered without a wait.
const PARKED_PLACES_MAX: usize = 500_000;

impl Consumers {
    /// After its reads: is that enough, or does it wait? Returns whether it goes on at once.
    pub(super) fn wait(&mut self, id: RequestId, now: Time) -> bool {
        if self.has_enough(id, now) {
            if let Some(pending) = self.requests.get_mut(id) {
                pending.stage = Stage::Answer;
            }
            return true;
        }
        self.watch_places(id, now);
        // What has come meanwhile to logs of a session that were not read has woken nobody.
        if self.note_news(id) {
            // One that cannot be listened to: it is answered.
            return true;
        }
        let Some(pending) = self.requests.get(id) else { return false };
        if pending.due.is_empty() {
            self.park(id, now);
            return false;
        }
        self.begin_reads(id, now);
        true
    }

    /// Whether waiting is of no use to a request, or its time is over.
    fn has_enough(&self, id: RequestId, now: Time) -> bool {
        let Some(pending) = self.requests.get(id) else { return true };
        let session = pending.session.and_then(|id| self.sessions.get(id));
        let all = session.map_or(pending.places.len(), super::session::Session::len);
        let refused = pending.places.iter().filter(|place| place.is_refused).count();
        self.is_draining
            || pending.is_hasty
            || refused >= all
            || pending.deadline.is_none_or(|deadline| now >= deadline)
            || pending.counted_bytes() >= pending.bytes_min
            || self.parked_places + pending.places.len() > PARKED_PLACES_MAX
            || pending.places.iter().any(|place| place.outcome.ends_wait() && !place.is_refused)
    }

    /// Have a request woken by what comes to its logs. What has come already is due, and nothing else.
    fn watch_places(&mut self, id: RequestId, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let reader = *pending.reader.get_or_insert_with(|| self.logs.add_reader());
        pending.clear_due();
        for index in 0..pending.places.len() {
            let Some(place) = pending.places.get_mut(index).filter(|place| !place.is_refused) else { continue };
            let Some(partition) = &place.partition else { continue };
            let log =
                *place.log.get_or_insert_with(|| self.logs.watch(reader, place.key, partition, &mut self.events, now));
            // What is not listened to yet is read as soon as it is.
            if self.logs.is_live(log) && self.logs.has_news(log, place.seen) {
                pending.add_due(index);
            }
        }
    }

    /// Have a request wait until it is woken, or its time is over.
    fn park(&mut self, id: RequestId, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let deadline = pending.deadline.unwrap_or(now);
        let is_withheld = pending.places.iter().any(|place| place.outcome.is_withheld);
        let until = if is_withheld { deadline.min(now + WITHHELD_AGE) } else { deadline };
        pending.parked_places = Some(pending.places.len());
        self.parked_places += pending.places.len();
        pending.times.end(Spent::Encode, now);
        pending.timer = Some(until);
        if let Some(reader) = pending.reader {
            self.logs.park(reader, id);
        }
        self.timers.insert((until, id));
        self.parked += 1;
        self.noted();
    }

    /// End the wait of a request, if it waits.
    pub(super) fn unpark(&mut self, id: RequestId, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let Some(places) = pending.parked_places.take() else { return };
        pending.times.end(Spent::Wait, now);
        if let Some(until) = pending.timer.take() {
            self.timers.remove(&(until, id));
        }
        if let Some(reader) = pending.reader {
            self.logs.unpark(reader);
        }
        (self.parked, self.parked_places) = (self.parked - 1, self.parked_places - places);
        self.noted();
    }

    /// Look at a request that waits: something may have happened to its logs, or its time is over.
    pub(super) fn look(&mut self, id: RequestId, nodes: &impl Nodes, now: Time) {
        if self.requests.get(id).is_none_or(|pending| pending.parked_places.is_none()) {
            return;
        }
        let has_failed = self.note_news(id);
        let Some(pending) = self.requests.get_mut(id) else { return };
        let is_time = self.is_draining || pending.timer.is_some_and(|at| at <= now);
        let is_over = pending.deadline.is_none_or(|deadline| now >= deadline);
        if is_time && !is_over {
            for index in 0..pending.places.len() {
                if pending.places.get(index).is_some_and(|place| place.outcome.is_withheld) {
                    pending.add_due(index);
                }
            }
        }
        let is_due = !pending.due.is_empty();
        if !is_time && !is_due && !has_failed {
            return;
        }
        self.unpark(id, now);
        if has_failed {
            // It is answered with what it has.
        } else if is_time && is_over {
            self.begin_search(id, now);
        } else if is_due {
            self.begin_reads(id, now);
        }
        self.advance(id, nodes, now);
    }

    /// Have the logs read that have woken a request, as far as it has not seen what they have. Returns whether any of them
    /// cannot be listened to: that is its result then, and the request is answered.
    fn note_news(&mut self, id: RequestId) -> bool {
        let mut has_failed = false;
        let reader = self.requests.get(id).and_then(|pending| pending.reader);
        for key in reader.map(|reader| self.logs.take_woken(reader)).unwrap_or_default() {
            let Some(index) = self.place_of(id, key) else { continue };
            let Some(pending) = self.requests.get_mut(id) else { continue };
            let Some(place) = pending.places.get_mut(index) else { continue };
            let Some(log) = place.log.filter(|_| !place.is_refused) else { continue };
            if let Some(text) = self.logs.failure(log) {
                has_failed = true;
                pending.is_hasty = true;
                if place.outcome.error.is_none() && place.outcome.bytes == 0 {
                    let kind = if self.options.is_cluster { FailureKind::NodeAway } else { FailureKind::Unavailable };
                    place.outcome = Outcome::failed(&Failure::new(ErrorCode::KafkaStorageError, text, kind));
                }
            } else if self.logs.is_live(log) && self.logs.has_news(log, place.seen) {
                pending.add_due(index);
            }
        }
        has_failed
    }
}
