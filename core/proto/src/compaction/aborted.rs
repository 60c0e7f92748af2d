//! Which records of a log belong to transactions that were aborted.

use std::collections::HashMap;

/// An aborted transaction: its producer, its first offset, and the offset of its marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct AbortedTransaction {
    pub producer_id: i64,
    pub first_offset: i64,
    pub marker: i64,
}

/// The transactions of each producer, one after the other.
#[derive(Debug)]
pub struct AbortedTransactions {
    of: HashMap<i64, Vec<(i64, i64)>>,
}

impl AbortedTransactions {
    /// Of these, in order of their markers.
    pub fn new(rows: &[AbortedTransaction]) -> Self {
        let mut of: HashMap<i64, Vec<(i64, i64)>> = HashMap::new();
        for row in rows {
            of.entry(row.producer_id).or_default().push((row.first_offset, row.marker));
        }
        Self { of }
    }

    /// Whether a record of a transaction of that producer was aborted.
    pub fn has(&self, producer_id: Option<i64>, offset: i64) -> bool {
        let Some(spans) = producer_id.and_then(|id| self.of.get(&id)) else { return false };
        let begun = spans.partition_point(|(first, _)| *first <= offset);
        begun.checked_sub(1).and_then(|last| spans.get(last)).is_some_and(|(_, marker)| offset < *marker)
    }
}
