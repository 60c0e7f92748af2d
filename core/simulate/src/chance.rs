//! Numbers by chance, the same for the same seed.

/// A xorshift generator.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        // One round of splitmix64: neighbouring seeds begin far from each other.
        let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ mixed >> 31) | 1)
    }

    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((self.number() >> 11) % bound.max(1) as u64) as usize
    }

    /// A number from `first` on, below `end`.
    pub fn within(&mut self, first: usize, end: usize) -> usize {
        first + self.below(end.saturating_sub(first))
    }

    /// True so often in a hundred times.
    pub fn is(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, V>(&mut self, values: &'a [V]) -> Option<&'a V> {
        values.get(self.below(values.len()))
    }
}
