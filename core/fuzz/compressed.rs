//! Bytes that a codec reads: none decompresses beyond its limit, and each reads what it wrote, whole or damaged.

#![no_main]

use korvet_proto::compression::Codec;

const LIMITS: [usize; 4] = [0, 100, 65_536, 1 << 20];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(([number, position, change], rest)) = data.split_first_chunk() else { return };
    let Some(codec) = Codec::of((number & 7).into()) else { return };
    let mut written = codec.compress(rest).unwrap();
    assert_eq!(codec.decompress(&written, rest.len()).unwrap(), rest);
    if let Some(byte) = written.get_mut(usize::from(*position)) {
        *byte ^= change;
    }
    for limit in LIMITS {
        for stored in [rest, &written] {
            if let Ok(plain) = codec.decompress(stored, limit) {
                assert!(plain.len() <= limit);
            }
        }
    }
});
