//! Batches for a consumer: where one ends, and what it says.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use korvet_proto::batch::{CONTROL_BIT, Header, LENGTH_FROM, TRANSACTIONAL_BIT};
use korvet_proto::build::BatchesBuilder;
use korvet_proto::compression::Codec;
use korvet_proto::encode::RecordFields;

const PLENTY: i64 = 1 << 20;

fn record(offset: i64, timestamp: i64) -> RecordFields<'static> {
    RecordFields { offset, timestamp, key: None, value: Some(b"value"), headers: &[] }
}

fn headers(builder: &mut BatchesBuilder) -> Vec<Header> {
    let batches = builder.finish().unwrap();
    let headers: Vec<_> = batches.iter().map(|batch| Header::read(batch).unwrap()).collect();
    for (header, batch) in headers.iter().zip(&batches) {
        assert_eq!(usize::try_from(header.batch_length).unwrap() + LENGTH_FROM, batch.len());
        assert_eq!(header.sealed_with(&batch[61..]), *batch);
    }
    headers
}

#[test]
fn a_batch_has_one_leader_epoch_one_producer_and_with_log_append_time_one_timestamp() {
    let mut builder = BatchesBuilder::new(Codec::None, 1, PLENTY, false, true);
    assert!(builder.push(&record(0, 5)).unwrap());
    assert!(builder.push(&record(1, 5)).unwrap());
    assert!(builder.push(&record(2, 6)).unwrap());
    builder.begin_epoch(2).unwrap();
    assert!(builder.push(&record(3, 6)).unwrap());
    builder.begin_producer(Some((7, 0))).unwrap();
    assert!(builder.push(&record(4, 6)).unwrap());
    let headers = headers(&mut builder);
    assert_eq!(headers.iter().map(|header| header.base_offset).collect::<Vec<_>>(), [0, 2, 3, 4]);
    assert_eq!(headers.iter().map(|header| header.partition_leader_epoch).collect::<Vec<_>>(), [1, 1, 2, 2]);
    assert_eq!((headers[3].producer_id, headers[2].producer_id), (7, -1));
    assert_eq!((builder.record_count, builder.next_offset, builder.is_full), (5, 5, false));
}

#[test]
fn a_marker_is_a_batch_of_its_own() {
    let mut builder = BatchesBuilder::new(Codec::Gzip, 0, PLENTY, false, false);
    assert!(builder.push(&record(0, 5)).unwrap());
    builder.begin_producer(Some((7, 2))).unwrap();
    assert!(builder.push_control(&record(1, 5)).unwrap());
    assert!(builder.push(&record(2, 5)).unwrap());
    let headers = headers(&mut builder);
    let bits: Vec<_> = headers.iter().map(|header| header.attributes).collect();
    assert_eq!(bits, [0, TRANSACTIONAL_BIT | CONTROL_BIT, TRANSACTIONAL_BIT]);
}

#[test]
fn a_batch_that_is_to_be_compressed_ends_as_soon_as_it_is_large() {
    let value = vec![7; 400_000];
    for (codec, counts) in [(Codec::None, &[7][..]), (Codec::Lz4, &[3, 3, 1])] {
        let mut builder = BatchesBuilder::new(codec, 0, 4 * PLENTY, false, false);
        for offset in 0..7 {
            assert!(builder.push(&RecordFields { value: Some(&value), ..record(offset, 5) }).unwrap());
        }
        let left = builder.plain_bytes_left();
        let headers = headers(&mut builder);
        assert_eq!(headers.iter().map(|header| header.record_count).collect::<Vec<_>>(), counts);
        assert_eq!((builder.plain_bytes_left(), builder.next_offset), (left, 7));
    }
}

#[test]
fn after_a_record_that_does_not_fit_none_is_taken() {
    let mut builder = BatchesBuilder::new(Codec::None, 0, 90, true, false);
    assert!(builder.push(&record(0, 5)).unwrap());
    let left = builder.plain_bytes_left();
    let large = [0; 100];
    assert!(!builder.push(&RecordFields { value: Some(&large), ..record(1, 5) }).unwrap());
    assert!(!builder.push(&record(2, 5)).unwrap());
    assert_eq!((builder.is_full, builder.record_count, builder.plain_bytes_left()), (true, 1, left));
    assert_eq!(headers(&mut builder).len(), 1);
    assert!(headers(&mut builder).is_empty());
}
