//! Kafka's four codecs, none of which decompresses more than a limit.
//!
//! Theory of operation. A few bytes of a hostile peer can stand for gigabytes, so output is taken in steps, and a step
//! that would pass the limit ends it. Gzip and zstd allow members and frames one after the other, of which each may be
//! empty: there are [`PIECES_MAX`] at the most. Snappy comes raw or in the blocks of snappy-java ("xerial"), as Java's
//! producer writes it; its blocks say their size, which is compared with the limit before anything is taken. Of lz4 a
//! batch has one frame, of linked blocks or independent ones (Java reads the latter only, so that is what is written).

use std::borrow::Cow;
use std::io::{self, Read, Write};

use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;

use crate::cursor::Cursor;
use crate::{ErrorCode, Refusal};

mod at_rest;
mod lz4;

pub use at_rest::{FrameReader, Frames};
pub use lz4::has_linked_blocks;

/// The codec of a batch: the three lowest bits of its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// The records as they are.
    None,
    /// RFC 1952.
    Gzip,
    /// Raw, or in the blocks of snappy-java.
    Snappy,
    /// The LZ4 frame format.
    Lz4,
    /// RFC 8878.
    Zstd,
}

/// The most members of gzip, or frames of zstd, in a batch; no client writes more than one.
pub const PIECES_MAX: usize = 1_000;

const STEP_BYTES_MIN: usize = 64 << 10;
const EXPECTED_RATIO: usize = 8;
const XERIAL_MAGIC: &[u8] = b"\x82SNAPPY\0";
const XERIAL_VERSIONS_BYTES: usize = 8;
/// A copy of 64 bytes takes three: no byte stands for more.
const SNAPPY_RATIO_MAX: usize = 22;
const GZIP_LEVEL: u32 = 6;

impl Codec {
    /// The codec with a number, if there is one.
    pub fn of(number: i16) -> Option<Self> {
        [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd].into_iter().find(|codec| *codec as i16 == number)
    }

    /// Undo this codec, to `limit` bytes at the most: more is MESSAGE_TOO_LARGE, damage is INVALID_RECORD, for a CRC has
    /// matched before anybody decompresses.
    pub fn decompress(self, data: &[u8], limit: usize) -> Result<Cow<'_, [u8]>, Refusal> {
        let plain = match self {
            Self::None if data.len() > limit => Err(Stop::TooLarge),
            Self::None => return Ok(Cow::Borrowed(data)),
            Self::Gzip => gzip(data, limit),
            Self::Snappy => snappy(data, limit),
            Self::Lz4 => lz4::decompress(data, limit),
            Self::Zstd => zstd(data, limit),
        };
        plain.map(Cow::Owned).map_err(|stop| match stop {
            Stop::TooLarge => {
                Refusal::new(ErrorCode::MessageTooLarge, format!("the records exceed {limit} bytes uncompressed"))
            }
            Stop::Damaged(why) => Refusal::invalid(format!("the records are not valid {}: {why}", self.name())),
        })
    }

    /// What every client reads; an error of a codec, which writes to memory, is a bug in it.
    pub fn compress(self, data: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::None => Ok(data.to_vec()),
            Self::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::new(GZIP_LEVEL));
                encoder.write_all(data)?;
                encoder.finish()
            }
            Self::Snappy => {
                let block = snap::raw::Encoder::new().compress_vec(data)?;
                let size = u32::try_from(block.len()).map_err(io::Error::other)?;
                Ok([XERIAL_MAGIC, &[0, 0, 0, 1, 0, 0, 0, 1], &size.to_be_bytes(), &block].concat())
            }
            Self::Lz4 => lz4::compress(data, false).map_err(io::Error::other),
            Self::Zstd => ::zstd::bulk::compress(data, ::zstd::DEFAULT_COMPRESSION_LEVEL),
        }
    }

    /// The name as the value of `compression.type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

enum Stop {
    TooLarge,
    Damaged(Cow<'static, str>),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Damaged(error.to_string().into())
    }
}

fn damaged(why: &'static str) -> Stop {
    Stop::Damaged(Cow::Borrowed(why))
}

impl From<snap::Error> for Stop {
    fn from(error: snap::Error) -> Self {
        Self::Damaged(error.to_string().into())
    }
}

const CUT_OFF: Stop = Stop::Damaged(Cow::Borrowed("it is cut off"));
const TOO_MANY_PIECES: Stop = Stop::Damaged(Cow::Borrowed("it has more members or frames than any codec writes"));

/// Append the bytes of `from` to `plain`, in steps that grow with its size.
fn read_within(from: &mut impl Read, plain: &mut Vec<u8>, input_bytes: usize, limit: usize) -> Result<(), Stop> {
    let mut step = STEP_BYTES_MIN.max(input_bytes.saturating_mul(EXPECTED_RATIO));
    loop {
        let room = limit - plain.len();
        // One byte beyond the limit tells whether there is more.
        let wanted = step.min(room.saturating_add(1));
        plain.try_reserve(wanted).map_err(|_| Stop::TooLarge)?;
        let taken = from.take(wanted as u64).read_to_end(plain)?;
        if plain.len() > limit {
            return Err(Stop::TooLarge);
        }
        if taken < wanted {
            return Ok(());
        }
        step = step.saturating_mul(2);
    }
}

fn gzip(data: &[u8], limit: usize) -> Result<Vec<u8>, Stop> {
    let (mut plain, mut left) = (Vec::new(), data);
    for _ in 0..PIECES_MAX {
        let mut member = GzDecoder::new(left);
        read_within(&mut member, &mut plain, left.len(), limit)?;
        left = member.into_inner();
        if left.is_empty() {
            return Ok(plain);
        }
    }
    Err(TOO_MANY_PIECES)
}

fn zstd(data: &[u8], limit: usize) -> Result<Vec<u8>, Stop> {
    let (mut plain, mut left) = (Vec::new(), data);
    for _ in 0..PIECES_MAX {
        let mut frame = ::zstd::stream::read::Decoder::with_buffer(left)?.single_frame();
        read_within(&mut frame, &mut plain, left.len(), limit)?;
        left = frame.finish();
        if left.is_empty() {
            return Ok(plain);
        }
    }
    Err(TOO_MANY_PIECES)
}

fn snappy(data: &[u8], limit: usize) -> Result<Vec<u8>, Stop> {
    let (mut decoder, mut plain) = (snap::raw::Decoder::new(), Vec::new());
    let Some(blocks) = data.strip_prefix(XERIAL_MAGIC) else {
        snappy_block(&mut decoder, data, &mut plain, limit)?;
        return Ok(plain);
    };
    let mut left = Cursor::new(blocks);
    left.bytes(XERIAL_VERSIONS_BYTES).ok_or(CUT_OFF)?;
    while !left.is_empty() {
        let size = u32::from_be_bytes(left.array().ok_or(CUT_OFF)?);
        let block = left.bytes(size as usize).ok_or(CUT_OFF)?;
        snappy_block(&mut decoder, block, &mut plain, limit)?;
    }
    Ok(plain)
}

fn snappy_block(decoder: &mut snap::raw::Decoder, block: &[u8], plain: &mut Vec<u8>, limit: usize) -> Result<(), Stop> {
    let (before, size) = (plain.len(), snap::raw::decompress_len(block)?);
    if size > limit - before {
        return Err(Stop::TooLarge);
    }
    if size > block.len().saturating_mul(SNAPPY_RATIO_MAX) {
        return Err(damaged("a block is too short for the size that it says"));
    }
    plain.try_reserve(size).map_err(|_| Stop::TooLarge)?;
    plain.resize(before + size, 0);
    if let Some(room) = plain.get_mut(before..) {
        decoder.decompress(block, room)?;
    }
    Ok(())
}
