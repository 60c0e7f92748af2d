//! Kafka's primitive types in a frame: lengths, counts, strings and tagged fields, each bounded before it is believed.
//!
//! Theory of operation. A [`Reader`] is a place in a frame; the frame itself is given to each call, for its owner may be
//! Python, which runs between two calls. In flexible messages lengths and counts are unsigned varints of the number plus
//! one, and 0 is null; in others they are int16 or int32, and each negative number is null. An array has no more elements
//! than its frame has bytes left, and all arrays of a message together have [`ELEMENTS_MAX`].
//!
//! Source: the Kafka protocol guide, "Protocol Primitive Types"; KIP-482 for flexible messages.

use std::borrow::Cow;

use crate::Malformed;
use crate::cursor::Cursor;

/// The most elements of all arrays of a message: what a large frame of tiny elements can grow to.
pub const ELEMENTS_MAX: usize = 1_000_000;
/// The most tagged fields of a block: no message defines more than a handful, and to skip millions takes seconds.
pub const TAGGED_FIELDS_MAX: u32 = 1024;
/// The most bytes of a string: what an int16 holds, and what is taken of an unsigned varint.
pub const STRING_BYTES_MAX: usize = i16::MAX as usize;
/// The most bytes of a string that is no UTF-8: as many replacement characters still fit into one of a response.
pub const MALFORMED_BYTES_MAX: usize = STRING_BYTES_MAX / 3;

const VARINT_BYTES_MAX: usize = 5;

/// A place in the frame of a message.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    position: usize,
    elements_left: usize,
    flexible: bool,
}

impl Reader {
    /// Begin to read a message at a position.
    pub fn new(position: usize, flexible: bool) -> Self {
        Self { position, elements_left: ELEMENTS_MAX, flexible }
    }

    /// Have all arrays together no more elements than so many.
    pub fn limit_elements(&mut self, elements_max: usize) {
        self.elements_left = self.elements_left.min(elements_max);
    }

    /// Where the next byte is read.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The next `size` bytes.
    #[inline]
    pub fn bytes<'a>(&mut self, frame: &'a [u8], size: usize) -> Result<&'a [u8], Malformed> {
        let end = self.position.saturating_add(size);
        let bytes = frame.get(self.position..end).ok_or_else(|| short(end, frame))?;
        self.position = end;
        Ok(bytes)
    }

    /// The next bytes, as many as the array has.
    #[inline]
    pub fn array<const SIZE: usize>(&mut self, frame: &[u8]) -> Result<[u8; SIZE], Malformed> {
        let left = frame.get(self.position..).and_then(|left| left.first_chunk());
        let array = left.ok_or_else(|| short(self.position.saturating_add(SIZE), frame))?;
        self.position += SIZE;
        Ok(*array)
    }

    /// An unsigned varint.
    #[inline]
    pub fn varint(&mut self, frame: &[u8]) -> Result<u32, Malformed> {
        let mut left = Cursor::new(frame.get(self.position..).unwrap_or_default());
        let size = left.len();
        let number = left.unsigned_varint().ok_or_else(|| match size {
            ..VARINT_BYTES_MAX => short(frame.len() + 1, frame),
            _ => Malformed::new("varint longer than 32 bits"),
        })?;
        self.position += size - left.len();
        Ok(number)
    }

    /// The length of the field `name`, a string's if `is_string`; `None` is null, which only a nullable field may be.
    pub fn length(
        &mut self,
        frame: &[u8],
        name: &str,
        is_string: bool,
        nullable: bool,
    ) -> Result<Option<usize>, Malformed> {
        let length = if self.flexible {
            // It is an int32: what is above is a negative one.
            i32::try_from(i64::from(self.varint(frame)?) - 1).unwrap_or(-1)
        } else if is_string {
            i16::from_be_bytes(self.array(frame)?).into()
        } else {
            i32::from_be_bytes(self.array(frame)?)
        };
        match usize::try_from(length) {
            Ok(length) if is_string && length > STRING_BYTES_MAX => Err(bad_length("a string", length)),
            Ok(length) => Ok(Some(length)),
            Err(_) if nullable => Ok(None),
            Err(_) => Err(bad_length(name, length)),
        }
    }

    /// The number of elements of the array `name`; as `length`.
    pub fn count(&mut self, frame: &[u8], name: &str, nullable: bool) -> Result<Option<usize>, Malformed> {
        let count = self.length(frame, name, false, nullable)?;
        if let Some(count) = count {
            // Every element takes a byte at least. Arrays within arrays could multiply.
            if count > frame.len().saturating_sub(self.position) || count > self.elements_left {
                return Err(bad_length(name, count));
            }
            self.elements_left -= count;
        }
        Ok(count)
    }

    /// How many tagged fields follow.
    pub fn tag_count(&mut self, frame: &[u8]) -> Result<u32, Malformed> {
        match self.varint(frame)? {
            count @ ..=TAGGED_FIELDS_MAX => Ok(count),
            count => Err(bad_length("a block of tagged fields", count)),
        }
    }

    /// The tag of a field, and the position after it, which is in the frame.
    pub fn tag(&mut self, frame: &[u8]) -> Result<(u32, usize), Malformed> {
        let (tag, size) = (self.varint(frame)?, self.varint(frame)?);
        let end = self.position.saturating_add(size as usize);
        if end > frame.len() {
            return Err(short(end, frame));
        }
        Ok((tag, end))
    }

    /// End the tagged field `name`, which was read from `begin` on, at `end`. Fields beyond their sizes could be read
    /// again and again: the square of the frame in work.
    pub fn end_tag(&self, name: &str, begin: usize, end: usize) -> Result<(), Malformed> {
        let (size, read) = (end - begin, self.position - begin);
        if size == read {
            return Ok(());
        }
        Err(Malformed::new(format!("tagged field {name} has size {size} but takes {read} bytes")))
    }

    /// Go on at a position, the end of a tagged field that is not known.
    pub fn skip_to(&mut self, position: usize) {
        self.position = position;
    }

    /// Skip a block of tagged fields of which none is known.
    pub fn skip_tags(&mut self, frame: &[u8]) -> Result<(), Malformed> {
        for _ in 0..self.tag_count(frame)? {
            (_, self.position) = self.tag(frame)?;
        }
        Ok(())
    }
}

/// A string, with a replacement character for what is no UTF-8, as Kafka reads it.
pub fn text(bytes: &[u8]) -> Result<Cow<'_, str>, Malformed> {
    let text = String::from_utf8_lossy(bytes);
    if matches!(text, Cow::Owned(_)) && bytes.len() > MALFORMED_BYTES_MAX {
        return Err(Malformed::new(format!("a string of {} bytes is not UTF-8", bytes.len())));
    }
    Ok(text)
}

/// Write an unsigned varint.
pub fn put_varint(out: &mut Vec<u8>, mut number: u32) {
    while number > 0x7F {
        let [.., low] = number.to_be_bytes();
        out.push(low | 0x80);
        number >>= 7;
    }
    let [.., low] = number.to_be_bytes();
    out.push(low);
}

#[cold]
fn short(end: usize, frame: &[u8]) -> Malformed {
    Malformed::new(format!("a field ends at byte {end} of a frame of {} bytes", frame.len()))
}

#[cold]
fn bad_length(name: &str, length: impl std::fmt::Display) -> Malformed {
    Malformed::new(format!("{name} has length {length}"))
}
