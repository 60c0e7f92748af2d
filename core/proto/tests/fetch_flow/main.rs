//! Requests of consumers from their frames to their answers: reads, questions, waits, and
//! what is answered.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod acts;
mod ahead;
mod any_order;
#[path = "../append/support.rs"]
#[allow(dead_code)] // the tests of appends have more
mod batches;
mod bounds;
mod budgets;
mod committed;
mod failures;
mod memory;
mod redis;
mod rights;
mod sessions;
mod support;
mod topics;
mod waiting;
mod wire;
