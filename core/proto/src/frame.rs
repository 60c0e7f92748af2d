//! Frames: the size that stands before each, and the header of a request.
//!
//! Theory of operation. A client announces the size of a frame before it sends it, and the largest size depends on the
//! API, whose key comes next. [`announced`] looks at what has arrived: it refuses a size as soon as no API may have it,
//! and again when the key is there; nothing is taken for bytes that are still to come. [`request_header`] reads what
//! every request begins with. There are two kinds of header: a flexible one, with tagged fields, from the version on
//! that the caller names for the key. In both the client id is a plain nullable string, so that it can be read before
//! the version is known (KIP-511). None of the tagged fields is defined, and all are skipped.
//!
//! Source: the Kafka protocol guide, "Common Request and Response Structure"; KIP-482 for tagged fields.

use std::borrow::Cow;

use crate::Malformed;
use crate::cursor::Cursor;
use crate::wire::{Reader, text};

/// The size of a key, a version and a correlation id: no request is smaller.
const REQUEST_BYTES_MIN: i32 = 8;
/// The keys of APIs that are served without Python.
pub const PRODUCE: i16 = 0;
#[allow(missing_docs)]
pub const FETCH: i16 = 1;
const NO_API: i16 = -1;
/// A client that begins a TLS handshake sends these as the two highest bytes of the size.
const TLS_HANDSHAKE: std::ops::Range<i32> = 0x1603_0000..0x1603_0500;

/// What may be announced, by the largest sizes.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// A request of any API: Produce, or another one.
    Request {
        /// Of a Produce request.
        produce_max: i64,
        /// Of any other request.
        other_max: i64,
    },
    /// Bytes without a header: a SASL token, as Kafka 0.10 had them.
    Token {
        /// Of any.
        max: i64,
    },
}

/// A frame of which the size is there, and may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// How many bytes follow the size.
    pub size: usize,
    /// Of the API that is asked; -1 for a token, which asks none.
    pub api_key: i16,
}

/// Look at what has arrived of a frame, its size first; `None` if more has to come before it can be judged.
pub fn announced(received: &[u8], expected: Expected) -> Result<Option<Announced>, Malformed> {
    let mut received = Cursor::new(received);
    let Some(size) = received.array().map(i32::from_be_bytes) else { return Ok(None) };
    let (min, max) = match expected {
        Expected::Request { produce_max, other_max } => (REQUEST_BYTES_MIN, produce_max.max(other_max)),
        Expected::Token { max } => (0, max),
    };
    let bytes = usize::try_from(size).ok().filter(|_| size >= min);
    let bytes = bytes.ok_or_else(|| Malformed::new(format!("a frame of {size} bytes holds no request")))?;
    check_max(size, max)?;
    let Expected::Request { produce_max, other_max } = expected else {
        return Ok(Some(Announced { size: bytes, api_key: NO_API }));
    };
    let Some(api_key) = received.array().map(i16::from_be_bytes) else { return Ok(None) };
    check_max(size, if api_key == PRODUCE { produce_max } else { other_max })?;
    Ok(Some(Announced { size: bytes, api_key }))
}

fn check_max(size: i32, max: i64) -> Result<(), Malformed> {
    if i64::from(size) <= max {
        return Ok(());
    }
    let tls = if TLS_HANDSHAKE.contains(&size) { "; so begins TLS, which this listener does not speak" } else { "" };
    Err(Malformed::new(format!("a frame of {size} bytes is above the limit of {max}{tls}")))
}

/// What a request begins with, before its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader<'a> {
    /// Which API.
    pub api_key: i16,
    /// In which version; no API may have it.
    pub api_version: i16,
    /// What the response repeats.
    pub correlation_id: i32,
    /// Any text, or none.
    pub client_id: Option<Cow<'a, str>>,
    /// The position in the frame at which the message begins.
    pub body: usize,
}

/// Read the header of the request that `frame`, without its size, holds.
///
/// `flexible_from` names the first flexible version of an API, `None` if it has none or is unknown: the header of an
/// unknown API is read up to the client id.
pub fn request_header(
    frame: &[u8],
    flexible_from: impl FnOnce(i16) -> Option<i16>,
) -> Result<RequestHeader<'_>, Malformed> {
    let short = || Malformed::new(format!("a frame of {} bytes ends within its request header", frame.len()));
    let mut left = Cursor::new(frame);
    let api_key = i16::from_be_bytes(left.array().ok_or_else(short)?);
    let api_version = i16::from_be_bytes(left.array().ok_or_else(short)?);
    let correlation_id = i32::from_be_bytes(left.array().ok_or_else(short)?);
    // Any negative length is null.
    let client_id = match usize::try_from(i16::from_be_bytes(left.array().ok_or_else(short)?)) {
        Ok(size) => Some(text(left.bytes(size).ok_or_else(short)?)?),
        Err(_) => None,
    };
    let mut body = frame.len() - left.len();
    if flexible_from(api_key).is_some_and(|first| api_version >= first) {
        let mut tags = Reader::new(body, true);
        tags.skip_tags(frame)?;
        body = tags.position();
    }
    Ok(RequestHeader { api_key, api_version, correlation_id, client_id, body })
}
