//! The look for what nobody has announced: a wake-up may be lost, and other clients of Redis announce nothing.
//!
//! It is done at the end of the time for which a request waits. In a session, whose requests may be answered before that all
//! the time, it is done on arrival once it is due. It asks for one entry of each log: a tenth of the cost of a read.

use std::sync::Arc;

use super::RequestId;
use super::flow::Consumers;
use super::pending::{Spent, Stage};
use super::reads::Whose;
use crate::pipeline::Time;

/// How old the bounds of a log may be at whose end somebody waits: it has no use for the start.
pub(super) const BOUNDS_AGE: Time = Time::from_secs(10);

impl Consumers {
    /// Search the logs that a request, or its session, has found quiet; what else it has is read again.
    pub(super) fn begin_search(&mut self, id: RequestId, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        // Since when what was found of a log counts; on arrival nothing does.
        let since = pending.deadline.map(|deadline| deadline.saturating_sub(pending.wait));
        let session = pending.session.and_then(|id| self.sessions.get_mut(id));
        let read_at = session.as_ref().map_or(since, |session| Some(session.read_at));
        if since.is_some() && read_at.is_some_and(|at| now.saturating_sub(at) >= BOUNDS_AGE) {
            return self.read_all(id, now);
        }
        pending.stage = Stage::Search;
        let is_committed = pending.request.is_committed;
        let mut searched = Vec::new();
        if let Some(session) = session {
            session.searched_at = now;
            for (key, partition) in session.iter() {
                if let (Some(of), Some(log)) = (&partition.partition, partition.log) {
                    if !pending.by_key.contains_key(&key) && !session.is_due(key) {
                        searched.push((key, Arc::clone(of), partition.bounds.high_watermark, log));
                    }
                }
            }
        }
        if since.is_some() {
            pending.clear_due();
            for index in 0..pending.places.len() {
                let Some(place) = pending.places.get(index).filter(|place| !place.is_refused) else { continue };
                match (place.is_quiet(is_committed), place.log, &place.partition) {
                    (true, Some(log), Some(of)) => {
                        searched.push((place.key, Arc::clone(of), place.outcome.bounds.high_watermark, log));
                    }
                    _ => pending.add_due(index),
                }
            }
        }
        // What was looked at meanwhile for another reader has been looked at.
        searched.retain(|(_, _, end, log)| since.is_none_or(|since| !self.logs.is_checked(*log, since, *end)));
        pending.under_way += searched.len();
        for (key, partition, end, _) in searched {
            self.open.add_search(Whose::Search(id, key, end), partition, end);
        }
    }

    /// Have all partitions of a request, or of its session, read again.
    fn read_all(&mut self, id: RequestId, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        pending.clear_due();
        if let Some(session) = pending.session.and_then(|id| self.sessions.get_mut(id)) {
            session.set_all_due();
            (session.read_at, session.searched_at) = (now, now);
            self.place_due(id);
        } else {
            for index in 0..pending.places.len() {
                pending.add_due(index);
            }
        }
        self.begin_reads(id, now);
    }

    /// Note whether a log has nothing that was not announced.
    pub(super) fn end_look(&mut self, id: RequestId, (key, end): (u64, i64), is_empty: bool, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        pending.end_one(Spent::Redis, now);
        if is_empty {
            let session = pending.session.and_then(|id| self.sessions.get(id));
            let log = match session {
                Some(session) => session.get(key).and_then(|partition| partition.log),
                None => usize::try_from(key).ok().and_then(|index| pending.places.get(index)?.log),
            };
            if let Some(log) = log {
                self.logs.note_checked(log, end, now);
            }
        } else if let Some(index) = self.place_of(id, key) {
            if let Some(pending) = self.requests.get_mut(id) {
                pending.add_due(index);
            }
        }
    }

    /// Read what the search has found. Returns whether the request goes on, which it always does.
    pub(super) fn end_search(&mut self, id: RequestId, now: Time) -> bool {
        let Some(pending) = self.requests.get_mut(id) else { return false };
        if pending.due.is_empty() && pending.deadline.is_some() {
            pending.stage = Stage::Answer;
        } else {
            self.begin_reads(id, now);
        }
        true
    }
}
