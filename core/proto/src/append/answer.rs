//! What an append script answered: the heads of lua/log/append_batch.lua and append_record.lua have the form, and
//! lua/shared/append_verdicts.lua the numbers.

use super::Batch;
use crate::ErrorCode;
use crate::cursor::Cursor;
use crate::failure::Failure;

/// What became of a call.
#[derive(Clone, Copy, Debug)]
pub enum Reply<'a> {
    /// Each batch has a verdict.
    Answer(Answer<'a>),
    /// Nothing is written: entries of other clients of Redis have to be dealt with first.
    External {
        /// How many of them were removed (layout `batch`).
        moved: u32,
    },
}

/// What a script did, and its verdicts.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// How many entries of other clients came to new offsets or, in layout `batch`, were removed.
    pub moved: u32,
    /// The log's start, as responses report it.
    pub log_start: i64,
    /// What ever came into the log in bytes as stored, if a row of its index was written, else 0.
    pub row_bytes: u64,
    verdicts: Cursor<'a>,
}

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Verdict {
    Appended {
        base_offset: i64,
    },
    /// It was written before.
    Duplicate {
        base_offset: i64,
    },
    /// It opens a transaction, which is to be verified.
    Verify,
    /// Redis is at its maxmemory, where only markers are written.
    MemoryFull,
    Refused(Failure),
}

const VERDICT_BYTES: usize = 9;

impl<'a> Reply<'a> {
    /// Read the bulk string; `None` if it is no answer of an append script.
    pub fn read(answer: &'a [u8]) -> Option<Self> {
        let mut left = Cursor::new(answer);
        let (status, moved) = (left.byte()?, u32::from_be_bytes(left.array()?));
        match status {
            1 if left.is_empty() => Some(Self::External { moved }),
            0 => {
                let (log_start, row_bytes) = (i64::from_be_bytes(left.array()?), u64::from_be_bytes(left.array()?));
                Some(Self::Answer(Answer { moved, log_start, row_bytes, verdicts: left }))
            }
            _ => None,
        }
    }
}

impl Answer<'_> {
    /// The verdict of a batch, the `index`-th of the call; `None` if there is none, or an unknown one.
    pub fn verdict(&self, index: usize, batch: &Batch) -> Option<Verdict> {
        let mut left = self.verdicts;
        left.bytes(index.checked_mul(VERDICT_BYTES)?)?;
        let (number, value) = (left.byte()?, u64::from_be_bytes(left.array()?));
        Some(match number {
            0 => Verdict::Appended { base_offset: i64::try_from(value).ok()? },
            1 => Verdict::Duplicate { base_offset: i64::try_from(value).ok()? },
            2 => Verdict::Verify,
            13 => Verdict::MemoryFull,
            _ => Verdict::Refused(refusal(number, value, batch)?),
        })
    }
}

fn refusal(number: u8, value: u64, batch: &Batch) -> Option<Failure> {
    use ErrorCode::{InvalidProducerEpoch, InvalidTxnState, KafkaStorageError, OutOfOrderSequenceNumber};
    let keys = &batch.partition.keys;
    let (id, epoch, sequence) = (batch.producer_id, batch.producer_epoch, batch.base_sequence);
    let (code, message) = match number {
        3 => (InvalidProducerEpoch, format!("producer {id} has epoch {value}, not {epoch}")),
        4 => (InvalidProducerEpoch, format!("producer {id} has its transaction open by epoch {value} itself")),
        5 => {
            let message = format!("producer {id} sent sequence {sequence} in epoch {epoch}, the next one is {value}");
            (OutOfOrderSequenceNumber, message)
        }
        6 => (InvalidTxnState, format!("producer {id} is at transaction {value} here, which is open")),
        7 => (InvalidTxnState, format!("producer {id} is at transaction {value} here, which has ended")),
        8 => (InvalidTxnState, format!("producer {id} has transaction {value} open here")),
        9 => (KafkaStorageError, format!("{}: producer {id} is malformed", keys.state)),
        10 => (KafkaStorageError, format!("{} is no sorted set", keys.open)),
        11 => (KafkaStorageError, format!("{} is no sorted set", keys.aborted)),
        12 => (KafkaStorageError, format!("the offsets of {} are used up", keys.stream)),
        _ => return None,
    };
    Some(Failure::rule(code, message))
}
