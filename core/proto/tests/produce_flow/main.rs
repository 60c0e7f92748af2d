//! Requests of producers from their frames to their answers: calls of scripts, questions and responses, in their order.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod admission;
mod again;
mod answers;
mod any_order;
#[path = "../append/support.rs"]
#[allow(dead_code)] // the tests of appends have more
mod batches;
mod order;
mod sending;
mod support;
mod transactions;
