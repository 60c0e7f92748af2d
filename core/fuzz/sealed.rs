//! Batches that a broker looks into.

use korvet_proto::batch::{CRC_FROM, HEADER_BYTES, LENGTH_FROM, crc32c};

/// Correct the fields by which most inputs would be refused at once: base offset, length, magic, last offset delta and
/// CRC.
pub fn sealed(batch: &mut [u8]) {
    if batch.len() < HEADER_BYTES {
        return;
    }
    let length = (batch.len() - LENGTH_FROM) as i32;
    let count = i32::from_be_bytes(batch[57..HEADER_BYTES].try_into().unwrap());
    batch[..8].fill(0);
    batch[8..LENGTH_FROM].copy_from_slice(&length.to_be_bytes());
    batch[16] = 2;
    batch[23..27].copy_from_slice(&count.wrapping_sub(1).to_be_bytes());
    let crc = crc32c(0, &batch[CRC_FROM..]);
    batch[CRC_FROM - 4..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
}
