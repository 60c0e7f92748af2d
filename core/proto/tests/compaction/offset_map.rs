//! The latest offsets of keys, in bounded memory.

use std::collections::HashMap;

use korvet_proto::compaction::{OffsetMap, SLOT_BYTES};
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn it_is_a_map_of_the_offsets_that_were_put_last(
        puts in vec((vec(any::<u8>(), 0..3), 0..1_i64 << 53), 0..300), others in vec(vec(any::<u8>(), 0..3), 0..20)
    ) {
        let (mut map, mut expected) = (OffsetMap::new(1 << 20, 300), HashMap::new());
        for (key, offset) in &puts {
            prop_assert!(map.put(key, *offset));
            expected.insert(key, *offset);
        }
        prop_assert_eq!(map.keys(), expected.len());
        for key in expected.keys().copied().chain(&others) {
            prop_assert_eq!(map.get(key), expected.get(key).copied());
        }
    }
}

#[test]
fn it_takes_no_more_than_its_bytes_and_says_when_it_is_full() {
    let mut map = OffsetMap::new(100 * SLOT_BYTES, 1000);
    assert!(map.size_bytes() <= 100 * SLOT_BYTES);
    let taken: Vec<_> = (0..1000_i64).filter(|number| map.put(&number.to_be_bytes(), *number)).collect();
    assert_eq!(taken, (0..75).collect::<Vec<_>>());
    assert!(map.put(&0_i64.to_be_bytes(), 5), "it is there already");
    assert_eq!((map.get(&0_i64.to_be_bytes()), map.get(&999_i64.to_be_bytes())), (Some(5), None));
}

#[test]
fn it_takes_no_more_memory_than_there_can_be_keys() {
    let mut map = OffsetMap::new(1 << 30, 500);
    assert!(map.size_bytes() < 700 * SLOT_BYTES);
    assert!((0..500_i64).all(|number| map.put(&number.to_be_bytes(), number)));
}
