//! Layout `batch`: an entry of the stream as a batch.
//!
//! Theory of operation. The field `batch` of an entry holds the bytes of a batch as its producer sent them. If they came
//! uncompressed they may be compressed at rest: then the header is plain, what follows it is a frame, and the field
//! `korvet.encoding` says of which codec. Entries of other clients of Redis are no batches; they are passed over.
//!
//! What is served must be as long as it says, for the batches of a response are found by their lengths. So a batch that
//! is not, or whose frame does not hold as much, is damaged: a walk ends before it.

use super::Found;
use super::entries::{Ended, Entries, malformed_entry};
use crate::Malformed;
use crate::append::{BATCH, ENCODING};
use crate::batch::{HEADER_BYTES, Header, LENGTH_FROM};
use crate::compression::FrameReader;
use crate::failure::Failure;

const MAGIC: i8 = 2;
const WRONG_LENGTH: &str = "not a batch of the length that it says";

/// A batch of the log: where it lies, its size in bytes as it is served, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StoredBatch<'a> {
    pub base_offset: i64,
    pub next_offset: i64,
    pub size_bytes: usize,
    /// Below the number of its offsets if it was compacted.
    pub record_count: i32,
    /// What lies in Redis, with the header as the producer wrote it.
    pub stored: &'a [u8],
    /// The records, if those in `stored` are compressed at rest.
    pub plain: Option<Vec<u8>>,
}

/// The batches of what a read found, up to the first that is not shown.
pub struct Batches<'a> {
    found: &'a Found,
    entries: Entries<'a>,
    frames: FrameReader,
    /// How many entries were passed over that are no batches.
    pub foreign: u32,
    next_offset: Option<i64>,
    ended: Option<Ended>,
}

impl<'a> Batches<'a> {
    /// Begin with the first entry.
    pub(super) fn new(found: &'a Found) -> Self {
        let (entries, frames) = (found.entries(), FrameReader::default());
        Self { found, entries, frames, foreign: 0, next_offset: None, ended: None }
    }

    /// Whether there are no more batches here, after `None`.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Whether reading on at once may find more.
    pub fn has_more(&self) -> bool {
        self.ended.is_none_or(|ended| self.found.has_more(ended, self.next_offset))
    }

    /// The next batch, unless its size in bytes does not fit: then nothing is undone for it, and the walk is over.
    pub(super) fn next_if(&mut self, fits: impl Fn(usize) -> bool) -> Option<Result<StoredBatch<'a>, Failure>> {
        while self.ended.is_none() {
            match self.read(&fits) {
                Ok(Step::Batch(batch)) => {
                    self.next_offset = Some(batch.next_offset);
                    return Some(Ok(batch));
                }
                Ok(Step::Foreign) => self.foreign += 1,
                Ok(Step::Ended(ended)) => self.ended = Some(ended),
                Ok(Step::TooLarge) => return None,
                Err(why) => {
                    self.ended = Some(Ended::Damaged);
                    let is_first = self.next_offset.is_none();
                    return is_first.then(|| Err(malformed_entry(&self.found.partition, &why)));
                }
            }
        }
        None
    }

    /// Read an entry.
    fn read(&mut self, fits: impl Fn(usize) -> bool) -> Result<Step<'a>, Malformed> {
        let Some(entry) = self.entries.next() else { return Ok(Step::Ended(Ended::Exhausted)) };
        let entry = entry?;
        let next_offset = match (entry.end, self.found.ended_at(entry.end)) {
            (Some(end), None) => end,
            (_, ended) => return Ok(Step::Ended(ended.unwrap_or(Ended::Outside))),
        };
        batch_of(&mut self.entries, entry.pairs, next_offset, &mut self.frames, fits)
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<StoredBatch<'a>, Failure>;

    /// The next batch. Fails with CORRUPT_MESSAGE if the first one is damaged; before a later one the walk ends.
    fn next(&mut self) -> Option<Self::Item> {
        self.next_if(|_| true)
    }
}

/// What an entry is.
pub(super) enum Step<'a> {
    Batch(StoredBatch<'a>),
    /// No batch.
    Foreign,
    /// Not for this walk.
    Ended(Ended),
    /// A batch that does not fit.
    TooLarge,
}

/// Read the fields of an entry, which are not read yet.
pub(super) fn batch_of<'a>(
    entries: &mut Entries<'a>,
    pairs: usize,
    next_offset: i64,
    frames: &mut FrameReader,
    fits: impl Fn(usize) -> bool,
) -> Result<Step<'a>, Malformed> {
    let (name, stored) = entries.pair()?;
    if name != BATCH {
        return Ok(Step::Foreign);
    }
    let mut encoding = None;
    if pairs > 1 {
        let (name, content) = entries.pair()?;
        // With other fields than a batch has it is damaged, as one of an unknown codec.
        encoding = Some(if pairs == 2 && name == ENCODING { content } else { b"" });
    }
    let mut batch = located(next_offset, stored)?;
    if encoding.is_none() && batch.size_bytes != stored.len() {
        return Err(damaged(next_offset, WRONG_LENGTH));
    }
    if !fits(batch.size_bytes) {
        return Ok(Step::TooLarge);
    }
    if let Some(encoding) = encoding {
        let (mut plain, size) = (Vec::new(), batch.size_bytes - HEADER_BYTES);
        let frame = stored.get(HEADER_BYTES..).unwrap_or_default();
        let undone = frames.append_content(frame, encoding, size, &mut plain);
        if undone.is_none() || plain.len() != size {
            return Err(damaged(next_offset, "the batch does not decompress to the length that it says"));
        }
        batch.plain = Some(plain);
    }
    Ok(Step::Batch(batch))
}

/// What the header of a batch says, which may be compressed at rest.
fn located(next_offset: i64, stored: &[u8]) -> Result<StoredBatch<'_>, Malformed> {
    let Some(header) = Header::read(stored) else {
        return Err(damaged(next_offset, &format!("{} bytes are no batch", stored.len())));
    };
    let size_bytes = usize::try_from(header.batch_length).unwrap_or(0) + LENGTH_FROM;
    if header.magic != MAGIC || size_bytes < HEADER_BYTES {
        return Err(damaged(next_offset, WRONG_LENGTH));
    }
    let count = i64::from(header.last_offset_delta) + 1;
    if count < 1 || count > next_offset {
        return Err(damaged(next_offset, &format!("a batch of {count} records")));
    }
    let (base_offset, record_count) = (next_offset - count, header.record_count);
    Ok(StoredBatch { base_offset, next_offset, size_bytes, record_count, stored, plain: None })
}

/// A batch that is not what it claims to be, by the id of its entry.
fn damaged(next_offset: i64, what: &str) -> Malformed {
    Malformed::new(format!("0-{next_offset}: {what}"))
}
