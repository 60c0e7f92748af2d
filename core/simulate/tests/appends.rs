//! A thousand histories of producers and consumers, and faults that are planted in the owner of the core: each is found.

#![allow(clippy::panic)]

use korvet_simulate::{APPEND_FAULTS, run_appends, shrunk_appends};

const HISTORIES: u64 = 1_000;

#[test]
fn in_no_history_is_anything_lost_doubled_skipped_or_taken_back() {
    for seed in 0..HISTORIES {
        if run_appends(seed, None).is_err() {
            if let Some(failure) = shrunk_appends(seed, None) {
                panic!("{failure}");
            }
        }
    }
}

#[test]
fn each_fault_of_an_owner_is_found() {
    for fault in APPEND_FAULTS {
        let found = (0..HISTORIES).find_map(|seed| run_appends(seed, Some(fault)).err().map(|text| (seed, text)));
        let Some((seed, text)) = found else { panic!("{fault:?} is not found") };
        println!("{fault:?} is found with the seed {seed}: {text}");
    }
}

#[test]
fn one_seed_is_one_history() {
    for seed in 0..50 {
        assert_eq!(run_appends(seed, None), run_appends(seed, None), "{seed}");
    }
}
