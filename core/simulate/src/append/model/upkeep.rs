//! What else changes a log: a partition is created and deleted, the start of a log moves up, producers are forgotten, and
//! a leader epoch begins.

use super::call::number;
use super::state::{Counters, State};
use super::stream::{Id, Ids, Stream};
use super::{HistoryEpoch, Log, Model, Refusal, Reply, SortedSet, shown, storage_error};

/// Index rows of one step of log/trim.
const ROWS_MAX: usize = 64;
/// Times the limit, for nodes that hold more entries than it.
const LARGE_NODES: i64 = 100;
const YEAR_2026: i64 = 1_767_225_600;
const EPOCH_MAX: i64 = i32::MAX as i64;

/// A row of the index: records and bytes that ever came, up to an offset.
#[derive(Clone, Copy, Debug)]
struct Row {
    offset: i64,
    records: i64,
    bytes: i64,
}

fn rows(index: &SortedSet) -> Vec<Row> {
    let row = |(offset, member): (i64, &str)| {
        let mut numbers = member.split(':').map(|text| text.parse().unwrap());
        Row { offset, records: numbers.next().unwrap(), bytes: numbers.next().unwrap() }
    };
    index.sorted().into_iter().map(row).collect()
}

/// Frees entries in one step of log/trim.
struct Trim<'a> {
    stream: &'a mut Option<Stream>,
    ids: Ids,
    limit: i64,
    bytes_left: i64,
    entries: i64,
    freed: i64,
}

impl Trim<'_> {
    fn nodes(&mut self, offset: i64, most: i64) -> bool {
        let removed = self.stream.as_mut().map_or(0, |stream| stream.trim_nodes(self.ids.after(offset), most as usize));
        self.entries = (self.entries - removed as i64).max(0);
        self.freed += removed as i64;
        removed > 0
    }

    /// Free what lies up to an offset: all if it is known to be few bytes, else a piece. Returns whether nothing is left.
    fn free(&mut self, offset: i64, size: Option<i64>) -> bool {
        if let Some(size) = size.filter(|size| *size <= self.bytes_left) {
            while self.nodes(offset, self.limit * LARGE_NODES) {}
            self.bytes_left -= size;
            return true;
        }
        !(self.nodes(offset, self.limit) || self.nodes(offset, self.limit * LARGE_NODES))
    }
}

impl Model {
    /// log/trim.
    pub(super) fn trim(&mut self, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Result<Reply, Refusal> {
        let [bits, new_start, first_record, limit, bytes_left] =
            [1, 2, 3, 4, 5].map(|index| number(&arguments[index]).unwrap());
        let node_max = self.node_max;
        let (held, _) = self.open_log(&keys[1], &arguments[0])?;
        let state = held.state.as_mut().unwrap();
        let log = &mut state.log;
        if new_start > log.next {
            let (stream, next) = (shown(&keys[0]), log.next);
            return Err(Reply::Error(format!("OFFSET_OUT_OF_RANGE {stream} ends at {next}, before {new_start}")));
        }
        let moves = new_start > log.start;
        log.start = log.start.max(new_start);
        let start = log.start;
        let known_rows = rows(&held.index);
        let below = known_rows.iter().rev().find(|row| row.offset <= start);
        let above = known_rows.iter().find(|row| row.offset > start);
        if start == log.next && held.stream.is_none() {
            held.stream = Some(Stream::new(node_max));
        }
        let ids = Ids { bits };
        let mut left = 0;
        if moves {
            let start_records = state.start_records.unwrap_or(0);
            let is_all = start == log.next;
            let known = if is_all { Some((log.records, log.bytes)) } else { below.map(|row| (row.records, row.bytes)) };
            let gone = if ids.is_dense() { start } else { known.map_or(start_records, |(records, _)| records) };
            left = (gone - start_records).max(0);
            if is_all {
                log.first = -1;
            } else if log.first >= 0 {
                log.first = log.first.max(start).max(first_record).min(log.next);
            }
            state.start_records = Some(start_records + left);
            let start_bytes = known.map(|(_, bytes)| bytes).filter(|bytes| *bytes > state.start_bytes.unwrap_or(0));
            state.start_bytes = start_bytes.or(state.start_bytes);
        }
        let entries = log.entries;
        let mut trim = Trim { stream: &mut held.stream, ids, limit, bytes_left, entries, freed: 0 };
        let (mut finished, mut known_bytes, mut is_done) = (0, None::<i64>, start == 0);
        let lowest = &known_rows[..known_rows.len().min(ROWS_MAX)];
        for row in lowest.iter().take_while(|row| start > 0 && row.offset <= start) {
            if !trim.free(row.offset, known_bytes.map(|known| (row.bytes - known).max(0))) {
                break;
            }
            finished += 1;
            known_bytes = Some(row.bytes);
        }
        if start > 0 && finished < ROWS_MAX && lowest.get(finished).is_none_or(|row| row.offset > start) {
            let end_bytes = above.map_or(log.bytes, |row| row.bytes);
            is_done = trim.free(start, known_bytes.map(|known| end_bytes - known));
        }
        let freed = trim.freed;
        log.entries = trim.entries;
        let gone: Vec<String> = held.index.sorted().iter().map(|(_, member)| (*member).to_owned()).collect();
        gone.iter().take(usize::max(finished, 1) - 1).for_each(|member| held.index.remove(member));
        if moves && state.aborted.is_some() {
            held.aborted.remove_below(start);
        }
        let numbers = [left, freed, i64::from(!is_done)].map(Reply::Integer);
        Ok(Reply::Array([vec![Reply::text(start)], numbers.to_vec()].concat()))
    }

    /// producer/expire, all rows in one step.
    pub(super) fn expire_producers(&mut self, state: &[u8], arguments: &[Vec<u8>]) -> Reply {
        let [now_ms, silence_ms] = [2, 3].map(|index| number(&arguments[index]).unwrap());
        let mut removed = 0;
        if let Some(state) = self.log(state).state.as_mut() {
            for row in state.producers.values_mut() {
                let is_open = row.transaction.is_some_and(|last| last.open_from.is_some());
                if !is_open && row.last_ms as i64 > now_ms {
                    // Its worker's clock was ahead: the producer is silent from now on.
                    row.last_ms = now_ms as u64;
                }
            }
            let before = state.producers.len();
            state.producers.retain(|_, row| {
                let is_open = row.transaction.is_some_and(|last| last.open_from.is_some());
                is_open || row.last_ms as i64 >= now_ms - silence_ms
            });
            removed = before - state.producers.len();
        }
        Reply::Array(vec![Reply::text(0), Reply::Integer(removed as i64)])
    }

    /// broker/epoch.
    pub(super) fn begin_epoch(&mut self, key: &[u8], arguments: &[Vec<u8>]) -> Result<Reply, Refusal> {
        let (floor, floor_history) = (number(&arguments[0]).unwrap(), shown(&arguments[1]));
        let (history, now_s) = (self.history.clone(), self.now_ms.div_euclid(1_000));
        let stored = self.epochs.get(key).map_or(0, |held| held.epoch);
        let is_begun = self.epochs.get(key).is_some_and(|held| held.history == history);
        if is_begun && (stored > floor || floor_history == history) {
            return Ok(Reply::Array(vec![Reply::text(history), Reply::text(stored)]));
        }
        let epoch = (stored + 1).max(floor + 1).max(now_s - YEAR_2026);
        if epoch > EPOCH_MAX {
            return storage_error(&format!("{}: the leader epochs are used up", shown(key)));
        }
        self.epochs.insert(key.to_vec(), HistoryEpoch { history: history.clone(), epoch });
        Ok(Reply::Array(vec![Reply::text(history), Reply::text(epoch)]))
    }

    /// partition/create.
    pub(super) fn create(&mut self, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Result<Reply, Refusal> {
        let (topic, [claim, claim_until]) = (&arguments[0], [1, 2].map(|index| number(&arguments[index]).unwrap()));
        let (is_refused, stream_name) = (arguments[3] == b"refuse", shown(&keys[8]));
        let (now_ms, node_max) = (self.now_ms, self.node_max);
        if now_ms > claim_until {
            return Err(Reply::Error(format!("REQUEST_TIMED_OUT creating {stream_name} took too long")));
        }
        let log = self.log(&keys[0]);
        match &log.state {
            Some(state) if state.topic == *topic => return Ok(Reply::Integer(0)),
            Some(state) if state.claim >= claim => return Ok(Reply::Integer(state.claim)),
            _ => {}
        }
        if is_refused && log.stream.as_ref().is_some_and(|stream| stream.length > 0) {
            let text = format!("INVALID_CONFIG {stream_name} exists already: only storage.format=record adopts it");
            return Err(Reply::Error(text));
        }
        let stream = log.stream.take().unwrap_or_else(|| Stream::new(node_max));
        *log = Log { state: Some(State::new(topic, claim)), stream: Some(stream), ..Log::default() };
        log.index.add(0, "0:0:-1:-1");
        Ok(Reply::Integer(0))
    }

    /// topic/clear.
    pub(super) fn clear(&mut self, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Reply {
        let (topic, [mut entries_left, mut bytes_left]) =
            (&arguments[0], [1, 2].map(|index| number(&arguments[index]).unwrap() as f64));
        let fence = [b"deleted ".as_slice(), topic].concat();
        let log = self.log(&keys[0]);
        let Some(state) = log.state.as_mut().filter(|state| state.topic == *topic || state.topic == fence) else {
            return Reply::Integer(1);
        };
        let is_new = state.topic != fence;
        state.topic = fence;
        let length = |stream: &Option<Stream>| stream.as_ref().map_or(0, |stream| stream.length);
        let mut entries = length(&log.stream) + length(&log.moving);
        let Counters { bytes, .. } = state.log;
        let mut gone = state.start_bytes.unwrap_or(0) as f64;
        let size = (bytes as f64 - gone).max(entries as f64) / entries.max(1) as f64;
        for stream in [&mut log.stream, &mut log.moving].into_iter().flatten() {
            if stream.length > 0 && entries_left > 0.0 && bytes_left > 0.0 {
                let most = (stream.length as f64).min(entries_left).min(bytes_left / size).floor().max(1.0);
                stream.trim_to_length(stream.length - most as usize);
                (entries_left, bytes_left) = (entries_left - most, bytes_left - most * size);
                entries -= most as usize;
                gone += most * size;
            }
        }
        if entries > 0 {
            state.start_bytes = Some(gone as i64);
        } else {
            *log = Log::default();
        }
        if is_new {
            self.published.push((arguments[3].clone(), "-1".to_owned()));
        }
        Reply::Integer(i64::from(entries == 0))
    }

    /// What other clients do: XADD.
    pub fn add_external(&mut self, stream: &[u8], id: Id, fields: Vec<Vec<u8>>) -> Reply {
        let (node_max, log) = (self.node_max, self.log(stream));
        let mut changed = log.stream.clone().unwrap_or_else(|| Stream::new(node_max));
        match changed.add(id, fields.into()) {
            Ok(()) => {
                log.stream = Some(changed);
                Reply::text(id)
            }
            Err(refusal) => Reply::Error(refusal.to_owned()),
        }
    }
}
