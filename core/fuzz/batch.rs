//! A batch as a producer sends it: what the walk takes, a reader reads, and what was read is read again once encoded.

#![no_main]

mod sealed;

use korvet_proto::batch::Header;
use korvet_proto::columns::Columns;
use korvet_proto::encode::{Encoder, RecordFields};
use sealed::sealed;

const PLAIN_BYTES_MAX: usize = 1 << 20;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut sent = data.to_vec();
    sealed(&mut sent);
    let Ok(header) = Header::of_produced(&sent, usize::MAX) else { return };
    let Ok(walk) = header.walk(&sent, PLAIN_BYTES_MAX) else { return };
    let plain = header.decompressed(&sent, PLAIN_BYTES_MAX).unwrap();
    assert_eq!(walk.plain_bytes, plain.len());
    let mut columns = Columns::default();
    columns.add(0, &header, &plain).unwrap();
    let mut encoder = Encoder::new(0, usize::MAX, true);
    let read: Vec<_> = header.records(&plain).map(Result::unwrap).collect();
    assert_eq!(columns.offsets.len(), read.len());
    for record in &read {
        let headers: Vec<_> = record.headers().collect();
        let (offset, timestamp) = (record.offset_delta.into(), record.timestamp);
        let (key, value) = (record.key, record.value);
        assert!(encoder.push(&RecordFields { offset, timestamp, key, value, headers: &headers }));
    }
    let written = encoder.header();
    assert_eq!((written.record_count, written.last_offset_delta), (header.record_count, header.last_offset_delta));
    assert_eq!(written.max_timestamp, walk.max_timestamp);
    let again = Header { base_timestamp: read[0].timestamp, ..header };
    let again = again.records(encoder.payload());
    for (record, again) in read.iter().zip(again) {
        let again = again.unwrap();
        assert_eq!(record.timestamp, again.timestamp);
        assert_eq!((record.key, record.value), (again.key, again.value));
        assert!(record.headers().eq(again.headers()));
    }
});
