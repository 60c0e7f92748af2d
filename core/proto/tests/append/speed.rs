//! How long a batch takes. Of a release on an idle machine, so it runs by name alone:
//!   cargo test --release -p korvet-proto --test append -- --ignored --nocapture

use std::hint::black_box;
use std::time::{Duration, Instant};

use korvet_proto::append::{AtRest, Layout, Number, TopicConfig, prepare, put_call};
use korvet_proto::compression::Codec;
use korvet_proto::pipeline::Packed;

use crate::support::{CONFIG, RECORDS, RULES, SHA, batch, in_frame, partition, valued};

const ROUNDS: u32 = 20;
const CALLS: u32 = 500;

/// The time of a call, in the fastest round.
fn time_of(mut call: impl FnMut()) -> Duration {
    let round = |_| {
        let begun = Instant::now();
        (0..CALLS).for_each(|_| call());
        begun.elapsed() / CALLS
    };
    (0..ROUNDS).map(round).min().unwrap()
}

#[test]
#[ignore = "it measures"]
fn a_batch_of_16_kib_takes_20_us_as_records_and_6_us_as_a_batch() {
    for (name, layout, most_us) in [("record", RECORDS, 20), ("batch", Layout::Batch, 6)] {
        for (value_bytes, codec) in [(100, None), (1_024, Some(Codec::Lz4)), (1_024, Some(Codec::Zstd)), (4_096, None)]
        {
            let config = TopicConfig { at_rest: AtRest { codec, min_bytes: 1_024 }, ..CONFIG };
            let value: Vec<u8> = (0..value_bytes).map(|n| b'a' + (n * 7 % 23) as u8).collect();
            let sent = in_frame(&batch(&vec![valued(&value); (16 << 10) / (value_bytes + 9)]));
            let partition = partition(layout, config);
            let prepared = || prepare(&partition, Some(&sent), Number::NotTransactional, &RULES).unwrap();
            let time = time_of(|| drop(black_box(prepared())));
            let batch = prepared();
            let call = time_of(|| {
                let mut packed = Packed::default();
                put_call(&mut packed, SHA, 0, 0, &[&batch]);
                black_box(packed);
            });
            println!("{name}, values of {value_bytes} bytes, at rest {codec:?}: prepare {time:?}, put_call {call:?}");
            assert!(codec.is_some() || time < Duration::from_micros(most_us));
        }
    }
}
