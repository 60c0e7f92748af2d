//! Kafka's frames and record batches, as a broker needs them: checked, decompressed within a bound, compressed. And
//! connections to Redis: requests out, replies in.
//!
//! Theory of operation. Everything here is a function of bytes that have already arrived and of limits that the caller
//! sets; what comes out is a value or a [`Refusal`]. Nothing reads a socket, a clock or a global, and nothing starts a
//! thread, so each case is a line in a test. Lengths and counts in the bytes are claims of whoever sent them: none is
//! believed before it is compared with what is there, and no memory is taken for one.
//!
//! * [`cursor`] reads integers and varints, and notices where bytes end.
//! * [`batch`] is the header of a batch, and the walk over its records that Kafka's `LogValidator` does.
//! * [`build`] makes batches for a consumer of records.
//! * [`columns`] has the records of many batches as Apache Arrow takes them.
//! * [`encode`] writes records as the payload of a batch.
//! * [`compression`] are Kafka's codecs.
//! * [`frame`] is what stands before every request: its size, and its header.
//! * [`wire`] are the primitive types of messages.
//! * [`resp`] finds Redis' replies in what has arrived, and writes commands.
//! * [`channels`] are the channels of sharded pub/sub to which a process listens.
//! * [`client`] is a client of Redis: one server, the master that Sentinels name, or a cluster.
//! * [`peer`] are the connections of clients: frames in, answers out.
//! * [`access`] is what a client may do.
//! * [`partition`] is a partition of the log, and [`table`] has those that a worker knows.
//! * [`failure`] is why an append or a read has no result.
//! * [`append`] makes calls of the append scripts of producers' batches, and reads the answers.
//! * [`produce`] serves the requests of producers, and [`fetch`] those of consumers; [`serving`] is what both are given.
//! * [`noted`] counts what both have served.
//! * [`log`] reads the log of a partition.
//! * [`compaction`] decides which entries of a log stay.
//! * [`shared`] are bytes that several hold.
//! * [`pipeline`] is one connection to Redis: what is written next, and whose each reply is.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic))]

pub mod access;
pub mod append;
pub mod batch;
pub mod build;
pub mod channels;
pub mod client;
pub mod columns;
pub mod compaction;
pub mod compression;
pub mod cursor;
pub mod encode;
pub mod failure;
pub mod fetch;
pub mod frame;
pub mod log;
mod message;
pub mod noted;
pub mod partition;
pub mod peer;
pub mod pipeline;
pub mod produce;
mod refusal;
pub mod resp;
pub mod serving;
pub mod shared;
mod slab;
pub mod table;
pub mod wire;

pub use refusal::{ErrorCode, Malformed, Refusal};
