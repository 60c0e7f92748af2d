//! Histories of producers and consumers, workers with the core that serves them, and Redis as a model of its scripts.
//!
//! Theory of operation. `model` does to logs what the scripts do, and reads them as commands do; `compare`, with
//! `acts`, shows at a server that both agree. A history has servers that run the model (`redis`, `sessions`,
//! `topics`), and workers with the real client, the real `Producers` (`worker`, `own`, `commands`, `order`), and the real
//! `Consumers` and `Channels` (`reading`). Producers are as Kafka's clients are (`producer`, `frames`), and so are
//! consumers (`consumer`, `fetch_frames`, `readers`); there are a coordinator of transactions (`transactions`) and members
//! of a share group (`shares`). Bytes move and time passes in turns (`world`, `turn`), and things happen to all of them in
//! steps (`steps`). A ledger knows what producers have heard (`ledger`); what logs have ever had (`written`) is compared
//! with what readers get (`reader_checks`).
//!
//! Reads are disturbed as appends are, and by connections that lose what was announced. Not there are compaction, the
//! remote tier, quotas, and rights that are refused.

mod acts;
mod commands;
mod compare;
mod consumer;
mod fetch_frames;
mod frames;
mod ledger;
pub(crate) mod model;
mod order;
mod own;
mod producer;
mod reader_checks;
mod readers;
mod reading;
mod redis;
mod sessions;
mod shares;
mod steps;
mod topics;
mod transactions;
mod turn;
mod worker;
mod world;
mod written;

pub use compare::Comparison;
pub use steps::{run_append_steps, run_appends, shrunk_appends};
pub use world::{APPEND_FAULTS, AppendFault};
