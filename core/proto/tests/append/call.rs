//! Calls of the scripts.

use korvet_proto::append::{Batch, Kind, Marker, Number, marker, prepare};
use korvet_proto::batch::{CONTROL_BIT, Header, TRANSACTIONAL_BIT};
use korvet_proto::compression::Codec;
use korvet_proto::partition::Layout;

use crate::support::{
    Bytes, CONFIG, Content, Head, LAYOUTS, NOW, RECORDS, RULES, arguments, batch_of, call_of, entries_of, in_frame,
    partition, taken, valued,
};

fn keys(suffixes: &[&str]) -> Vec<Bytes> {
    suffixes.iter().map(|suffix| format!("korvet:orders:3{suffix}").into_bytes()).collect()
}

fn of_producer(layout: Layout, number: Number, attributes: i16) -> Batch {
    let change = |header| Header { attributes, producer_id: 77, producer_epoch: 4, base_sequence: i32::MAX, ..header };
    let sent = in_frame(&batch_of(&[valued(b"one"), valued(b"two")], Codec::None, change));
    prepare(&partition(layout, CONFIG), Some(&sent), number, &RULES).unwrap()
}

fn plain(layout: Layout) -> Batch {
    let sent = in_frame(&batch_of(&[Content { time: i64::MAX, ..valued(b"v") }], Codec::None, |header| header));
    prepare(&partition(layout, CONFIG), Some(&sent), Number::NotTransactional, &RULES).unwrap()
}

#[test]
fn a_call_has_what_its_batches_have_in_common_first() {
    for layout in LAYOUTS {
        let (one, other) = (plain(layout), of_producer(layout, Number::NotTransactional, 0));
        let call = call_of(&[&one, &other], 12, NOW);
        assert_eq!(call.keys, keys(&["", ":state", ":index"]));
        assert_eq!((&call.topic_id[..], &call.epoch[..], call.sent_ms), (&b"BwcHBw"[..], &b"12"[..], NOW));
        let [first, second] = &call.batches[..] else { panic!("no two batches") };
        assert_eq!((&first.producer[..], &second.producer[..]), (&b""[..], &b"77"[..]));
        assert_eq!((first.head.epoch, first.head.sequence, first.head.timestamp), (0, 0, 1 << 53));
        assert_eq!((second.head.epoch, second.head.sequence, second.head.count), (4, i32::MAX as u32, 2));
        assert_eq!((second.head.kind, second.head.number), (0, 0));
        assert_eq!(first.arguments, taken(&one).arguments);
        assert_eq!(second.arguments, taken(&other).arguments);
    }
}

#[test]
fn a_call_with_a_batch_of_a_transaction_has_the_keys_of_transactions_too() {
    for layout in LAYOUTS {
        for (number, expected) in [(Number::Unverified, 0), (Number::Verified(9), 9)] {
            let batch = of_producer(layout, number, TRANSACTIONAL_BIT);
            assert_eq!(batch.kind, Kind::Transaction(expected));
            let call = call_of(&[&plain(layout), &batch], 0, NOW);
            assert_eq!(call.keys, keys(&["", ":state", ":index", ":open", ":aborted"]));
            let head = &call.batches[1].head;
            assert_eq!((head.kind, head.number), (1, expected));
        }
    }
}

#[test]
fn records_of_a_transaction_say_whose_they_are() {
    let entries = entries_of(&taken(&of_producer(RECORDS, Number::Verified(1), TRANSACTIONAL_BIT)));
    let entry = ["value", "one", "timestamp", "1700000000000", "korvet.producer", "77:4"];
    assert_eq!(entries[0], arguments(&entry));
    assert_eq!(entries[1][5], b"77:4");
}

#[test]
fn a_batch_that_may_be_sent_again_has_the_same_arguments_each_time() {
    for layout in LAYOUTS {
        let batch = of_producer(layout, Number::Verified(1), TRANSACTIONAL_BIT);
        assert_eq!(taken(&batch).arguments, taken(&batch).arguments);
    }
}

const ABORT: Marker = Marker { producer_id: 0, epoch: 5, number: -1, commits: false };
const COMMIT: Marker = Marker { producer_id: 0, epoch: 5, number: 8, commits: true };

#[test]
fn a_marker_in_layout_record_is_an_entry_of_its_own_form() {
    let partition = partition(RECORDS, CONFIG);
    for (ends, outcome, kind) in [(ABORT, "abort", 3), (COMMIT, "commit", 2)] {
        let batch = marker(&partition, ends, NOW);
        assert!(batch.is_marker() && batch.is_idempotent());
        let taken = taken(&batch);
        let entry = ["korvet.marker", outcome, "korvet.producer", "0:5", "timestamp", "1700000000000"];
        assert_eq!(entries_of(&taken), [arguments(&entry)]);
        let stored_bytes = entry.concat().len() as u32;
        let number = ends.number;
        let head = Head {
            epoch: 5,
            sequence: 0,
            count: 1,
            stored_bytes,
            timestamp: NOW,
            kind,
            number,
            fields: 3,
            arguments: 6,
        };
        assert_eq!((taken.head, &taken.producer[..]), (head, &b"0"[..]));
    }
}

#[test]
fn a_marker_in_layout_batch_is_a_control_batch() {
    let partition = partition(Layout::Batch, CONFIG);
    for (ends, outcome, kind) in [(ABORT, 0, 3), (COMMIT, 1, 2)] {
        let taken = taken(&marker(&partition, ends, NOW));
        assert_eq!((taken.head.kind, taken.head.number, taken.head.timestamp), (kind, ends.number, NOW));
        let [content] = &taken.arguments[..] else { panic!("a marker is not compressed") };
        let header = Header::read(content).unwrap();
        assert_eq!(header.attributes, CONTROL_BIT | TRANSACTIONAL_BIT);
        assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (0, 5, -1));
        assert_eq!((header.base_offset, header.partition_leader_epoch, header.record_count), (0, 0, 1));
        assert_eq!(korvet_proto::batch::crc32c(0, &content[21..]), header.crc);
        let payload = header.decompressed(content, content.len()).unwrap();
        let record = header.records(&payload).next().unwrap().unwrap();
        assert_eq!((record.key, record.value), (Some(&[0, 0, 0, outcome][..]), Some(&[0; 6][..])));
        assert_eq!((record.timestamp, record.headers().len()), (NOW, 0));
    }
}
