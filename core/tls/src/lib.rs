//! TLS of a client's connection, without input or output: ciphertext goes in and out as bytes.

#![forbid(unsafe_code)]

mod authentication;
mod config;
mod der;
mod failure;
mod session;

pub use config::{ClientAuth, ConfigError, Options, Server};
pub use failure::Failure;
pub use session::{PIECE_BYTES, Session};
