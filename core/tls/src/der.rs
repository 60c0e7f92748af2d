//! What is read of a certificate besides what webpki reads: it takes no certificates of version 1, and asks nothing of
//! those in a trust store.

use std::ops::RangeInclusive;

/// The parts of a certificate, as they lie in its DER.
pub struct Parts<'a> {
    /// What is signed, with its header.
    pub signed: &'a [u8],
    /// By what, and how.
    pub algorithm: &'a [u8],
    pub signature: &'a [u8],
    pub is_version_1: bool,
    pub issuer: &'a [u8],
    pub subject: &'a [u8],
    /// First and last second, since 1970.
    pub validity: RangeInclusive<u64>,
    pub key: Key<'a>,
    /// Whether it may issue others, by OpenSSL's rules.
    pub is_authority: bool,
    /// Whether it limits the names that it may issue certificates for.
    pub limits_names: bool,
}

/// A public key.
pub struct Key<'a> {
    /// SubjectPublicKeyInfo, with its header.
    pub whole: &'a [u8],
    pub algorithm: &'a [u8],
    pub bits: &'a [u8],
}

const VERSION: u8 = 0xA0;
const EXTENSIONS: u8 = 0xA3;
const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const KEY_USAGE: &[u8] = &[0x55, 0x1D, 0x0F];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1D, 0x13];
const NAME_CONSTRAINTS: &[u8] = &[0x55, 0x1D, 0x1E];
/// Of the first byte of a key usage: it may sign certificates.
const SIGNS_CERTIFICATES: u8 = 0x04;

impl<'a> Parts<'a> {
    /// Take a certificate apart; None if it is none.
    pub fn of(certificate: &'a [u8]) -> Option<Self> {
        let mut whole = Elements(content(certificate, SEQUENCE)?);
        let (_, signed, fields) = whole.next()?;
        let (_, _, algorithm) = whole.next()?;
        let signature = bits(whole.next()?)?;
        let mut fields = Elements(fields).peekable();
        let version = fields.next_if(|(tag, ..)| *tag == VERSION);
        let is_version_1 = version.is_none_or(|(_, _, number)| content(number, INTEGER) == Some(&[0]));
        let (_serial, _algorithm) = (fields.next()?, fields.next()?);
        let (_, issuer, _) = fields.next()?;
        let mut times = Elements(fields.next()?.2);
        let validity = seconds(times.next()?)?..=seconds(times.next()?)?;
        let (_, subject, _) = fields.next()?;
        let (_, key, key_parts) = fields.next()?;
        let mut key_parts = Elements(key_parts);
        let key = Key { whole: key, algorithm: key_parts.next()?.2, bits: bits(key_parts.next()?)? };
        let (is_authority, limits_names) = match fields.find(|(tag, ..)| *tag == EXTENSIONS) {
            Some((_, _, extensions)) => powers(content(extensions, SEQUENCE)?)?,
            None => (is_version_1 && issuer == subject, false),
        };
        Some(Self {
            signed,
            algorithm,
            signature,
            is_version_1,
            issuer,
            subject,
            validity,
            key,
            is_authority,
            limits_names,
        })
    }
}

/// Whether these extensions make an authority, and whether it limits names.
fn powers(extensions: &[u8]) -> Option<(bool, bool)> {
    let (mut constraints, mut usage, mut limits_names) = (None, None, false);
    for (_, _, extension) in Elements(extensions) {
        let mut parts = Elements(extension);
        let (_, _, identifier) = parts.next()?;
        let (_, _, value) = parts.find(|(tag, ..)| *tag != BOOLEAN)?;
        if identifier == BASIC_CONSTRAINTS {
            let first = Elements(content(value, SEQUENCE)?).next();
            constraints = Some(first.is_some_and(|(tag, _, flag)| tag == BOOLEAN && flag != [0]));
        } else if identifier == KEY_USAGE {
            let flags = bits(Elements(value).next()?)?;
            usage = Some(flags.first().is_some_and(|flags| flags & SIGNS_CERTIFICATES != 0));
        } else if identifier == NAME_CONSTRAINTS {
            limits_names = true;
        }
    }
    Some((usage != Some(false) && constraints.or(usage) == Some(true), limits_names))
}

/// Elements of DER, one after the other, up to the first that is none: tag, whole, content.
struct Elements<'a>(&'a [u8]);

impl<'a> Iterator for Elements<'a> {
    type Item = (u8, &'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&[tag, first], mut rest) = self.0.split_first_chunk()?;
        let mut size = usize::from(first);
        if first >= 0x80 {
            let (bytes, after) = rest.split_at_checked(size & 0x7F).filter(|(bytes, _)| bytes.len() <= 4)?;
            size = bytes.iter().fold(0, |size, byte| size << 8 | usize::from(*byte));
            rest = after;
        }
        let (content, after) = rest.split_at_checked(size)?;
        let (whole, _) = self.0.split_at_checked(self.0.len() - after.len())?;
        self.0 = after;
        Some((tag, whole, content))
    }
}

fn content(der: &[u8], expected: u8) -> Option<&[u8]> {
    Elements(der).next().filter(|(tag, ..)| *tag == expected).map(|(_, _, content)| content)
}

fn bits<'a>((tag, _, content): (u8, &'a [u8], &'a [u8])) -> Option<&'a [u8]> {
    let (_unused, bits) = content.split_first()?;
    (tag == BIT_STRING).then_some(bits)
}

/// Seconds since 1970 of a UTCTime or GeneralizedTime.
fn seconds((tag, _, text): (u8, &[u8], &[u8])) -> Option<u64> {
    let digits = text.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<i64>().ok();
    let (year, rest) = digits.split_at_checked(if tag == UTC_TIME { 2 } else { 4 })?;
    let year = match number(year)? {
        year if tag != UTC_TIME => year,
        year if year >= 50 => year + 1900,
        year => year + 2000,
    };
    let mut parts = rest.chunks(2).map(number);
    let mut next = || parts.next().flatten();
    let (month, day, hour, minute, second) = (next()?, next()?, next()?, next()?, next()?);
    // Days from 1 March of year 0, with leap days at the ends of years.
    let shifted = year - i64::from(month < 3);
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = 365 * shifted + shifted / 4 - shifted / 100 + shifted / 400 + day_of_year - 719_468;
    u64::try_from(((days * 24 + hour) * 60 + minute) * 60 + second).ok()
}
