//! Sizes and headers of frames, as clients send them and as none should.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use korvet_proto::frame::{Announced, Expected, RequestHeader, announced, request_header};
use korvet_proto::wire::MALFORMED_BYTES_MAX;
use proptest::collection::vec;
use proptest::prelude::*;

const PRODUCE_MAX: i32 = 100;
const OTHER_MAX: i32 = 50;
const REQUEST: Expected = Expected::Request { produce_max: PRODUCE_MAX as i64, other_max: OTHER_MAX as i64 };
const METADATA: i16 = 3;

fn sent(size: i32, api_key: i16) -> Vec<u8> {
    [&size.to_be_bytes()[..], &api_key.to_be_bytes()].concat()
}

fn refusal(received: &[u8], expected: Expected) -> String {
    announced(received, expected).unwrap_err().to_string()
}

/// In which version the header of any API becomes flexible.
type FlexibleFrom = fn(i16) -> Option<i16>;

const FLEXIBLE: FlexibleFrom = |_| Some(0);
const PLAIN: FlexibleFrom = |_| None;

/// A header with a client id of `size` bytes, so it says, which is `content`.
fn header(size: i16, content: &[u8]) -> Vec<u8> {
    [&18_i16.to_be_bytes()[..], &3_i16.to_be_bytes(), &(-7_i32).to_be_bytes(), &size.to_be_bytes(), content].concat()
}

proptest! {
    #[test]
    fn a_size_is_taken_up_to_the_limit_of_its_api(size: i32, api_key in -1_i16..3) {
        let max = if api_key == 0 { PRODUCE_MAX } else { OTHER_MAX };
        let found = announced(&sent(size, api_key), REQUEST);
        prop_assert_eq!(found.is_ok(), (8..=max).contains(&size));
        if let Ok(found) = found {
            let size = usize::try_from(size).unwrap();
            prop_assert_eq!(found, Some(Announced { size, api_key }));
        }
    }

    #[test]
    fn any_bytes_have_a_header_within_them_or_none(frame in vec(any::<u8>(), 0..100), is_flexible: bool) {
        if let Ok(header) = request_header(&frame, if is_flexible { FLEXIBLE } else { PLAIN }) {
            prop_assert!((10..=frame.len()).contains(&header.body));
        }
    }

    #[test]
    fn a_header_that_is_cut_off_is_refused(id in "[a-z\u{e9}]{0,20}", missing in 1_usize..30) {
        let size = i16::try_from(id.len()).unwrap();
        let whole = header(size, &[id.as_bytes(), b"\x01\x05\x02xy"].concat());
        let cut = &whole[..whole.len().saturating_sub(missing)];
        prop_assert!(request_header(cut, FLEXIBLE).is_err());
        let read = request_header(&whole, FLEXIBLE).unwrap();
        prop_assert_eq!((read.client_id.as_deref(), read.body), (Some(&id[..]), whole.len()));
    }
}

#[test]
fn a_size_that_no_api_may_have_is_refused_before_its_key_is_there() {
    for size in [i32::MIN, -1, 0, 7, 101, i32::MAX] {
        assert!(refusal(&size.to_be_bytes(), REQUEST).starts_with(&format!("a frame of {size} bytes ")));
    }
    for size in [8, OTHER_MAX + 1, PRODUCE_MAX] {
        for received in 0..6 {
            assert_eq!(announced(&sent(size, 0)[..received], REQUEST), Ok(None));
        }
    }
    assert!(refusal(&sent(OTHER_MAX + 1, METADATA), REQUEST).contains("above the limit of 50"));
}

#[test]
fn a_token_has_no_key_and_may_be_empty() {
    let token = Expected::Token { max: 50 };
    for size in [0_u8, 1, 50] {
        let found = announced(&[0, 0, 0, size], token);
        assert_eq!(found, Ok(Some(Announced { size: size.into(), api_key: -1 })));
    }
    assert_eq!(announced(&[0, 0, 0], token), Ok(None));
    assert!(refusal(&(-1_i32).to_be_bytes(), token).contains("holds no request"));
    assert!(refusal(&[0, 0, 0, 51], token).contains("above the limit of 50"));
}

#[test]
fn a_handshake_of_tls_is_named() {
    assert!(refusal(&[0x16, 3, 1, 2, 0, 1], REQUEST).contains("so begins TLS"));
}

#[test]
fn a_plain_header_ends_after_the_client_id() {
    let frame = header(5, b"caf\xc3\xa9body");
    let client_id = Some("caf\u{e9}".into());
    let expected = RequestHeader { api_key: 18, api_version: 3, correlation_id: -7, client_id, body: 15 };
    assert_eq!(request_header(&frame, PLAIN).unwrap(), expected);
}

#[test]
fn key_and_version_decide_which_header_it_is() {
    let frame = header(1, b"a\x01\x05\x02xybody");
    for (first, body) in [(None, 11), (Some(4), 11), (Some(3), 16)] {
        let asked = |api_key| {
            assert_eq!(api_key, 18);
            first
        };
        assert_eq!(request_header(&frame, asked).unwrap().body, body);
    }
}

#[test]
fn a_client_id_of_any_negative_length_is_null_and_an_empty_one_is_empty() {
    for length in [-1, -2, i16::MIN] {
        assert_eq!(request_header(&header(length, b"abc"), PLAIN).unwrap().client_id, None);
    }
    assert_eq!(request_header(&header(0, b"\0"), FLEXIBLE).unwrap().client_id.as_deref(), Some(""));
}

#[test]
fn a_client_id_that_is_no_utf_8_has_replacement_characters_and_a_long_one_is_refused() {
    let read = header(3, b"a\xff\xfe");
    assert_eq!(request_header(&read, PLAIN).unwrap().client_id.as_deref(), Some("a\u{fffd}\u{fffd}"));
    for (size, is_read) in [(MALFORMED_BYTES_MAX, true), (MALFORMED_BYTES_MAX + 1, false)] {
        let frame = header(i16::try_from(size).unwrap(), &vec![0xFF; size]);
        assert_eq!(request_header(&frame, PLAIN).is_ok(), is_read);
    }
}
