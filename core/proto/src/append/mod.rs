//! From the batch that a producer sent to the call of an append script, and from its answer to what the producer gets.
//!
//! Theory of operation. All of this is functions of bytes, configs and times; nothing is kept.
//!
//! * [`prepare`] checks a batch, by its header and then by its records, as Kafka's `LogValidator` does and as its topic
//!   asks, and makes the arguments of which the script adds entries: a [`Batch`]. A fault is a [`Failure`](crate::failure::Failure). [`marker`]
//!   makes the batch that ends a transaction.
//! * In layout `batch` an entry is the batch as it came, unless the topic names another codec or the broker's time. In
//!   layout `record` it is a record. Fields and values lie as docs/redis-schema.md has them: any client of Redis may
//!   read the stream.
//! * A value or batch that is small is copied among the arguments; a large one stays where it lies, in the frame that
//!   the client sent or in what was decompressed of it, and is written to Redis from there.
//! * [`put_call`] writes the call of a script for batches of one partition. The heads of the two scripts, append_batch
//!   and append_record, are the contract.
//! * [`Reply`] is the answer of a script, with a [`Verdict`] for each batch. [`call_failure`](crate::failure::call_failure) is what an
//!   error reply says of a call.

mod answer;
mod batch;
mod call;
mod checks;
mod entries;
mod prepare;

pub use answer::{Answer, Reply, Verdict};
pub use batch::{Batch, Kind};
pub use call::put_call;
pub(crate) use entries::{BATCH, ENCODING, HEADER, KEY, MARKER, NULL_HEADER, PRODUCER, TIMESTAMP, VALUE};
pub use prepare::{Marker, Number, Rules, looked_at_max, marker, prepare};
