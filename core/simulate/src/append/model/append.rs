//! Appends: the batches that may be written, their entries, and the answers of the script.

use std::collections::BTreeMap;

use super::call::{Answer, Batch, Call, Kind, Verdict};
use super::external::{expel_entries, take_in};
use super::state::{Counters, KEPT_MAX, Kept, Producer, Transaction};
use super::stream::{EXACT_MAX, Fields, Id, Ids, Stream};
use super::{IndexRows, Log, Model, Refusal, Reply, check_epoch, shown, storage_error};

/// Sequences wrap from 2^31 - 1 to 0 (KIP-98).
const SEQUENCES: u32 = 1 << 31;
/// As many external entries are removed by one append.
const EXPELLED_MAX: usize = 1_000;

/// A batch that is aborted: the offset of its marker, its producer, and where its transaction begins.
struct Abort<'a> {
    marker: i64,
    producer: &'a [u8],
    from: i64,
}

/// What the batches of one call have done so far.
struct Run<'a> {
    log: Counters,
    /// The new rows of producers.
    rows: BTreeMap<&'a [u8], Producer>,
    /// Where the transactions that this call has opened begin, by producer; `None`: it has ended one.
    transactions: BTreeMap<&'a [u8], Option<i64>>,
    aborts: Vec<Abort<'a>>,
    is_written: bool,
    moved: i64,
    row_bytes: i64,
    index: IndexRows,
    needs_index: bool,
}

/// Whether a batch may be written, by idempotence (KIP-98, KIP-360) and by transactions (KIP-98, KIP-890). `row` is its
/// producer's. The number of a marker becomes that of the transaction that it ends.
fn judge(batch: &mut Batch, row: Option<&Producer>, memory_is_full: bool) -> (Verdict, i64) {
    let is_of_epoch = row.is_some_and(|row| row.epoch == batch.epoch);
    let is_of_later = row.is_some_and(|row| row.epoch < batch.epoch);
    let last = row.and_then(|row| row.transaction);
    let is_open = last.is_some_and(|last| last.open_from.is_some());
    if let Some(row) = row {
        if batch.epoch < row.epoch {
            return (Verdict::InvalidProducerEpoch, i64::from(row.epoch));
        }
        if let Some(base) = repeated(batch, row).filter(|_| is_of_epoch && !batch.kind.is_marker()) {
            return (Verdict::Duplicate, base);
        }
    }
    if batch.kind.is_marker() {
        if batch.number == -1 && is_open && is_of_epoch {
            return (Verdict::OpenByEpoch, i64::from(batch.epoch));
        }
        if batch.number <= 0 {
            batch.number = last.filter(|_| is_open).map_or(0, |last| last.number);
        }
        let is_over = |last: Transaction| batch.number < last.number || batch.number == last.number && !is_open;
        if batch.number == 0 || last.is_some_and(is_over) {
            return (Verdict::Duplicate, 0);
        }
        return (Verdict::Appended, 0);
    }
    if batch.kind == Kind::Transaction {
        if batch.number == 0 {
            if !is_open || is_of_later {
                return (Verdict::Verify, 0);
            }
        } else if let Some(last) = last {
            // The one that is open, or a later one if none is.
            if batch.number < last.number || (batch.number == last.number) != is_open {
                let verdict = if is_open { Verdict::TransactionOpen } else { Verdict::TransactionEnded };
                return (verdict, last.number);
            }
        }
    }
    if let Some(row) = row {
        let next = if is_of_epoch { row.next } else { 0 };
        if batch.sequence != next {
            return (Verdict::OutOfOrder, i64::from(next));
        }
        if let Some(last) = last.filter(|_| batch.kind == Kind::Data && is_open) {
            return (Verdict::TransactionNotSent, last.number);
        }
    }
    if memory_is_full { (Verdict::MemoryFull, 0) } else { (Verdict::Appended, 0) }
}

/// The offset at which a batch was written before, if its producer's row still has it.
fn repeated(batch: &Batch, row: &Producer) -> Option<i64> {
    let mut first = row.next;
    if batch.sequence == first {
        return None;
    }
    row.kept.iter().find_map(|kept| {
        first = (first + SEQUENCES - kept.count % SEQUENCES) % SEQUENCES;
        (first == batch.sequence && kept.count == batch.count).then_some(kept.base)
    })
}

impl<'a> Run<'a> {
    fn new(log: Counters) -> Self {
        Self {
            log,
            rows: BTreeMap::new(),
            transactions: BTreeMap::new(),
            aborts: Vec::new(),
            is_written: false,
            moved: 0,
            row_bytes: 0,
            index: IndexRows::new(&log),
            needs_index: false,
        }
    }

    /// Note that a batch is written at an offset.
    fn wrote(&mut self, batch: &'a Batch, row: Option<&Producer>, base: i64, is_dense: bool, sent_ms: u64) {
        if !batch.producer.is_empty() {
            self.note_producer(batch, row, base, sent_ms);
        }
        let log = &mut self.log;
        if log.first < 0 {
            log.first = base;
        }
        log.next = base + i64::from(batch.count);
        log.bytes += i64::from(batch.size);
        log.records = if is_dense { log.next } else { log.records + i64::from(batch.count) };
        log.note_time(batch.timestamp);
        self.is_written = true;
    }

    fn note_producer(&mut self, batch: &'a Batch, row: Option<&Producer>, base: i64, sent_ms: u64) {
        let of_epoch = row.filter(|row| row.epoch == batch.epoch);
        let mut kept = of_epoch.map(|row| row.kept.clone()).unwrap_or_default();
        let mut transaction = row.and_then(|row| row.transaction);
        let open_from = transaction.and_then(|last| last.open_from);
        let next = if batch.kind.is_marker() {
            self.transactions.extend(open_from.map(|_| (batch.producer.as_slice(), None)));
            let from = open_from.filter(|_| batch.kind == Kind::Abort);
            self.aborts.extend(from.map(|from| Abort { marker: base, producer: &batch.producer, from }));
            transaction = Some(Transaction { number: batch.number, open_from: None });
            of_epoch.map_or(0, |row| row.next)
        } else {
            if batch.kind == Kind::Transaction && open_from.is_none() {
                transaction = Some(Transaction { number: batch.number, open_from: Some(base) });
                // The end that the log had: offsets that are times may leave some unused before the batch.
                self.transactions.insert(&batch.producer, Some(self.log.next));
            }
            kept.insert(0, Kept { count: batch.count, base });
            kept.truncate(KEPT_MAX);
            (batch.sequence + batch.count) % SEQUENCES
        };
        let producer = Producer { epoch: batch.epoch, next, last_ms: sent_ms, transaction, kept };
        self.rows.insert(&batch.producer, producer);
    }

    /// Write what is not in the stream: transactions, rows and counters.
    fn end(self, held: &mut Log, leader_epoch: i64, begins_epoch: bool) {
        let state = held.state.as_mut().unwrap();
        if begins_epoch {
            state.epochs = state.epochs_with(leader_epoch);
        }
        state.needs_index |= self.needs_index;
        state.log = Counters { epoch: leader_epoch, ..self.log };
        state.producers.extend(self.rows.into_iter().map(|(id, row)| (id.to_vec(), row)));
        if self.transactions.is_empty() {
            return;
        }
        for (producer, opened) in self.transactions {
            match opened {
                Some(offset) => held.open.add(offset, shown(producer)),
                None => held.open.remove(&shown(producer)),
            }
        }
        state.open = held.open.sorted().first().map(|(offset, _)| *offset);
        // Up to where no later row of `aborted` matters to a reader of this one.
        let mut stable = state.open.unwrap_or(self.log.next);
        state.aborted = self.aborts.last().map(|last| last.marker).or(state.aborted);
        for Abort { marker, producer, from } in self.aborts.into_iter().rev() {
            held.aborted.add(marker, format!("{}:{from}:{stable}", shown(producer)));
            stable = stable.min(from);
        }
    }

    /// The start of the log as responses report it.
    fn log_start(&self) -> i64 {
        let Counters { start, first, lake_start, .. } = self.log;
        if (0..start).contains(&lake_start) { lake_start } else { start.max(first).max(lake_start) }
    }
}

/// What became of the attempt to write a batch.
enum Written {
    At(i64),
    /// No offsets are left.
    UsedUp,
    /// There is more of others than an append deals with.
    External,
}

/// Where a batch is written to.
struct Target<'a> {
    stream: &'a mut Option<Stream>,
    name: &'a [u8],
    node_max: usize,
    now_ms: i64,
    ids: Ids,
}

impl Target<'_> {
    /// The stream, made again if somebody has deleted it and nothing of the log was in it.
    fn stream(&mut self, log: &Counters) -> Result<&mut Stream, Refusal> {
        if self.stream.is_none() && log.start < log.next {
            return storage_error(&format!("{} is missing, and its entries with it", shown(self.name)));
        }
        Ok(self.stream.get_or_insert_with(|| Stream::new(self.node_max)))
    }

    /// Write a batch as one entry.
    fn write_batch(&mut self, run: &mut Run, batch: &Batch) -> Result<Written, Refusal> {
        let count = i64::from(batch.count);
        if count > EXACT_MAX - run.log.next {
            return Ok(Written::UsedUp);
        }
        let mut fields = vec![b"batch".to_vec(), batch.arguments[0].clone()];
        if let Some(encoding) = batch.arguments.get(1) {
            fields.extend([b"korvet.encoding".to_vec(), encoding.clone()]);
        }
        let fields: Fields = fields.into();
        let mut is_external = false;
        if !run.is_written {
            let length = self.stream.as_ref().map_or(0, |stream| stream.length as i64);
            let past = self.stream.as_ref().and_then(|stream| stream.after(self.ids.of_end(run.log.next)).next());
            is_external = length != run.log.entries && past.is_some();
            run.log.entries = length;
        }
        loop {
            if is_external {
                let stream = self.stream(&run.log)?;
                let (removed, lowest) = expel_entries(stream, run.log.next, EXPELLED_MAX);
                run.moved += removed as i64;
                let Some(lowest) = lowest else { return Ok(Written::External) };
                (run.log.next, run.log.entries) = (lowest, stream.length as i64);
            }
            let end = run.log.next + count;
            let id = Id { ms: 0, sequence: end as u64 };
            match self.stream(&run.log)?.add(id, fields.clone()) {
                Ok(()) => {
                    run.log.entries += 1;
                    return Ok(Written::At(end - count));
                }
                Err(_) if is_external => return Ok(Written::External),
                Err(_) => is_external = true,
            }
        }
    }

    /// Write each record as one entry.
    fn write_records(&mut self, run: &mut Run, batch: &Batch) -> Result<Written, Refusal> {
        let (ids, count) = (self.ids, i64::from(batch.count));
        let records = batch.records();
        let (mut is_external, mut earliest) = (false, 0);
        if !run.is_written {
            if run.log.is_moving {
                return Ok(Written::External);
            }
            if !ids.is_dense() {
                earliest = self.now_ms * ids.width();
                let past = self.stream.as_ref().and_then(|stream| stream.after(ids.of_end(run.log.next)).next());
                is_external = past.is_some();
            }
        }
        loop {
            if is_external {
                let (now_ms, stream) = (self.now_ms, self.stream(&run.log)?);
                let Some(moved) = take_in(stream, ids, now_ms, &mut run.log) else {
                    run.moved = 0;
                    return Ok(Written::External);
                };
                run.moved = moved;
            }
            let base = run.log.next.max(earliest);
            if count > EXACT_MAX - base {
                return Ok(Written::UsedUp);
            }
            let stream = self.stream(&run.log)?;
            match stream.add(ids.of_end(base + 1), records[0].clone()) {
                Ok(()) => {
                    for (end, record) in (base + 2..).zip(&records[1..]) {
                        stream.add(ids.of_end(end), record.clone()).unwrap();
                    }
                    return Ok(Written::At(base));
                }
                Err(_) if is_external => return Ok(Written::External),
                Err(_) => is_external = true,
            }
        }
    }
}

impl Model {
    /// log/append_batch, log/append_record.
    pub fn append(
        &mut self,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
        is_batch: bool,
        memory_is_full: bool,
    ) -> Result<Reply, Refusal> {
        let Call { topic, leader_epoch, sent_ms, bits, mut batches } = Call::read(arguments).unwrap();
        let (name, state_key) = (&keys[0], &keys[1]);
        let node_max = self.node_max;
        let (held, now_ms) = self.open_log(state_key, &topic)?;
        let state = held.state.as_ref().unwrap();
        let begins_epoch = check_epoch(state_key, &state.log, leader_epoch)?;
        let ids = Ids { bits: i64::from(bits) };
        let mut run = Run::new(state.log);
        let mut verdicts = Vec::new();
        for batch in &mut batches {
            let known = state.producers.get(&batch.producer).filter(|_| !batch.producer.is_empty());
            let row = run.rows.get(batch.producer.as_slice()).or(known).cloned();
            let (mut verdict, mut value) = judge(batch, row.as_ref(), memory_is_full && !batch.kind.is_marker());
            let batch = &*batch;
            if verdict == Verdict::Appended {
                let mut target = Target { stream: &mut held.stream, name, node_max, now_ms, ids };
                let written = if is_batch {
                    target.write_batch(&mut run, batch)?
                } else {
                    target.write_records(&mut run, batch)?
                };
                match written {
                    Written::External => return Ok(Reply::Bulk(Answer::External { moved: run.moved }.packed())),
                    Written::UsedUp => verdict = Verdict::UsedUp,
                    Written::At(base) => {
                        value = base;
                        run.wrote(batch, row.as_ref(), base, is_batch || ids.is_dense(), sent_ms);
                        let row_bytes = run.index.write(&mut held.index, &mut run.needs_index, &mut run.log);
                        run.row_bytes = row_bytes.unwrap_or(run.row_bytes);
                    }
                }
            }
            verdicts.push((verdict, value));
        }
        let (moved, log_start, row_bytes) = (run.moved, run.log_start(), run.row_bytes);
        let (is_written, end) = (run.is_written, run.log.next);
        if is_written {
            run.end(held, leader_epoch, begins_epoch);
            self.published.push((name.clone(), end.to_string()));
        }
        Ok(Reply::Bulk(Answer::Verdicts { moved, log_start, row_bytes, verdicts }.packed()))
    }
}
