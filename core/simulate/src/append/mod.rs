//! Histories of appends: producers, workers with the core that serves them, and Redis as a model of its scripts.
//!
//! Theory of operation. `model` is what the scripts do to logs, and `compare`, with `acts`, shows at a server that it does
//! just that. A history has servers that run the model (`redis`, `topics`), workers with the real client and the real
//! `Producers` (`worker`, `commands`, `order`), producers as Kafka's clients are (`producer`, `frames`), and a coordinator of transactions
//! (`transactions`). Bytes move and time passes in turns (`world`, `turn`), things happen to all of them in steps (`steps`),
//! and a ledger knows what producers have heard and what readers saw (`ledger`).

mod acts;
mod commands;
mod compare;
mod frames;
mod ledger;
pub(crate) mod model;
mod order;
mod producer;
mod redis;
mod steps;
mod topics;
mod transactions;
mod turn;
mod worker;
mod world;

pub use compare::Comparison;
pub use steps::{run_append_steps, run_appends, shrunk_appends};
pub use world::{APPEND_FAULTS, AppendFault};
