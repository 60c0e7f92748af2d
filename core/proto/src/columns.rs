//! Records of a log as columns, in the memory layout of Apache Arrow.
//!
//! Theory of operation. [`Columns`] takes one batch after the other, each by its offset in the log, its header and its
//! records uncompressed; or single records ([`Columns::push`]). Every record becomes a row. A field of bytes is copied once, to the end of its column: then the
//! records are freed batch by batch, and a reader of one column holds no other. The records are checked while they are
//! read; after a refusal the columns end in the middle of a batch, and are of no use.
//!
//! Source: the Apache Arrow columnar format, "Variable-size Binary Layout" and "Variable-size List Layout": a position
//! in the data for each value and one for the end, and a bitmap of the values that are not null, least significant bit
//! first. Numbers have the byte order of the machine.

use crate::batch::{CONTROL_BIT, Header, TRANSACTIONAL_BIT, text_of};
use crate::encode::{HeaderFields, RecordFields};
use crate::{ErrorCode, Refusal};

/// Which values of a column are not null.
#[derive(Clone, Debug, Default)]
pub struct Validity {
    bits: Vec<u8>,
    count: usize,
    nulls: usize,
}

impl Validity {
    fn push(&mut self, is_valid: bool) {
        if self.count % 8 == 0 {
            self.bits.push(0);
        }
        if let Some(last) = self.bits.last_mut() {
            *last |= u8::from(is_valid) << (self.count % 8);
        }
        self.count += 1;
        self.nulls += usize::from(!is_valid);
    }

    /// The bitmap, which Arrow leaves out if no value is null.
    pub fn bits(&self) -> Option<&[u8]> {
        (self.nulls > 0).then_some(&self.bits)
    }

    fn has(&self, row: usize) -> bool {
        self.bits.get(row / 8).is_some_and(|bits| bits >> (row % 8) & 1 > 0)
    }

    /// Whether every value is null.
    pub fn is_all_null(&self) -> bool {
        self.nulls == self.count
    }
}

/// A column of bytes, or of text.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// Which are not null.
    pub validity: Validity,
    /// Where each value begins in `data`, and where the last one ends.
    pub positions: Vec<i32>,
    /// The values, one after the other.
    pub data: Vec<u8>,
}

impl Default for Binaries {
    fn default() -> Self {
        Self { validity: Validity::default(), positions: vec![0], data: Vec::new() }
    }
}

impl Binaries {
    fn push(&mut self, value: Option<&[u8]>) -> Result<(), Refusal> {
        self.validity.push(value.is_some());
        self.data.extend_from_slice(value.unwrap_or_default());
        self.positions.push(position(self.data.len())?);
        Ok(())
    }

    /// The value of a row; `None` is null.
    pub fn get(&self, row: usize) -> Option<&[u8]> {
        let [begin, end] = self.positions.get(row..)?.first_chunk()?;
        self.data.get(usize::try_from(*begin).ok()?..usize::try_from(*end).ok()?).filter(|_| self.validity.has(row))
    }
}

/// A column of lists of headers; a record without headers has a null list.
#[derive(Clone, Debug)]
pub struct Headers {
    /// Which lists are not null.
    pub validity: Validity,
    /// Where each list begins among the headers, and where the last one ends.
    pub positions: Vec<i32>,
    /// The names, which are UTF-8 as [`text_of`] has them.
    pub names: Binaries,
    /// The values.
    pub values: Binaries,
}

impl Default for Headers {
    fn default() -> Self {
        let (names, values) = (Binaries::default(), Binaries::default());
        Self { validity: Validity::default(), positions: vec![0], names, values }
    }
}

impl Headers {
    /// How many headers all lists have.
    pub fn count(&self) -> usize {
        self.values.validity.count
    }

    fn push<'a>(&mut self, headers: impl ExactSizeIterator<Item = HeaderFields<'a>>) -> Result<(), Refusal> {
        self.validity.push(headers.len() > 0);
        for (name, value) in headers {
            self.names.push(Some(text_of(name).as_bytes()))?;
            self.values.push(value)?;
        }
        self.positions.push(position(self.count())?);
        Ok(())
    }

    /// The headers of a row.
    fn of(&self, row: usize) -> impl Iterator<Item = HeaderFields<'_>> {
        let ends = self.positions.get(row..).and_then(|positions| positions.first_chunk()).unwrap_or(&[0, 0]);
        let [begin, end] = ends.map(|position| usize::try_from(position).unwrap_or(0));
        (begin..end).map(|at| (self.names.get(at).unwrap_or_default(), self.values.get(at)))
    }
}

fn position(size: usize) -> Result<i32, Refusal> {
    i32::try_from(size).map_err(|_| Refusal::new(ErrorCode::MessageTooLarge, "the records exceed 2 GiB as columns"))
}

/// The columns; one that nobody wants is `None`.
#[derive(Debug, Default)]
pub struct Columns {
    /// The offsets, which rise.
    pub offsets: Vec<i64>,
    /// In milliseconds; -1 is that of a record without one.
    pub timestamps: Vec<i64>,
    /// 0: the time of the producer, 1: that of the append.
    pub timestamp_types: Vec<i32>,
    /// The keys.
    pub keys: Option<Binaries>,
    /// The values.
    pub values: Option<Binaries>,
    /// The headers.
    pub headers: Option<Headers>,
    /// Which records are of a transactional or control batch: the following three are null of others.
    pub special: Validity,
    /// These two bits of the attributes.
    pub attributes: Vec<i16>,
    /// Ids of the producers.
    pub producer_ids: Vec<i64>,
    /// Epochs of the producers.
    pub producer_epochs: Vec<i16>,
}

impl Columns {
    /// Add the records of a batch, which lies in the log from `base_offset` on.
    ///
    /// Compaction may have removed records: so the offsets of those that are left must rise, within the batch and from
    /// batch to batch, and none may be beyond the last offset of its batch.
    pub fn add(&mut self, base_offset: i64, header: &Header, plain: &[u8]) -> Result<(), Refusal> {
        let append_time = header.append_time();
        let special = header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT);
        for record in header.records(plain) {
            let record = record?;
            let offset = base_offset.wrapping_add(record.offset_delta.into());
            let is_own = (0..=header.last_offset_delta).contains(&record.offset_delta);
            if !is_own || self.offsets.last().is_some_and(|before| *before >= offset) {
                return Err(Refusal::invalid("its records have no rising offsets of its own"));
            }
            self.offsets.push(offset);
            self.timestamps.push(append_time.unwrap_or(record.timestamp));
            self.keys.as_mut().map_or(Ok(()), |keys| keys.push(record.key))?;
            self.values.as_mut().map_or(Ok(()), |values| values.push(record.value))?;
            self.headers.as_mut().map_or(Ok(()), |headers| headers.push(record.headers()))?;
            self.special.push(special != 0);
        }
        let rows = self.offsets.len();
        self.timestamp_types.resize(rows, append_time.is_some().into());
        self.attributes.resize(rows, special);
        self.producer_ids.resize(rows, header.producer_id);
        self.producer_epochs.resize(rows, header.producer_epoch);
        Ok(())
    }

    /// Columns for single records.
    pub fn of_records() -> Self {
        let (keys, values) = (Some(Binaries::default()), Some(Binaries::default()));
        Self { keys, values, headers: Some(Headers::default()), ..Self::default() }
    }

    /// Add a record that is of no batch. Refuses, and adds nothing, what does not fit into a column.
    pub fn push<Name: AsRef<[u8]>>(&mut self, record: &RecordFields<'_, Name>) -> Result<(), Refusal> {
        let headers = record.headers.iter().map(|(name, value)| (name.as_ref(), *value));
        let own = record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
        let all = own + headers.clone().map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len)).sum::<usize>();
        position(self.data_bytes() + all + record.headers.len())?;
        self.offsets.push(record.offset);
        self.timestamps.push(record.timestamp);
        self.timestamp_types.push(0);
        self.keys.as_mut().map_or(Ok(()), |keys| keys.push(record.key))?;
        self.values.as_mut().map_or(Ok(()), |values| values.push(record.value))?;
        self.headers.as_mut().map_or(Ok(()), |column| column.push(headers))?;
        self.special.push(false);
        Ok(())
    }

    /// How many bytes keys, values and headers have, and how many headers there are: no column has more.
    fn data_bytes(&self) -> usize {
        let size = |column: &Option<Binaries>| column.as_ref().map_or(0, |column| column.data.len());
        let of_headers = |column: &Headers| column.names.data.len() + column.values.data.len() + column.count();
        size(&self.keys) + size(&self.values) + self.headers.as_ref().map_or(0, of_headers)
    }

    /// Call `read` with the record of a row, if there is one.
    pub fn row<T>(&self, row: usize, read: impl FnOnce(&RecordFields<'_>) -> T) -> Option<T> {
        let (offset, timestamp) = (*self.offsets.get(row)?, *self.timestamps.get(row)?);
        let key = self.keys.as_ref().and_then(|column| column.get(row));
        let value = self.values.as_ref().and_then(|column| column.get(row));
        let headers: Vec<_> = self.headers.iter().flat_map(|headers| headers.of(row)).collect();
        Some(read(&RecordFields { offset, timestamp, key, value, headers: &headers }))
    }
}
