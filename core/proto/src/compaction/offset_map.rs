//! The latest offset of each key, in memory of a size that is known before.
//!
//! Keys are digests of 16 bytes, from two hashes whose seeds nobody knows: that two of a billion keys have the same one is
//! a matter of 10^-20, and Kafka's cleaner relies on it too. Open addressing in one flat array takes an eighth of what a
//! hash table of keys would.

use std::hash::{BuildHasher, RandomState};

/// Two words of a digest, and the offset after the latest one: 0 in a slot without a key.
type Slot = [u64; 3];

/// The size of a slot.
pub const SLOT_BYTES: usize = size_of::<Slot>();
/// Up to here a key that is not in the map is found so in a few steps on average.
const FILLED_MAX: (usize, usize) = (3, 4);
const SLOTS_MIN: usize = 64;

/// Offsets by key.
#[derive(Debug)]
pub struct OffsetMap {
    slots: Vec<Slot>,
    keys: usize,
    keys_max: usize,
    seeds: [RandomState; 2],
}

impl OffsetMap {
    /// A map of up to `keys_max` keys, or of as many as fit `bytes_max` bytes if these are fewer.
    pub fn new(bytes_max: usize, keys_max: usize) -> Self {
        let (filled, all) = FILLED_MAX;
        let wanted = (keys_max / filled).saturating_add(1).saturating_mul(all);
        let count = wanted.min(bytes_max / SLOT_BYTES).max(SLOTS_MIN);
        let seeds = [RandomState::new(), RandomState::new()];
        Self { slots: vec![[0; 3]; count], keys: 0, keys_max: count / all * filled, seeds }
    }

    /// How many keys are in it.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// The memory that it takes, however many keys are in it.
    pub fn size_bytes(&self) -> usize {
        self.slots.len() * SLOT_BYTES
    }

    /// Remember the latest offset of a key; returns false, and does nothing, if no other key fits.
    pub fn put(&mut self, key: &[u8], offset: i64) -> bool {
        let digest = self.digest(key);
        let (is_full, place) = (self.keys >= self.keys_max, self.place_of(digest));
        let Some(slot) = place.and_then(|place| self.slots.get_mut(place)) else { return false };
        let is_new = slot[2] == 0;
        if is_new && is_full {
            return false;
        }
        *slot = [digest[0], digest[1], offset.max(0) as u64 + 1];
        self.keys += usize::from(is_new);
        true
    }

    /// The offset that was put last for a key.
    pub fn get(&self, key: &[u8]) -> Option<i64> {
        let slot = self.slots.get(self.place_of(self.digest(key))?)?;
        slot[2].checked_sub(1).and_then(|offset| i64::try_from(offset).ok())
    }

    fn digest(&self, key: &[u8]) -> [u64; 2] {
        self.seeds.each_ref().map(|seed| seed.hash_one(key))
    }

    /// Where a digest is, or the empty slot in which it belongs: there is one, for a quarter of them stays empty.
    fn place_of(&self, digest: [u64; 2]) -> Option<usize> {
        let count = self.slots.len();
        let first = (u128::from(digest[0]) * count as u128) >> u64::BITS;
        let (before, after) = self.slots.split_at_checked(first as usize)?;
        let is_it = |slot: &Slot| slot[2] == 0 || (slot[0] == digest[0] && slot[1] == digest[1]);
        let found = after.iter().position(is_it).map(|place| first as usize + place);
        found.or_else(|| before.iter().position(is_it))
    }
}
