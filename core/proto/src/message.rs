//! The message of a request, field by field. The primitive types are in [`wire`](crate::wire).

use std::ops::{Range, RangeInclusive};

use crate::Malformed;
use crate::frame::{RequestHeader, request_header};
use crate::wire::Reader;

/// Elements that an array has room for before they are read: a count is a claim.
const ROOM_ELEMENTS_MAX: usize = 64;

/// A message that is being read.
pub(crate) struct Message<'a> {
    pub version: i16,
    frame: &'a [u8],
    is_flexible: bool,
    reader: Reader,
}

impl<'a> Message<'a> {
    /// Read the header of a request of an API, given by name and key. Fails for other APIs and versions.
    pub fn of(
        frame: &'a [u8],
        (name, key): (&str, i16),
        versions: &RangeInclusive<i16>,
        flexible_from: i16,
    ) -> Result<(RequestHeader<'a>, Self), Malformed> {
        let header = request_header(frame, |_| Some(flexible_from))?;
        let version = header.api_version;
        if header.api_key != key {
            return Err(Malformed::new(format!("a request of API key {} is no {name} request", header.api_key)));
        }
        if !versions.contains(&version) {
            return Err(Malformed::new(format!("version {version} of {name} is not served")));
        }
        let is_flexible = version >= flexible_from;
        let reader = Reader::new(header.body, is_flexible);
        Ok((header, Self { version, frame, is_flexible, reader }))
    }

    /// Have all arrays together no more elements than so many.
    pub fn limit_elements(&mut self, elements_max: usize) {
        self.reader.limit_elements(elements_max);
    }

    pub fn int32(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub fn array<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], Malformed> {
        self.reader.array(self.frame)
    }

    /// The bytes of a string, which may be no UTF-8.
    pub fn string(&mut self, name: &str, nullable: bool) -> Result<Option<&'a [u8]>, Malformed> {
        let Some(size) = self.reader.length(self.frame, name, true, nullable)? else { return Ok(None) };
        Ok(Some(self.reader.bytes(self.frame, size)?))
    }

    /// Where nullable bytes are in the frame.
    pub fn bytes_range(&mut self, name: &str) -> Result<Option<Range<usize>>, Malformed> {
        let Some(size) = self.reader.length(self.frame, name, false, true)? else { return Ok(None) };
        let begin = self.reader.position();
        self.reader.bytes(self.frame, size)?;
        Ok(Some(begin..self.reader.position()))
    }

    pub fn list<T>(
        &mut self,
        name: &str,
        mut element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.reader.count(self.frame, name, false)?.unwrap_or(0);
        let mut elements = Vec::with_capacity(count.min(ROOM_ELEMENTS_MAX));
        for _ in 0..count {
            elements.push(element(self)?);
        }
        Ok(elements)
    }

    /// Skip the tagged fields of a struct that has none that is known.
    pub fn skip_tags(&mut self) -> Result<(), Malformed> {
        if self.is_flexible { self.reader.skip_tags(self.frame) } else { Ok(()) }
    }

    /// Read the tagged fields of a struct. `known` reads one by its tag and returns its name, unless it does not know it.
    pub fn tags(
        &mut self,
        mut known: impl FnMut(&mut Self, u32) -> Result<Option<&'static str>, Malformed>,
    ) -> Result<(), Malformed> {
        let count = if self.is_flexible { self.reader.tag_count(self.frame)? } else { 0 };
        for _ in 0..count {
            let (tag, end) = self.reader.tag(self.frame)?;
            let begin = self.reader.position();
            match known(self, tag)? {
                Some(name) => self.reader.end_tag(name, begin, end)?,
                None => self.reader.skip_to(end),
            }
        }
        Ok(())
    }
}
