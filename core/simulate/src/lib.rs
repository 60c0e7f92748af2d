//! Histories of the Redis client among servers, networks and clocks that fail, each by one seed.
//!
//! Theory of operation. A history is a seed, and the steps that follow from it. Each step has its own seed, so that
//! steps can be left out and the others stay what they are: a history that fails is shrunk so. The client is the real
//! one, with the driver of `caller`. Bytes go to model servers and come back (`network`, `server`, `topology`), things
//! happen to all of them (`disturb`), and a ledger knows what ran and what each caller was told (`check`). At the end
//! nothing fails any more, and everything must settle (`settle`).

#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)] // a panic is a history that fails
#![allow(clippy::cast_precision_loss)] // as Lua loses it

mod append;
mod caller;
mod chance;
mod check;
mod disturb;
mod history;
mod network;
mod plan;
mod server;
mod settle;
mod step;
mod topology;
mod wire;
mod world;

pub use append::{APPEND_FAULTS, AppendFault, Comparison, run_append_steps, run_appends, shrunk_appends};
pub use history::{Failure, Seen, run, run_steps, shrunk};
pub use world::{FAULTS, Fault};
