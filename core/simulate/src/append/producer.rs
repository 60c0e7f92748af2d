//! Producers as Kafka's clients are: what they send, send again, and make of the answers.
//!
//! An idempotent one has at most five batches of a partition that are sent and not acknowledged. One that was refused is
//! sent again once it is the oldest of them, and before any new one. If the oldest is out of sequence, records before it are lost: the partition goes on in
//! the next epoch, with sequences from 0. A plain producer sends nothing twice.

use std::collections::{BTreeMap, VecDeque};

use korvet_proto::pipeline::Time;

use super::frames::{Result, Sender, batch, request};
use super::topics::Which;

const IN_FLIGHT_MAX: usize = 5;
/// The producer id of the first producer.
pub(super) const FIRST_PRODUCER_ID: i64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Idempotent,
    Transactional,
}

/// A batch that is not acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Unsent {
    pub values: Vec<String>,
    pub sequence: u32,
    /// The request that it is in flight with.
    pub request: Option<i32>,
    pub attempts: usize,
}

/// What goes to a partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pub batches: VecDeque<Unsent>,
    pub epoch: i16,
    pub next: u32,
    /// What is known of it is to be begun again, with another epoch.
    pub begins_again: bool,
    /// The sequence after the largest that is acknowledged.
    after_known: u32,
    /// Something was acknowledged: until then a partition takes any sequence, and so one batch alone is in flight.
    is_known: bool,
}

impl Queue {
    fn in_flight(&self) -> usize {
        self.batches.iter().filter(|batch| batch.request.is_some()).count()
    }
}

/// A connection to a worker.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub peer: u64,
    /// Requests in flight, in their order.
    pub requests: VecDeque<i32>,
}

/// How far a transaction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    None,
    Open,
    /// It is to be ended so, once nothing is in flight.
    Ending {
        commits: bool,
    },
}

#[derive(Debug)]
pub(super) struct Producer {
    pub number: usize,
    pub kind: Kind,
    /// The producer id; -1: none.
    pub id: i64,
    pub epoch: i16,
    pub acks: i16,
    pub link: Option<Link>,
    pub queues: BTreeMap<Which, Queue>,
    pub stage: Stage,
    next_value: usize,
    next_request: i32,
    /// When it goes on after a refusal.
    pub resumes_at: Time,
}

/// An acknowledged batch, and its base offset.
pub(super) type Acknowledged = (Which, Vec<String>, i64);

const OUT_OF_ORDER: i16 = 45;
const NONE: i16 = 0;
/// Unknown topic, timeout, not leader, too few replicas, before and after the append, storage error.
const RETRIABLE: [i16; 6] = [3, 6, 7, 19, 20, 56];

impl Producer {
    pub fn new(number: usize, kind: Kind, acks: i16) -> Self {
        Self {
            number,
            kind,
            id: if kind == Kind::Plain { -1 } else { FIRST_PRODUCER_ID + number as i64 },
            epoch: 0,
            acks,
            link: None,
            queues: BTreeMap::new(),
            stage: Stage::None,
            next_value: 0,
            next_request: 0,
            resumes_at: Time::ZERO,
        }
    }

    pub fn transactional_id(&self) -> Option<String> {
        (self.kind == Kind::Transactional).then(|| format!("transactional{}", self.number))
    }

    /// Make a batch for a partition.
    pub fn put(&mut self, which: Which, count: usize) -> Vec<String> {
        let number = self.number;
        let values = (0..count).map(|index| format!("p{number}.{}", self.next_value + index));
        let values: Vec<String> = values.collect();
        self.next_value += count;
        let epoch = self.epoch;
        let queue = self.queues.entry(which).or_insert_with(|| Queue { epoch, ..Queue::default() });
        let sequence = queue.next;
        queue.next += count as u32;
        queue.batches.push_back(Unsent { values: values.clone(), sequence, request: None, attempts: 0 });
        values
    }

    /// Whether everything is acknowledged.
    pub fn is_idle(&self) -> bool {
        self.queues.values().all(|queue| queue.batches.is_empty())
    }

    pub fn is_in_flight(&self) -> bool {
        self.queues.values().any(|queue| queue.in_flight() > 0)
    }

    /// Go on in the next epoch where the sequences are not known any more.
    fn begin_again(&mut self) {
        for queue in self.queues.values_mut() {
            if queue.begins_again && queue.in_flight() == 0 {
                self.epoch += 1;
                queue.begins_again = false;
                (queue.epoch, queue.next, queue.after_known) = (self.epoch, 0, 0);
                for batch in &mut queue.batches {
                    batch.sequence = queue.next;
                    queue.next += batch.values.len() as u32;
                }
            }
        }
    }

    /// The next request, if something may be sent, and the values in it.
    pub fn next_request(&mut self, now_ms: i64, one_alone: bool) -> Option<(Vec<u8>, Vec<String>)> {
        self.begin_again();
        let link = self.link.as_mut().filter(|link| link.requests.len() < IN_FLIGHT_MAX)?;
        let (mut batches, mut sent, number) = (Vec::new(), Vec::new(), self.next_request);
        for (which, queue) in &mut self.queues {
            let most = if queue.is_known || self.kind == Kind::Plain { IN_FLIGHT_MAX } else { 1 };
            if queue.begins_again || one_alone && !batches.is_empty() {
                continue;
            }
            let Some(index) = queue.batches.iter().position(|batch| batch.request.is_none()) else { continue };
            let unsent = &mut queue.batches[index];
            if index >= most || unsent.attempts > 0 && index > 0 {
                continue;
            }
            sent.extend(unsent.values.iter().cloned());
            unsent.request = Some(number);
            unsent.attempts += 1;
            let sender = Sender {
                producer_id: self.id,
                epoch: if self.kind == Kind::Plain { -1 } else { queue.epoch },
                sequence: if self.kind == Kind::Plain { -1 } else { unsent.sequence as i32 },
                is_transactional: self.kind == Kind::Transactional,
            };
            batches.push((*which, batch(&unsent.values, sender, now_ms)));
        }
        if batches.is_empty() {
            return None;
        }
        self.next_request += 1;
        if self.acks != 0 {
            link.requests.push_back(number);
        }
        let frame = request(number, self.transactional_id().as_deref(), self.acks, &batches);
        if self.acks == 0 {
            self.drop_request(number);
        }
        Some((frame, sent))
    }

    /// Forget the batches of a request, of which nothing more will be known.
    fn drop_request(&mut self, number: i32) {
        for queue in self.queues.values_mut() {
            queue.batches.retain(|batch| batch.request != Some(number));
        }
    }

    /// The connection is gone.
    pub fn lose(&mut self) {
        self.link = None;
        for queue in self.queues.values_mut() {
            if self.kind == Kind::Plain {
                queue.batches.retain(|batch| batch.request.is_none());
            }
            queue.batches.iter_mut().for_each(|batch| batch.request = None);
        }
    }

    /// Take a response. Returns what is acknowledged, or why it is wrong.
    pub fn answered(
        &mut self,
        number: i32,
        results: &[Result],
        resumes_at: Time,
    ) -> std::result::Result<Vec<Acknowledged>, String> {
        let expected = self.link.as_mut().and_then(|link| link.requests.pop_front());
        if expected != Some(number) {
            return Err(format!("producer {} got the response {number}, and {expected:?} was next", self.number));
        }
        let mut acknowledged = Vec::new();
        for Result { which, code, base_offset } in results {
            let Some(queue) = self.queues.get_mut(which) else { continue };
            let Some(index) = queue.batches.iter().position(|batch| batch.request == Some(number)) else { continue };
            if *code == NONE {
                queue.is_known = true;
                let unsent = &queue.batches[index];
                queue.after_known = queue.after_known.max(unsent.sequence + unsent.values.len() as u32);
                let values = queue.batches.remove(index).map(|batch| batch.values).unwrap_or_default();
                acknowledged.push((*which, values, *base_offset));
                continue;
            }
            if self.kind == Kind::Plain {
                queue.batches.remove(index);
                continue;
            }
            queue.batches[index].request = None;
            self.resumes_at = resumes_at;
            if *code == OUT_OF_ORDER && queue.batches[index].sequence < queue.after_known {
                // Later ones are written, and this one long ago, or never: its time is over at last.
                queue.batches.remove(index);
                continue;
            }
            if self.kind == Kind::Transactional && !RETRIABLE.contains(code) && (*code != OUT_OF_ORDER || index == 0) {
                self.stage = Stage::Ending { commits: false };
            } else if !RETRIABLE.contains(code) && (*code != OUT_OF_ORDER || index == 0) {
                queue.begins_again = true;
            }
        }
        Ok(acknowledged)
    }

    /// Go on in another epoch, without what is not acknowledged.
    pub fn reset(&mut self, epoch: i16) {
        self.queues.clear();
        (self.epoch, self.stage) = (epoch, Stage::None);
    }
}
