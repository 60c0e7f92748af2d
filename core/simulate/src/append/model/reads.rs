//! The commands of reads: HMGET, XRANGE and ZRANGEBYSCORE, as reads of logs send them.

use super::call::number;
use super::stream::{Id, Stream};
use super::{Model, Reply, stream_of};

/// A bound of a range, and whether it is of the range itself.
fn bound(text: &[u8]) -> (Id, bool) {
    let (is_exclusive, text) = text.strip_prefix(b"(").map_or((false, text), |text| (true, text));
    match text {
        b"-" => (Id::ZERO, true),
        b"+" => (Id::LAST, true),
        text => (Id::parsed(text).unwrap(), !is_exclusive),
    }
}

fn entries(stream: &Stream, words: &[Vec<u8>]) -> Vec<Reply> {
    let ((first, has_first), (last, has_last)) = (bound(&words[2]), bound(&words[3]));
    let most = words.get(5).and_then(|text| number(text)).map_or(usize::MAX, |count| count.max(0) as usize);
    // No entry has the id 0-0.
    let before = if has_first { first.before().unwrap_or(Id::ZERO) } else { first };
    let entries = stream.after(before).take_while(|(id, _)| *id < last || has_last && *id == last).take(most);
    entries
        .map(|(id, fields)| {
            let fields = fields.iter().cloned().map(Reply::Bulk).collect();
            Reply::Array(vec![Reply::text(id), Reply::Array(fields)])
        })
        .collect()
}

impl Model {
    /// Let a log end after the last entry of its stream, whosever that is.
    pub fn end_after_all(&mut self, key: &[u8]) {
        let log = self.log(key);
        let (Some(state), Some(stream)) = (&mut log.state, &log.stream) else { return };
        let ids = super::stream::Ids { bits: if stream.last_id.ms > 0 { 10 } else { 0 } };
        let last = stream.after(Id::ZERO).filter_map(|(id, _)| ids.end_of(id)).last();
        state.log.next = state.log.next.max(last.unwrap_or(0));
    }

    /// What Redis answers to a command that reads a key of a partition.
    pub fn query(&self, words: &[Vec<u8>]) -> Reply {
        let key = &words[1];
        let log = self.logs.get(stream_of(key));
        match words[0].as_slice() {
            b"HMGET" => {
                let fields = log.and_then(|log| log.state.as_ref()).map(super::State::named).unwrap_or_default();
                let field = |name: &Vec<u8>| {
                    let known = fields.iter().find(|(known, _)| known.as_bytes() == name);
                    known.and_then(|(_, text)| text.clone()).map_or(Reply::Null, Reply::Bulk)
                };
                Reply::Array(words[2..].iter().map(field).collect())
            }
            b"XRANGE" => {
                // Nothing is compacted: of the other streams there are none.
                let stream = log.and_then(|log| log.stream.as_ref()).filter(|_| stream_of(key) == key.as_slice());
                Reply::Array(stream.map(|stream| entries(stream, words)).unwrap_or_default())
            }
            b"ZRANGEBYSCORE" => {
                let (least, most) = (number(&words[2]).unwrap(), number(&words[6]).unwrap() as usize);
                let rows = log.map(|log| log.aborted.sorted()).unwrap_or_default();
                let rows = rows.into_iter().filter(|(score, _)| *score >= least).take(most);
                Reply::Array(rows.map(|(_, row)| Reply::text(row)).collect())
            }
            other => panic!("no read has {}", String::from_utf8_lossy(other)),
        }
    }
}
