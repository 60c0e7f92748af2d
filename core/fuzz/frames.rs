//! A client's bytes as they arrive: what is said of a frame holds when more of it comes, and its header and all that
//! a message is made of lie in it.

#![no_main]

use korvet_proto::Malformed;
use korvet_proto::frame::{Expected, announced, request_header};
use korvet_proto::wire::{ELEMENTS_MAX, Reader, text};

const SIZE_BYTES: usize = 4;
const EXPECTED: [Expected; 2] =
    [Expected::Request { produce_max: 1 << 20, other_max: 64 }, Expected::Token { max: 64 }];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for expected in EXPECTED {
        let whole = announced(data, expected);
        for received in (0..data.len()).filter_map(|size| data.get(..size)) {
            match announced(received, expected) {
                Ok(None) => {}
                before => assert_eq!(before, whole),
            }
        }
    }
    let Some(frame) = data.get(SIZE_BYTES..) else { return };
    for flexible_from in [None, Some(0), Some(9)] {
        let Ok(header) = request_header(frame, |_| flexible_from) else { continue };
        let (before, _message) = frame.split_at(header.body);
        assert_eq!(request_header(before, |_| flexible_from), Ok(header));
    }
    for flexible in [false, true] {
        let mut reader = Reader::new(0, flexible);
        let mut elements = 0;
        let _ = message(&mut reader, frame, flexible, &mut elements);
        assert!(reader.position() <= frame.len() && elements <= ELEMENTS_MAX);
    }
});

/// Read arrays within an array, of a number, a text and bytes, with tagged fields: the shape of most messages.
fn message(reader: &mut Reader, frame: &[u8], flexible: bool, elements: &mut usize) -> Result<(), Malformed> {
    for _ in 0..counted(reader, frame, elements)? {
        for _ in 0..counted(reader, frame, elements)? {
            reader.array::<4>(frame)?;
            if let Some(size) = reader.length(frame, "text", true, true)? {
                let _ = text(reader.bytes(frame, size)?);
            }
            let size = reader.length(frame, "records", false, false)?.unwrap_or(0);
            assert_eq!(reader.bytes(frame, size)?.len(), size);
        }
        for _ in 0..if flexible { reader.tag_count(frame)? } else { 0 } {
            let (tag, end) = reader.tag(frame)?;
            let begin = reader.position();
            match tag {
                0 => reader.array::<4>(frame).and_then(|_| reader.end_tag("tagged", begin, end))?,
                _ => reader.skip_to(end),
            }
        }
    }
    Ok(())
}

fn counted(reader: &mut Reader, frame: &[u8], elements: &mut usize) -> Result<usize, Malformed> {
    let count = reader.count(frame, "array", true)?.unwrap_or(0);
    *elements += count;
    Ok(count)
}
