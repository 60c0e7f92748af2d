//! The state of a log: what its fields say, and which are refused.

use korvet_proto::ErrorCode::{KafkaStorageError, UnknownTopicOrPartition};
use korvet_proto::failure::{Failure, FailureKind};
use korvet_proto::log::{Epochs, Remote, STATE_FIELDS, State};
use korvet_proto::resp::Elements;

use crate::support::{Counters, DENSE, Log, TOPIC_ID, array, bulk, log, partition_of, texts};

const END: i64 = 1 << 53;

fn read(reply: &[u8]) -> Result<State, Failure> {
    let mut elements = Elements::of(reply);
    let state = State::read(&partition_of(DENSE), &mut elements);
    assert!(state.is_err() || elements.next().is_none(), "the whole reply is read");
    state
}

fn refusal(reply: &[u8]) -> String {
    let failure = read(reply).unwrap_err();
    assert_eq!((failure.code, failure.kind), (KafkaStorageError, FailureKind::Rule));
    failure.message
}

#[test]
fn every_field_has_its_place() {
    let counters = Counters {
        end: 1 << 53,
        start: 5,
        first: 6,
        remote_start: 3,
        bytes: 1 << 53,
        records: 8,
        entries: 9,
        largest: END,
        interval: 10,
        epoch: i32::MAX,
        moving: 1,
    };
    let fields = Log {
        counters,
        topic: TOPIC_ID,
        clean: "1",
        clean_end: "7",
        archived: "4",
        epochs: "9@40 5@10",
        open: "30",
        aborted: "20",
    };
    let state = State {
        end: END,
        start: 5,
        first: Some(6),
        largest: END,
        is_moving: true,
        segment: Some(1),
        compacted_end: 7,
        remote_start: Some(3),
        archived: 4,
        epochs: Epochs::parse(b"9@40 5@10").unwrap(),
        open: Some(30),
        last_aborted: 20,
    };
    assert_eq!(read(&fields.reply()).unwrap(), state);
    assert_eq!(state.remote(), Some(Remote { start: 3, end: 5, archived: 4 }));
}

#[test]
fn a_log_that_has_nothing_has_no_other_fields() {
    let state = State {
        end: 0,
        start: 0,
        first: None,
        largest: -1,
        is_moving: false,
        segment: None,
        compacted_end: 0,
        remote_start: None,
        archived: 0,
        epochs: Epochs::default(),
        open: None,
        last_aborted: -1,
    };
    let mut empty = log(0);
    empty.counters.largest = -1;
    assert_eq!(read(&empty.reply()).unwrap(), state);
    assert_eq!(state.remote(), None);
}

#[test]
fn a_start_in_the_remote_tier_past_that_in_redis_is_the_start() {
    let mut expired = log(9);
    expired.counters = Counters { start: 3, first: 0, remote_start: 5, ..expired.counters };
    let state = read(&expired.reply()).unwrap();
    assert_eq!((state.start, state.remote_start, state.remote()), (5, Some(5), None));
}

#[test]
fn the_state_of_another_topic_of_the_name_or_of_none_is_none() {
    for topic in ["", "another", "BwcHB", "BwcHBww"] {
        let failure = read(&Log { topic, ..log(3) }.reply()).unwrap_err();
        let message = "korvet:orders:3 does not belong to topic id BwcHBw";
        assert_eq!(failure, Failure::rule(UnknownTopicOrPartition, message));
    }
    assert_eq!(read(&texts(&[])).unwrap_err().code, UnknownTopicOrPartition);
}

#[test]
fn counters_that_contradict_each_other_are_malformed() {
    let right = Counters { largest: 10, interval: 10, moving: 1, ..log(5).counters };
    assert!(read(&Log { counters: right, ..log(5) }.reply()).is_ok());
    let far = END as u64 + 1;
    let wrong = [
        Counters { end: far, ..right },
        Counters { bytes: far, ..right },
        Counters { records: far, ..right },
        Counters { entries: u64::MAX, ..right },
        Counters { start: 6, ..right },
        Counters { start: u64::MAX, ..right },
        Counters { first: 6, ..right },
        Counters { remote_start: 6, ..right },
        Counters { largest: END + 1, ..right },
        Counters { interval: 11, ..right },
        Counters { moving: 2, ..right },
    ];
    for counters in wrong {
        assert_eq!(refusal(&Log { counters, ..log(5) }.reply()), "korvet:orders:3:state: a field is malformed");
    }
    let packed = right.packed();
    for wrong in [&packed[1..], &[&packed[..], b"\0"].concat(), b"", b"text"] {
        let mut fields = vec![bulk(TOPIC_ID.as_bytes()), bulk(wrong)];
        fields.resize(STATE_FIELDS.len(), b"$-1\r\n".to_vec());
        assert_eq!(refusal(&array(&fields)), "korvet:orders:3:state: a field is malformed");
    }
}

#[test]
fn a_field_that_is_no_number_or_names_no_stream_is_malformed() {
    let right = log(5);
    for wrong in [
        Log { clean: "2", ..right },
        Log { clean_end: "x", ..right },
        Log { archived: "1.5", ..right },
        Log { epochs: "1", ..right },
        Log { open: "9223372036854775808", ..right },
        Log { aborted: "-", ..right },
    ] {
        assert_eq!(refusal(&wrong.reply()), "korvet:orders:3:state: a field is malformed");
    }
}

#[test]
fn what_is_no_reply_to_hmget_is_malformed() {
    let fields = |count: usize| texts(&vec![TOPIC_ID; count]);
    for wrong in [fields(1), fields(7), fields(9)] {
        assert_eq!(refusal(&wrong), "korvet:orders:3:state: a field is malformed");
    }
    for wrong in [&b"+OK\r\n"[..], b"$-1\r\n", b"*-1\r\n", b":5\r\n", b"%1\r\n:1\r\n:1\r\n", b""] {
        assert_eq!(refusal(wrong), "korvet:orders:3:state: the answer is malformed");
    }
}

#[test]
fn an_error_of_redis_is_one_of_the_key_or_of_redis() {
    let wrong_type = "WRONGTYPE Operation against a key holding the wrong kind of value";
    let failure = read(format!("-{wrong_type}\r\n").as_bytes()).unwrap_err();
    assert_eq!(
        failure,
        Failure::rule(KafkaStorageError, format!("korvet:orders:3:state: Redis answered {wrong_type}"))
    );
    let loading = read(b"-LOADING Redis is loading the dataset in memory\r\n").unwrap_err();
    assert_eq!(loading.kind, FailureKind::Unavailable);
}
