//! Why something is refused: Kafka's error code for the client, and a sentence for whoever reads it. A client that does
//! not keep to the protocol gets no code, for its connection is closed.

use std::borrow::Cow;
use std::fmt;

/// Kafka's error codes that a batch can be refused with (org.apache.kafka.common.protocol.Errors).
///
/// A producer sends a batch again after `CorruptMessage`, and not after the others: so that one is for bytes that the
/// network may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum ErrorCode {
    /// The CRC does not match, or the header cannot be one.
    CorruptMessage = 2,
    /// The batch, or what it decompresses to, is larger than allowed.
    MessageTooLarge = 10,
    /// A producer has an id and no epoch.
    InvalidProducerEpoch = 47,
    /// No codec has this number.
    UnsupportedCompressionType = 76,
    /// The batch is not what its header says, or a producer may not write it.
    InvalidRecord = 87,
}

/// A batch is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What the client is told.
    pub code: ErrorCode,
    /// What a person is told.
    pub message: Cow<'static, str>,
}

impl Refusal {
    /// A refusal with INVALID_RECORD.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InvalidRecord, message)
    }

    /// A refusal with any code.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// The same for a batch of the log: its records were right when it was stored.
    #[must_use]
    pub fn of_stored(self) -> Self {
        match self.code {
            ErrorCode::InvalidRecord => Self { code: ErrorCode::CorruptMessage, ..self },
            _ => self,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.code, self.message)
    }
}

impl std::error::Error for Refusal {}

/// A peer broke the protocol: no request can be read, and its connection has to close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(Cow<'static, str>);

impl Malformed {
    /// Broken in a way that the sentence says.
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}
