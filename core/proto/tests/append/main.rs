//! What producers send, on its way to the arguments of an append script, and what the script answers.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod answer;
mod batches;
mod call;
mod checks;
mod records;
mod support;
