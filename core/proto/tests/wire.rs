//! Primitive types as clients send them and as none should.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use korvet_proto::wire::{ELEMENTS_MAX, Reader, STRING_BYTES_MAX, TAGGED_FIELDS_MAX, put_varint};
use proptest::collection::vec;
use proptest::prelude::*;

fn varint(number: u32) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, number);
    out
}

/// The length that a reader finds in `content`, of a string or of another type.
fn length(content: &[u8], flexible: bool, is_string: bool, nullable: bool) -> Result<Option<usize>, String> {
    Reader::new(0, flexible).length(content, "field", is_string, nullable).map_err(|why| why.to_string())
}

fn count(content: &[u8], flexible: bool) -> Result<Option<usize>, String> {
    Reader::new(0, flexible).count(content, "field", false).map_err(|why| why.to_string())
}

proptest! {
    #[test]
    fn a_varint_is_read_as_it_was_written(number: u32, missing in 1_usize..6) {
        let content = varint(number);
        let mut reader = Reader::new(0, true);
        prop_assert_eq!(reader.varint(&content), Ok(number));
        prop_assert_eq!(reader.position(), content.len());
        let cut = &content[..content.len().saturating_sub(missing)];
        prop_assert!(Reader::new(0, true).varint(cut).unwrap_err().to_string().contains("ends at byte"));
    }

    #[test]
    fn a_length_is_what_its_type_says_and_each_negative_one_is_null(number: i32) {
        let (plain, compact) = (number.to_be_bytes(), varint((number as u32).wrapping_add(1)));
        for (content, flexible) in [(&plain[..], false), (&compact, true)] {
            // The compact form of -1 is 0, and of -2 the largest number.
            prop_assert_eq!(length(content, flexible, false, true), Ok(usize::try_from(number).ok()));
            prop_assert_eq!(length(content, flexible, false, false).is_ok(), number >= 0);
        }
    }

    #[test]
    fn an_array_has_no_more_elements_than_bytes_are_left(left in 0_u32..200, more in 1_u32..9) {
        let frame = |count: u32| [varint(count + 1), vec![0; left as usize]].concat();
        prop_assert_eq!(count(&frame(left), true), Ok(Some(left as usize)));
        let refused = count(&frame(left + more), true).unwrap_err();
        prop_assert_eq!(refused, format!("field has length {}", left + more));
    }

    #[test]
    fn whatever_is_read_lies_in_the_frame(frame in vec(any::<u8>(), 0..99), flexible: bool, position in 0_usize..120) {
        let read = |read: &dyn Fn(&mut Reader) -> bool| {
            let mut reader = Reader::new(position, flexible);
            !read(&mut reader) || reader.position() <= frame.len()
        };
        prop_assert!(read(&|reader| reader.array::<8>(&frame).is_ok()));
        prop_assert!(read(&|reader| reader.bytes(&frame, usize::MAX).is_ok()));
        prop_assert!(read(&|reader| reader.skip_tags(&frame).is_ok()));
        prop_assert!(read(&|reader| reader.tag(&frame).is_ok_and(|(_, end)| end <= frame.len())));
    }
}

#[test]
fn a_varint_has_no_bits_beyond_32() {
    for content in [&b"\xff\xff\xff\xff\x10"[..], &b"\x80\x80\x80\x80\x80\x01"[..]] {
        assert_eq!(Reader::new(0, true).varint(content).unwrap_err().to_string(), "varint longer than 32 bits");
    }
}

#[test]
fn a_string_is_in_a_compact_form_no_longer_than_in_a_plain_one() {
    let longest = u32::try_from(STRING_BYTES_MAX).unwrap();
    assert_eq!(length(&i16::MAX.to_be_bytes(), false, true, false), Ok(Some(STRING_BYTES_MAX)));
    assert_eq!(length(&varint(longest + 1), true, true, false), Ok(Some(STRING_BYTES_MAX)));
    assert_eq!(length(&varint(longest + 2), true, true, false), Err("a string has length 32768".into()));
    assert_eq!(length(&varint(longest + 2), true, false, false), Ok(Some(STRING_BYTES_MAX + 1)));
}

#[test]
fn all_arrays_of_a_message_have_a_million_elements_together() {
    let half = u32::try_from(ELEMENTS_MAX / 2).unwrap();
    let frame = [varint(half + 1), varint(half + 1), varint(2), vec![0; ELEMENTS_MAX]].concat();
    let mut reader = Reader::new(0, true);
    for _ in 0..2 {
        assert_eq!(reader.count(&frame, "field", false), Ok(Some(ELEMENTS_MAX / 2)));
    }
    assert_eq!(reader.count(&frame, "field", false).unwrap_err().to_string(), "field has length 1");
}

#[test]
fn a_tagged_field_is_as_long_as_it_says() {
    let frame = b"\x01\x04abcd";
    let mut reader = Reader::new(0, true);
    let (tag, end) = reader.tag(frame).unwrap();
    assert_eq!((tag, end, reader.position()), (1, 6, 2));
    reader.bytes(frame, 3).unwrap();
    let refused = reader.end_tag("field", 2, end).unwrap_err();
    assert_eq!(refused.to_string(), "tagged field field has size 4 but takes 3 bytes");
    reader.bytes(frame, 1).unwrap();
    assert!(reader.end_tag("field", 2, end).is_ok());
}

#[test]
fn a_block_has_no_more_tagged_fields_than_a_message_defines() {
    for (count, is_read) in [(TAGGED_FIELDS_MAX, true), (TAGGED_FIELDS_MAX + 1, false)] {
        let frame = [varint(count), b"\x63\0".repeat(count as usize)].concat();
        let mut reader = Reader::new(0, true);
        assert_eq!(reader.skip_tags(&frame).is_ok(), is_read);
        assert_eq!(reader.position() == frame.len(), is_read);
    }
}
