//! What a server sends: the same replies in pieces as whole, each read to its end, and never more than what came.

#![no_main]

use korvet_proto::Malformed;
use korvet_proto::resp::{Element, Elements, Inbox};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((size, bytes)) = data.split_first() else { return };
    let whole = replies(bytes, bytes.len().max(1));
    assert_eq!(replies(bytes, usize::from(*size).max(1)), whole);
    assert_eq!(replies(bytes, 1), whole);
    for reply in whole.0 {
        let mut elements = Elements::of(&reply);
        skip(&mut elements);
        assert_eq!(elements.next(), None);
    }
});

/// The replies among bytes that come in pieces of a size, and why there are no more.
fn replies(bytes: &[u8], size: usize) -> (Vec<Vec<u8>>, Option<Malformed>) {
    let (mut inbox, mut replies) = (Inbox::default(), Vec::new());
    for piece in bytes.chunks(size) {
        inbox.room(piece.len()).unwrap().extend_from_slice(piece);
        loop {
            match inbox.next_reply() {
                Ok(Some(range)) => replies.push(inbox.bytes()[range].to_vec()),
                Ok(None) => break,
                Err(malformed) => return (replies, Some(malformed)),
            }
        }
    }
    assert!(inbox.room(0).unwrap().capacity() <= 2 * bytes.len() + 64);
    (replies, None)
}

fn skip(elements: &mut Elements<'_>) {
    let count = match elements.next().unwrap() {
        Element::Array(count) | Element::Set(count) | Element::Push(count) => count,
        Element::Map(pairs) => pairs * 2,
        Element::Attribute(pairs) => pairs * 2 + 1,
        _ => 0,
    };
    for _ in 0..count {
        skip(elements);
    }
}
