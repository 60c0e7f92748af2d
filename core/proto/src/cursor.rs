//! A place in bytes that have arrived, from which integers and varints are read.
//!
//! Every read says `None` where the bytes end or a varint does not, and a cursor that said so is not used further. The
//! varints are Kafka's: little-endian groups of seven bits, at most five bytes for an int32 and ten for an int64,
//! zigzag but for unsigned ones (org.apache.kafka.common.utils.ByteUtils). Kafka drops bits beyond the integer and
//! takes each negative length for null. Both are refused here: librdkafka and Sarama read other lengths there.

/// What is left of some bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    left: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Begin at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    /// How many bytes are left.
    pub fn len(&self) -> usize {
        self.left.len()
    }

    /// Whether all has been read.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// The next `size` bytes.
    #[inline]
    pub fn bytes(&mut self, size: usize) -> Option<&'a [u8]> {
        let (bytes, left) = self.left.split_at_checked(size)?;
        self.left = left;
        Some(bytes)
    }

    /// The next bytes, as many as the array has: an integer's, for `from_be_bytes`.
    #[inline]
    pub fn array<const SIZE: usize>(&mut self) -> Option<[u8; SIZE]> {
        let (bytes, left) = self.left.split_first_chunk()?;
        self.left = left;
        Some(*bytes)
    }

    /// The next byte.
    #[inline]
    pub fn byte(&mut self) -> Option<u8> {
        let (byte, left) = self.left.split_first()?;
        self.left = left;
        Some(*byte)
    }

    /// A varint of an int32.
    #[inline]
    pub fn varint(&mut self) -> Option<i32> {
        let number = self.unsigned_varint()?;
        Some((number >> 1) as i32 ^ -((number & 1) as i32))
    }

    /// A varint of an unsigned int32, which lengths and counts of flexible messages are.
    #[inline]
    pub fn unsigned_varint(&mut self) -> Option<u32> {
        let mut number = 0_u32;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            number |= u32::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                let is_whole = u32::from(byte) <= u32::MAX >> shift;
                return is_whole.then_some(number);
            }
        }
        None
    }

    /// A varint of an int64.
    #[inline]
    pub fn varlong(&mut self) -> Option<i64> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                let is_whole = u64::from(byte) <= u64::MAX >> shift;
                return is_whole.then_some((number >> 1) as i64 ^ -((number & 1) as i64));
            }
        }
        None
    }

    /// What follows its length, a varint: `Some(None)` for -1, which is null.
    #[inline]
    pub fn nullable(&mut self) -> Option<Option<&'a [u8]>> {
        match self.varint()? {
            -1 => Some(None),
            size => self.bytes(usize::try_from(size).ok()?).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cursor;
    use proptest::prelude::*;

    fn low_byte(number: u64) -> u8 {
        number.to_le_bytes()[0]
    }

    fn zigzag(number: i64) -> Vec<u8> {
        let mut left = ((number << 1) ^ (number >> 63)) as u64;
        let mut bytes = Vec::new();
        while left > 0x7F {
            bytes.push(low_byte(left | 0x80));
            left >>= 7;
        }
        bytes.push(low_byte(left));
        bytes
    }

    proptest! {
        #[test]
        fn a_varint_is_read_as_it_was_written(number: i32) {
            let bytes = zigzag(number.into());
            let mut cursor = Cursor::new(&bytes);
            prop_assert_eq!(cursor.varint(), Some(number));
            prop_assert!(cursor.is_empty());
        }

        #[test]
        fn a_varlong_is_read_as_it_was_written(number: i64) {
            let bytes = zigzag(number);
            let mut cursor = Cursor::new(&bytes);
            prop_assert_eq!(cursor.varlong(), Some(number));
            prop_assert!(cursor.is_empty());
        }

        #[test]
        fn a_varint_that_is_cut_off_is_none(number: i64, missing in 1_usize..10) {
            let bytes = zigzag(number);
            let cut = &bytes[..bytes.len().saturating_sub(missing)];
            prop_assert_eq!(Cursor::new(cut).varlong(), None);
        }
    }

    #[test]
    fn a_varint_ends_with_its_fifth_byte_and_a_varlong_with_its_tenth() {
        assert_eq!(Cursor::new(&[0x80; 6]).varint(), None);
        assert_eq!(Cursor::new(&[0x80; 11]).varlong(), None);
    }

    #[test]
    fn a_varint_has_no_bits_beyond_its_integer() {
        assert_eq!(Cursor::new(&[0xFF, 0xFF, 0xFF, 0xFF, 0x0F]).varint(), Some(i32::MIN));
        assert_eq!(Cursor::new(&[0xFF, 0xFF, 0xFF, 0xFF, 0x1F]).varint(), None);
        let nine = [0xFF; 9];
        assert_eq!(Cursor::new(&[&nine[..], &[0x01]].concat()).varlong(), Some(i64::MIN));
        assert_eq!(Cursor::new(&[&nine[..], &[0x03]].concat()).varlong(), None);
    }

    #[test]
    fn a_length_of_minus_one_is_null_and_any_other_is_there_or_none() {
        assert_eq!(Cursor::new(&[0x01]).nullable(), Some(None));
        assert_eq!(Cursor::new(&[0x03]).nullable(), None);
        assert_eq!(Cursor::new(&[0x00]).nullable(), Some(Some(&[][..])));
        assert_eq!(Cursor::new(&[0x04, b'a', b'b']).nullable(), Some(Some(&b"ab"[..])));
        assert_eq!(Cursor::new(&[0x06, b'a', b'b']).nullable(), None);
    }
}
