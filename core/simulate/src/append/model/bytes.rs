//! Integers as the scripts pack them: big-endian, of any width.

/// Append an integer of `width` bytes.
pub(crate) fn put(packed: &mut Vec<u8>, number: i64, width: usize) {
    packed.extend_from_slice(&number.to_be_bytes()[8 - width..]);
}

/// What is left to read.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    pub fn unsigned(&mut self, width: usize) -> Option<u64> {
        let (taken, left) = self.0.split_at_checked(width)?;
        self.0 = left;
        Some(taken.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub fn signed(&mut self, width: usize) -> Option<i64> {
        let unused = 64 - 8 * width as u32;
        self.unsigned(width).map(|number| (number << unused) as i64 >> unused)
    }
}
