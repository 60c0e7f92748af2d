//! The questions of a request before it is sent and before it is answered, and the next step of a batch that was not
//! written.

use std::sync::Arc;

use super::flow::{ACKS_ALL, Producers};
use super::pending::{Owner, Pending, Place, Stage, State, Tries};
use super::unverified::{Refusals, Unverified};
use super::{Decision, Event, Question, Request, RequestId};
use crate::ErrorCode;
use crate::access::Right;
use crate::failure::{Failure, NotRun};
use crate::partition::Partition;
use crate::serving::{Clock, Nodes};

const ACKS: [i16; 3] = [0, 1, ACKS_ALL];
/// Tries to append past external entries: each but the first has lost a race against whoever writes them.
const EXTERNAL_TRIES_MAX: u8 = 5;
/// How often a partition is asked for that is forgotten meanwhile.
const TOPIC_TRIES_MAX: u8 = 5;
/// Tries in the leader epoch of a node: each but the first has met a later one.
const EPOCH_TRIES_MAX: u8 = 3;
/// Tries to send to the history whose epoch a script carries: each but the first has met another one.
const UNSENT_TRIES_MAX: u8 = 8;
/// So many questions are looked through for the same one; what is asked twice is decided on twice.
const SAME_QUESTION_WITHIN: usize = 16;

/// Questions, with the places that each is about.
pub(super) type Questions = Vec<(Question, Vec<usize>)>;

/// Add a place to those that a question is about, if it is among the last questions: a request may have a million places.
pub(super) fn ask(questions: &mut Questions, question: Question, place: usize) {
    let mut last = questions.iter_mut().rev().take(SAME_QUESTION_WITHIN);
    match last.find(|(known, _)| *known == question) {
        Some((_, places)) => places.push(place),
        None => questions.push((question, vec![place])),
    }
}

impl Producers {
    /// Ask for what decides whether and where a request is sent. Returns whether all is known.
    pub(super) fn admit(&mut self, id: RequestId, nodes: &impl Nodes, clock: Clock) -> bool {
        let mut questions = self.rights_wanted(id, clock);
        if questions.is_empty() {
            questions = self.partitions_wanted(id);
        }
        if questions.is_empty() {
            questions = self.acks_wanted(id, nodes, clock);
        }
        if !self.put_questions(id, questions) {
            return false;
        }
        let Some(pending) = self.requests.get_mut(id) else { return false };
        for place in pending.places.iter_mut().filter(|place| matches!(place.state, State::New)) {
            place.state = State::Left;
        }
        pending.stage = Stage::Append;
        true
    }

    /// May it be served though it is late, and may its client write?
    fn rights_wanted(&mut self, id: RequestId, clock: Clock) -> Questions {
        let mut questions = Questions::new();
        let Some(pending) = self.requests.get_mut(id) else { return questions };
        let Owner::Peer(peer, _) = pending.owner else { return questions };
        if pending.places.iter().all(Place::is_done) {
            return questions;
        }
        if let Some(came_after) = pending.late {
            return vec![(Question::Late { came_after }, (0..pending.places.len()).collect())];
        }
        let Some(connection) = self.connections.get(&peer) else { return questions };
        if connection.session.may_all {
            return questions;
        }
        let are_believed = self.rights_until.is_none_or(|until| clock.now < until);
        if let Some(used) = &pending.request.transactional_id {
            let is_granted = are_believed && connection.rights.has_transactional_id(used);
            if !(pending.is_id_allowed || is_granted) {
                let right = Right::TransactionalId(used.as_str().into());
                return vec![(Question::Right(right), (0..pending.places.len()).collect())];
            }
        }
        for (index, place) in pending.places.iter_mut().enumerate() {
            if !matches!(place.state, State::New) || place.is_allowed {
                continue;
            }
            let Some(name) = pending.request.topics.get(place.topic).map(|topic| &topic.name) else { continue };
            if !(are_believed && connection.rights.has_topic(name)) {
                ask(&mut questions, Question::Right(name.into()), index);
            }
        }
        questions
    }

    /// Which partitions are these?
    fn partitions_wanted(&mut self, id: RequestId) -> Questions {
        let mut questions = Questions::new();
        let Some(pending) = self.requests.get_mut(id) else { return questions };
        for (index, place) in pending.places.iter_mut().enumerate() {
            if !matches!(place.state, State::New) || place.partition.is_some() {
                continue;
            }
            let Some(name) = pending.request.topics.get(place.topic).map(|topic| &topic.name) else { continue };
            place.partition = self.table.get(name, place.index).cloned();
            if place.partition.is_none() {
                let question = Question::Topic { name: name.clone(), index: place.index, is_stale: false };
                ask(&mut questions, question, index);
            }
        }
        questions
    }

    /// Can the partitions give the acks that are asked for?
    fn acks_wanted(&mut self, id: RequestId, nodes: &impl Nodes, clock: Clock) -> Questions {
        let mut questions = Questions::new();
        let Some(pending) = self.requests.get_mut(id) else { return questions };
        let acks = pending.request.acks;
        if matches!(pending.owner, Owner::Own) {
            return questions;
        }
        for (index, place) in pending.places.iter_mut().enumerate() {
            let Some(partition) = place.partition.as_ref().filter(|_| matches!(place.state, State::New)) else {
                continue;
            };
            if !ACKS.contains(&acks) {
                let text = "acks is not 0, 1 or -1";
                place.refuse(Failure::rule(ErrorCode::InvalidRequiredAcks, text));
                continue;
            }
            let wanted = self.options.replicas.max(partition.replicas);
            if acks != ACKS_ALL || place.is_insync || wanted == 0 {
                continue;
            }
            let known = nodes.node_of(partition.slot).and_then(|node| {
                let (history, count, until) = self.groups.node(node).insync.as_ref()?;
                (**history == *nodes.history(node) && clock.now < *until).then_some(*count)
            });
            if known.is_none_or(|count| count <= wanted) {
                ask(&mut questions, Question::InSync { partition: Arc::clone(partition) }, index);
            }
        }
        questions
    }

    /// Find out what is to be done about batches that were not written, in the turn of their request.
    pub(super) fn settle(&mut self, id: RequestId, clock: Clock) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let until = *pending.tries.until.get_or_insert(clock.now + self.options.timeout);
        let mut round = Round { is_late: clock.now >= until, ..Round::default() };
        for index in 0..pending.places.len() {
            round.settle(pending, index, &self.refusals, clock);
        }
        let Round { mut questions, replies, places, tried, has_unsent, .. } = round;
        let tries = &mut pending.tries;
        tries.is_early |= tried.is_early;
        tries.is_stale |= tried.is_stale;
        tries.external += tried.external;
        tries.stale_epochs += tried.stale_epochs;
        tries.unsent += tried.unsent;
        // What waits for the epoch of another history must not be sent before it.
        self.order += u64::from(has_unsent);
        if !replies.is_empty() {
            questions.push((Question::Elsewhere { replies, attempt: tries.moves }, places));
            tries.moves += 1;
        }
        // In its turn scripts may run again which were missing: nothing overtakes it.
        pending.is_rerun = true;
        self.put_questions(id, questions);
    }

    /// Have a request ask; returns whether there is nothing to ask.
    pub(super) fn put_questions(&mut self, id: RequestId, questions: Questions) -> bool {
        if questions.is_empty() {
            return true;
        }
        let Some(pending) = self.requests.get_mut(id) else { return false };
        pending.questions = questions;
        let stage = pending.stage;
        let peer = match pending.owner {
            Owner::Peer(peer, _) => Some(peer),
            Owner::Own => None,
        };
        self.events.push_back(Event::Asked { request: id, peer });
        match stage {
            Stage::Admit => {
                if let Some(connection) = peer.and_then(|peer| self.connections.get_mut(&peer)) {
                    connection.asks.get_or_insert((id, false));
                }
            }
            Stage::Append => self.hold(id),
            // All is written.
            Stage::Times | Stage::Confirm | Stage::Answer => {}
        }
        false
    }

    /// What a request wants to know.
    pub fn questions(&self, id: RequestId) -> impl Iterator<Item = &Question> {
        self.requests.get(id).into_iter().flat_map(|pending| pending.questions.iter().map(|(question, _)| question))
    }

    /// Decide on the questions of a request, one for each in their order; what has none is refused.
    pub fn decide(&mut self, id: RequestId, decisions: Vec<Decision>, nodes: &impl Nodes, clock: Clock) {
        let Some(pending) = self.requests.get_mut(id) else { return };
        let questions = std::mem::take(&mut pending.questions);
        let mut decisions = decisions.into_iter();
        for (question, places) in questions {
            let decision = decisions.next().unwrap_or_else(|| Decision::Refuse(fault("it was not decided on")));
            self.decide_one(id, &question, &decision, &places);
        }
        self.advance(id, nodes, clock);
    }

    fn decide_one(&mut self, id: RequestId, question: &Question, decision: &Decision, places: &[usize]) {
        if matches!(question, Question::Stale { .. } | Question::Elsewhere { .. }) {
            self.order += 1;
        }
        let Some(pending) = self.requests.get_mut(id) else { return };
        match (question, decision) {
            (Question::Late { .. }, _) => pending.late = None,
            (Question::Right(Right::TransactionalId(_)), Decision::Go) => pending.is_id_allowed = true,
            (Question::Charge { .. }, Decision::Throttle(ms, reason)) if *ms > pending.throttle_ms => {
                (pending.throttle_ms, pending.throttle_reason) = (*ms, *reason);
            }
            _ => {}
        }
        for index in places {
            let Some(place) = pending.places.get_mut(*index) else { continue };
            match (question, decision) {
                (Question::Right(Right::Topic(_) | Right::TopicId(_)), Decision::Go) => place.is_allowed = true,
                (Question::InSync { .. }, Decision::Go) => place.is_insync = true,
                (Question::Topic { name, index, is_stale }, Decision::Go) => {
                    let partition = self.table.get(name, *index).cloned();
                    match (partition, std::mem::replace(&mut place.state, State::New)) {
                        (Some(partition), _) => place.partition = Some(partition),
                        (None, State::Stale(failure)) => place.refuse(failure),
                        // It may have been forgotten while the other questions were decided on: it is asked for again.
                        (None, _) if place.asked_for < TOPIC_TRIES_MAX => place.asked_for += 1,
                        (None, _) => place.refuse(fault("the partition was not put")),
                    }
                    if *is_stale && !place.is_done() {
                        place.state = State::Left;
                    }
                }
                // Whatever prevents that it is asked for again, the client gets what Redis said.
                (Question::Topic { is_stale: true, .. }, Decision::Refuse(_)) => {
                    if let State::Stale(failure) = std::mem::replace(&mut place.state, State::New) {
                        place.refuse(failure);
                    }
                }
                (Question::Verify { .. }, Decision::Number(number)) => place.number = Some(*number),
                (Question::TimeAt { .. }, Decision::Number(time)) => {
                    if let State::Done(Ok(appended)) = &mut place.state {
                        appended.timestamp = *time;
                    }
                }
                // An epoch or a place that could not be learned shows when it is sent.
                (
                    Question::TimeAt { .. }
                    | Question::Charge { .. }
                    | Question::Stale { .. }
                    | Question::Elsewhere { .. },
                    _,
                ) => {}
                (_, Decision::Refuse(failure)) => place.refuse(failure.clone()),
                _ => {}
            }
        }
    }
}

/// The failure of something that the owner has not done.
pub(super) fn fault(text: &str) -> Failure {
    Failure::rule(ErrorCode::UnknownServerError, text)
}

/// One look at the batches of a request that were not written.
#[derive(Default)]
struct Round {
    /// Whether moved slots were followed for too long.
    is_late: bool,
    /// Whether something was not sent for another history.
    has_unsent: bool,
    questions: Questions,
    /// The replies of nodes that do not have a slot (MOVED, ASK), and the places they are about.
    replies: Vec<String>,
    places: Vec<usize>,
    tried: Tries,
}

impl Round {
    /// Have a batch sent again, once what it needs is decided on, or refuse it.
    fn settle(&mut self, pending: &mut Pending, index: usize, refusals: &Refusals, clock: Clock) {
        let Pending { places, tries, request, .. } = pending;
        let Some(place) = places.get_mut(index) else { return };
        let Some(partition) = place.partition.clone() else { return };
        match std::mem::replace(&mut place.state, State::Left) {
            State::NotRun(node, not_run, failure) => match not_run {
                NotRun::Stale { .. } if tries.stale_epochs + 1 >= EPOCH_TRIES_MAX => place.refuse(failure),
                NotRun::Stale { later } => {
                    self.tried.stale_epochs = 1;
                    ask(&mut self.questions, Question::Stale { node, later }, index);
                }
                NotRun::Elsewhere { .. } if self.is_late => place.refuse(failure),
                NotRun::Elsewhere { text } => {
                    self.replies.push(text);
                    self.places.push(index);
                }
                NotRun::Missing if tries.unsent >= UNSENT_TRIES_MAX => place.refuse(failure),
                NotRun::Missing => self.tried.unsent = 1,
            },
            State::Unsent { .. } if tries.unsent >= UNSENT_TRIES_MAX => {
                place.refuse(Failure::unavailable("Redis has another history by now: nothing was written"));
            }
            State::Unsent { is_of_another_history } => {
                self.tried.unsent = 1;
                self.has_unsent |= is_of_another_history;
            }
            State::External if tries.external >= EXTERNAL_TRIES_MAX => place.refuse(outrun(&partition)),
            State::External => {
                self.tried.external = 1;
                ask(&mut self.questions, Question::External { partition }, index);
            }
            State::Unverified(batch) => {
                place.unverified = Some(batch);
                match refusals.of(&partition.keys.stream, &batch, clock.now) {
                    Some(failure) => place.refuse(failure),
                    None => self.verify(request, partition, batch, index),
                }
            }
            State::Early(failure) if tries.is_early => place.refuse(failure),
            State::Early(_) => self.tried.is_early = true,
            State::Stale(failure) => match request.topics.get(place.topic) {
                Some(topic) if !tries.is_stale => {
                    self.tried.is_stale = true;
                    place.state = State::Stale(failure);
                    let question = Question::Topic { name: topic.name.clone(), index: place.index, is_stale: true };
                    ask(&mut self.questions, question, index);
                }
                _ => place.refuse(failure),
            },
            other => place.state = other,
        }
    }

    /// Ask once for all partitions of a transaction.
    fn verify(&mut self, request: &Request, partition: Arc<Partition>, batch: Unverified, index: usize) {
        for (question, places) in &mut self.questions {
            if let Question::Verify { producer_id, epoch, partitions, .. } = question {
                if (*producer_id, *epoch) == (batch.producer_id, batch.epoch) {
                    partitions.push(partition);
                    return places.push(index);
                }
            }
        }
        let question = Question::Verify {
            transactional_id: request.transactional_id.clone().unwrap_or_default(),
            version: request.version,
            producer_id: batch.producer_id,
            epoch: batch.epoch,
            partitions: vec![partition],
        };
        self.questions.push((question, vec![index]));
    }
}

/// The failure of a log to which others write faster than it can be put in order.
fn outrun(partition: &Partition) -> Failure {
    let text = format!("{}: external entries arrive faster than they can be taken in", partition.keys.stream);
    Failure::rule(ErrorCode::KafkaStorageError, text)
}
