//! Bytes with several owners: a frame, or its decompressed content; and answers made of parts of them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// What is less than this part of all that is kept for it is copied.
const KEPT_SHARE: usize = 8;

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

    /// The bytes as they were, if nothing else holds them and these are all; else these.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        let Self { bytes, range } = self;
        if range != (0..bytes.len()) {
            return Err(Self { bytes, range });
        }
        Arc::try_unwrap(bytes).map_err(|bytes| Self { bytes, range })
    }

    /// These bytes, copied if they are a small part of those that are kept for them.
    #[must_use]
    pub fn kept(self) -> Self {
        if self.is_little(self.range.len()) { Self::from(self.as_ref().to_vec()) } else { self }
    }

    /// Whether more is kept than so many of its bytes are worth.
    fn is_little(&self, bytes: usize) -> bool {
        bytes.saturating_mul(KEPT_SHARE) < self.held_bytes()
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

/// Copy the parts of whatever bytes they are too small a part of, all together: who writes them slowly would keep the rest.
pub fn release_rest(pieces: Vec<&mut Piece>) {
    let place = |part: &Shared| Arc::as_ptr(&part.bytes) as usize;
    let mut taken: HashMap<usize, usize> = HashMap::new();
    for piece in &pieces {
        if let Piece::Part(part) = &**piece {
            *taken.entry(place(part)).or_default() += part.range.len();
        }
    }
    for piece in pieces {
        if let Piece::Part(part) = &*piece {
            if part.is_little(taken.get(&place(part)).copied().unwrap_or_default()) {
                *piece = Piece::Made(part.as_ref().to_vec());
            }
        }
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
