//! Records of a log as columns, whose buffers Python wraps as arrays of Arrow.

use korvet_proto::columns::{Binaries, Columns, Headers, Validity};
use korvet_proto::log::HeldBatch;
use korvet_proto::{ErrorCode, Refusal};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::batch::refused;
use crate::buffer::Owned;

type Buffer<'py> = Bound<'py, PyBytes>;
type Nullable<'py> = Option<Buffer<'py>>;
/// The bitmap of what is not null, positions, and data.
type BinaryColumn<'py> = (Nullable<'py>, Buffer<'py>, Bound<'py, PyMemoryView>);
type HeaderColumn<'py> = (Nullable<'py>, Buffer<'py>, usize, BinaryColumn<'py>, BinaryColumn<'py>);
type ProducerColumns<'py> = (Nullable<'py>, Buffer<'py>, Buffer<'py>, Buffer<'py>);
pub type ArrowColumns<'py> = (
    usize,
    Buffer<'py>,
    Buffer<'py>,
    Buffer<'py>,
    Option<BinaryColumn<'py>>,
    Option<BinaryColumn<'py>>,
    Option<HeaderColumn<'py>>,
    Option<ProducerColumns<'py>>,
);

/// Which columns are wanted beside offsets and times.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub keys: bool,
    pub values: bool,
    pub headers: bool,
}

/// The columns of batches, of which several hold `payloads_bytes_max` bytes uncompressed at the most.
pub fn arrow_of_batches<'py>(
    py: Python<'py>,
    batches: &[HeldBatch],
    plain_bytes_max: usize,
    payloads_bytes_max: usize,
    wanted: Wanted,
) -> PyResult<ArrowColumns<'py>> {
    let mut columns = Columns {
        keys: wanted.keys.then(Binaries::default),
        values: wanted.values.then(Binaries::default),
        headers: wanted.headers.then(Headers::default),
        ..Columns::default()
    };
    let mut size = 0;
    for (position, batch) in batches.iter().enumerate() {
        let base_offset = batch.base_offset;
        let plain = batch.header.stored_records(batch.stored.as_ref(), batch.plain.as_deref(), plain_bytes_max);
        let added = plain.and_then(|plain| {
            columns.add(base_offset, &batch.header, &plain)?;
            Ok(plain.len())
        });
        size += added.map_err(|refusal| refused(named(refusal.of_stored(), base_offset)))?;
        if position > 0 && size > payloads_bytes_max {
            let message = format!("the batches up to offset {base_offset} hold more than {payloads_bytes_max} bytes");
            return Err(refused(Refusal::new(ErrorCode::MessageTooLarge, message)));
        }
    }
    arrow_of(py, columns)
}

/// Columns of records that are of no batch.
pub fn arrow_of_records<'py>(
    py: Python<'py>,
    columns: &Columns,
    wanted: Wanted,
    has_append_time: bool,
) -> PyResult<ArrowColumns<'py>> {
    let columns = Columns {
        offsets: columns.offsets.clone(),
        timestamps: columns.timestamps.clone(),
        timestamp_types: vec![has_append_time.into(); columns.offsets.len()],
        keys: columns.keys.clone().filter(|_| wanted.keys),
        values: columns.values.clone().filter(|_| wanted.values),
        headers: columns.headers.clone().filter(|_| wanted.headers),
        ..Columns::default()
    };
    arrow_of(py, columns)
}

fn named(refusal: Refusal, base_offset: i64) -> Refusal {
    Refusal { message: format!("the batch at offset {base_offset}: {}", refusal.message).into(), ..refusal }
}

/// The columns as buffers of Python; each column is freed once its bytes are copied.
fn arrow_of(py: Python<'_>, columns: Columns) -> PyResult<ArrowColumns<'_>> {
    let binaries = |column| binary_column(py, column);
    let headers = |headers: Headers| {
        let (count, positions) = (headers.count(), buffer(py, headers.positions, i32::to_ne_bytes)?);
        let (names, values) = (binary_column(py, headers.names)?, binary_column(py, headers.values)?);
        Ok::<_, PyErr>((bits(py, &headers.validity), positions, count, names, values))
    };
    let producers = || {
        Ok::<_, PyErr>((
            bits(py, &columns.special),
            buffer(py, columns.attributes, i16::to_ne_bytes)?,
            buffer(py, columns.producer_ids, i64::to_ne_bytes)?,
            buffer(py, columns.producer_epochs, i16::to_ne_bytes)?,
        ))
    };
    Ok((
        columns.offsets.len(),
        buffer(py, columns.offsets, i64::to_ne_bytes)?,
        buffer(py, columns.timestamps, i64::to_ne_bytes)?,
        buffer(py, columns.timestamp_types, i32::to_ne_bytes)?,
        columns.keys.map(binaries).transpose()?,
        columns.values.map(binaries).transpose()?,
        columns.headers.map(headers).transpose()?,
        (!columns.special.is_all_null()).then(producers).transpose()?,
    ))
}

fn binary_column(py: Python<'_>, column: Binaries) -> PyResult<BinaryColumn<'_>> {
    let positions = buffer(py, column.positions, i32::to_ne_bytes)?;
    let data = Owned::view(&Bound::new(py, Owned::new(column.data))?)?;
    Ok((bits(py, &column.validity), positions, data))
}

fn bits<'py>(py: Python<'py>, validity: &Validity) -> Nullable<'py> {
    validity.bits().map(|bits| PyBytes::new(py, bits))
}

/// The bytes of numbers, as the machine has them.
fn buffer<T, const SIZE: usize>(
    py: Python<'_>,
    numbers: Vec<T>,
    bytes_of: impl Fn(T) -> [u8; SIZE],
) -> PyResult<Buffer<'_>> {
    PyBytes::new_with(py, numbers.len() * SIZE, |room| {
        for (place, number) in room.chunks_exact_mut(SIZE).zip(numbers) {
            place.copy_from_slice(&bytes_of(number));
        }
        Ok(())
    })
}
