//! RESP, the protocol of Redis: replies in bytes as they arrive, and the bytes of commands.
//!
//! Theory of operation. An [`Inbox`] takes bytes in pieces of any size and says where the next whole reply lies; its
//! [`Scanner`] remembers how far it has looked, so that all pieces together cost no more than one. What lies there is
//! read by [`Elements`], one after the other: an aggregate says how many elements follow it. Both read an element by
//! the same function, so what the scanner lets pass is read without errors. RESP2 and RESP3 differ in the
//! elements' first bytes alone, and both are taken.
//!
//! A count is only counted down and a length only compared with what is there: a lie costs its connection, and no memory.
//! Streamed aggregates and strings, which no server sends, are refused.
//!
//! Source: the Redis serialization protocol specification (redis.io), RESP versions 2 and 3.

use std::collections::TryReserveError;
use std::ops::Range;

use crate::Malformed;

/// The longest string of Redis (proto-max-bulk-len).
pub const BULK_BYTES_MAX: usize = 512 << 20;
/// How deep aggregates may lie in each other, as in hiredis.
pub const DEPTH_MAX: usize = 9;
/// The longest line: a simple string, an error or a big number.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// The longest line of another kind: a length, a count or a number.
const NUMBER_BYTES_MAX: usize = 64;
/// What an empty inbox keeps of its memory.
const KEPT_BYTES_MAX: usize = 1 << 20;

const END: &[u8; 2] = b"\r\n";
/// `txt:` before the text of a verbatim string.
const FORMAT_BYTES: usize = 4;

/// One element of a reply, where it lies. The elements of an aggregate follow it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Element<'a> {
    /// A status such as OK.
    Simple(&'a [u8]),
    /// The text of an error.
    Error(&'a [u8]),
    /// A number.
    Integer(i64),
    /// A string of any bytes.
    Bulk(&'a [u8]),
    /// No value: of RESP3, or a string or array of RESP2 with the length -1.
    Null,
    /// So many elements follow.
    Array(usize),
    /// So many pairs follow, of a key and a value.
    Map(usize),
    /// So many elements follow, in no order.
    Set(usize),
    /// So many elements follow, which no request asked for.
    Push(usize),
    /// So many pairs follow, about the element that comes after them.
    Attribute(usize),
    /// A number with a fraction, an infinity or NaN.
    Double(f64),
    /// True or false.
    Boolean(bool),
    /// The digits of a number of any size, maybe after a sign.
    BigNumber(&'a [u8]),
    /// A string for people, without the three letters of its format.
    Verbatim(&'a [u8]),
}

impl Element<'_> {
    /// How many elements belong to it, in all levels below it those of the first.
    fn children(&self) -> u64 {
        match self {
            Self::Array(count) | Self::Set(count) | Self::Push(count) => *count as u64,
            Self::Map(pairs) | Self::Attribute(pairs) => *pairs as u64 * 2,
            _ => 0,
        }
    }
}

/// Read an element of the kinds that large replies consist of, if it is whole and has nothing unusual.
#[inline]
fn usual_element(bytes: &[u8]) -> Option<(Element<'_>, usize)> {
    let (kind, after) = bytes.split_first()?;
    if !matches!(kind, b'$' | b'*' | b':') {
        return None;
    }
    let (number, line_bytes) = digits(after)?;
    let start = 1 + line_bytes;
    match kind {
        b'$' => {
            let end = start + usize::try_from(number).ok().filter(|length| *length <= BULK_BYTES_MAX)?;
            let is_ended = bytes.get(end..)?.starts_with(END);
            is_ended.then(|| bytes.get(start..end)).flatten().map(|content| (Element::Bulk(content), end + END.len()))
        }
        b'*' => u32::try_from(number).ok().map(|count| (Element::Array(count as usize), start)),
        _ => Some((Element::Integer(number), start)),
    }
}

/// The number that the digits before the end of the line are, and the size of the line with its end.
#[inline]
fn digits(bytes: &[u8]) -> Option<(i64, usize)> {
    let (mut number, mut size) = (0, 0);
    loop {
        let digit = bytes.get(size)?.wrapping_sub(b'0');
        if digit > 9 {
            let is_ended = size > 0 && bytes.get(size..size + END.len()) == Some(END);
            return is_ended.then_some((number, size + END.len()));
        }
        // An int64 has room for as many digits in any case.
        if size == 18 {
            return None;
        }
        number = number * 10 + i64::from(digit);
        size += 1;
    }
}

/// Read the element at the beginning of `bytes`, and its size; `None` if more is needed. No line ends before `searched`.
#[inline]
fn element(bytes: &[u8], searched: usize) -> Result<Option<(Element<'_>, usize)>, Malformed> {
    match usual_element(bytes) {
        Some(usual) => Ok(Some(usual)),
        None => any_element(bytes, searched),
    }
}

fn any_element(bytes: &[u8], searched: usize) -> Result<Option<(Element<'_>, usize)>, Malformed> {
    let Some((kind, after)) = bytes.split_first() else { return Ok(None) };
    if !b"+-:$*%~>|_,#(=!".contains(kind) {
        return Err(Malformed::new(format!("a reply begins with the byte {kind:#04x}")));
    }
    let line_bytes_max = if is_text(bytes) { LINE_BYTES_MAX } else { NUMBER_BYTES_MAX };
    let Some(line) = line_of(after, searched.saturating_sub(1), line_bytes_max)? else { return Ok(None) };
    let size = 1 + line.len() + END.len();
    let whole = match kind {
        b'+' => Element::Simple(line),
        b'-' => Element::Error(line),
        b':' => Element::Integer(integer(line).ok_or(Malformed::new("an integer has no digits, or too many"))?),
        b'(' => Element::BigNumber(big_number(line)?),
        b',' => Element::Double(double(line)?),
        b'#' if line == b"t" => Element::Boolean(true),
        b'#' if line == b"f" => Element::Boolean(false),
        b'_' if line.is_empty() => Element::Null,
        b'#' | b'_' => return Err(Malformed::new("a boolean or null has another value")),
        b'$' | b'!' | b'=' => return string(*kind, line, bytes, size),
        _ => aggregate(*kind, line)?,
    };
    Ok(Some((whole, size)))
}

/// Whether a line of any length begins here.
fn is_text(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|kind| b"+-(".contains(kind))
}

/// The bytes before the end of the line, if it is there.
fn line_of(bytes: &[u8], searched: usize, bytes_max: usize) -> Result<Option<&[u8]>, Malformed> {
    let window = bytes.get(searched..bytes.len().min(bytes_max + 1)).unwrap_or_default();
    let found = window.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    let Some(length) = found.map(|position| searched + position) else {
        return if bytes.len() > bytes_max { Err(Malformed::new("a line has no end")) } else { Ok(None) };
    };
    let (line, end) = bytes.split_at_checked(length).unwrap_or_default();
    match end {
        [b'\r'] => Ok(None),
        [b'\r', b'\n', ..] => Ok(Some(line)),
        _ => Err(Malformed::new("a line does not end with CR and LF")),
    }
}

fn string<'a>(kind: u8, line: &[u8], bytes: &'a [u8], start: usize) -> Result<Option<(Element<'a>, usize)>, Malformed> {
    if kind == b'$' && line == b"-1" {
        return Ok(Some((Element::Null, start)));
    }
    let length = length_of(line).filter(|length| *length <= BULK_BYTES_MAX);
    let length = length.ok_or(Malformed::new("the length of a string is no length"))?;
    let Some(content) = bytes.get(start..start + length + END.len()) else { return Ok(None) };
    let content = content.strip_suffix(END).ok_or(Malformed::new("a string is longer than its length"))?;
    let whole = match kind {
        b'$' => Element::Bulk(content),
        b'!' => Element::Error(content),
        _ if content.get(FORMAT_BYTES - 1) == Some(&b':') => {
            Element::Verbatim(content.get(FORMAT_BYTES..).unwrap_or_default())
        }
        _ => return Err(Malformed::new("a verbatim string has no format")),
    };
    Ok(Some((whole, start + length + END.len())))
}

fn aggregate(kind: u8, line: &[u8]) -> Result<Element<'static>, Malformed> {
    if kind == b'*' && line == b"-1" {
        return Ok(Element::Null);
    }
    let count = length_of(line).filter(|count| u32::try_from(*count).is_ok());
    let count = count.ok_or(Malformed::new("the count of an aggregate is no count"))?;
    Ok(match kind {
        b'*' => Element::Array(count),
        b'%' => Element::Map(count),
        b'~' => Element::Set(count),
        b'>' => Element::Push(count),
        _ => Element::Attribute(count),
    })
}

/// A length or a count: digits alone.
fn length_of(line: &[u8]) -> Option<usize> {
    line.first().filter(|byte| byte.is_ascii_digit()).and_then(|_| integer(line)).and_then(|n| usize::try_from(n).ok())
}

fn integer(line: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match line {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    // Downwards: the smallest number has no positive counterpart.
    let below = digits.iter().try_fold(0_i64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| i64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_sub(digit)
    })?;
    if is_negative { Some(below) } else { below.checked_neg() }
}

fn big_number(line: &[u8]) -> Result<&[u8], Malformed> {
    let digits = line.strip_prefix(b"-").or(line.strip_prefix(b"+")).unwrap_or(line);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Malformed::new("a big number has something else than digits"));
    }
    Ok(line)
}

fn double(line: &[u8]) -> Result<f64, Malformed> {
    let text = std::str::from_utf8(line).ok();
    text.and_then(|text| text.parse().ok()).ok_or(Malformed::new("a double is no number"))
}

/// Looks for the end of one reply after the other.
#[derive(Clone, Debug)]
pub struct Scanner {
    /// Before it are elements that have been seen.
    position: usize,
    /// How far the line of the next element has been searched, from `position`.
    searched: usize,
    /// How many elements are missing: the reply itself, and of each aggregate that is not whole.
    missing: [u64; DEPTH_MAX + 1],
    depth: usize,
}

impl Default for Scanner {
    fn default() -> Self {
        let mut missing = [0; DEPTH_MAX + 1];
        if let Some(reply) = missing.first_mut() {
            *reply = 1;
        }
        Self { position: 0, searched: 0, missing, depth: 0 }
    }
}

impl Scanner {
    /// The size of the reply at the beginning of `bytes`, or `None` if it is not whole yet.
    ///
    /// `bytes` are the same as the last time, and those that have come since. After a size the next reply begins, and
    /// after an error there is none.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        loop {
            let left = bytes.get(self.position..).unwrap_or_default();
            let Some((element, size)) = element(left, self.searched)? else {
                // A CR may be the last byte.
                self.searched = if is_text(left) { left.len().saturating_sub(1) } else { 0 };
                return Ok(None);
            };
            (self.position, self.searched) = (self.position + size, 0);
            if self.see(element)? {
                return Ok(Some(std::mem::take(self).position));
            }
        }
    }

    /// Count an element; returns whether the reply is whole.
    fn see(&mut self, element: Element<'_>) -> Result<bool, Malformed> {
        if !matches!(element, Element::Attribute(_)) {
            if let Some(missing) = self.missing.get_mut(self.depth) {
                *missing -= 1;
            }
        }
        let children = element.children();
        if children > 0 {
            self.depth += 1;
            let Some(deeper) = self.missing.get_mut(self.depth) else {
                return Err(Malformed::new(format!("aggregates lie deeper in each other than {DEPTH_MAX}")));
            };
            *deeper = children;
            return Ok(false);
        }
        while self.missing.get(self.depth) == Some(&0) {
            if self.depth == 0 {
                return Ok(true);
            }
            self.depth -= 1;
        }
        Ok(false)
    }
}

/// The elements of a whole reply.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    left: &'a [u8],
}

impl<'a> Elements<'a> {
    /// Read a reply that a scanner has found.
    pub fn of(reply: &'a [u8]) -> Self {
        Self { left: reply }
    }

    /// The bytes of the elements that were not read yet.
    pub fn left(&self) -> &'a [u8] {
        self.left
    }

    /// Pass over elements with all that belongs to them; `None` if there are fewer.
    pub fn pass(&mut self, count: usize) -> Option<()> {
        let mut missing = count as u64;
        while missing > 0 {
            let element = self.next()?;
            missing = missing.checked_add(element.children())?;
            missing -= u64::from(!matches!(element, Element::Attribute(_)));
        }
        Some(())
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        let (element, size) = element(self.left, 0).ok()??;
        self.left = self.left.get(size..)?;
        Some(element)
    }
}

/// Bytes that have arrived and are not read yet.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    begin: usize,
    scanner: Scanner,
}

impl Inbox {
    /// Where received bytes are appended, with room for `size` more.
    pub fn room(&mut self, size: usize) -> Result<&mut Vec<u8>, TryReserveError> {
        if self.begin == self.bytes.len() {
            self.bytes.clear();
            self.begin = 0;
            if self.bytes.capacity() > KEPT_BYTES_MAX {
                self.bytes = Vec::new();
            }
        } else if self.begin > 0 && self.bytes.capacity() - self.bytes.len() < size {
            self.bytes.drain(..self.begin);
            self.begin = 0;
        }
        self.bytes.try_reserve(size)?;
        Ok(&mut self.bytes)
    }

    /// Where the next whole reply lies among `bytes`, which stay there until `room` is called.
    pub fn next_reply(&mut self) -> Result<Option<Range<usize>>, Malformed> {
        let waiting = self.bytes.get(self.begin..).unwrap_or_default();
        let Some(size) = self.scanner.scan(waiting)? else { return Ok(None) };
        let reply = self.begin..self.begin + size;
        self.begin = reply.end;
        Ok(Some(reply))
    }

    /// What has arrived.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Take the bytes away for as long as they are read; nothing may arrive before `give_back`.
    pub fn lend(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Give back what is not read of the bytes: others keep the rest.
    pub fn give_back_rest(&mut self, bytes: &[u8]) {
        self.bytes = bytes.get(self.begin..).unwrap_or_default().to_vec();
        self.begin = 0;
    }

    /// Give the bytes back.
    pub fn give_back(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
        if self.begin == self.bytes.len() && self.bytes.capacity() > KEPT_BYTES_MAX {
            // A connection that is idle keeps no large reply.
            (self.bytes, self.begin) = (Vec::new(), 0);
        }
    }
}

/// Write the beginning of a command: how many arguments follow, its name among them.
pub fn put_count(text: &mut Vec<u8>, count: usize) {
    put_number(text, b'*', count);
}

/// Write the length of an argument, which is to follow, and `END` after it.
pub fn put_length(text: &mut Vec<u8>, length: usize) {
    put_number(text, b'$', length);
}

/// Write an argument.
pub fn put_argument(text: &mut Vec<u8>, argument: &[u8]) {
    put_length(text, argument.len());
    text.extend_from_slice(argument);
    put_end(text);
}

/// Write the end of an argument.
pub fn put_end(text: &mut Vec<u8>) {
    text.extend_from_slice(END);
}

fn put_number(text: &mut Vec<u8>, kind: u8, number: usize) {
    text.push(kind);
    put_digits(text, number as u64);
    text.extend_from_slice(END);
}

/// Write an integer as an argument.
pub fn put_integer(text: &mut Vec<u8>, number: i64) {
    let digits = number.unsigned_abs().checked_ilog10().map_or(1, |tens| tens as usize + 1);
    put_length(text, digits + usize::from(number < 0));
    if number < 0 {
        text.push(b'-');
    }
    put_digits(text, number.unsigned_abs());
    put_end(text);
}

/// Write a number in decimal digits.
pub fn put_digits(text: &mut Vec<u8>, number: u64) {
    if number < 10 {
        return text.push(b'0' + number as u8);
    }
    let (mut left, mut digits, mut start) = (number, [0; 20], 20);
    for (position, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (left % 10) as u8;
        (left, start) = (left / 10, position);
        if left == 0 {
            break;
        }
    }
    text.extend_from_slice(digits.get(start..).unwrap_or_default());
}
