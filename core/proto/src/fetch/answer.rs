//! The end of a request: its answer, and what its session keeps.

use std::time::Duration;

use super::flow::Consumers;
use super::pending::{About, Outcome, Pending, Place, Spent};
use super::response::set_throttle;
use super::session::{Bounds, INITIAL_EPOCH, NO_SESSION};
use super::{Event, Header, PartitionResult, Question, RequestId, write};
use crate::ErrorCode;
use crate::noted::Answered;
use crate::pipeline::Time;
use crate::shared::Piece;

const NO_ERROR: i16 = 0;
/// These are errors of the whole response alone.
const OF_SESSIONS: [ErrorCode; 3] =
    [ErrorCode::FetchSessionIdNotFound, ErrorCode::InvalidFetchSessionEpoch, ErrorCode::FetchSessionTopicIdError];

impl Consumers {
    /// Answer a request, once its client's quotas are charged. Returns whether it goes on, which it never does.
    pub(super) fn answer(&mut self, id: RequestId, now: Time) -> bool {
        let is_written = self.requests.get(id).is_some_and(|pending| pending.is_charged);
        if !is_written {
            self.write_response(id, now);
        }
        let Some(pending) = self.requests.get_mut(id) else { return false };
        if self.is_metered && !std::mem::replace(&mut pending.is_charged, true) {
            let bytes = pending.response.iter().map(Piece::len).sum();
            let question = Question::Charge { client_id: pending.client_id.clone(), bytes, busy: pending.busy };
            self.ask(id, vec![(question, About::Request)]);
            return false;
        }
        let Some(mut pending) = self.remove(id, now) else { return false };
        let (throttle_ms, reason) = pending.throttle;
        if throttle_ms > 0 {
            set_throttle(&mut pending.response, pending.request.version, throttle_ms);
        }
        self.note_answer(&mut pending, now);
        let (peer, number, response) = (pending.peer, pending.number, std::mem::take(&mut pending.response));
        if let Some(connection) = self.connections.get_mut(&peer) {
            connection.current = None;
            connection.unwritten += pending.reserved;
        }
        let throttle = Duration::from_millis(throttle_ms.into());
        self.events.push_back(Event::Answer { peer, number, response, throttle, reason });
        self.events.push_back(Event::Room { peer });
        false
    }

    fn note_answer(&mut self, pending: &mut Pending, now: Time) {
        pending.times.end(Spent::Encode, now);
        let answered = Answered {
            whole: now.saturating_sub(pending.times.arrived),
            stages: pending.times.stages,
            error: pending.refusal.map_or(NO_ERROR, |code| code as i16),
            until: now,
        };
        let bytes: usize = pending.response.iter().map(Piece::len).sum();
        let noted = self.noted();
        noted.ended += 1;
        noted.sent_bytes += bytes as u64;
        noted.answered.push(answered);
    }

    fn write_response(&mut self, id: RequestId, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let mut places = std::mem::take(&mut pending.places);
        let (refusal, session) = (pending.refusal, pending.session);
        if let Some(session) = session.filter(|_| refusal.is_some()) {
            // Its client does not know what was answered, and begins again.
            let peer = pending.peer;
            self.sessions.close(session, peer);
            self.end_sessions(now);
        }
        let mut header_session = NO_SESSION;
        if let Some(code) = refusal {
            self.refuse_all(id, &mut places, code);
        } else if let Some(session) = session {
            header_session = session;
            self.keep(id, &mut places);
        } else {
            header_session = self.create_session(id, &places, now);
        }
        self.note_places(&places);
        let Some(pending) = self.requests.get_mut(id) else { return };
        let header = Header {
            version: pending.request.version,
            correlation_id: pending.request.correlation_id,
            throttle_ms: 0,
            error: refusal.map_or(NO_ERROR, |code| code as i16),
            session_id: header_session,
        };
        let results: Vec<PartitionResult> = places.iter_mut().map(result_of).collect();
        pending.response = write(&header, places.iter().map(|place| &place.name).zip(results).collect());
    }

    /// Answer with one error.
    fn refuse_all(&mut self, id: RequestId, places: &mut Vec<Place>, code: ErrorCode) {
        places.clear();
        let Some(pending) = self.requests.get(id).filter(|_| !OF_SESSIONS.contains(&code)) else { return };
        for topic in &pending.request.topics {
            for asked in &topic.partitions {
                let mut place = Place::new(topic.name.clone(), *asked, 0);
                place.refuse(code);
                places.push(place);
            }
        }
    }

    /// Note in a session what was read; what its client knows already is not answered.
    fn keep(&mut self, id: RequestId, places: &mut Vec<Place>) {
        let Some(pending) = self.requests.get(id) else { return };
        let is_committed = pending.request.is_committed;
        let Some(session) = pending.session.and_then(|id| self.sessions.get_mut(id)) else { return };
        places.retain(|place| {
            let key = place.key;
            if place.outcome.error.is_none() && place.outcome.bounds == Bounds::UNKNOWN {
                // It has woken a request that was to be answered at once, and was not read.
                session.set_due(key);
                return false;
            }
            if place.is_refused {
                session.unresolve(key);
            } else if let Some(known) = session.get_mut(key) {
                (known.partition, known.seen) = (place.partition.clone(), place.seen);
            }
            let is_heard = place.log.is_some_and(|log| self.logs.is_live(log) && !self.logs.has_news(log, place.seen));
            if place.is_quiet(is_committed) && is_heard {
                session.clear_due(key);
            } else {
                session.set_due(key);
            }
            let outcome = &place.outcome;
            let has_records = !outcome.pieces.is_empty();
            if has_records {
                // The others come first next time: one that always has records would use up the limits (KIP-227).
                session.read_last(key);
            }
            let is_news = outcome.error.is_some() || has_records || outcome.diverging.is_some();
            session.learn(key, outcome.bounds, is_news)
        });
    }

    /// Keep the partitions of a request that asked for a session; returns its id.
    fn create_session(&mut self, id: RequestId, places: &[Place], now: Time) -> i32 {
        let Some(pending) = self.requests.get(id) else { return NO_SESSION };
        if pending.request.session_epoch != INITIAL_EPOCH {
            return NO_SESSION;
        }
        let Some(created) = self.sessions.create(pending.peer, &pending.request, now) else { return NO_SESSION };
        if let Some(session) = self.sessions.get_mut(created) {
            let keys: Vec<u64> = session.iter().map(|(key, _)| key).collect();
            for (key, place) in keys.into_iter().zip(places) {
                session.learn(key, place.outcome.bounds, false);
            }
            (session.read_at, session.searched_at) = (now, now);
        }
        self.end_sessions(now);
        created
    }

    fn note_places(&mut self, places: &[Place]) {
        let noted = self.noted();
        for place in places {
            if let Some(code) = place.outcome.error {
                *noted.failures.entry(code as i16).or_default() += 1;
            }
            if let Some(partition) = place.partition.as_ref().filter(|_| !place.outcome.pieces.is_empty()) {
                let bytes = place.outcome.pieces.iter().map(Piece::len).sum();
                noted.send(&partition.topic, place.outcome.records, bytes);
            }
        }
    }
}

fn result_of(place: &mut Place) -> PartitionResult {
    let index = place.asked.index;
    let Outcome { error, bounds, diverging, aborted, pieces, .. } = std::mem::take(&mut place.outcome);
    PartitionResult {
        index,
        error: error.map_or(NO_ERROR, |code| code as i16),
        high_watermark: bounds.high_watermark,
        last_stable_offset: bounds.last_stable_offset,
        log_start: bounds.log_start,
        diverging,
        aborted,
        records: pieces,
    }
}
