//! A topic for batches and entries of any bytes.

use std::sync::Arc;

use korvet_proto::compression::Codec;
use korvet_proto::partition::{AtRest, Keys, Layout, Partition, Topic, TopicConfig};

/// Configs that refuse no batch.
pub fn config() -> TopicConfig {
    TopicConfig {
        codec: None,
        at_rest: AtRest { codec: None, min_bytes: 0 },
        consumer_codec: Codec::None,
        max_message_bytes: 1 << 20,
        max_message_records: 100_000,
        is_compacted: false,
        has_append_time: false,
        timestamp_before_max_ms: i64::MAX,
        timestamp_after_max_ms: i64::MAX,
    }
}

/// A partition of a topic.
pub fn partition(layout: Layout, config: TopicConfig) -> Arc<Partition> {
    let topic = Topic { name: "orders".into(), id: [0; 16], id_text: "id".into(), config };
    let keys = Keys {
        stream: "stream".into(),
        state: "state".into(),
        index: "index".into(),
        open: "open".into(),
        aborted: "aborted".into(),
        compacted: ["clean:0".into(), "clean:1".into()],
        channel: "channel".into(),
    };
    Arc::new(Partition { topic: Arc::new(topic), index: 0, layout, keys, slot: 0, replicas: 0 })
}
