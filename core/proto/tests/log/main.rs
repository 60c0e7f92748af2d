//! What Redis answers to the reads of a log, and what consumers get of it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

#[path = "../append/support.rs"]
#[allow(dead_code)] // the tests of appends have more
mod batches;
mod bounds;
mod collect;
mod commands;
mod committed;
mod compacted;
mod epochs;
mod hostile;
mod later;
mod pages;
mod reads;
mod records;
mod state;
mod stored;
mod support;
