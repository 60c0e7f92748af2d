//! What a data path does with its client of Redis: it sends groups of appends and reads, and takes what came of them.

use std::mem;

use korvet_proto::client::{Begin, Client, LaneId, NodeId, Span};
use korvet_proto::serving::Nodes;
use korvet_proto::{fetch, produce};
use pyo3::prelude::*;

use crate::call::{Came, Kind, Token};
use crate::client::RedisClient;
use crate::data_path::DataPath;
use crate::resp::Payload;

/// The nodes of a lane.
pub struct LaneNodes<'a> {
    client: &'a Client<Token, Payload>,
    lane: LaneId,
}

impl Nodes for LaneNodes<'_> {
    fn node_of(&self, slot: u16) -> Option<NodeId> {
        self.client.node_at(slot)
    }

    fn history(&self, node: NodeId) -> &str {
        self.client.history(self.lane, node)
    }
}

impl RedisClient {
    /// Give what becomes of its calls to this; returns the number by which it begins them.
    pub fn attach(&mut self, path: Py<DataPath>) -> usize {
        self.paths.push(path);
        self.came.push(Vec::new());
        self.paths.len() - 1
    }

    pub fn nodes(&self, lane: LaneId) -> LaneNodes<'_> {
        LaneNodes { client: &self.state.client, lane }
    }

    /// Take what one is to know.
    pub fn take_came(&mut self, number: usize) -> Vec<Came> {
        self.came.get_mut(number).map(mem::take).unwrap_or_default()
    }

    /// Send a group of appends: nothing else is sent in this turn.
    pub fn begin_appends(
        slf: &Bound<'_, Self>,
        sending: &produce::Sending,
        number: usize,
        lane: LaneId,
    ) -> PyResult<()> {
        let begin = Begin {
            token: Token::own(Kind::Appends, number, sending.group, sending.count),
            lane,
            node: Some(sending.node),
            reply_bytes: 0,
            is_scripts: true,
            is_rerun: sending.is_rerun,
            history: Some(sending.history.to_string()),
        };
        let spans = [Span { first: 0, count: sending.count, slot: None }];
        Self::change(slf, |state, now| {
            state.client.begin(begin, &spans, now);
        })
    }

    /// Send a group of reads: nothing else is sent in this turn.
    pub fn begin_reads(slf: &Bound<'_, Self>, sending: &fetch::Sending, number: usize, lane: LaneId) -> PyResult<()> {
        let count = sending.spans.iter().map(|span| span.count).sum();
        let begin = Begin {
            token: Token::own(Kind::Reads, number, sending.group, count),
            lane,
            node: None,
            reply_bytes: sending.reply_bytes,
            is_scripts: false,
            is_rerun: false,
            history: None,
        };
        let whole = [Span { first: 0, count, slot: None }];
        let spans = if slf.try_borrow()?.is_cluster { &sending.spans[..] } else { &whole };
        Self::change(slf, |state, now| {
            state.client.begin(begin, spans, now);
        })
    }
}
