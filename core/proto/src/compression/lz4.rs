//! One frame of lz4, read to its end mark, and written (LZ4 frame format 1.6).
//!
//! Every library reads such frames, but none of them all that clients refuse: a frame without its end mark, a checksum
//! that does not match, bytes after the frame, a block of no bytes (an end mark to Java), one stored in more bytes than
//! it may decompress to. A batch that passed with one of these would stop its consumers. Room for a block is what it
//! can decompress to, not what the frame allows: a frame of tiny blocks costs nothing more. What is written has no
//! buffers beside the frame itself, for most values have a few KiB.

use std::hash::Hasher;

use lz4_flex::block::{
    CompressError, DecompressError, compress_into, decompress_into, decompress_into_with_dict, get_maximum_output_size,
};
use twox_hash::XxHash32;

use super::{CUT_OFF, Stop, damaged};
use crate::cursor::Cursor;

const MAGIC: u32 = 0x184D_2204;
const VERSION_MASK: u8 = 0xC0;
const VERSION: u8 = 0x40;
const INDEPENDENT_BLOCKS: u8 = 0x20;
const BLOCK_CHECKSUMS: u8 = 0x10;
const CONTENT_SIZE: u8 = 0x08;
const CONTENT_CHECKSUM: u8 = 0x04;
const RESERVED_OR_DICTIONARY: u8 = 0x03;
const STORED_PLAIN: u32 = 1 << 31;
/// A byte of a length stands for 255 bytes, and no byte for more.
const RATIO_MAX: usize = 255;
/// How far back a block may refer.
const WINDOW_BYTES: usize = 64 << 10;

/// The sizes of blocks, and how a frame says them.
const BLOCK_SIZES: [(u8, usize); 4] = [(0x40, 64 << 10), (0x50, 256 << 10), (0x60, 1 << 20), (0x70, 4 << 20)];
/// Magic, flags, size of blocks, size of the content and checksum; the end mark.
const FRAME_BYTES: usize = 4 + 2 + 8 + 1 + 4;

struct Frame<'a> {
    flags: u8,
    block_bytes_max: usize,
    content_size: Option<u64>,
    left: Cursor<'a>,
}

/// Whether a frame has blocks that refer to the block before: neither Kafka nor Java's client reads one.
pub fn has_linked_blocks(data: &[u8]) -> bool {
    Frame::begin(data).is_ok_and(|frame| frame.flags & INDEPENDENT_BLOCKS == 0)
}

pub(super) fn decompress(data: &[u8], limit: usize) -> Result<Vec<u8>, Stop> {
    let mut plain = Vec::new();
    Frame::begin(data)?.append_to(&mut plain, limit)?;
    Ok(plain)
}

/// Append the content of a frame to `plain`; the frame must state its size.
pub(super) fn append_content(data: &[u8], limit: usize, plain: &mut Vec<u8>) -> Result<(), Stop> {
    let frame = Frame::begin(data)?;
    let size = frame.content_size.ok_or(damaged("the frame does not say its size"))?;
    let size = usize::try_from(size).ok().filter(|size| *size <= limit).ok_or(Stop::TooLarge)?;
    frame.append_to(plain, size)
}

/// Write the frame of `data`, in independent blocks; with `says_size` it says how much it holds.
pub(super) fn compress(data: &[u8], says_size: bool) -> Result<Vec<u8>, CompressError> {
    let [.., largest] = BLOCK_SIZES;
    let (block, block_bytes_max) = BLOCK_SIZES.into_iter().find(|(_, size)| data.len() <= *size).unwrap_or(largest);
    let room = get_maximum_output_size(data.len().min(block_bytes_max));
    let mut frame = Vec::with_capacity(FRAME_BYTES + size_of::<u32>() + room);
    frame.extend_from_slice(&MAGIC.to_le_bytes());
    let descriptor = frame.len();
    frame.extend_from_slice(&[VERSION | INDEPENDENT_BLOCKS | if says_size { CONTENT_SIZE } else { 0 }, block]);
    if says_size {
        frame.extend_from_slice(&(data.len() as u64).to_le_bytes());
    }
    frame.push(hash(frame.get(descriptor..).unwrap_or_default()).to_be_bytes()[2]);
    for plain in data.chunks(block_bytes_max) {
        let begin = frame.len() + size_of::<u32>();
        frame.resize(begin + room, 0);
        let (before, stored) = frame.split_at_mut(begin);
        let written = compress_into(plain, stored)?;
        let is_smaller = written < plain.len();
        let size = if is_smaller { written as u32 } else { plain.len() as u32 | STORED_PLAIN };
        if let Some(place) = before.last_chunk_mut() {
            *place = size.to_le_bytes();
        }
        frame.truncate(begin + if is_smaller { written } else { 0 });
        if !is_smaller {
            frame.extend_from_slice(plain);
        }
    }
    frame.extend_from_slice(&0_u32.to_le_bytes()); // the end mark
    Ok(frame)
}

impl<'a> Frame<'a> {
    fn begin(data: &'a [u8]) -> Result<Self, Stop> {
        let mut left = Cursor::new(data);
        if u32::from_le_bytes(left.array().ok_or(CUT_OFF)?) != MAGIC {
            return Err(damaged("it begins no frame"));
        }
        let descriptor = left;
        let (flags, block) = (left.byte().ok_or(CUT_OFF)?, left.byte().ok_or(CUT_OFF)?);
        if flags & VERSION_MASK != VERSION || flags & RESERVED_OR_DICTIONARY != 0 {
            return Err(damaged("the frame is of another version, or needs a dictionary"));
        }
        let block_size = BLOCK_SIZES.into_iter().find(|(said, _)| *said == block);
        let (_, block_bytes_max) = block_size.ok_or(damaged("the frame has an unknown size of blocks"))?;
        let content_size = match flags & CONTENT_SIZE {
            0 => None,
            _ => Some(u64::from_le_bytes(left.array().ok_or(CUT_OFF)?)),
        };
        let mut covered = descriptor;
        let covered = covered.bytes(descriptor.len() - left.len()).ok_or(CUT_OFF)?;
        if left.byte().ok_or(CUT_OFF)? != hash(covered).to_be_bytes()[2] {
            return Err(damaged("the checksum of the frame's header does not match"));
        }
        Ok(Self { flags, block_bytes_max, content_size, left })
    }

    /// Read the frame to its end, and append what it holds, `limit` bytes at the most.
    fn append_to(mut self, plain: &mut Vec<u8>, limit: usize) -> Result<(), Stop> {
        let begin = plain.len();
        while let Some(size) = self.block_size()? {
            self.block(size, plain, begin, limit)?;
        }
        self.end(plain.get(begin..).unwrap_or_default())
    }

    /// The size of the next block and its highest bit, None for the end mark.
    fn block_size(&mut self) -> Result<Option<u32>, Stop> {
        let size = u32::from_le_bytes(self.left.array().ok_or(CUT_OFF)?);
        Ok((size != 0).then_some(size))
    }

    /// Append what a block holds to the content, which begins at `begin`.
    fn block(&mut self, size: u32, plain: &mut Vec<u8>, begin: usize, limit: usize) -> Result<(), Stop> {
        let stored = self.left.bytes((size & !STORED_PLAIN) as usize).ok_or(CUT_OFF)?;
        if stored.is_empty() || stored.len() > self.block_bytes_max {
            return Err(damaged("a block has no bytes, or more than the frame allows"));
        }
        if self.flags & BLOCK_CHECKSUMS != 0 {
            self.check(stored)?;
        }
        let before = plain.len();
        let allowed = self.block_bytes_max.min(limit - (before - begin));
        let too_large = || match allowed {
            _ if allowed < self.block_bytes_max => Stop::TooLarge,
            _ => damaged("a block is larger than the frame allows"),
        };
        if size & STORED_PLAIN != 0 {
            if stored.len() > allowed {
                return Err(Stop::TooLarge);
            }
            plain.try_reserve(stored.len()).map_err(|_| Stop::TooLarge)?;
            plain.extend_from_slice(stored);
            return Ok(());
        }
        let room = allowed.min(stored.len().saturating_mul(RATIO_MAX));
        plain.try_reserve(room).map_err(|_| Stop::TooLarge)?;
        plain.resize(before + room, 0);
        let (past, room) = plain.split_at_mut(before);
        let window = past.get(begin.max(before.saturating_sub(WINDOW_BYTES))..).unwrap_or_default();
        let written = match self.flags & INDEPENDENT_BLOCKS {
            0 => decompress_into_with_dict(stored, room, window),
            _ => decompress_into(stored, room),
        };
        let written = written.map_err(|error| match error {
            DecompressError::OutputTooSmall { .. } => too_large(),
            error => Stop::Damaged(error.to_string().into()),
        })?;
        plain.truncate(before + written);
        Ok(())
    }

    fn end(mut self, plain: &[u8]) -> Result<(), Stop> {
        if self.flags & CONTENT_CHECKSUM != 0 {
            self.check(plain)?;
        }
        if self.content_size.is_some_and(|size| size != plain.len() as u64) {
            return Err(damaged("the frame has another size than it says"));
        }
        match self.left.len() {
            0 => Ok(()),
            _ => Err(damaged("bytes follow the frame")),
        }
    }

    fn check(&mut self, content: &[u8]) -> Result<(), Stop> {
        match u32::from_le_bytes(self.left.array().ok_or(CUT_OFF)?) {
            checksum if checksum == hash(content) => Ok(()),
            _ => Err(damaged("a checksum does not match")),
        }
    }
}

fn hash(content: &[u8]) -> u32 {
    let mut hasher = XxHash32::with_seed(0);
    hasher.write(content);
    hasher.finish_32()
}
