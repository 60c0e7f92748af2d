//! Frames of lz4 and zstd as values lie in Redis: each says how much it holds, so that a reader takes no more memory
//! than that for it.

use std::io::{self, Cursor, Seek, SeekFrom};

use ::zstd::DEFAULT_COMPRESSION_LEVEL;
use ::zstd::bulk::{Compressor, Decompressor};
use ::zstd::zstd_safe::{MAGICNUMBER, find_frame_compressed_size, get_frame_content_size};

use super::{Codec, lz4};

const SAMPLE_BYTES: usize = 1024;
/// From this size on a value is tried by a sample.
const SAMPLED_BYTES_MIN: usize = 4 * SAMPLE_BYTES;
/// The largest frame of a sample that promises a gain: 97 %.
const SAMPLE_FRAME_BYTES_MAX: usize = SAMPLE_BYTES * 97 / 100;

/// Compresses values, each to a frame of its own.
pub struct Frames {
    codec: Codec,
    /// Making one costs more than a value does.
    zstd: Option<Compressor<'static>>,
}

impl Frames {
    /// Frames of a codec: lz4 or zstd, no other says how much it holds.
    pub fn new(codec: Codec) -> Self {
        Self { codec, zstd: None }
    }

    /// The frame of a value, `None` if it would not be smaller.
    ///
    /// Of a large value a part from its middle is tried first: if that gains nothing, as with what is compressed or
    /// random already, all of it will hardly.
    pub fn compress(&mut self, value: &[u8]) -> io::Result<Option<Vec<u8>>> {
        if value.len() >= SAMPLED_BYTES_MIN {
            let middle = value.len() / 2;
            let sample = value.get(middle..middle + SAMPLE_BYTES).unwrap_or_default();
            if self.frame(sample)?.len() > SAMPLE_FRAME_BYTES_MAX {
                return Ok(None);
            }
        }
        Ok(Some(self.frame(value)?).filter(|frame| frame.len() < value.len()))
    }

    fn frame(&mut self, value: &[u8]) -> io::Result<Vec<u8>> {
        match self.codec {
            Codec::Zstd => match &mut self.zstd {
                Some(zstd) => zstd.compress(value),
                none => none.insert(Compressor::new(DEFAULT_COMPRESSION_LEVEL)?).compress(value),
            },
            Codec::Lz4 => lz4::compress(value, true).map_err(io::Error::other),
            other => Err(io::Error::other(format!("no frames of {} lie in Redis", other.name()))),
        }
    }
}

/// Undoes frames, one after the other.
#[derive(Default)]
pub struct FrameReader {
    /// Making one costs more than a value does.
    zstd: Option<Decompressor<'static>>,
}

impl FrameReader {
    /// Append to `plain` what a frame holds; `None`, and it is as before, if that is more than `bytes_max` bytes, or the
    /// frame is damaged, is followed by anything, or does not say how much it holds.
    pub fn append_content(
        &mut self,
        frame: &[u8],
        encoding: &[u8],
        bytes_max: usize,
        plain: &mut Vec<u8>,
    ) -> Option<()> {
        let before = plain.len();
        let is_whole = match encoding {
            b"lz4" => lz4::append_content(frame, bytes_max, plain).is_ok(),
            b"zstd" => self.append_zstd(frame, bytes_max, plain).is_some(),
            _ => false,
        };
        if !is_whole {
            plain.truncate(before);
        }
        is_whole.then_some(())
    }

    fn append_zstd(&mut self, frame: &[u8], bytes_max: usize, plain: &mut Vec<u8>) -> Option<()> {
        // Frames that are to be skipped, and those of a size unknown to who wrote them, are not Korvet's.
        let size = get_frame_content_size(frame).ok()?.filter(|_| frame.starts_with(&MAGICNUMBER.to_le_bytes()))?;
        let size = usize::try_from(size).ok().filter(|size| *size <= bytes_max)?;
        if find_frame_compressed_size(frame) != Ok(frame.len()) {
            return None;
        }
        plain.try_reserve(size).ok()?;
        let mut room = Cursor::new(plain);
        room.seek(SeekFrom::End(0)).ok()?;
        let zstd = self.zstd.get_or_insert_default();
        let written = zstd.decompress_to_buffer(frame, &mut room).ok()?;
        (written == size).then_some(())
    }
}
