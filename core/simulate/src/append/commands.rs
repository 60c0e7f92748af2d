//! Scripts as workers call them.

use korvet_proto::client::Piece;
use korvet_proto::pipeline::Packed;
use korvet_proto::produce;
use korvet_proto::resp::{Element, Elements, put_argument, put_count};
use korvet_proto::shared::Shared;

use super::model::Script;
use super::redis::sha;

fn text(script: Script, is_full: bool) -> produce::ScriptText {
    let sha = sha(script, is_full);
    produce::ScriptText { source: format!("text of {sha}"), sha }
}

/// A script in both of its texts.
pub(super) fn both(script: Script) -> produce::Script {
    produce::Script { text: text(script, false), when_full: text(script, true) }
}

/// A call of a script.
pub(super) fn command(script: Script, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
    let (sha, count) = (sha(script, false), keys.len().to_string());
    let words = [&["EVALSHA", sha.as_str(), count.as_str()], keys, arguments].concat();
    let mut packed = Vec::new();
    put_count(&mut packed, words.len());
    for word in words {
        put_argument(&mut packed, word.as_bytes());
    }
    packed
}

/// The bytes of a piece of one such call.
pub(super) fn own_packed(piece: &Piece, command: Vec<u8>) -> Packed<Shared> {
    let mut packed = Packed::default();
    if piece.way.loads {
        let sha = Elements::of(&command)
            .filter_map(|element| if let Element::Bulk(word) = element { Some(word.to_vec()) } else { None })
            .nth(1);
        let sha = String::from_utf8(sha.unwrap_or_default()).unwrap();
        put_count(&mut packed.text, 3);
        for word in ["SCRIPT", "LOAD", &format!("text of {sha}")] {
            put_argument(&mut packed.text, word.as_bytes());
        }
    }
    if piece.way.asks {
        put_count(&mut packed.text, 1);
        put_argument(&mut packed.text, b"ASKING");
    }
    packed.text.extend(command);
    packed
}
