//! The coordinator of transactions: what it has decided is never lost. Each end gives the producer its next epoch.

use std::collections::BTreeMap;

use korvet_proto::ErrorCode;
use korvet_proto::append::Marker;

use super::topics::Which;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    None,
    Open,
    /// It is decided how it ends, and markers are being written.
    Prepared {
        commits: bool,
    },
}

impl State {
    pub fn is_prepared(self) -> bool {
        matches!(self, Self::Prepared { .. })
    }
}

/// A transactional id.
#[derive(Clone, Debug)]
pub(super) struct Transactional {
    pub producer_id: i64,
    pub epoch: i16,
    pub state: State,
    pub number: i64,
    /// The partitions that have no marker, and the incarnations that were added.
    pub partitions: BTreeMap<Which, u8>,
    /// Whether markers are under way.
    pub is_marking: bool,
}

impl Transactional {
    /// The marker of the transaction whose end is decided.
    pub fn marker(&self) -> Marker {
        let commits = self.state == State::Prepared { commits: true };
        Marker { producer_id: self.producer_id, epoch: self.epoch, number: self.number, commits }
    }
}

/// How transactions ended, by producer and number.
pub(super) type Ends = BTreeMap<(usize, i64), bool>;

#[derive(Debug, Default)]
pub(super) struct Coordinator {
    pub ids: BTreeMap<usize, Transactional>,
    pub ends: Ends,
}

impl Coordinator {
    pub fn add_id(&mut self, producer: usize, producer_id: i64) {
        let (state, partitions) = (State::None, BTreeMap::new());
        let id = Transactional { producer_id, epoch: 0, state, number: 0, partitions, is_marking: false };
        self.ids.insert(producer, id);
    }

    /// Add a partition to the transaction of a producer, which begins one if none is open.
    pub fn add(&mut self, producer: usize, epoch: i16, which: Which, incarnation: u8, now_ms: i64) -> Option<i64> {
        let id = self.ids.get_mut(&producer)?;
        if id.epoch != epoch || id.state.is_prepared() {
            return None;
        }
        if id.state == State::None {
            (id.state, id.number) = (State::Open, now_ms.max(id.number + 1));
        }
        id.partitions.insert(which, incarnation);
        Some(id.number)
    }

    /// The number of the open transaction of a producer, if it has these incarnations of partitions.
    pub fn verify(&self, producer_id: i64, epoch: i16, partitions: &[(Which, u8)]) -> Result<i64, ErrorCode> {
        let id = self.ids.values().find(|id| id.producer_id == producer_id).ok_or(ErrorCode::InvalidTxnState)?;
        if id.epoch != epoch {
            return Err(ErrorCode::InvalidProducerEpoch);
        }
        let is_added = |(which, incarnation): &(Which, u8)| id.partitions.get(which) == Some(incarnation);
        let is_in = id.state == State::Open && partitions.iter().all(is_added);
        if is_in { Ok(id.number) } else { Err(ErrorCode::InvalidTxnState) }
    }

    /// Decide how the open transaction of a producer ends; its epoch then. Without one it gets its next epoch alone.
    pub fn end(&mut self, producer: usize, commits: bool) -> Option<i16> {
        let id = self.ids.get_mut(&producer)?;
        match id.state {
            State::Prepared { .. } => return None,
            State::Open => {
                self.ends.insert((producer, id.number), commits);
                id.state = State::Prepared { commits };
            }
            State::None => {}
        }
        id.epoch += 1;
        Some(id.epoch)
    }

    /// Note that a partition has its marker, or is gone.
    pub fn marked(&mut self, producer: usize, which: Which) {
        let Some(id) = self.ids.get_mut(&producer) else { return };
        id.partitions.remove(&which);
        if id.partitions.is_empty() && id.state.is_prepared() {
            id.state = State::None;
        }
    }
}
