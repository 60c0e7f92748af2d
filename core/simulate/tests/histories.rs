//! A thousand histories, and faults that are planted in the driver: each is found.

#![allow(clippy::panic)]

use korvet_simulate::{FAULTS, run, shrunk};

const HISTORIES: u64 = 1_000;

#[test]
fn no_history_fails() {
    for seed in 0..HISTORIES {
        if run(seed, None).is_err() {
            if let Some(failure) = shrunk(seed, None) {
                panic!("{failure}");
            }
        }
    }
}

#[test]
fn each_fault_of_a_driver_is_found() {
    for fault in FAULTS {
        let found = (0..HISTORIES).find_map(|seed| run(seed, Some(fault)).err().map(|text| (seed, text)));
        let Some((seed, text)) = found else { panic!("{fault:?} is not found") };
        println!("{fault:?} is found with the seed {seed}: {text}");
    }
}
