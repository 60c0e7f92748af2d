//! A batch as an append script takes it.

use std::sync::Arc;

use super::entries::Entries;
use crate::batch::Header;
use crate::partition::{Layout, Partition};

/// What a batch is to the transactions of its producer; numbers are those of its transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No part of a transaction.
    Plain,
    /// A part of the transaction of this number; 0 if the transaction is not verified.
    Transaction(i64),
    /// The marker that commits the transaction of this number; 0 is the open one, -1 the open one of an earlier epoch.
    Commit(i64),
    /// The marker that aborts one, as `Commit`.
    Abort(i64),
}

/// A batch as an append script takes it.
#[derive(Debug)]
pub struct Batch {
    #[allow(missing_docs)]
    pub partition: Arc<Partition>,
    /// Negative: none.
    pub producer_id: i64,
    /// -1: none.
    pub producer_epoch: i16,
    /// The sequence of the first record; -1: none.
    pub base_sequence: i32,
    #[allow(missing_docs)]
    pub record_count: u32,
    /// How many bytes the fields and values of its entries have.
    pub stored_bytes: usize,
    /// The time that its records get instead of their own (LogAppendTime, in milliseconds).
    pub append_time: Option<i64>,
    #[allow(missing_docs)]
    pub kind: Kind,
    /// The memory that it holds beside what the client sent, in bytes.
    pub held_bytes: usize,
    /// How many bytes its records have uncompressed, all of which were looked at.
    pub plain_bytes: usize,
    /// The largest timestamp, in milliseconds.
    max_timestamp: i64,
    pub(super) entries: Entries,
}

/// The end of exact numbers in Lua.
const EXACT_END: i64 = 1 << 53;

impl Batch {
    /// A batch with a header, whose entries are made.
    pub(super) fn new(
        partition: &Arc<Partition>,
        header: &Header,
        kind: Kind,
        append_time: Option<i64>,
        plain_bytes: usize,
        entries: Entries,
    ) -> Self {
        Self {
            partition: Arc::clone(partition),
            producer_id: header.producer_id,
            producer_epoch: header.producer_epoch,
            base_sequence: header.base_sequence,
            record_count: u32::try_from(header.record_count).unwrap_or_default(),
            stored_bytes: entries.stored_bytes,
            append_time,
            kind,
            held_bytes: entries.held_bytes(),
            plain_bytes,
            max_timestamp: header.max_timestamp,
            entries,
        }
    }

    /// Whether this is no producer's batch but the end of its transaction.
    pub fn is_marker(&self) -> bool {
        matches!(self.kind, Kind::Commit(_) | Kind::Abort(_))
    }

    /// Whether it is written once, however often it is sent.
    pub fn is_idempotent(&self) -> bool {
        self.producer_id >= 0 || self.is_marker()
    }

    /// Write what the script takes of it among the heads: `>i2I4I4I4i8Bi8BI4`.
    pub(super) fn put_head(&self, heads: &mut Vec<u8>) {
        let epoch = if self.is_idempotent() { self.producer_epoch } else { 0 };
        let (kind, number) = match self.kind {
            Kind::Plain => (0_u8, 0),
            Kind::Transaction(number) => (1, number),
            Kind::Commit(number) => (2, number),
            Kind::Abort(number) => (3, number),
        };
        // None of these reaches 4 GiB: the limits of batches are int32.
        let fits = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        heads.extend_from_slice(&epoch.to_be_bytes());
        heads.extend_from_slice(&self.base_sequence.max(0).to_be_bytes());
        heads.extend_from_slice(&self.record_count.to_be_bytes());
        heads.extend_from_slice(&fits(self.stored_bytes).to_be_bytes());
        heads.extend_from_slice(&self.append_time.unwrap_or(self.max_timestamp).min(EXACT_END).to_be_bytes());
        heads.push(kind);
        heads.extend_from_slice(&number.to_be_bytes());
        heads.push(self.entries.fields);
        heads.extend_from_slice(&fits(self.entries.arguments).to_be_bytes());
    }

    /// The bits of offsets that the script is to take for the sequence of an entry's id.
    pub(super) fn bits(&self) -> u8 {
        match self.partition.layout {
            Layout::Batch => 0,
            Layout::Record { bits } => bits,
        }
    }
}
