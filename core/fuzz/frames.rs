//! A client's bytes as they arrive: what is said of a frame holds when more of it comes, and its header lies in it.

#![no_main]

use korvet_proto::frame::{Expected, announced, request_header};

const SIZE_BYTES: usize = 4;
const EXPECTED: [Expected; 2] = [Expected::Request { produce_max: 1 << 20, other_max: 64 }, Expected::Token { max: 64 }];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for expected in EXPECTED {
        let whole = announced(data, expected);
        for received in (0..data.len()).filter_map(|size| data.get(..size)) {
            match announced(received, expected) {
                Ok(None) => {}
                before => assert_eq!(before, whole),
            }
        }
    }
    let Some(frame) = data.get(SIZE_BYTES..) else { return };
    for flexible_from in [None, Some(0), Some(9)] {
        let Ok(header) = request_header(frame, |_| flexible_from) else { continue };
        let (before, _message) = frame.split_at(header.body);
        assert_eq!(request_header(before, |_| flexible_from), Ok(header));
    }
});
