//! Bytes with several owners: a frame, or its decompressed content; and answers made of parts of them.

use std::ops::Range;
use std::sync::Arc;

/// A range of bytes that stay where they are for as long as anything holds them.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Shared {
    /// A part of these, by its place in them; no bytes if it is not within them.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        let begin = self.range.start.saturating_add(range.start);
        let end = self.range.start.saturating_add(range.end);
        let is_within = begin <= end && end <= self.range.end;
        Self { bytes: Arc::clone(&self.bytes), range: if is_within { begin..end } else { 0..0 } }
    }

    /// The part that a slice of these bytes is; no bytes if it is none.
    #[must_use]
    pub fn part_of(&self, slice: &[u8]) -> Self {
        let begin = (slice.as_ptr() as usize).wrapping_sub(self.as_ref().as_ptr() as usize);
        self.part(begin..begin.saturating_add(slice.len()))
    }

    /// How many bytes are kept for this, of which it may be a small part.
    pub fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

impl From<Vec<u8>> for Shared {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { bytes: Arc::new(bytes), range }
    }
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or_default()
    }
}

/// Bytes of a response, one after the other with others.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Of its own.
    Made(Vec<u8>),
    /// Bytes that stay where they are.
    Part(Shared),
}

impl Piece {
    #[allow(missing_docs)]
    pub fn len(&self) -> usize {
        self.as_ref().len()
    }

    #[allow(missing_docs)]
    pub fn is_empty(&self) -> bool {
        self.as_ref().is_empty()
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Made(bytes) => bytes,
            Self::Part(part) => part.as_ref(),
        }
    }
}
