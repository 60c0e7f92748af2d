//! Replies as a server sends them, whole, in pieces and damaged; commands as it reads them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use korvet_proto::Malformed;
use korvet_proto::resp::{
    BULK_BYTES_MAX, DEPTH_MAX, Element, Elements, Inbox, LINE_BYTES_MAX, Scanner, put_argument, put_count,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// A reply, to be written as RESP.
#[derive(Clone, Debug, PartialEq)]
enum Tree {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Half(i32),
    Boolean(bool),
    Big(String),
    Verbatim(String),
    Many(char, Vec<Tree>),
}

fn write(tree: &Tree, out: &mut Vec<u8>) {
    match tree {
        Tree::Simple(text) => out.extend(format!("+{text}\r\n").bytes()),
        Tree::Error(text) => out.extend(format!("-{text}\r\n").bytes()),
        Tree::Integer(number) => out.extend(format!(":{number}\r\n").bytes()),
        Tree::Bulk(bytes) => {
            out.extend(format!("${}\r\n", bytes.len()).bytes());
            out.extend(bytes);
            out.extend(b"\r\n");
        }
        Tree::Null => out.extend(b"_\r\n"),
        Tree::Half(number) => out.extend(format!(",{number}.5\r\n").bytes()),
        Tree::Boolean(is_true) => out.extend(if *is_true { b"#t\r\n" } else { b"#f\r\n" }),
        Tree::Big(digits) => out.extend(format!("({digits}\r\n").bytes()),
        Tree::Verbatim(text) => out.extend(format!("={}\r\ntxt:{text}\r\n", text.len() + 4).bytes()),
        Tree::Many(kind, trees) => {
            let count = if "%|".contains(*kind) { trees.len() / 2 } else { trees.len() };
            out.extend(format!("{kind}{count}\r\n").bytes());
            for tree in trees {
                write(tree, out);
            }
        }
    }
}

fn written(trees: &[Tree]) -> Vec<u8> {
    let mut out = Vec::new();
    for tree in trees {
        write(tree, &mut out);
    }
    out
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn read(elements: &mut Elements<'_>) -> Tree {
    let (kind, count) = match elements.next().unwrap() {
        Element::Simple(line) => return Tree::Simple(text(line)),
        Element::Error(line) => return Tree::Error(text(line)),
        Element::Integer(number) => return Tree::Integer(number),
        Element::Bulk(bytes) => return Tree::Bulk(bytes.to_vec()),
        Element::Null => return Tree::Null,
        Element::Double(number) => return Tree::Half((1..100).find(|half| f64::from(*half) > number - 1.0).unwrap()),
        Element::Boolean(is_true) => return Tree::Boolean(is_true),
        Element::BigNumber(digits) => return Tree::Big(text(digits)),
        Element::Verbatim(content) => return Tree::Verbatim(text(content)),
        Element::Array(count) => ('*', count),
        Element::Map(pairs) => ('%', pairs * 2),
        Element::Set(count) => ('~', count),
        Element::Push(count) => ('>', count),
        Element::Attribute(pairs) => ('|', pairs * 2),
    };
    Tree::Many(kind, (0..count).map(|_| read(elements)).collect())
}

fn trees() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        "[ -~]{0,20}".prop_map(Tree::Simple),
        "[ -~]{0,20}".prop_map(Tree::Error),
        any::<i64>().prop_map(Tree::Integer),
        vec(any::<u8>(), 0..40).prop_map(Tree::Bulk),
        Just(Tree::Null),
        (1..100).prop_map(Tree::Half),
        any::<bool>().prop_map(Tree::Boolean),
        "-?[0-9]{1,30}".prop_map(Tree::Big),
        "[ -~]{0,20}".prop_map(Tree::Verbatim),
    ];
    leaf.prop_recursive(6, 40, 6, |inner| {
        (prop::sample::select(vec!['*', '%', '~', '>']), vec(inner, 0..6)).prop_map(|(kind, mut trees)| {
            if kind == '%' && trees.len() % 2 == 1 {
                trees.pop();
            }
            Tree::Many(kind, trees)
        })
    })
}

fn scan(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    Scanner::default().scan(bytes)
}

/// Scan bytes in pieces; returns each whole reply, and the error after them, if there is one.
fn scan_in_pieces(bytes: &[u8], sizes: impl IntoIterator<Item = usize>) -> (Vec<Vec<u8>>, Option<Malformed>) {
    let (mut inbox, mut replies, mut left) = (Inbox::default(), Vec::new(), bytes);
    for size in sizes {
        let (piece, rest) = left.split_at(size.min(left.len()));
        inbox.room(piece.len()).unwrap().extend_from_slice(piece);
        left = rest;
        loop {
            match inbox.next_reply() {
                Ok(Some(range)) => replies.push(inbox.bytes()[range].to_vec()),
                Ok(None) => break,
                Err(malformed) => return (replies, Some(malformed)),
            }
        }
    }
    (replies, None)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn replies_in_pieces_are_those_that_were_written(trees in vec(trees(), 1..5), sizes in vec(1_usize..30, 1..30)) {
        let bytes = written(&trees);
        let (replies, malformed) = scan_in_pieces(&bytes, sizes.into_iter().cycle().take(bytes.len()));
        prop_assert_eq!(malformed, None);
        let read: Vec<Tree> = replies.iter().map(|reply| read(&mut Elements::of(reply))).collect();
        prop_assert_eq!(read, trees);
    }

    #[test]
    fn a_reply_is_whole_with_its_last_byte_and_not_before(tree in trees()) {
        let bytes = written(&[tree]);
        let mut scanner = Scanner::default();
        for end in 0..bytes.len() {
            prop_assert_eq!(scanner.scan(&bytes[..end]), Ok(None));
            prop_assert_eq!(scan(&bytes[..end]), Ok(None));
        }
        prop_assert_eq!(scanner.scan(&bytes), Ok(Some(bytes.len())));
    }

    #[test]
    fn damaged_bytes_are_the_same_in_pieces_as_whole(
        trees in vec(trees(), 1..4), index in any::<prop::sample::Index>(), byte: u8, sizes in vec(1_usize..9, 1..9)
    ) {
        let mut bytes = written(&trees);
        let position = index.index(bytes.len());
        bytes[position] = byte;
        let whole = scan_in_pieces(&bytes, [bytes.len()]);
        prop_assert_eq!(&scan_in_pieces(&bytes, sizes.into_iter().cycle().take(bytes.len())), &whole);
        for reply in whole.0 {
            skip_all(&reply);
        }
    }

    #[test]
    fn any_bytes_are_replies_or_refused(bytes in vec(prop::sample::select(b"*$:+-%|_\r\n0123t#,(=!~>".to_vec()), 0..60)) {
        // This looks for a panic; a whole reply is read to its end.
        if let Ok(Some(size)) = scan(&bytes) {
            skip_all(&bytes[..size]);
        }
    }

    #[test]
    fn arguments_are_read_as_they_were_written(arguments in vec(vec(any::<u8>(), 0..200), 1..9)) {
        let mut bytes = Vec::new();
        put_count(&mut bytes, arguments.len());
        for argument in &arguments {
            put_argument(&mut bytes, argument);
        }
        prop_assert_eq!(scan(&bytes), Ok(Some(bytes.len())));
        let read = read(&mut Elements::of(&bytes));
        prop_assert_eq!(read, Tree::Many('*', arguments.into_iter().map(Tree::Bulk).collect()));
    }
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

/// Read a reply, which has nothing after it.
fn skip_all(reply: &[u8]) {
    let mut elements = Elements::of(reply);
    skip(&mut elements);
    assert_eq!(elements.next(), None);
}

#[test]
fn nulls_of_resp2_blob_errors_and_infinities_are_what_they_are_in_resp3() {
    let cases: [(&[u8], Element<'_>); 8] = [
        (b"$-1\r\n", Element::Null),
        (b"*-1\r\n", Element::Null),
        (b"!5\r\nERR x\r\n", Element::Error(b"ERR x")),
        (b",inf\r\n", Element::Double(f64::INFINITY)),
        (b",1e3\r\n", Element::Double(1000.0)),
        (b":+5\r\n", Element::Integer(5)),
        (b":-9223372036854775808\r\n", Element::Integer(i64::MIN)),
        (b"*0\r\n", Element::Array(0)),
    ];
    for (bytes, element) in cases {
        assert_eq!(scan(bytes), Ok(Some(bytes.len())));
        assert_eq!(Elements::of(bytes).next(), Some(element));
    }
}

#[test]
fn an_attribute_stands_before_an_element_and_is_none_itself() {
    let bytes = b"*2\r\n|1\r\n+a\r\n:1\r\n:2\r\n|0\r\n:3\r\n";
    assert_eq!(scan(bytes), Ok(Some(bytes.len())));
    assert_eq!(scan(b"|1\r\n+a\r\n:1\r\n"), Ok(None));
    assert_eq!(scan(b"|1\r\n+a\r\n:1\r\n+OK\r\n"), Ok(Some(17)));
    skip_all(bytes);
}

#[test]
fn what_is_no_reply_is_refused() {
    let cases: [&[u8]; 26] = [
        b"HTTP/1.1 400\r\n",
        b"\r\n",
        b":\r\n",
        b":1x\r\n",
        b":9223372036854775808\r\n",
        b":-\r\n",
        b"$x\r\n",
        b"$-2\r\n",
        b"$+1\r\na\r\n",
        b"$1\r\nab\r\n",
        b"$?\r\n",
        b"*-2\r\n",
        b"*4294967296\r\n",
        b"*?\r\n",
        b"%-1\r\n",
        b"+a\rb\r\n",
        b"+a\n",
        b"_x\r\n",
        b"#x\r\n",
        b",\r\n",
        b",x\r\n",
        b"(12x\r\n",
        b"(\r\n",
        b"=3\r\nabc\r\n",
        b"=4\r\nabcd\r\n",
        b"!-1\r\n",
    ];
    for bytes in cases {
        assert!(scan(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn a_length_or_count_that_lies_takes_no_memory() {
    let mut inbox = Inbox::default();
    let largest = format!("*{}\r\n${BULK_BYTES_MAX}\r\nx", u32::MAX);
    inbox.room(largest.len()).unwrap().extend(largest.bytes());
    assert_eq!(inbox.next_reply(), Ok(None));
    assert!(inbox.room(1).unwrap().capacity() < 1000);
    assert!(scan(format!("${}\r\n", BULK_BYTES_MAX + 1).as_bytes()).is_err());
}

#[test]
fn aggregates_lie_in_each_other_to_a_depth() {
    let nested = |depth| format!("{}:1\r\n", "*1\r\n".repeat(depth));
    let deepest = nested(DEPTH_MAX);
    assert_eq!(scan(deepest.as_bytes()), Ok(Some(deepest.len())));
    assert!(scan(nested(DEPTH_MAX + 1).as_bytes()).is_err());
}

#[test]
fn a_line_has_a_longest_size_and_a_number_a_smaller_one() {
    let endless = "x".repeat(LINE_BYTES_MAX + 1);
    assert!(scan(format!("+{endless}").as_bytes()).is_err());
    assert_eq!(scan(format!("+{}", &endless[1..]).as_bytes()), Ok(None));
    assert!(scan(format!(":{}", "1".repeat(65)).as_bytes()).is_err());
    assert_eq!(scan(format!(":{}\n", "1".repeat(65)).as_bytes()), scan(format!(":{}", "1".repeat(65)).as_bytes()));
}

#[test]
fn a_line_that_is_too_long_is_refused_whole_as_in_pieces() {
    for (line, bytes_max) in [(":", 64), (",", 64), ("$", 64), ("*", 64), ("+", LINE_BYTES_MAX)] {
        let longest = format!("{line}{}\r\n", "0".repeat(bytes_max));
        assert_eq!(scan_in_pieces(longest.as_bytes(), [2, longest.len()]).1, None);
        let longer = format!("{line}{}\r\n", "0".repeat(bytes_max + 1));
        let whole = scan_in_pieces(longer.as_bytes(), [longer.len()]);
        assert!(whole.1.is_some() && whole == scan_in_pieces(longer.as_bytes(), [longer.len() - 2, 2]));
    }
}

#[test]
fn a_long_reply_byte_by_byte_is_looked_at_once() {
    // Bytes that are looked at again with each piece would be 5 * 10^11.
    let (line, string) = ("x".repeat(LINE_BYTES_MAX - 1), "y".repeat(1 << 20));
    let bytes = format!("*2\r\n+{line}\r\n$1048576\r\n{string}\r\n");
    let mut scanner = Scanner::default();
    for end in 0..bytes.len() {
        assert_eq!(scanner.scan(&bytes.as_bytes()[..end]), Ok(None));
    }
    assert_eq!(scanner.scan(bytes.as_bytes()), Ok(Some(bytes.len())));
}

#[test]
fn an_inbox_keeps_what_is_not_whole_and_frees_what_was_large() {
    let mut inbox = Inbox::default();
    let large = format!("${}\r\n{}\r\n:1", 3 << 20, "z".repeat(3 << 20));
    inbox.room(large.len()).unwrap().extend(large.bytes());
    assert_eq!(inbox.next_reply().unwrap().unwrap().end, large.len() - 2);
    assert_eq!(inbox.next_reply(), Ok(None));
    let (begin, capacity) = (inbox.bytes().len(), inbox.room(0).unwrap().capacity());
    inbox.room(capacity - begin + 1).unwrap().extend(b"2\r\n");
    let number = inbox.next_reply().unwrap().unwrap();
    assert_eq!(&inbox.bytes()[number], b":12\r\n");
    assert!(inbox.room(1).unwrap().capacity() < 1 << 20);
}
