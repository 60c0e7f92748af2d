//! The Python module `korvet_core`: korvet-proto, called from Python.
//!
//! Arguments are bytes as they came and limits; results are bytes, numbers and tuples. What a client did wrong is a
//! `RefusedError`, with Kafka's error code, or a `ProtocolError` if its connection has to close. Connections to Redis have
//! their sockets here. Every function keeps the GIL: none takes longer than the request it serves.

// The macros of PyO3 make functions public that Python alone calls.
#![allow(missing_docs)]
// Arguments of Python come by value.
#![allow(clippy::needless_pass_by_value)]
#![deny(unsafe_code)]

mod args;
mod batch;
mod buffer;
mod build;
mod call;
mod channels;
mod client;
mod client_paths;
mod columns;
mod compaction;
mod data_path;
mod data_path_calls;
mod fetch_args;
mod fetched;
mod frame;
mod log_reader;
mod message;
mod peer_sockets;
mod peers;
mod poller;
mod resp;
mod sockets;
mod turn;

use pyo3::prelude::*;

// The functions read what Python's bytes hold: without the GIL another thread might write there.
#[pymodule(gil_used = true)]
mod korvet_core {
    #[pymodule_export]
    use crate::batch::{Records, RefusedError, check_header, compress, crc32c, decompress, walk};
    #[pymodule_export]
    use crate::build::BatchesBuilder;
    #[pymodule_export]
    use crate::channels::Channels;
    #[pymodule_export]
    use crate::client::{RedisClient, slot_of};
    #[pymodule_export]
    use crate::compaction::{LogCleaner, weights};
    #[pymodule_export]
    use crate::data_path::DataPath;
    #[pymodule_export]
    use crate::fetched::Fetched;
    #[pymodule_export]
    use crate::frame::{ProtocolError, request_header, skip_tagged_fields};
    #[pymodule_export]
    use crate::log_reader::{LogRead, LogReader};
    #[pymodule_export]
    use crate::message::MessageCodec;
    #[pymodule_export]
    use crate::peers::{ClientSockets, TlsServer};
    #[pymodule_export]
    use crate::resp::{RawReply, RespReader, pack_command};
    #[pymodule_export]
    use pyo3::panic::PanicException;

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
