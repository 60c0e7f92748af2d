//! The arguments of the append scripts and their answers, as the heads of these scripts have them.

use std::rc::Rc;

use super::bytes::{Reader, put};
use super::stream::Fields;

/// What a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Data,
    /// Data of a transaction.
    Transaction,
    /// Markers, which end one.
    Commit,
    Abort,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Data, Self::Transaction, Self::Commit, Self::Abort];

    pub fn is_marker(self) -> bool {
        self >= Self::Commit
    }
}

/// One batch: its head, its producer, and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// "": none.
    pub producer: Vec<u8>,
    pub epoch: i16,
    pub sequence: u32,
    pub count: u32,
    pub size: u32,
    pub timestamp: i64,
    pub kind: Kind,
    /// Of its transaction; 0: not verified, or of a marker the one that is open; -1: of a marker the one that an earlier
    /// epoch has open.
    pub number: i64,
    /// How many fields all records have, whose names come first; 0: each record counts its own.
    pub fields: u8,
    pub arguments: Vec<Vec<u8>>,
}

impl Batch {
    /// The fields of each record (layout `record`).
    pub fn records(&self) -> Vec<Fields> {
        let mut left = self.arguments.as_slice();
        let mut records = Vec::new();
        if self.fields > 0 {
            let (names, values) = left.split_at(usize::from(self.fields));
            for record in values.chunks(names.len()) {
                let pairs = names.iter().zip(record).flat_map(|(name, value)| [name.clone(), value.clone()]);
                records.push(Rc::new(pairs.collect()));
            }
            return records;
        }
        while let Some((count, rest)) = left.split_first() {
            let count = number(count).unwrap() as usize;
            let (record, rest) = rest.split_at(count);
            records.push(Rc::new(record.to_vec()));
            left = rest;
        }
        records
    }
}

/// A call of log/append_batch or log/append_record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub topic: Vec<u8>,
    pub leader_epoch: i64,
    /// By the clock of the worker.
    pub sent_ms: u64,
    /// Offset sequence bits of layout `record`.
    pub bits: u8,
    pub batches: Vec<Batch>,
}

const CALL_HEAD_BYTES: usize = 7;
const BATCH_HEAD_BYTES: usize = 36;

/// The number in an argument.
pub(crate) fn number(argument: &[u8]) -> Option<i64> {
    std::str::from_utf8(argument).ok()?.parse().ok()
}

impl Call {
    /// ARGV.
    pub fn arguments(&self) -> Vec<Vec<u8>> {
        let mut heads = Vec::new();
        put(&mut heads, self.sent_ms as i64, 6);
        put(&mut heads, i64::from(self.bits), 1);
        for batch in &self.batches {
            put(&mut heads, i64::from(batch.epoch), 2);
            put(&mut heads, i64::from(batch.sequence), 4);
            put(&mut heads, i64::from(batch.count), 4);
            put(&mut heads, i64::from(batch.size), 4);
            put(&mut heads, batch.timestamp, 8);
            put(&mut heads, batch.kind as i64, 1);
            put(&mut heads, batch.number, 8);
            put(&mut heads, i64::from(batch.fields), 1);
            put(&mut heads, batch.arguments.len() as i64, 4);
        }
        let mut arguments = vec![self.topic.clone(), self.leader_epoch.to_string().into_bytes(), heads];
        arguments.extend(self.batches.iter().map(|batch| batch.producer.clone()));
        arguments.extend(self.batches.iter().flat_map(|batch| batch.arguments.iter().cloned()));
        arguments
    }

    /// Read ARGV; `None` if it is no call.
    pub fn read(arguments: &[Vec<u8>]) -> Option<Self> {
        let (fixed, left) = arguments.split_at_checked(3)?;
        let heads = &fixed[2];
        let count = heads.len().checked_sub(CALL_HEAD_BYTES)? / BATCH_HEAD_BYTES;
        let (producers, mut left) = left.split_at_checked(count)?;
        let mut reader = Reader(heads);
        let (sent_ms, bits) = (reader.unsigned(6)?, reader.unsigned(1)? as u8);
        let mut batches = Vec::new();
        for producer in producers {
            let (epoch, sequence) = (reader.signed(2)? as i16, reader.unsigned(4)? as u32);
            let (count, size) = (reader.unsigned(4)? as u32, reader.unsigned(4)? as u32);
            let (timestamp, kind) = (reader.signed(8)?, *Kind::ALL.get(reader.unsigned(1)? as usize)?);
            let (number, fields) = (reader.signed(8)?, reader.unsigned(1)? as u8);
            let (own, rest) = left.split_at_checked(reader.unsigned(4)? as usize)?;
            left = rest;
            let (producer, arguments) = (producer.clone(), own.to_vec());
            batches.push(Batch { producer, epoch, sequence, count, size, timestamp, kind, number, fields, arguments });
        }
        let is_all = reader.0.is_empty() && left.is_empty();
        let (topic, leader_epoch) = (fixed[0].clone(), number(&fixed[1])?);
        is_all.then_some(Self { topic, leader_epoch, sent_ms, bits, batches })
    }
}

/// The script's answer for a batch. 9 to 11 are for damaged keys, which this model does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Appended = 0,
    Duplicate = 1,
    Verify = 2,
    InvalidProducerEpoch = 3,
    OpenByEpoch = 4,
    OutOfOrder = 5,
    TransactionOpen = 6,
    TransactionEnded = 7,
    TransactionNotSent = 8,
    UsedUp = 12,
    MemoryFull = 13,
}

/// The answer of an append script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing is appended: there are more entries of others than one call deals with; so many were removed.
    External {
        moved: i64,
    },
    Verdicts {
        moved: i64,
        log_start: i64,
        row_bytes: i64,
        verdicts: Vec<(Verdict, i64)>,
    },
}

impl Answer {
    pub fn packed(&self) -> Vec<u8> {
        let mut packed = Vec::new();
        match self {
            Self::External { moved } => {
                put(&mut packed, 1, 1);
                put(&mut packed, *moved, 4);
            }
            Self::Verdicts { moved, log_start, row_bytes, verdicts } => {
                put(&mut packed, 0, 1);
                put(&mut packed, *moved, 4);
                put(&mut packed, *log_start, 8);
                put(&mut packed, *row_bytes, 8);
                for (verdict, value) in verdicts {
                    put(&mut packed, *verdict as i64, 1);
                    put(&mut packed, *value, 8);
                }
            }
        }
        packed
    }
}
