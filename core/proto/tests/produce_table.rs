//! The partitions that are known, by the names and the ids of their topics.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use korvet_proto::compression::Codec;
use korvet_proto::partition::TopicName;
use korvet_proto::partition::{AtRest, Keys, Layout, Partition, Topic, TopicConfig};
use korvet_proto::table::Table;

const CONFIG: TopicConfig = TopicConfig {
    codec: None,
    at_rest: AtRest { codec: None, min_bytes: 0 },
    consumer_codec: Codec::None,
    max_message_bytes: 1 << 20,
    max_message_records: 1000,
    is_compacted: false,
    has_append_time: false,
    timestamp_before_max_ms: i64::MAX,
    timestamp_after_max_ms: i64::MAX,
};

fn partition(name: &str, id: u8, index: i32) -> Partition {
    let topic = Arc::new(Topic { name: name.into(), id: [id; 16], id_text: "".into(), config: CONFIG });
    let key = || Box::from("key");
    let keys = Keys {
        stream: key(),
        state: key(),
        index: key(),
        open: key(),
        aborted: key(),
        compacted: [key(), key()],
        channel: key(),
    };
    Partition { topic, index, layout: Layout::Batch, keys, slot: 0, replicas: 0 }
}

fn name(name: &str) -> TopicName {
    TopicName::Name(name.into())
}

fn id(id: u8) -> TopicName {
    TopicName::Id([id; 16])
}

fn table(partitions: impl IntoIterator<Item = Partition>) -> Table {
    let mut table = Table::default();
    for partition in partitions {
        table.put(partition);
    }
    table
}

#[test]
fn a_partition_has_the_name_and_the_id_of_its_topic() {
    let table = table([partition("a", 1, 0), partition("a", 1, 7), partition("b", 2, 0)]);
    for (topics, index) in [([name("a"), id(1)], 0), ([name("a"), id(1)], 7), ([name("b"), id(2)], 0)] {
        let [by_name, by_id] = topics.map(|topic| table.get(&topic, index).unwrap());
        assert!(Arc::ptr_eq(by_name, by_id));
        assert_eq!(by_name.index, index);
    }
    for (topic, index) in [(name("a"), 1), (name("c"), 0), (id(3), 0), (id(2), 7), (id(1), -1)] {
        assert_eq!(table.get(&topic, index), None);
    }
}

#[test]
fn a_partition_that_is_put_again_takes_the_place_of_the_first() {
    let changed = Partition { slot: 9, ..partition("a", 1, 0) };
    let table = table([partition("a", 1, 0), changed, partition("a", 1, 1)]);
    for topic in [name("a"), id(1)] {
        assert_eq!([0, 1].map(|index| table.get(&topic, index).unwrap().slot), [9, 0]);
    }
}

#[test]
fn a_topic_that_was_made_again_has_nothing_of_the_one_before() {
    let table = table([partition("a", 1, 0), partition("a", 1, 1), partition("a", 2, 0)]);
    for (topic, index, is_known) in [(name("a"), 0, true), (id(2), 0, true), (name("a"), 1, false), (id(1), 0, false)] {
        assert_eq!(table.get(&topic, index).is_some(), is_known);
    }
}

#[test]
fn what_is_forgotten_is_not_known() {
    let mut table = table([partition("a", 1, 0), partition("a", 1, 1), partition("b", 2, 0)]);
    table.forget_topic("a");
    table.forget_topic("c");
    for topic in [name("a"), id(1)] {
        assert_eq!([0, 1].map(|index| table.get(&topic, index)), [None, None]);
    }
    assert!(table.get(&name("b"), 0).is_some());
    table.clear();
    assert_eq!([name("b"), id(2)].map(|topic| table.get(&topic, 0).cloned()), [None, None]);
}
