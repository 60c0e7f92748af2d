//! Whatever is in the place of Redis, its replies are read to their end or refused.

use korvet_proto::log::{Known, Outcome, Read, Sent};
use korvet_proto::partition::Layout;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::batches::{Bytes, RECORDS};
use crate::support::{
    DENSE, Log, TOPIC_ID, array, bulk, committed, entry, exhaust, foreign, log, partition_of, record, sent, stored,
    texts,
};

const LAYOUTS: [Layout; 3] = [DENSE, RECORDS, Layout::Batch];

/// The most telling read of a log: it asks for the state, entries and aborted transactions.
fn asked(layout: Layout) -> (Read, Sent) {
    let read = committed(&partition_of(layout), 0);
    let mut known = Known::default();
    let (_, first) = sent(&read, &known);
    let state = Log { aborted: "5", ..log(9) };
    let entry = if layout == Layout::Batch { stored(1, &[b"v"]) } else { entry("0-1", &[("value", b"v")]) };
    let reply = array(&[state.reply(), array(&[entry])]);
    assert!(matches!(read.outcome(first, &reply.into(), &mut known), Outcome::Again(_)));
    let (count, sent) = sent(&read, &known);
    assert_eq!(count, 5);
    (read, sent)
}

fn right() -> Bytes {
    let state = Log { aborted: "5", epochs: "2@4 1@0", ..log(9) };
    let encoded = entry(
        "0-7",
        &[("key", b"k"), ("value", b"v"), ("timestamp", b"5"), ("korvet.encoding", b"lz4"), ("header.a", b"b")],
    );
    let marker = entry("0-8", &[("korvet.marker", b"abort"), ("korvet.producer", b"7:1"), ("timestamp", b"5")]);
    let entries = [record(2, b"v"), stored(4, &[b"a", b"b"]), foreign(5), encoded, marker];
    array(&[state.reply(), array(&entries), texts(&["7:0:2", "8:2:9"])])
}

fn element() -> impl Strategy<Value = Bytes> {
    let counts = select(vec!["*0", "*1", "*2", "*3", "*4", "*8", "*4294967295", "%1", "~2", ">2", "|1", "*-1"]);
    let others = select(vec![
        "$-1",
        ":5",
        ":-9223372036854775808",
        "+OK",
        "-ERR it is",
        "-MOVED 1 a:1",
        "_",
        "#t",
        ",1.5",
        "(5",
    ]);
    let words = select(vec![
        TOPIC_ID,
        "0-1",
        "0-9",
        "5-1",
        "0-",
        "",
        "batch",
        "value",
        "timestamp",
        "key",
        "header.x",
        "nullheader.y",
        "korvet.encoding",
        "korvet.producer",
        "korvet.marker",
        "7:1",
        "7:0:2",
        "lz4",
        "zstd",
        "5",
        "9@1",
    ]);
    prop_oneof![
        counts.prop_map(|text| format!("{text}\r\n").into_bytes()),
        others.prop_map(|text| format!("{text}\r\n").into_bytes()),
        words.prop_map(|text| bulk(text.as_bytes())),
        Just(log(9).reply()),
        Just(record(3, b"v")),
        Just(stored(4, &[b"a"])),
    ]
}

proptest! {
    #[test]
    fn any_elements_are_read_or_refused(elements in vec(element(), 0..40), layout in select(&LAYOUTS[..])) {
        let (read, sent) = asked(layout);
        exhaust(&elements.concat(), &read, sent);
        let begun = [&b"*3\r\n"[..], &log(9).reply(), &elements.concat()].concat();
        exhaust(&begun, &read, sent);
        exhaust(&[&begun[..], b"*0\r\n"].concat(), &read, sent);
    }

    #[test]
    fn any_change_of_a_reply_is_read_or_refused(
        place in 0..right().len(), byte in any::<u8>(), end in 0..right().len(), layout in select(&LAYOUTS[..])
    ) {
        let (read, sent) = asked(layout);
        let mut reply = right();
        exhaust(&reply[..end], &read, sent);
        reply[place] = byte;
        exhaust(&reply, &read, sent);
    }
}

#[test]
fn no_memory_is_taken_for_a_count() {
    let (read, sent) = asked(DENSE);
    let claims = [
        "*4294967295\r\n".to_owned(),
        format!("*3\r\n{}*4294967295\r\n", String::from_utf8_lossy(&texts(&[TOPIC_ID]))),
    ];
    for claim in claims {
        exhaust(claim.as_bytes(), &read, sent);
    }
    let state = Log { aborted: "5", ..log(9) }.reply();
    for rest in ["*4294967295\r\n", "*0\r\n*4294967295\r\n", "*1\r\n*2\r\n$3\r\n0-1\r\n*4294967294\r\n"] {
        exhaust(&[b"*3\r\n", &state[..], rest.as_bytes()].concat(), &read, sent);
    }
}
