//! What a pass of compaction leaves of a log.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

#[path = "../append/support.rs"]
#[allow(dead_code)] // the tests of appends have more
mod batches;
mod left_of_batches;
mod offset_map;
mod ranges;
#[path = "../log/support.rs"]
#[allow(dead_code)] // and so have those of reads
mod support;
mod what_stays;

use korvet_proto::compaction::{Cleaner, OffsetMap, Rules};
use korvet_proto::partition::Layout;

use crate::batches::{Bytes, PLAIN};
use crate::support::{array, partition_of};

/// Of a log up to offset 100, nothing of which was compacted before.
pub fn rules() -> Rules {
    Rules {
        start: 0,
        dirty_start: 0,
        end: 100,
        plain_bytes_max: 1 << 20,
        at_rest: PLAIN,
        aborted: Vec::new(),
        periods: Vec::new(),
    }
}

#[allow(missing_docs)]
pub fn cleaner(layout: Layout, rules: Rules) -> Cleaner {
    Cleaner::new(&partition_of(layout), rules, OffsetMap::new(1 << 16, 100))
}

/// What is left of an entry: its id, its fields and values, and the end, records and timestamp that it counts.
pub type Left = (String, Vec<Bytes>, (i64, i32, i64));

/// Compact entries in one pass; returns what is left, and why it cannot be read.
#[allow(clippy::missing_panics_doc)] // as tests do
pub fn compacted(cleaner: &mut Cleaner, entries: &[Bytes]) -> Vec<(Left, Option<String>)> {
    let reply = array(entries).into();
    let (page, full_at) = cleaner.map(&reply).unwrap();
    assert_eq!((page.entries, full_at), (entries.len(), None));
    let mut left = Vec::new();
    let again = cleaner.retain(&reply, |retained| {
        let id = String::from_utf8(retained.id.to_vec()).unwrap();
        let words = retained.words.iter().map(|word| word.to_vec()).collect();
        left.push(((id, words, (retained.end, retained.records, retained.timestamp)), retained.damage));
        Ok(())
    });
    assert_eq!(again.unwrap(), page);
    left
}

#[allow(missing_docs)]
pub fn ids(cleaner: &mut Cleaner, entries: &[Bytes]) -> Vec<String> {
    compacted(cleaner, entries).into_iter().map(|((id, ..), _)| id).collect()
}
