//! Leader epochs of a partition: which part of its log was written in which history of Redis (KIP-101, KIP-320).

use std::sync::Arc;

/// In the place of an epoch, or of its end: there is none.
pub const NO_EPOCH: i32 = -1;
/// The epoch of records that are older than all epochs that a partition remembers.
pub const FIRST_EPOCH: i32 = 0;

/// An epoch, and its first offset in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct EpochStart {
    pub epoch: i32,
    pub start: i64,
}

/// The epochs of a partition that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epochs(Option<Arc<[EpochStart]>>);

impl Epochs {
    /// Read the field `epochs` of a partition's state: `<epoch>@<start>`, the latest first, with blanks between them.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::default());
        }
        let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let parsed: Option<Vec<_>> = words.rev().map(epoch_start).collect();
        parsed.map(|starts| Self((!starts.is_empty()).then(|| starts.into())))
    }

    /// The epochs, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = EpochStart> {
        self.0.as_deref().unwrap_or_default().iter().copied()
    }

    /// The latest one, [`NO_EPOCH`] without any.
    pub fn last(&self) -> i32 {
        self.iter().next_back().map_or(NO_EPOCH, |last| last.epoch)
    }

    /// The epoch in which the record at an offset was written.
    pub fn at(&self, offset: i64) -> i32 {
        self.iter().rev().find(|begun| begun.start <= offset).map_or(FIRST_EPOCH, |begun| begun.epoch)
    }

    /// The first offset of the epoch after that of an offset; `None` if none is known.
    pub fn next_start(&self, offset: i64) -> Option<i64> {
        self.iter().map(|begun| begun.start).find(|start| *start > offset)
    }

    /// The last epoch that is no later than `epoch`, and the offset at which it ends in a log from `log_start` to `end`.
    ///
    /// As Kafka's LeaderEpochFileCache: [`NO_EPOCH`] for an epoch that has not begun; an epoch before the oldest one
    /// with records ends where the oldest one begins. `current` has no entry before its first record, and the log may
    /// know a later epoch, begun by another worker.
    pub fn end_of(&self, epoch: i32, current: i32, log_start: i64, end: i64) -> EpochStart {
        let current = current.max(self.last());
        if epoch == NO_EPOCH || epoch > current {
            return EpochStart { epoch: NO_EPOCH, start: i64::from(NO_EPOCH) };
        }
        let left = || self.iter().filter(|begun| self.next_start(begun.start).is_none_or(|next| next > log_start));
        let later = left().find(|begun| begun.epoch > epoch).map_or(end, |begun| begun.start.max(log_start));
        let last = left().map(|begun| begun.epoch).filter(|begun| *begun <= epoch).max();
        EpochStart { epoch: if epoch == current { epoch } else { last.unwrap_or(epoch) }, start: later }
    }
}

fn epoch_start(word: &[u8]) -> Option<EpochStart> {
    let (epoch, start) = std::str::from_utf8(word).ok()?.split_once('@')?;
    Some(EpochStart { epoch: epoch.parse().ok()?, start: start.parse().ok()? })
}
