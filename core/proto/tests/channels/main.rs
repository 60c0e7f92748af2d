//! Channels of pub/sub, with nodes whose answers are written by hand: what is sent, and what listeners hear.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod any_order;
mod cluster;
mod listening;
mod losing;
mod support;
mod watching;
