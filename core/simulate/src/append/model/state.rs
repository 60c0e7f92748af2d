//! The state of a partition: the field `log`, a row for each producer, the leader epochs, and what else the hash has.

use std::collections::BTreeMap;

use super::bytes::put;

/// The field `log`. Timestamps are milliseconds; -1: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counters {
    /// The log's end: the offset of the next record.
    pub next: i64,
    pub start: i64,
    /// The first record's offset.
    pub first: i64,
    /// Where the part in the lake begins.
    pub lake_start: i64,
    /// Bytes and records that ever came.
    pub bytes: i64,
    pub records: i64,
    /// In layout `batch`: how many entries the stream has by Korvet's count.
    pub entries: i64,
    /// The largest timestamp, and that since the last row of the index.
    pub largest: i64,
    pub interval: i64,
    /// The leader epoch of the last record.
    pub epoch: i64,
    /// Entries of others wait for new offsets, and the log is closed.
    pub is_moving: bool,
}

impl Counters {
    pub const EMPTY: Self = Self {
        next: 0,
        start: 0,
        first: -1,
        lake_start: -1,
        bytes: 0,
        records: 0,
        entries: 0,
        largest: -1,
        interval: -1,
        epoch: -1,
        is_moving: false,
    };

    pub fn packed(&self) -> Vec<u8> {
        let Self { next, start, first, lake_start, bytes, records, entries, largest, interval, .. } = *self;
        let mut packed = Vec::with_capacity(77);
        for number in [next, start, first, lake_start, bytes, records, entries, largest, interval] {
            put(&mut packed, number, 8);
        }
        put(&mut packed, self.epoch, 4);
        put(&mut packed, i64::from(self.is_moving), 1);
        packed
    }

    /// The log has a record of this timestamp.
    pub fn note_time(&mut self, timestamp: i64) {
        self.largest = self.largest.max(timestamp);
        self.interval = self.interval.max(timestamp);
    }
}

/// A batch that a producer's row keeps, to know it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub count: u32,
    pub base: i64,
}

/// The last transaction of a producer in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transaction {
    pub number: i64,
    /// The offset where it begins; `None`: it has ended.
    pub open_from: Option<i64>,
}

/// The row of a producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Producer {
    pub epoch: i16,
    /// The sequence with which its next batch begins.
    pub next: u32,
    /// The time of its last batch or marker, by the clock of the worker.
    pub last_ms: u64,
    pub transaction: Option<Transaction>,
    /// Its last batches, the newest first.
    pub kept: Vec<Kept>,
}

/// So many batches of a producer are in flight at the most (KIP-98).
pub(crate) const KEPT_MAX: usize = 5;

impl Producer {
    pub fn packed(&self) -> Vec<u8> {
        let mut packed = Vec::new();
        put(&mut packed, i64::from(self.epoch), 2);
        put(&mut packed, i64::from(self.next), 4);
        put(&mut packed, self.last_ms as i64, 6);
        if let Some(Transaction { number, open_from }) = self.transaction {
            put(&mut packed, number, 8);
            put(&mut packed, open_from.unwrap_or(-1), 8);
        }
        for Kept { count, base } in &self.kept {
            put(&mut packed, i64::from(*count), 4);
            put(&mut packed, *base, 8);
        }
        packed
    }
}

/// The part of a log in a leader epoch: from this offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochStart {
    pub epoch: i64,
    pub from: i64,
}

/// So many epochs are remembered.
const EPOCHS_MAX: usize = 100;

/// The hash of a partition, field by field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub topic: Vec<u8>,
    pub log: Counters,
    pub claim: i64,
    /// The newest first.
    pub epochs: Vec<EpochStart>,
    pub producers: BTreeMap<Vec<u8>, Producer>,
    /// Where the oldest open transaction begins.
    pub open: Option<i64>,
    /// The marker of the last transaction that was aborted.
    pub aborted: Option<i64>,
    /// Records and bytes that lie below the log's start.
    pub start_records: Option<i64>,
    pub start_bytes: Option<i64>,
    /// Rows of the index are missing.
    pub needs_index: bool,
}

impl State {
    pub fn new(topic: &[u8], claim: i64) -> Self {
        Self {
            topic: topic.to_vec(),
            log: Counters::EMPTY,
            claim,
            epochs: Vec::new(),
            producers: BTreeMap::new(),
            open: None,
            aborted: None,
            start_records: None,
            start_bytes: None,
            needs_index: false,
        }
    }

    /// What the epochs become with the first record of a later one (KIP-101); an epoch without records is forgotten.
    pub fn epochs_with(&self, epoch: i64) -> Vec<EpochStart> {
        let Counters { next, start, lake_start, .. } = self.log;
        let log_start = if lake_start >= 0 { start.min(lake_start) } else { start };
        let mut epochs = vec![EpochStart { epoch, from: next }];
        let mut end = next;
        for older in &self.epochs {
            if end <= log_start || epochs.len() == EPOCHS_MAX {
                break;
            }
            if older.from < end {
                epochs.push(*older);
                end = older.from;
            }
        }
        epochs
    }

    /// The fields of the hash, but for the rows of producers.
    pub fn named(&self) -> Vec<(&'static str, Option<Vec<u8>>)> {
        let number = |number: Option<i64>| number.map(|number| number.to_string().into_bytes());
        let texts: Vec<String> = self.epochs.iter().map(|each| format!("{}@{}", each.epoch, each.from)).collect();
        vec![
            ("topic", Some(self.topic.clone())),
            ("log", Some(self.log.packed())),
            ("claim", number(Some(self.claim))),
            ("epochs", (!texts.is_empty()).then(|| texts.join(" ").into_bytes())),
            ("open", number(self.open)),
            ("aborted", number(self.aborted)),
            ("start_records", number(self.start_records)),
            ("start_bytes", number(self.start_bytes)),
            ("reindex", number(self.needs_index.then_some(1))),
        ]
    }

    /// The hash as HGETALL shows it.
    pub fn fields(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let named = self.named().into_iter();
        let rows = self.producers.iter().map(|(id, producer)| (id.clone(), producer.packed()));
        named.filter_map(|(name, text)| Some((name.as_bytes().to_vec(), text?))).chain(rows).collect()
    }
}
