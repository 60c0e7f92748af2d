//! Frames of Fetch of all versions as Korvet's declarations give them (tests/protocol/fetch_frames.py): requests, of which
//! every second is damaged, and responses.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::fmt::Write;
use std::str::SplitWhitespace;

use korvet_proto::fetch::{Header, PartitionResult, Request, read, write};
use korvet_proto::log::{Aborted, EpochStart};
use korvet_proto::partition::TopicName;
use korvet_proto::shared::{Piece, Shared};

const FRAMES: &str = include_str!("fetch_frames.txt");

/// The lines of a kind: the frame, and what it holds.
fn lines(kind: &str) -> impl Iterator<Item = (Vec<u8>, &'static str)> {
    let lines = FRAMES.lines().filter_map(move |line| line.strip_prefix(kind)?.strip_prefix(' '));
    lines.map(|line| line.split_once(' ').map(|(frame, holds)| (bytes_of(frame), holds)).unwrap())
}

fn bytes_of(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn text_of(bytes: &[u8]) -> String {
    bytes.iter().fold("+".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

fn name_of(name: &TopicName) -> String {
    match name {
        TopicName::Name(name) => text_of(name.as_bytes()),
        TopicName::Id(id) => text_of(id),
    }
}

/// What a request holds, as the file has it.
fn text(request: &Request) -> String {
    let client_id = request.client_id.as_ref().map_or("-".to_owned(), |id| text_of(id.as_bytes()));
    let mut text = format!("{} {} {client_id} {}", request.version, request.correlation_id, request.replica_id);
    let numbers = [request.max_wait_ms, request.min_bytes, request.max_bytes, request.is_committed.into()];
    let session = [request.session_id, request.session_epoch, request.topics.len() as i32];
    let mut put = |value: &dyn std::fmt::Display| write!(text, " {value}").unwrap();
    numbers.iter().chain(&session).for_each(|number| put(number));
    for topic in &request.topics {
        put(&name_of(&topic.name));
        put(&topic.partitions.len());
        for partition in &topic.partitions {
            put(&partition.index);
            put(&partition.current_leader_epoch);
            put(&partition.fetch_offset);
            put(&partition.last_fetched_epoch);
            put(&partition.partition_max_bytes);
        }
    }
    put(&request.forgotten.len());
    for topic in &request.forgotten {
        put(&name_of(&topic.name));
        put(&topic.partitions.len());
        topic.partitions.iter().for_each(|index| put(index));
    }
    text
}

/// The next number.
fn next<T: TryFrom<i64>>(holds: &mut SplitWhitespace<'_>) -> T {
    holds.next().unwrap().parse::<i64>().ok().and_then(|number| number.try_into().ok()).unwrap()
}

fn result(holds: &mut SplitWhitespace<'_>) -> PartitionResult {
    let (index, error) = (next(holds), next(holds));
    let (high_watermark, last_stable_offset, log_start) = (next(holds), next(holds), next(holds));
    let has_diverged = next::<i32>(holds) == 1;
    let diverging = has_diverged.then(|| EpochStart { epoch: next(holds), start: next(holds) });
    let aborted = usize::try_from(next::<i64>(holds)).ok();
    let aborted = aborted.map(|count| {
        (0..count).map(|_| Aborted { producer_id: next(holds), first_offset: next(holds) }).collect::<Vec<_>>()
    });
    let records = (0..next(holds)).map(|number: usize| {
        let size: usize = next(holds);
        let bytes: Vec<u8> = (0..size).map(|place| (31 * place + size) as u8).collect();
        if number % 2 == 0 { Piece::Part(Shared::from(bytes)) } else { Piece::Made(bytes) }
    });
    let records = records.collect();
    PartitionResult { index, error, high_watermark, last_stable_offset, log_start, diverging, aborted, records }
}

#[test]
fn requests_are_read_as_they_are_declared_and_what_is_no_request_is_refused_for_the_same_reason() {
    let mut counts = [0, 0];
    for (frame, holds) in lines("request") {
        let outcome = match read(&frame) {
            Ok(request) => text(&request),
            Err(why) => format!("malformed: {why}"),
        };
        assert_eq!(outcome, holds, "{}", text_of(&frame));
        counts[usize::from(holds.starts_with("malformed"))] += 1;
    }
    assert!(counts.iter().all(|count| *count > 30), "{counts:?}");
}

#[test]
fn responses_are_written_as_they_are_declared() {
    let mut count = 0;
    for (frame, holds) in lines("response") {
        let holds = &mut holds.split_whitespace();
        let (version, correlation_id, throttle_ms) = (next(holds), next(holds), next(holds));
        let header = Header { version, correlation_id, throttle_ms, error: next(holds), session_id: next(holds) };
        let named = |number: u8| match version {
            ..13 => TopicName::Name(format!("topic-{number}\u{20ac}").into()),
            _ => TopicName::Id([number; 16]),
        };
        let results: Vec<(TopicName, PartitionResult)> =
            (0..next::<usize>(holds)).map(|_| (named(next(holds)), result(holds))).collect();
        let pieces = write(&header, results.iter().map(|(name, result)| (name, result.clone())).collect());
        assert_eq!(pieces.iter().flat_map(AsRef::as_ref).copied().collect::<Vec<u8>>(), frame);
        count += 1;
    }
    assert!(count > 50, "{count}");
}
