//! Parts of a page: its committed entries, and batches of the records that a consumer has acquired.

use std::collections::HashSet;
use std::sync::Arc;

use super::collect::{Pieces, Span};
use super::page::{Held, HeldBatch, Page, Run, consecutive, note_run};
use super::{Aborted, Epochs, FIRST_EPOCH, Kind, StoredBatch};
use crate::batch::{CONTROL_BIT, TRANSACTIONAL_BIT};
use crate::build::BatchesBuilder;
use crate::columns::Columns;
use crate::compression::Codec;
use crate::failure::Failure;
use crate::refusal::Refusal;
use crate::shared::Piece;

impl Page {
    /// For each entry whether read_committed hides it: records of aborted transactions, up to the marker of each, and all
    /// markers.
    fn hidden(&self, aborted: &[Aborted]) -> Vec<bool> {
        let mut begun: Vec<_> = aborted.to_vec();
        begun.sort_by_key(|each| std::cmp::Reverse(each.first_offset));
        let mut aborting = HashSet::new();
        let mut is_hidden = |last_offset: i64, producer_id: i64, is_marker: bool| {
            let later = begun.iter().rposition(|each| each.first_offset > last_offset);
            let started = begun.split_off(later.map_or(0, |later| later + 1));
            aborting.extend(started.iter().map(|each| each.producer_id));
            if is_marker {
                // Of a producer that is among them it is that of the abort.
                aborting.remove(&producer_id);
            }
            is_marker || aborting.contains(&producer_id)
        };
        let mut hidden = vec![false; self.count];
        match &*self.held {
            Held::Records { columns, runs } => {
                for Run { start, stop, kind } in runs {
                    let Some((producer_id, _)) = kind.producer() else { continue };
                    for (row, offset) in columns.offsets.iter().enumerate().take(*stop).skip(*start) {
                        if let Some(hidden) = hidden.get_mut(row) {
                            *hidden = is_hidden(*offset, producer_id, kind.is_marker());
                        }
                    }
                }
            }
            Held::Batches(batches) => {
                for (batch, hidden) in batches.iter().zip(&mut hidden) {
                    let attributes = batch.header.attributes;
                    if attributes & TRANSACTIONAL_BIT != 0 {
                        let is_marker = attributes & CONTROL_BIT != 0;
                        *hidden = is_hidden(batch.next_offset - 1, batch.header.producer_id, is_marker);
                    }
                }
            }
        }
        hidden
    }

    /// Where the entries lie that nobody is to get: first and last offsets.
    pub fn archived(&self, aborted: &[Aborted]) -> Vec<(i64, i64)> {
        let hidden = self.hidden(aborted);
        let rows = || hidden.iter().enumerate().filter(|(_, is_hidden)| **is_hidden).map(|(row, _)| row);
        if let Some(columns) = self.columns() {
            return consecutive(rows().filter_map(|row| columns.offsets.get(row).copied()));
        }
        let batches = rows().filter_map(|row| self.batches().get(row));
        batches.map(|batch| (batch.base_offset, batch.next_offset - 1)).collect()
    }

    /// The page without these.
    pub fn visible(&self, aborted: &[Aborted]) -> Result<Self, Refusal> {
        let hidden = self.hidden(aborted);
        if !hidden.contains(&true) {
            return Ok(self.clone());
        }
        self.picked(|row| hidden.get(row) == Some(&false))
    }

    /// A page of each entry.
    pub fn each(&self) -> Result<Vec<Self>, Refusal> {
        (0..self.count).map(|entry| self.picked(|row| row == entry)).collect()
    }

    /// The same with no more columns or batches than are on it.
    pub fn whole(&self) -> Result<Self, Refusal> {
        if self.count == self.held.len() { Ok(self.clone()) } else { self.picked(|_| true) }
    }

    fn picked(&self, is_wanted: impl Fn(usize) -> bool) -> Result<Self, Refusal> {
        let rows = (0..self.count).filter(|row| is_wanted(*row));
        let held = match &*self.held {
            Held::Batches(batches) => Held::Batches(rows.filter_map(|row| batches.get(row)).cloned().collect()),
            Held::Records { columns, runs } => {
                let (mut picked, mut picked_runs) = (Columns::of_records(), Vec::new());
                for row in rows {
                    let kind = run_at(runs, row).map_or(Kind::Plain, |run| run.kind);
                    note_run(&mut picked_runs, picked.offsets.len(), kind);
                    columns.row(row, |record| picked.push(record)).unwrap_or(Ok(()))?;
                }
                Held::Records { columns: Box::new(picked), runs: picked_runs }
            }
        };
        Ok(Self { count: held.len(), held: Arc::new(held) })
    }

    /// Runs of consecutive offsets of the records themselves, those in batches too.
    pub fn record_spans(&self, plain_bytes_max: usize) -> Result<Vec<(i64, i64)>, Refusal> {
        let mut offsets = Vec::new();
        for batch in self.batches() {
            batch.records(plain_bytes_max, |offset, _, _| offsets.push(offset))?;
        }
        Ok(if self.columns().is_some() { self.spans() } else { consecutive(offsets.into_iter()) })
    }

    /// Batches with all records whose offsets lie in `ranges`, first and last offset of each, which rise; and how many
    /// records they have. Batches of the log are passed on whole.
    pub fn collect(
        &self,
        ranges: &[(i64, i64)],
        epochs: &Epochs,
        codec: Codec,
        has_append_time: bool,
    ) -> Result<(Vec<Piece>, usize), Failure> {
        let mut span = Span::new(epochs);
        let is_wanted = |first: i64, last: i64| {
            let at = ranges.partition_point(|range| range.1 < first);
            ranges.get(at).is_some_and(|range| range.0 <= last)
        };
        let mut pieces = Pieces::default();
        let Held::Records { columns, runs } = &*self.held else {
            let wanted = self.batches().iter().filter(|batch| is_wanted(batch.base_offset, batch.next_offset - 1));
            let mut count = 0;
            for batch in wanted {
                count += usize::try_from(batch.header.record_count).unwrap_or(0);
                pieces.put_batch(batch.as_stored(), span.epoch_at(batch.base_offset), Some(&batch.stored));
            }
            return Ok((pieces.finish(), count));
        };
        // Nothing may be left out: what a member of a share group has acquired and does not get, it takes for a gap.
        let mut builder = BatchesBuilder::new(codec, FIRST_EPOCH, i32::MAX.into(), true, has_append_time);
        let mut before = None;
        for (row, offset) in columns.offsets.iter().enumerate().take(self.count) {
            if !is_wanted(*offset, *offset) {
                continue;
            }
            let run = run_at(runs, row);
            let kind = run.map_or(Kind::Plain, |run| run.kind);
            let begun = run.map(|run| run.start);
            if before != Some(begun) {
                builder.begin_producer(kind.producer())?;
                before = Some(begun);
            }
            builder.begin_epoch(span.epoch_at(*offset))?;
            let pushed = columns
                .row(row, |record| if kind.is_marker() { builder.push_control(record) } else { builder.push(record) });
            pushed.transpose()?;
        }
        let count = builder.record_count;
        for batch in builder.finish()? {
            pieces.put_made(batch);
        }
        Ok((pieces.finish(), count))
    }
}

impl HeldBatch {
    fn as_stored(&self) -> StoredBatch<'_> {
        let Self { base_offset, next_offset, size_bytes, header, stored, plain } = self;
        StoredBatch {
            base_offset: *base_offset,
            next_offset: *next_offset,
            size_bytes: *size_bytes,
            record_count: header.record_count,
            stored: stored.as_ref(),
            plain: plain.clone(),
        }
    }
}

/// The run that a row is of.
fn run_at(runs: &[Run], row: usize) -> Option<&Run> {
    let at = runs.partition_point(|run| run.stop <= row);
    runs.get(at).filter(|run| run.start <= row)
}
