//! Records of batches as columns: each row is its record, and a batch whose offsets are not its own is refused.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use korvet_proto::batch::{CONTROL_BIT, Header, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT};
use korvet_proto::columns::{Binaries, Columns, Headers};
use korvet_proto::encode::{Encoder, RecordFields};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

type Bytes = Vec<u8>;
type Content = (i64, Option<Bytes>, Option<Bytes>, Vec<(Bytes, Option<Bytes>)>);

fn batch_of(records: &[Content], offsets: &[i64]) -> (Header, Bytes) {
    let mut encoder = Encoder::new(0, usize::MAX, true);
    for ((timestamp, key, value, headers), offset) in records.iter().zip(offsets) {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (&name[..], value.as_deref())).collect();
        let (key, value) = (key.as_deref(), value.as_deref());
        let fields = RecordFields { offset: *offset, timestamp: *timestamp, key, value, headers: &headers };
        assert!(encoder.push(&fields));
    }
    (encoder.header(), encoder.payload().to_vec())
}

fn all_columns() -> Columns {
    let (keys, values, headers) = (Some(Binaries::default()), Some(Binaries::default()), Some(Headers::default()));
    Columns { keys, values, headers, ..Columns::default() }
}

fn is_valid(bits: Option<&[u8]>, row: usize) -> bool {
    bits.is_none_or(|bits| bits[row / 8] >> (row % 8) & 1 == 1)
}

fn value(column: &Binaries, row: usize) -> Option<Bytes> {
    let bounds = [row, row + 1].map(|at| usize::try_from(column.positions[at]).unwrap());
    is_valid(column.validity.bits(), row).then(|| column.data[bounds[0]..bounds[1]].to_vec())
}

fn row(columns: &Columns, row: usize) -> Content {
    let headers = columns.headers.as_ref().unwrap();
    let bounds = [row, row + 1].map(|at| usize::try_from(headers.positions[at]).unwrap());
    assert_eq!(is_valid(headers.validity.bits(), row), bounds[0] < bounds[1]);
    let pairs = (bounds[0]..bounds[1]).map(|at| (value(&headers.names, at).unwrap(), value(&headers.values, at)));
    let (keys, values) = (columns.keys.as_ref().unwrap(), columns.values.as_ref().unwrap());
    (columns.timestamps[row], value(keys, row), value(values, row), pairs.collect())
}

fn contents() -> impl Strategy<Value = Vec<Content>> {
    let bytes = || option::of(vec(any::<u8>(), 0..40));
    let headers = vec(("[a-z]{0,3}".prop_map(String::into_bytes), bytes()), 0..3);
    vec((any::<i64>(), bytes(), bytes(), headers), 1..20)
}

const NO_RECORD: Content = (0, None, None, Vec::new());

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_row_is_its_record(batches in vec(contents(), 1..4)) {
        let (mut columns, mut base_offset) = (all_columns(), 0);
        for records in &batches {
            let (header, plain) = batch_of(records, &(0..).take(records.len()).collect::<Vec<_>>());
            columns.add(base_offset, &header, &plain).unwrap();
            base_offset += i64::from(header.record_count);
        }
        let records = batches.concat();
        prop_assert_eq!(&columns.offsets, &(0..base_offset).collect::<Vec<_>>());
        prop_assert_eq!((0..records.len()).map(|at| row(&columns, at)).collect::<Vec<_>>(), records);
    }

    #[test]
    fn any_bytes_are_rows_or_refused(plain in vec(any::<u8>(), 0..200), count in 1_i32..9) {
        let mut header = batch_of(&[NO_RECORD], &[0]).0;
        (header.record_count, header.last_offset_delta) = (count, i32::MAX);
        let mut columns = all_columns();
        if columns.add(0, &header, &plain).is_ok() {
            prop_assert_eq!(columns.offsets.len(), usize::try_from(count).unwrap());
        }
    }
}

#[test]
fn the_attributes_of_a_batch_say_whose_time_its_records_have_and_whether_its_producer_counts() {
    let mut columns = all_columns();
    for (offset, attributes) in [(0, 0), (1, LOG_APPEND_TIME_BIT), (2, TRANSACTIONAL_BIT | CONTROL_BIT)] {
        let (mut header, plain) = batch_of(&[NO_RECORD], &[0]);
        header.attributes = attributes;
        (header.max_timestamp, header.producer_id, header.producer_epoch) = (9, 7, 3);
        columns.add(offset, &header, &plain).unwrap();
        assert_eq!(columns.special.is_all_null(), offset < 2);
    }
    assert_eq!((&columns.timestamps[..], &columns.timestamp_types[..]), (&[0, 9, 0][..], &[0, 1, 0][..]));
    assert_eq!(columns.special.bits(), Some(&[0b100][..]));
    assert_eq!(columns.attributes[2], TRANSACTIONAL_BIT | CONTROL_BIT);
    assert_eq!((columns.producer_ids[2], columns.producer_epochs[2]), (7, 3));
}

#[test]
fn a_compacted_batch_keeps_its_gaps_and_no_offset_is_beyond_its_last_or_seen_before() {
    let records = vec![NO_RECORD; 2];
    let (mut header, plain) = batch_of(&records, &[1, 5]);
    header.last_offset_delta = 6;
    let mut columns = all_columns();
    columns.add(10, &header, &plain).unwrap();
    assert_eq!(columns.offsets, [11, 15]);
    assert!(columns.add(14, &header, &plain).is_err(), "offset 15 was seen before");
    header.last_offset_delta = 4;
    assert!(all_columns().add(10, &header, &plain).is_err(), "the last offset is 14");
}

#[test]
fn a_column_that_nobody_wants_is_not_made() {
    let (header, plain) = batch_of(&[(0, Some(vec![1]), Some(vec![2]), Vec::new())], &[0]);
    let mut columns = Columns { values: Some(Binaries::default()), ..Columns::default() };
    columns.add(0, &header, &plain).unwrap();
    assert!(columns.keys.is_none() && columns.headers.is_none());
    assert_eq!(columns.values.unwrap().data, [2]);
}
