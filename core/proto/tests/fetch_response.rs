//! Responses to consumers, byte for byte.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use korvet_proto::ErrorCode;
use korvet_proto::fetch::{Header, PartitionResult, VERSIONS, write};
use korvet_proto::log::{Aborted, EpochStart};
use korvet_proto::partition::TopicName;
use korvet_proto::shared::{Piece, Shared};

const UNKNOWN: &[u8] = &[0xFF; 8];

fn header(version: i16) -> Header {
    Header { version, correlation_id: 9, throttle_ms: 4, error: 0, session_id: 7 }
}

fn name(version: i16) -> TopicName {
    if version < 13 { TopicName::Name("abc".into()) } else { TopicName::Id([7; 16]) }
}

fn result(index: i32, records: Vec<Piece>) -> PartitionResult {
    PartitionResult {
        index,
        error: 0,
        high_watermark: 0x0102,
        last_stable_offset: 0x0101,
        log_start: 3,
        diverging: None,
        aborted: None,
        records,
    }
}

/// That of a partition that was not read.
fn refused(index: i32, error: ErrorCode) -> PartitionResult {
    let unknown =
        PartitionResult { high_watermark: -1, last_stable_offset: -1, log_start: -1, ..result(index, Vec::new()) };
    PartitionResult { error: error as i16, aborted: Some(Vec::new()), ..unknown }
}

fn part(size: usize, filling: u8) -> Piece {
    Piece::Part(Shared::from(vec![filling; size]))
}

fn joined(pieces: &[Piece]) -> Vec<u8> {
    pieces.iter().flat_map(AsRef::as_ref).copied().collect()
}

fn frame(pieces: &[&[u8]]) -> Vec<u8> {
    let rest = pieces.concat();
    [&(rest.len() as u32).to_be_bytes()[..], &rest].concat()
}

/// What stands for a result in version 12, after the index.
fn flexible(result: PartitionResult) -> Vec<u8> {
    let response = joined(&write(&header(12), vec![(&name(12), result)]));
    let begin = b"size\0\0\0\x09\0\0\0\0\x04\0\0\0\0\0\x07\x02\x04abc\x02\0\0\0\x05".len();
    response[begin..response.len() - b"\0\0".len()].to_vec()
}

#[test]
fn a_version_has_the_fields_that_it_knows() {
    let (watermark, stable, start) = (b"\0\0\0\0\0\0\x01\x02", b"\0\0\0\0\0\0\x01\x01", b"\0\0\0\0\0\0\0\x03");
    let topic: &[u8] = b"\0\0\0\x01\0\x03abc\0\0\0\x01\0\0\0\x05\0\0";
    let (throttle, session): (&[u8], &[u8]) = (b"\0\0\0\x04", b"\0\0\0\0\0\x07");
    let (none_aborted, no_replica): (&[u8], &[u8]) = (b"\xFF\xFF\xFF\xFF", b"\xFF\xFF\xFF\xFF");
    for version in VERSIONS {
        let mut plain = vec![&b"\0\0\0\x09"[..], throttle];
        let records = b"\0\0\0\x02xy";
        let expected = if version < 12 {
            plain.extend((version >= 7).then_some(session));
            plain.extend([topic, watermark, stable]);
            plain.extend((version >= 5).then_some(&start[..]));
            plain.push(none_aborted);
            plain.extend((version >= 11).then_some(no_replica));
            plain.push(records);
            frame(&plain)
        } else {
            let name: &[u8] = if version < 13 { b"\x04abc" } else { &[7; 16] };
            let begin = [b"\0\0\0\x09\0", throttle, session, b"\x02", name, b"\x02\0\0\0\x05\0\0"].concat();
            frame(&[&begin, watermark, stable, start, b"\0", no_replica, b"\x03xy\0\0\0"])
        };
        let made = Piece::Made(b"xy".to_vec());
        let pieces = write(&header(version), vec![(&name(version), result(5, vec![made]))]);
        assert_eq!(joined(&pieces), expected, "version {version}");
    }
}

#[test]
fn an_error_of_the_whole_request_stands_where_sessions_do() {
    let header = |version| Header { error: ErrorCode::FetchSessionIdNotFound as i16, session_id: 0, ..header(version) };
    let write = |version| joined(&write(&header(version), Vec::new()));
    assert_eq!(write(6), frame(&[b"\0\0\0\x09\0\0\0\x04\0\0\0\0"]));
    assert_eq!(write(7), frame(&[b"\0\0\0\x09\0\0\0\x04\0\x46\0\0\0\0\0\0\0\0"]));
    assert_eq!(write(12), frame(&[b"\0\0\0\x09\0\0\0\0\x04\0\x46\0\0\0\0\x01\0"]));
}

#[test]
fn a_partition_that_was_not_read_has_its_error_and_nothing_else() {
    let refused = refused(5, ErrorCode::OffsetOutOfRange);
    let expected = [b"\0\x01", UNKNOWN, UNKNOWN, UNKNOWN, b"\x01\xFF\xFF\xFF\xFF\x01\0"].concat();
    assert_eq!(flexible(refused), expected);
}

#[test]
fn clients_that_do_not_know_a_storage_error_get_one_that_passes() {
    for version in VERSIONS {
        let write = |code| joined(&write(&header(version), vec![(&name(version), refused(5, code))]));
        let (away, not_leader) = (write(ErrorCode::KafkaStorageError), write(ErrorCode::NotLeaderOrFollower));
        assert_eq!(away == not_leader, version < 6, "version {version}");
        assert_ne!(write(ErrorCode::CorruptMessage), not_leader);
    }
}

#[test]
fn aborted_transactions_are_listed_or_null() {
    let aborted = vec![Aborted { producer_id: 1, first_offset: 2 }, Aborted { producer_id: 3, first_offset: -1 }];
    let listed = |aborted| flexible(PartitionResult { aborted, ..result(5, Vec::new()) })[26..].to_vec();
    let number = |number: i64| number.to_be_bytes();
    let both = [b"\x03", &number(1)[..], &number(2), b"\0", &number(3), &number(-1), b"\0"].concat();
    assert_eq!(listed(Some(aborted)), [both, b"\xFF\xFF\xFF\xFF\x01\0".to_vec()].concat());
    assert_eq!(listed(Some(Vec::new())), b"\x01\xFF\xFF\xFF\xFF\x01\0");
    assert_eq!(listed(None), b"\0\xFF\xFF\xFF\xFF\x01\0");
}

#[test]
fn a_diverging_epoch_is_a_tagged_field_since_version_12() {
    let diverging = Some(EpochStart { epoch: 5, start: 0x0607 });
    let with = |version| {
        let result = PartitionResult { diverging, ..result(5, Vec::new()) };
        joined(&write(&header(version), vec![(&name(version), result)]))
    };
    let without = |version| joined(&write(&header(version), vec![(&name(version), result(5, Vec::new()))]));
    let field = b"\x01\x00\x0D\0\0\0\x05\0\0\0\0\0\0\x06\x07\0";
    for version in 12..=18 {
        let end = [&field[..], b"\0\0"].concat();
        assert!(with(version).ends_with(&end));
        assert_eq!(with(version).len(), without(version).len() + field.len() - 1);
    }
    assert_eq!(with(11), without(11));
}

#[test]
fn partitions_that_follow_one_another_are_of_one_topic() {
    let (abc, other) = (TopicName::Name("abc".into()), TopicName::Name("x".into()));
    let again = TopicName::Name("abc".into());
    let of = [(&abc, 0), (&again, 1), (&other, 0), (&abc, 2)];
    let results = of.map(|(name, index)| (name, refused(index, ErrorCode::UnknownTopicOrPartition)));
    let response = joined(&write(&header(4), results.into()));
    let row = |index: u8| [&[0, 0, 0, index, 0, 3][..], UNKNOWN, UNKNOWN, &[0; 8]].concat();
    let topics: [&[u8]; 3] = [b"\0\x03abc\0\0\0\x02", b"\0\x01x\0\0\0\x01", b"\0\x03abc\0\0\0\x01"];
    let begin = b"\0\0\0\x09\0\0\0\x04\0\0\0\x03";
    let expected = [begin, topics[0], &row(0), &row(1), topics[1], &row(0), topics[2], &row(2)];
    assert_eq!(response, frame(&expected));
}

#[test]
fn a_large_part_stays_where_it_is() {
    let shared = Shared::from(vec![b'r'; 1 << 20]);
    let records = vec![Piece::Made(vec![b'm'; 16]), Piece::Part(shared.part(100..1 << 20))];
    let pieces = write(&header(12), vec![(&name(12), result(5, records))]);
    let [first, Piece::Part(second), last] = &pieces[..] else { unreachable!("{} pieces", pieces.len()) };
    assert!(first.as_ref().ends_with(b"mmmm"));
    assert_eq!(second.as_ref().as_ptr(), shared.as_ref()[100..].as_ptr());
    assert_eq!(last.as_ref(), b"\0\0\0");
    let size = u32::from_be_bytes(first.as_ref()[..4].try_into().unwrap());
    assert_eq!(size as usize, joined(&pieces).len() - 4);
}

#[test]
fn there_is_no_piece_without_bytes() {
    let pieces = write(&header(12), vec![(&name(12), result(5, vec![part(5000, 1), part(0, 2), part(5000, 3)]))]);
    assert_eq!(pieces.iter().map(Piece::len).collect::<Vec<_>>(), [62, 5000, 5000, 3]);
    assert!(pieces.iter().all(|piece| !piece.is_empty()));
}

#[test]
fn large_bytes_that_were_made_stay_where_they_are() {
    let made = vec![b'm'; 1 << 20];
    let place = made.as_ptr();
    let pieces = write(&header(12), vec![(&name(12), result(5, vec![Piece::Made(made)]))]);
    assert_eq!(pieces.iter().map(|piece| piece.as_ref().as_ptr()).filter(|at| *at == place).count(), 1);
    assert_eq!(pieces.len(), 3);
}

#[test]
fn small_pieces_are_joined() {
    let records = |n: u8| vec![part(1000, n), Piece::Made(vec![n; 3]), part(0, n), part(4095, n), part(1, n)];
    let name = name(12);
    let results = (0..50).map(|index| (&name, result(index, records(index as u8)))).collect();
    let pieces = write(&header(12), results);
    assert_eq!(pieces.len(), 1);
    let response = joined(&pieces);
    assert!(response.ends_with(&[&[49; 5099][..], b"\0\0\0"].concat()));
}

#[test]
fn a_response_of_many_partitions_takes_what_they_take() {
    const PARTITIONS: usize = 100_000;
    let name = name(12);
    let results = |size| (0..).map(|index| (&name, result(index, vec![part(size, 1)]))).take(PARTITIONS).collect();
    let pieces = write(&header(12), results(1));
    assert_eq!(pieces.len(), 1);
    assert_eq!(pieces[0].len(), 29 + PARTITIONS * 38);
    let large = Shared::from(vec![1; 5000]);
    let results =
        (0..).map(|index| (&name, result(index, vec![Piece::Part(large.clone())]))).take(PARTITIONS).collect();
    let pieces = write(&header(12), results);
    assert_eq!(pieces.len(), 2 * PARTITIONS + 1);
}
