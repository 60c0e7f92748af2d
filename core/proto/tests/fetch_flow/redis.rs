//! As much of Redis as reads of logs see of it.

use std::collections::BTreeMap;

use korvet_proto::log::STATE_FIELDS;
use korvet_proto::partition::{Layout, Partition};
use korvet_proto::resp::{Element, Elements};

/// The attributes of a batch of a transaction, and of a marker.
pub const TRANSACTIONAL: i16 = 0x10;
pub const CONTROL: i16 = 0x20;

/// An entry of a stream, by the offset just past it.
#[derive(Clone, Debug)]
pub struct Entry {
    pub end: i64,
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A log: its stream and its state.
#[derive(Clone, Debug)]
pub struct Log {
    pub topic_id: String,
    pub entries: Vec<Entry>,
    pub start: i64,
    pub end: i64,
    pub epochs: String,
    pub open: Option<i64>,
    /// Of aborted transactions: the offset of the marker, and the row.
    pub rows: Vec<(i64, String)>,
    pub is_moving: bool,
    /// Where it starts in the remote tier, -1 if nothing was archived.
    pub remote_start: i64,
    /// What its field `log` has instead.
    pub wrong: Option<Vec<u8>>,
}

impl Log {
    pub fn new(topic_id: &str) -> Self {
        Self {
            topic_id: topic_id.into(),
            entries: Vec::new(),
            start: 0,
            end: 0,
            epochs: String::new(),
            open: None,
            rows: Vec::new(),
            is_moving: false,
            remote_start: -1,
            wrong: None,
        }
    }

    /// Append an entry of so many offsets.
    pub fn append(&mut self, count: i64, fields: &[(&str, &[u8])]) {
        let owned = fields.iter().map(|(name, content)| (name.as_bytes().to_vec(), content.to_vec()));
        self.end += count;
        self.entries.push(Entry { end: self.end, fields: owned.collect() });
    }

    /// Delete what ends at an offset or below.
    pub fn delete_until(&mut self, start: i64) {
        self.start = self.start.max(start.min(self.end));
        self.entries.retain(|entry| entry.end > self.start);
        self.rows.retain(|(marker, _)| *marker >= self.start);
    }

    /// Lose what ends past an offset, which must be the end of an entry.
    pub fn cut(&mut self, end: i64) {
        self.entries.retain(|entry| entry.end <= end);
        self.rows.retain(|(marker, _)| *marker < end);
        (self.end, self.start) = (end, self.start.min(end));
    }

    fn state(&self) -> Vec<Option<Vec<u8>>> {
        let first = if self.end > self.start { self.start } else { -1 };
        let last_aborted = self.rows.iter().map(|(marker, _)| *marker).max();
        let number = |number: Option<i64>| number.map(|number| number.to_string().into_bytes());
        vec![
            Some(self.topic_id.clone().into_bytes()),
            Some(self.wrong.clone().unwrap_or_else(|| self.packed(first))),
            None,
            None,
            None,
            Some(self.epochs.clone().into_bytes()),
            number(self.open),
            number(last_aborted),
        ]
    }

    fn packed(&self, first: i64) -> Vec<u8> {
        let mut packed = Vec::new();
        for number in [self.end, self.start, first, self.remote_start, 0, 0, 0, -1, -1] {
            packed.extend_from_slice(&number.to_be_bytes());
        }
        packed.extend(0_i32.to_be_bytes());
        packed.push(u8::from(self.is_moving));
        packed
    }
}

/// A server, or all nodes of a cluster.
#[derive(Default)]
pub struct Redis {
    pub logs: BTreeMap<String, Log>,
    /// How often each command was run on which key, since that was last taken.
    pub ran: Vec<(String, String)>,
}

impl Redis {
    pub fn create(&mut self, partition: &Partition) {
        self.logs.insert(partition.keys.stream.to_string(), Log::new(&partition.topic.id_text));
    }

    pub fn log(&mut self, stream: &str) -> &mut Log {
        self.logs.get_mut(stream).unwrap()
    }

    /// Run commands; returns a reply to each.
    pub fn run(&mut self, text: &[u8], layout: impl Fn(&str) -> Layout) -> Vec<Vec<u8>> {
        let (mut replies, mut queued, mut is_queueing) = (Vec::new(), Vec::new(), false);
        let mut elements = Elements::of(text);
        while let Some(Element::Array(words)) = elements.next() {
            let word = |element: Option<Element<'_>>| match element {
                Some(Element::Bulk(word)) => String::from_utf8(word.to_vec()).unwrap(),
                other => panic!("{other:?}"),
            };
            let words: Vec<String> = (0..words).map(|_| word(elements.next())).collect();
            match &*words[0] {
                "MULTI" => {
                    is_queueing = true;
                    replies.push(b"+OK\r\n".to_vec());
                }
                "EXEC" => {
                    is_queueing = false;
                    replies.push([array(queued.len()), std::mem::take(&mut queued).concat()].concat());
                }
                _ => {
                    let reply = self.reply(&words, &layout);
                    if is_queueing {
                        queued.push(reply);
                        replies.push(b"+QUEUED\r\n".to_vec());
                    } else {
                        replies.push(reply);
                    }
                }
            }
        }
        replies
    }

    fn reply(&mut self, words: &[String], layout: impl Fn(&str) -> Layout) -> Vec<u8> {
        let stream = words[1].split('/').next().unwrap();
        self.ran.push((words[0].clone(), stream.to_owned()));
        let log = self.logs.get(stream);
        match &*words[0] {
            "HMGET" => {
                assert_eq!(words[2..], STATE_FIELDS.map(str::to_owned));
                let state = log.map_or_else(|| vec![None; STATE_FIELDS.len()], Log::state);
                let fields = state.into_iter().map(|field| field.map_or(b"$-1\r\n".to_vec(), |field| bulk(&field)));
                [array(STATE_FIELDS.len()), fields.collect::<Vec<_>>().concat()].concat()
            }
            "XRANGE" => {
                assert_eq!(layout(stream), Layout::Batch);
                let (_, after) = words[2].split_once('-').unwrap();
                let (after, most): (i64, usize) = (after.parse().unwrap(), words[5].parse().unwrap());
                let entries = log.into_iter().flat_map(|log| &log.entries).filter(|entry| entry.end > after);
                let entries: Vec<Vec<u8>> = entries.take(most).map(entry_reply).collect();
                [array(entries.len()), entries.concat()].concat()
            }
            "ZRANGEBYSCORE" => {
                let (least, most): (i64, usize) = (words[2].parse().unwrap(), words[6].parse().unwrap());
                let rows = log.into_iter().flat_map(|log| &log.rows).filter(|(marker, _)| *marker >= least);
                let rows: Vec<Vec<u8>> = rows.take(most).map(|(_, row)| bulk(row.as_bytes())).collect();
                [array(rows.len()), rows.concat()].concat()
            }
            other => panic!("{other}"),
        }
    }

    /// What was run since this was last called: the commands on each stream.
    pub fn take_ran(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.ran)
    }
}

fn entry_reply(entry: &Entry) -> Vec<u8> {
    let id = bulk(format!("0-{}", entry.end).as_bytes());
    let fields: Vec<Vec<u8>> = entry.fields.iter().flat_map(|(name, content)| [bulk(name), bulk(content)]).collect();
    [array(2), id, array(fields.len()), fields.concat()].concat()
}

pub fn array(count: usize) -> Vec<u8> {
    format!("*{count}\r\n").into_bytes()
}

pub fn bulk(content: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", content.len()).as_bytes(), content, b"\r\n"].concat()
}
