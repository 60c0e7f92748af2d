//! Batches that open a transaction in their partition: to be verified (KIP-890), or refused.
//!
//! The append script, which knows what is open, returns such a batch unwritten; the coordinator is asked for the number of
//! the transaction; then the batch is sent again with that. So only the first batch of a transaction in a partition costs
//! more than others. If it is refused those after it must not be written, even a moment later: a partition that does not
//! know their producer takes any sequence. They are refused for the same reason, until the first has come again. Some of them
//! may still be on their way when it is refused, so that is remembered for a while.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::append::Batch;
use crate::failure::Failure;
use crate::pipeline::Time;

/// KIP-98: sequences wrap from the largest int32 to 0.
const SEQUENCES: i64 = 1 << 31;
/// Refusals that are remembered; the oldest go first.
const REFUSED_MAX: usize = 10_000;
/// How long the batches after one that was refused are refused too: longer than clients wait for an answer.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// A batch that is to be verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unverified {
    pub producer_id: i64,
    pub epoch: i16,
    pub base_sequence: i32,
}

impl Unverified {
    pub fn of(batch: &Batch) -> Self {
        let Batch { producer_id, producer_epoch: epoch, base_sequence, .. } = *batch;
        Self { producer_id, epoch, base_sequence }
    }
}

#[derive(Debug)]
struct Refused {
    at: Time,
    batch: Unverified,
    failure: Failure,
}

impl Refused {
    fn is_before(&self, batch: &Unverified, now: Time) -> bool {
        let distance = (i64::from(batch.base_sequence) - i64::from(self.batch.base_sequence)).rem_euclid(SEQUENCES);
        batch.epoch == self.batch.epoch
            && 0 < distance
            && distance < SEQUENCES / 2
            && now.saturating_sub(self.at) < REFUSED_FOR
    }
}

type Key = (Box<str>, i64);

/// The refusals of a worker, by stream and producer.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    refused: HashMap<Key, Refused>,
    /// When they were noted, the oldest first; there may be a later one of the same key.
    noted: VecDeque<(Time, Key)>,
}

impl Refusals {
    /// Why a batch is refused without being verified, if one before it was.
    pub fn of(&self, stream: &str, batch: &Unverified, now: Time) -> Option<Failure> {
        let refused = self.refused.get(&(stream.into(), batch.producer_id))?;
        refused.is_before(batch, now).then(|| refused.failure.clone())
    }

    /// Note what became of a batch in the end.
    pub fn note(&mut self, stream: &str, batch: Unverified, failure: Option<&Failure>, now: Time) {
        let key: Key = (stream.into(), batch.producer_id);
        let Some(failure) = failure else {
            self.refused.remove(&key);
            return;
        };
        if self.refused.get(&key).is_some_and(|refused| refused.is_before(&batch, now)) {
            return;
        }
        self.noted.push_back((now, key.clone()));
        // Its records are those of this batch, and no other gets them as its own.
        let failure = Failure { records: Vec::new(), ..failure.clone() };
        self.refused.insert(key, Refused { at: now, batch, failure });
        while let Some((at, key)) = self.noted.front() {
            if now.saturating_sub(*at) < REFUSED_FOR && self.noted.len() <= REFUSED_MAX {
                break;
            }
            if self.refused.get(key).is_some_and(|refused| refused.at == *at) {
                self.refused.remove(key);
            }
            self.noted.pop_front();
        }
    }
}
