//! What a request has to know before it reads, and its questions after the reads.

use std::collections::HashMap;
use std::sync::Arc;

use super::flow::Consumers;
use super::pending::{About, Pending, Place, Spent, Stage};
use super::search::BOUNDS_AGE;
use super::session::{Session, SessionPartition};
use super::{Decision, Question, RequestId};
use crate::ErrorCode;
use crate::access::Right;
use crate::failure::{Failure, FailureKind};
use crate::partition::TopicName;
use crate::pipeline::Time;
use crate::serving::Nodes;

/// How often one place asks for its partition, which is forgotten meanwhile.
const TRIES_MAX: u8 = 5;

/// Questions, with what each is about.
pub(super) type Questions = Vec<(Question, About)>;

impl Pending {
    /// Give places to the partitions that it names. One that is named again stays where it is, and is read as it was named
    /// last, as in Kafka.
    pub fn place_named(&mut self) {
        let mut known = HashMap::with_capacity(self.request.partition_count());
        for topic in &self.request.topics {
            for asked in &topic.partitions {
                let next = self.places.len();
                let index = *known.entry((&topic.name, asked.index)).or_insert(next);
                if let Some(place) = self.places.get_mut(index) {
                    place.asked = *asked;
                    continue;
                }
                let mut place = Place::new(topic.name.clone(), *asked, next as u64);
                if topic.name.is_too_long() {
                    place.refuse(ErrorCode::UnknownTopicOrPartition);
                }
                self.places.push(place);
            }
        }
    }

    fn judge(&mut self, name: &TopicName, code: Option<ErrorCode>) {
        self.judged.insert(name.clone(), code);
    }
}

impl Consumers {
    /// Ask for what decides what a request may read. Returns whether all is known, and it goes on.
    pub(super) fn admit(&mut self, id: RequestId, now: Time) -> bool {
        let mut questions = self.rights_wanted(id, now);
        if questions.is_empty() {
            self.refuse_unreadable(id);
            questions = self.limit_wanted(id);
        }
        if questions.is_empty() {
            self.resolve_session(id, now);
            questions = self.partitions_wanted(id);
        }
        if !questions.is_empty() {
            self.ask(id, questions);
            return false;
        }
        self.refuse_follower(id);
        let Some(pending) = self.requests.get_mut(id) else { return false };
        pending.times.end(Spent::Decode, now);
        if pending.session.is_none() {
            for index in 0..pending.places.len() {
                pending.add_due(index);
            }
            self.begin_reads(id, now);
            return true;
        }
        self.begin_session_reads(id, now)
    }

    fn rights_wanted(&self, id: RequestId, now: Time) -> Questions {
        let mut questions = Questions::new();
        let Some(pending) = self.requests.get(id) else { return questions };
        let Some(connection) = self.connections.get(&pending.peer) else { return questions };
        let are_believed = self.rights_until.is_none_or(|until| now < until);
        if pending.request.replica_id >= 0 {
            let is_known = connection.session.may_all || are_believed && connection.rights.has_cluster();
            if !is_known && pending.follower.is_none() {
                questions.push((Question::Right(Right::Cluster), About::Request));
            }
            return questions;
        }
        if connection.session.may_all {
            return questions;
        }
        let session = pending.session.and_then(|id| self.sessions.get(id));
        let names = session.into_iter().flat_map(Session::topics);
        let asked = pending.request.topics.iter().map(|topic| &topic.name).filter(|_| pending.session.is_none());
        for name in names.chain(asked).filter(|name| !name.is_too_long()) {
            let is_granted = are_believed && connection.rights.has_topic(name);
            if !is_granted && !pending.judged.contains_key(name) {
                let question = Question::Right(name.into());
                if !questions.iter().rev().take(16).any(|(known, _)| *known == question) {
                    questions.push((question, About::Topic(name.clone())));
                }
            }
        }
        questions
    }

    /// Refuse what its client may not read.
    fn refuse_unreadable(&mut self, id: RequestId) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let follower = pending.follower.and_then(Result::err);
        if follower.is_none() && pending.judged.is_empty() {
            return;
        }
        let code_of = |name: &TopicName| follower.or_else(|| pending.judged.get(name).copied().flatten());
        for place in pending.places.iter_mut().filter(|place| !place.is_refused) {
            if let Some(code) = code_of(&place.name) {
                place.refuse(code);
            }
        }
        let Some(session) = pending.session.and_then(|id| self.sessions.get_mut(id)) else { return };
        let refused: Vec<_> = session.topics().filter_map(|name| Some((name.clone(), code_of(name)?))).collect();
        for (name, code) in refused {
            for key in session.keys_of(&name).collect::<Vec<_>>() {
                if pending.by_key.contains_key(&key) {
                    continue; // it is refused already
                }
                session.unresolve(key);
                let Some(known) = session.get(key) else { continue };
                let mut place = Place::new(name.clone(), known.asked, key);
                place.refuse(code);
                pending.by_key.insert(key, pending.places.len());
                pending.places.push(place);
            }
        }
    }

    /// Refuse the partitions that exist to a broker that would follow them: Redis replicates them.
    fn refuse_follower(&mut self, id: RequestId) {
        let Some(pending) = self.requests.get_mut(id).filter(|pending| pending.request.replica_id >= 0) else { return };
        let mut session = pending.session.and_then(|id| self.sessions.get_mut(id));
        for place in pending.places.iter_mut().filter(|place| !place.is_refused) {
            place.refuse(ErrorCode::NotLeaderOrFollower);
            if let Some(session) = &mut session {
                session.unresolve(place.key);
            }
        }
    }

    fn limit_wanted(&self, id: RequestId) -> Questions {
        let wanted = self.requests.get(id).filter(|pending| self.is_metered && !pending.is_limited);
        let question = |pending: &Pending| (Question::Limit { client_id: pending.client_id.clone() }, About::Request);
        wanted.map(question).into_iter().collect()
    }

    /// Find the partitions of a session again whose topic has changed, and give places to the partitions that are due.
    fn resolve_session(&mut self, id: RequestId, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let Some(session) = pending.session.and_then(|id| self.sessions.get_mut(id)) else { return };
        if pending.request.replica_id >= 0 {
            session.set_all_due();
        }
        let version = self.table.version();
        if std::mem::replace(&mut session.table_version, version) != version {
            let is_other = |partition: &SessionPartition| {
                let known = self.table.get(&partition.name, partition.index);
                partition.partition.as_ref().is_some_and(|ours| known.is_none_or(|known| !Arc::ptr_eq(known, ours)))
            };
            let others: Vec<u64> =
                session.iter().filter(|(_, partition)| is_other(partition)).map(|(key, _)| key).collect();
            for key in others {
                session.unresolve(key);
                let index = pending.by_key.get(&key);
                if let Some(place) = index.and_then(|index| pending.places.get_mut(*index)) {
                    (place.partition, place.log) = (None, None);
                }
            }
        }
        if let Some(reader) = session.reader {
            for key in session.take_released() {
                self.logs.unwatch(reader, key, now);
            }
            for key in self.logs.take_woken(reader) {
                let known = session.get(key).and_then(|partition| Some((partition.log?, partition.seen)));
                // What cannot be listened to is read, and listened to once more.
                if known.is_some_and(|(log, seen)| self.logs.has_news(log, seen) || self.logs.failure(log).is_some()) {
                    session.set_due(key);
                }
            }
        }
        self.place_due(id);
    }

    /// Have the partitions of a session read that are due, in their turns.
    pub(super) fn place_due(&mut self, id: RequestId) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        pending.clear_due();
        let due = pending.session.and_then(|id| self.sessions.get(id)).map(Session::due).unwrap_or_default();
        for key in due {
            let Some(index) = self.place_of(id, key) else { continue };
            if let Some(pending) = self.requests.get_mut(id) {
                pending.add_due(index);
            }
        }
    }

    /// The place of what a reader knows by a key; in a session it gets one if it has none.
    pub(super) fn place_of(&mut self, id: RequestId, key: u64) -> Option<usize> {
        let pending = self.requests.get_mut(id)?;
        let Some(session) = pending.session else {
            return usize::try_from(key).ok().filter(|index| *index < pending.places.len());
        };
        if let Some(index) = pending.by_key.get(&key) {
            return Some(*index);
        }
        let known = self.sessions.get(session)?.get(key)?;
        let mut place = Place::new(known.name.clone(), known.asked, key);
        (place.partition, place.log, place.seen) = (known.partition.clone(), known.log, known.seen);
        pending.by_key.insert(key, pending.places.len());
        pending.places.push(place);
        Some(pending.places.len() - 1)
    }

    fn partitions_wanted(&mut self, id: RequestId) -> Questions {
        let mut questions = Questions::new();
        let Some(pending) = self.requests.get_mut(id) else { return questions };
        for (index, place) in pending.places.iter_mut().enumerate() {
            if place.is_refused || place.partition.is_some() {
                continue;
            }
            place.partition = self.table.get(&place.name, place.asked.index).cloned();
            if place.partition.is_none() {
                let question = Question::Topic { name: place.name.clone(), index: place.asked.index, is_stale: false };
                questions.push((question, About::Place(index)));
            }
        }
        questions
    }

    /// Begin to read the due partitions of a session, after a search of the others if its time has come. Returns whether
    /// the request goes on: always.
    fn begin_session_reads(&mut self, id: RequestId, now: Time) -> bool {
        let Some(pending) = self.requests.get(id) else { return false };
        let mut is_time = false;
        if let Some(session) = pending.session.and_then(|id| self.sessions.get_mut(id)) {
            is_time = now >= session.searched_at + pending.wait;
            // Without a wait there is no time after which to search: it is read at once, as without a session.
            if is_time && (pending.wait.is_zero() || now.saturating_sub(session.read_at) >= BOUNDS_AGE) {
                session.set_all_due();
                (session.read_at, session.searched_at) = (now, now);
                is_time = false;
                self.place_due(id);
            }
        }
        self.watch_due(id, now);
        if is_time {
            self.begin_search(id, now);
        } else {
            self.begin_reads(id, now);
        }
        true
    }

    /// Have a session listen to its due partitions before it reads them: no record can come unheard after the read.
    fn watch_due(&mut self, id: RequestId, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let Some(session) = pending.session.and_then(|id| self.sessions.get_mut(id)) else { return };
        let Some(reader) = session.reader else { return };
        for index in &pending.due {
            let Some(place) = pending.places.get_mut(*index).filter(|place| !place.is_refused) else { continue };
            let Some(partition) = &place.partition else { continue };
            let log = self.logs.watch(reader, place.key, partition, &mut self.events, now);
            place.log = Some(log);
            if let Some(known) = session.get_mut(place.key) {
                (known.partition, known.log) = (Some(Arc::clone(partition)), Some(log));
            }
        }
    }

    /// Have a request ask.
    pub(super) fn ask(&mut self, id: RequestId, questions: Questions) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        pending.questions = questions;
        let peer = pending.peer;
        self.events.push_back(super::Event::Asked { request: id, peer });
    }

    /// What a request wants to know.
    pub fn questions(&self, id: RequestId) -> impl Iterator<Item = &Question> {
        self.requests.get(id).into_iter().flat_map(|pending| pending.questions.iter().map(|(question, _)| question))
    }

    /// Decide on the questions of a request, one for each in their order; what has none is refused.
    pub fn decide(&mut self, id: RequestId, decisions: Vec<Decision>, nodes: &impl Nodes, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let questions = std::mem::take(&mut pending.questions);
        let mut decisions = decisions.into_iter();
        for (question, about) in questions {
            let decision = decisions.next().unwrap_or_else(|| Decision::Refuse(fault()));
            self.decide_one(id, &question, &about, decision, now);
        }
        self.advance(id, nodes, now);
        self.set_timer();
    }

    fn decide_one(&mut self, id: RequestId, question: &Question, about: &About, decision: Decision, now: Time) {
        match about {
            About::Request => self.decide_request(id, question, &decision),
            About::Topic(name) => {
                let Some(pending) = self.requests.get_mut(id) else { return };
                match &decision {
                    Decision::Refuse(failure) if failure.kind != FailureKind::Rule => {
                        pending.refusal = Some(failure.answered());
                    }
                    Decision::Refuse(failure) => pending.judge(name, Some(failure.answered())),
                    _ => pending.judge(name, None),
                }
            }
            About::Place(index) => self.decide_place(id, *index, question, decision, now),
        }
    }

    fn decide_request(&mut self, id: RequestId, question: &Question, decision: &Decision) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        match (question, decision) {
            (Question::Right(_), Decision::Refuse(failure)) if failure.kind != FailureKind::Rule => {
                pending.refusal = Some(failure.answered());
            }
            (Question::Right(_), Decision::Refuse(failure)) => pending.follower = Some(Err(failure.answered())),
            (Question::Right(_), _) => pending.follower = Some(Ok(())),
            (Question::Limit { .. }, decision) => {
                pending.is_limited = true;
                if let Decision::Number(bytes) = decision {
                    let bytes = usize::try_from(*bytes).unwrap_or(0);
                    pending.bytes_max = pending.bytes_max.min(bytes);
                    pending.bytes_min = pending.bytes_min.min(bytes);
                }
            }
            (Question::Charge { .. }, Decision::Throttle(ms, reason)) => pending.throttle = (*ms, *reason),
            _ => {}
        }
    }

    fn decide_place(&mut self, id: RequestId, index: usize, question: &Question, decision: Decision, now: Time) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let (stage, is_committed) = (pending.stage, pending.request.is_committed);
        let Some(place) = pending.places.get_mut(index) else { return };
        match (question, decision) {
            (Question::Topic { name, index, is_stale }, Decision::Go) => {
                place.partition = self.table.get(name, *index).cloned();
                place.tries = place.tries.saturating_add(1);
                if place.partition.is_none() && (*is_stale || place.tries > TRIES_MAX) {
                    place.refuse(unknown(name));
                } else if *is_stale {
                    place.renew(is_committed);
                }
                // A topic that was stale is answered at once, with what there is.
                pending.is_hasty |= *is_stale;
            }
            (Question::Topic { is_stale, .. }, Decision::Refuse(failure)) => {
                place.refuse(failure.answered());
                pending.is_hasty |= *is_stale;
            }
            (_, decision) if stage == Stage::Read => self.take_decision(id, index, question, decision, now),
            _ => {}
        }
    }
}

/// The error of a topic that there is not, by what names it.
pub(super) fn unknown(name: &TopicName) -> ErrorCode {
    match name {
        TopicName::Name(_) => ErrorCode::UnknownTopicOrPartition,
        TopicName::Id(_) => ErrorCode::UnknownTopicId,
    }
}

fn fault() -> Failure {
    Failure::rule(ErrorCode::UnknownServerError, "it was not decided on")
}
