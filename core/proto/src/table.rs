//! The partitions that are known, by what requests call them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::partition::{Partition, TopicName};

type Partitions = HashMap<i32, Arc<Partition>>;

/// Partitions by the name of their topic and by its id.
#[derive(Debug, Default)]
pub struct Table {
    version: u64,
    names: HashMap<Box<str>, Partitions>,
    ids: HashMap<[u8; 16], Partitions>,
}

impl Table {
    /// Put a partition in the place of what was known of it. Of a topic one incarnation is known: another is forgotten.
    /// Returns whether that was of another incarnation.
    pub fn put(&mut self, partition: Partition) -> bool {
        let partition = Arc::new(partition);
        let (topic, index) = (&partition.topic, partition.index);
        let known = self.names.get(&topic.name).and_then(|known| known.values().next());
        self.version += 1;
        let has_other = known.is_some_and(|known| known.topic.id != topic.id);
        if has_other {
            self.forget_topic(&topic.name);
        }
        self.names.entry(topic.name.clone()).or_default().insert(index, Arc::clone(&partition));
        self.ids.entry(topic.id).or_default().insert(index, partition);
        has_other
    }

    /// Changes whenever a partition may be another one.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A partition, unless it is not known.
    pub fn get(&self, topic: &TopicName, index: i32) -> Option<&Arc<Partition>> {
        let partitions = match topic {
            TopicName::Name(name) => self.names.get(&**name),
            TopicName::Id(id) => self.ids.get(id),
        };
        partitions?.get(&index)
    }

    /// Forget the partitions of a topic, by its name. Returns whether any was known.
    pub fn forget_topic(&mut self, name: &str) -> bool {
        self.version += 1;
        let known = self.names.remove(name);
        if let Some(partition) = known.iter().flat_map(HashMap::values).next() {
            self.ids.remove(&partition.topic.id);
        }
        known.is_some()
    }

    /// Forget all.
    pub fn clear(&mut self) {
        self.version += 1;
        self.names.clear();
        self.ids.clear();
    }
}
