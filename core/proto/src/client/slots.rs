//! The slots of a Redis Cluster: of which a key is, and which node is the master of each ("Redis cluster specification").

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Address, NodeId, Time};
use crate::resp::{Element, Elements};

/// How many there are.
pub const SLOTS: u16 = 16_384;
/// How often the map is read at the most because requests fail.
const READ_PAUSE: Duration = Duration::from_millis(100);
/// How long a MOVED is believed against a map: that of a node which has not heard of it yet is old.
pub(crate) const MOVED_TRUSTED: Duration = Duration::from_secs(1);

/// The slot of a key: of what stands in its first pair of braces, if there is something.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = || {
        let (_, after) = key.split_at_checked(key.iter().position(|byte| *byte == b'{')? + 1)?;
        after.get(..after.iter().position(|byte| *byte == b'}')?).filter(|tag| !tag.is_empty())
    };
    crc16(tag().unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let [high, _] = crc.to_be_bytes();
        let row = CRC_TABLE.get(usize::from(high ^ byte)).copied().unwrap_or_default();
        crc << 8 ^ row
    })
}

#[allow(clippy::indexing_slicing)] // within the table, at compile time
const CRC_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// A range of slots, both ends included, and the address of its master.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub first: u16,
    pub last: u16,
    pub master: Address,
}

/// The ranges of an answer to CLUSTER SLOTS of the node at `asked`. Fails with the reason.
pub(crate) fn parsed_ranges(reply: &[u8], asked: &Address) -> Result<Vec<Range>, String> {
    let mut reader = Reader(Elements::of(reply));
    let count = match reader.0.next() {
        Some(Element::Array(count)) => count,
        Some(Element::Error(text)) => return Err(format!("gives no slots: {}", String::from_utf8_lossy(text))),
        _ => return Err("gives no slots of a cluster".to_owned()),
    };
    if count == 0 {
        // Such is a node that left the cluster: it knows no other one.
        return Err("is of no cluster whose slots it knows".to_owned());
    }
    let mut ranges = Vec::new();
    for _ in 0..count {
        let range = reader.range(asked).ok_or("gives slots in a form that is unknown")?;
        // To a master that has no port nobody can connect.
        ranges.extend(Some(range).filter(|range| range.master.port > 0));
    }
    Ok(ranges)
}

struct Reader<'a>(Elements<'a>);

impl<'a> Reader<'a> {
    fn range(&mut self, asked: &Address) -> Option<Range> {
        let count = self.array()?;
        let (first, last) = (self.slot()?, self.slot()?);
        let master = self.node(asked)?;
        for _ in 3..count {
            self.skip()?;
        }
        (first <= last).then_some(Range { first, last, master })
    }

    /// The address of a node: its host, or where it is to be called by a name that it does not have, its IP.
    fn node(&mut self, asked: &Address) -> Option<Address> {
        let count = self.array()?;
        let host = match self.0.next()? {
            Element::Bulk(host) => Some(host),
            Element::Null => None,
            _ => return None,
        };
        let Element::Integer(port) = self.0.next()? else { return None };
        let mut ip: &[u8] = b"";
        for place in 2..count {
            if place == 3 { ip = self.ip()? } else { self.skip()? }
        }
        let name = if host == Some(b"?") { Some(ip) } else { host };
        // A node that does not know its own name leaves it to the client.
        let name = name.filter(|name| !name.is_empty()).map(|name| String::from_utf8_lossy(name).into_owned());
        Some(Address { host: name.unwrap_or_else(|| asked.host.clone()), port: u16::try_from(port).ok()? })
    }

    /// The value after `ip` in the other names of a node; empty if there is none.
    fn ip(&mut self) -> Option<&'a [u8]> {
        let (element, mut found): (_, &[u8]) = (self.0.next()?, b"");
        let words = match element {
            Element::Array(count) => count,
            Element::Map(pairs) => pairs * 2,
            _ => return None,
        };
        let mut is_ip = false;
        for _ in 0..words {
            let Element::Bulk(word) = self.0.next()? else { return None };
            if is_ip {
                found = word;
            }
            is_ip = !is_ip && word == b"ip";
        }
        Some(found)
    }

    fn array(&mut self) -> Option<usize> {
        match self.0.next()? {
            Element::Array(count) => Some(count),
            _ => None,
        }
    }

    fn slot(&mut self) -> Option<u16> {
        match self.0.next()? {
            Element::Integer(number) => u16::try_from(number).ok().filter(|slot| *slot < SLOTS),
            _ => None,
        }
    }

    fn skip(&mut self) -> Option<()> {
        let mut left = 1_usize;
        while left > 0 {
            left -= 1;
            left += match self.0.next()? {
                Element::Array(count) | Element::Set(count) => count,
                Element::Map(pairs) => pairs * 2,
                _ => 0,
            };
        }
        Some(())
    }
}

/// Which node is the master of which slot, as far as is known.
#[derive(Debug)]
pub(crate) struct SlotMap {
    masters: Vec<Option<NodeId>>,
    /// Changes with the map; 0 until it is known.
    pub version: u64,
    /// Where nodes said lately that slots are, and when.
    moved: BTreeMap<u16, (NodeId, Time)>,
    read_at: Option<Time>,
    /// When it is to be read though nothing fails: what a MOVED said was not in the map.
    pub read_again_at: Option<Time>,
    /// Whether the owner has heard of the last change.
    pub is_told: bool,
}

impl SlotMap {
    pub fn new() -> Self {
        Self {
            masters: vec![None; usize::from(SLOTS)],
            version: 0,
            moved: BTreeMap::new(),
            is_told: true,
            read_at: None,
            read_again_at: None,
        }
    }

    pub fn master_of(&self, slot: u16) -> Option<NodeId> {
        self.masters.get(usize::from(slot)).copied().flatten()
    }

    /// Whether enough time has passed since it was read.
    pub fn may_be_read(&self, now: Time) -> bool {
        self.read_at.is_none_or(|at| now >= at + READ_PAUSE || now < at)
    }

    /// Note that reading has ended, in whatever way.
    pub fn was_read(&mut self, now: Time) {
        self.read_at = Some(now);
    }

    /// Note where a node said that a slot is; true if the map has changed.
    pub fn note_moved(&mut self, slot: u16, node: NodeId, now: Time) -> bool {
        self.moved.insert(slot, (node, now));
        let Some(master) = self.masters.get_mut(usize::from(slot)) else { return false };
        let is_changed = *master != Some(node);
        *master = Some(node);
        self.version += u64::from(is_changed);
        is_changed
    }

    /// Take a map that a node gave; true if it is another one.
    pub fn take(&mut self, ranges: &[(u16, u16, NodeId)], now: Time) -> bool {
        let mut masters = vec![None; usize::from(SLOTS)];
        for (first, last, node) in ranges {
            masters.get_mut(usize::from(*first)..=usize::from(*last)).unwrap_or_default().fill(Some(*node));
        }
        self.moved.retain(|_, (_, at)| now < *at + MOVED_TRUSTED);
        self.read_again_at = None;
        for (slot, (node, _)) in &self.moved {
            if let Some(master) = masters.get_mut(usize::from(*slot)).filter(|master| **master != Some(*node)) {
                *master = Some(*node);
                self.read_again_at = Some(now + MOVED_TRUSTED);
            }
        }
        let is_changed = self.version == 0 || masters != self.masters;
        self.masters = masters;
        self.version += u64::from(is_changed);
        is_changed
    }

    /// The ranges of slots that have a master.
    pub fn ranges(&self) -> Vec<(u16, u16, NodeId)> {
        let mut ranges: Vec<(u16, u16, NodeId)> = Vec::new();
        for slot in 0..SLOTS {
            let Some(node) = self.master_of(slot) else { continue };
            match ranges.last_mut() {
                Some((_, last, same)) if *same == node && *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot, node)),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, Range, SLOTS, SlotMap, parsed_ranges, slot_of};
    use std::time::Duration;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(super::crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
        assert_eq!(slot_of(b"foo{}{bar}"), super::crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"}a{b"), super::crc16(b"}a{b") % SLOTS);
    }

    #[test]
    fn a_master_without_a_port_has_no_slots() {
        let asked = Address { host: "asked".to_owned(), port: 1 };
        let reply = b"*1\r\n*3\r\n:0\r\n:9\r\n*2\r\n$4\r\n/a/b\r\n:0\r\n";
        assert_eq!(parsed_ranges(reply, &asked), Ok(Vec::new()));
    }

    #[test]
    fn a_node_has_its_host_or_its_ip_or_that_of_who_answers() {
        let asked = Address { host: "asked".to_owned(), port: 1 };
        let reply = b"*3\r\n\
            *3\r\n:0\r\n:9\r\n*4\r\n$1\r\na\r\n:7000\r\n$2\r\nid\r\n*0\r\n\
            *4\r\n:10\r\n:10\r\n*4\r\n$1\r\n?\r\n:7001\r\n$2\r\nid\r\n*2\r\n$2\r\nip\r\n$2\r\n::\r\n*3\r\n$1\r\nr\r\n:1\r\n$1\r\ni\r\n\
            *3\r\n:11\r\n:16383\r\n*3\r\n$-1\r\n:7002\r\n$2\r\nid\r\n";
        let range =
            |first, last, host: &str, port| Range { first, last, master: Address { host: host.to_owned(), port } };
        let ranges = parsed_ranges(reply, &asked).unwrap();
        assert_eq!(ranges, [range(0, 9, "a", 7000), range(10, 10, "::", 7001), range(11, 16383, "asked", 7002)]);
        for bad in
            [&b"*0\r\n"[..], b"-ERR This instance has cluster support disabled\r\n", b"*1\r\n*1\r\n:1\r\n", b"+OK\r\n"]
        {
            assert!(parsed_ranges(bad, &asked).is_err());
        }
    }

    #[test]
    fn what_moved_lately_is_believed_against_a_map_that_says_otherwise() {
        let (mut map, at) = (SlotMap::new(), Duration::from_secs);
        assert!(map.take(&[(0, 16383, 0)], at(1)));
        assert!(map.note_moved(5, 1, at(2)));
        assert!(!map.take(&[(0, 16383, 0)], at(2)));
        assert_eq!((map.master_of(5), map.read_again_at), (Some(1), Some(at(3))));
        assert!(map.take(&[(0, 16383, 0)], at(4)));
        assert_eq!((map.master_of(5), map.read_again_at, map.version), (Some(0), None, 3));
        assert_eq!(map.ranges(), [(0, 16383, 0)]);
    }
}
