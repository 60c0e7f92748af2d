//! What a certificate is read as.

#[path = "../src/der.rs"]
#[allow(dead_code)]
mod der;
#[allow(clippy::duplicate_mod)]
mod support;

use der::Parts;
use support::{CA, FAR, Issued};

#[test]
fn times_are_seconds_since_1970() {
    for (text, expected) in [
        ("20240229235959Z", Some(1_709_251_199)),
        (FAR, Some(4_102_444_799)),
        ("99991231235959Z", Some(253_402_300_799)),
        ("20240229235959", None),
        ("2024022923595xZ", None),
        ("202402292359Z", None),
    ] {
        let issued = Issued::new("CA", None, Some(CA), text);
        assert_eq!(Parts::of(&issued.certificate).map(|parts| *parts.validity.end()), expected, "{text}");
    }
}

#[test]
fn what_is_cut_off_anywhere_has_no_parts() {
    let issued = Issued::new("CA", None, Some(CA), FAR);
    assert!(Parts::of(&issued.certificate).is_some());
    for size in 0..issued.certificate.len() {
        assert!(issued.certificate.get(..size).and_then(Parts::of).is_none());
    }
    assert!(Parts::of(b"0\x84\xff\xff\xff\xff").is_none());
}

#[test]
fn what_was_changed_anywhere_is_read_or_refused() {
    let issued = Issued::new("CA", None, Some(CA), FAR);
    let mut read = 0;
    for index in 0..issued.certificate.len() {
        for value in [0, 1, 0x39, 0x7f, 0x80, 0x84, 0xff] {
            let mut changed = issued.certificate.clone();
            changed.splice(index..=index, [value]);
            read += usize::from(Parts::of(&changed).is_some());
        }
    }
    assert!(read > 0 && read < 7 * issued.certificate.len());
}
