//! Reading the log of a partition: a range of offsets in, entries or record batches out.
//!
//! Theory of operation. A [`Read`] is a block of commands, MULTI to EXEC ([`Read::put`]): the state of the log, and the
//! entries from an offset on; or the state alone, by one command. [`Read::outcome`] says what its reply is. Only what lies below the state's end is the log;
//! what lies past it was written by other clients of Redis, and is not served before the log has taken it in.
//!
//! * Compaction moves the oldest entries to another stream. The state says which stream holds an offset, so a read that
//!   looked in the wrong one is done again. [`Known`] keeps what states said, so that the next read looks in the right one.
//! * [`Found`] is what a read found. Entries stay in the bytes of the reply, where they lie: [`Found::records`] and
//!   [`Found::batches`] walk over them.
//! * A [`Collector`] makes of them what a consumer gets: batches as they were stored, or batches that are built of records.
//!   No batch has records of two leader epochs, or of two producers of transactions.
//! * A [`Page`] has the entries of a read apart from its reply, for those who look at them more than once.
//! * A [`Range`] is entries of a stream without a state, for what works on the stream itself.
//!
//! The layout of entries and state is described in docs/redis-schema.md; whatever Redis answers is checked.

mod batches;
mod bounds;
mod collect;
mod entries;
mod epochs;
mod found;
mod page;
mod page_parts;
mod range;
mod read;
mod records;
mod state;

pub use batches::{Batches, StoredBatch};
pub use bounds::Bounds;
pub use collect::{Collector, Taken};
pub use epochs::{EpochStart, Epochs, FIRST_EPOCH, NO_EPOCH};
pub use found::Found;
pub use page::{HeldBatch, Page, Walked};
pub use range::{Range, Ranged, RawEntries, RawEntry, Weight};
pub use read::{Known, Outcome, Read, Sent, put_search};
pub use records::{Kind, Records, StoredRecord};
pub use state::{STATE_FIELDS, State};

/// A transaction that was aborted in a partition: of which producer, and where it began there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Aborted {
    pub producer_id: i64,
    pub first_offset: i64,
}

/// The part of a log that only the remote tier holds: from `start` up to `end`, where Redis begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Remote {
    pub start: i64,
    pub end: i64,
    /// Up to where the remote tier is known to hold the log; it may lie past `end`.
    pub archived: i64,
}
