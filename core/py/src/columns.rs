//! Stored batches as columns, whose buffers Python wraps as arrays of Arrow.

use korvet_proto::batch::Header;
use korvet_proto::columns::{Binaries, Columns, Headers, Validity};
use korvet_proto::{ErrorCode, Refusal};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyBytesMethods, PyMemoryView};

use crate::batch::refused;
use crate::buffer::Owned;

type Buffer<'py> = Bound<'py, PyBytes>;
type Nullable<'py> = Option<Buffer<'py>>;
/// The bitmap of what is not null, positions, and data.
type BinaryColumn<'py> = (Nullable<'py>, Buffer<'py>, Bound<'py, PyMemoryView>);
type HeaderColumn<'py> = (Nullable<'py>, Buffer<'py>, usize, BinaryColumn<'py>, BinaryColumn<'py>);
type ProducerColumns<'py> = (Nullable<'py>, Buffer<'py>, Buffer<'py>, Buffer<'py>);
type ArrowColumns<'py> = (
    usize,
    Buffer<'py>,
    Buffer<'py>,
    Buffer<'py>,
    Option<BinaryColumn<'py>>,
    Option<BinaryColumn<'py>>,
    Option<HeaderColumn<'py>>,
    Option<ProducerColumns<'py>>,
);
type StoredBatch<'py> = (i64, Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>);

#[pyfunction]
#[pyo3(signature = (batches, plain_bytes_max, payloads_bytes_max, /, *, keys, values, headers))]
pub fn arrow_columns<'py>(
    py: Python<'py>,
    batches: Vec<StoredBatch<'py>>,
    plain_bytes_max: usize,
    payloads_bytes_max: usize,
    keys: bool,
    values: bool,
    headers: bool,
) -> PyResult<ArrowColumns<'py>> {
    let mut columns = Columns {
        keys: keys.then(Binaries::default),
        values: values.then(Binaries::default),
        headers: headers.then(Headers::default),
        ..Columns::default()
    };
    let mut size = 0;
    for (position, (base_offset, stored, plain)) in batches.iter().enumerate() {
        let plain = plain.as_ref().map(PyBytesMethods::as_bytes);
        size += add(&mut columns, *base_offset, stored.as_bytes(), plain, plain_bytes_max)
            .map_err(|refusal| refused(named(refusal.of_stored(), *base_offset)))?;
        if position > 0 && size > payloads_bytes_max {
            let message = format!("the batches up to offset {base_offset} hold more than {payloads_bytes_max} bytes");
            return Err(refused(Refusal::new(ErrorCode::MessageTooLarge, message)));
        }
    }
    arrow_of(py, columns)
}

/// Add a batch, with its records apart from its header or after it; returns their size uncompressed.
fn add(
    columns: &mut Columns,
    base_offset: i64,
    stored: &[u8],
    plain: Option<&[u8]>,
    plain_bytes_max: usize,
) -> Result<usize, Refusal> {
    let header = Header::read(stored).ok_or(Refusal::invalid("the header is cut off"))?;
    let plain = header.stored_records(stored, plain, plain_bytes_max)?;
    columns.add(base_offset, &header, &plain)?;
    Ok(plain.len())
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
