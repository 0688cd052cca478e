//! What payloads of several kinds have in common.

use bytemuck::{Pod, cast_slice_mut};
use zagros_table::PushOrigin;

use crate::format::{u32_at, u64_at};

pub(crate) const ORIGIN_BYTES: usize = 24;
/// Bytes of a count before ids.
pub(crate) const COUNT_BYTES: usize = 8;

/// The push of a record that has one, and its number of entries.
pub(crate) fn origin_of(payload: &[u8]) -> Option<(PushOrigin, usize)> {
    let bytes = payload.get(..ORIGIN_BYTES)?;
    let origin = PushOrigin { writer: u64_at(bytes, 0), incarnation: u32_at(bytes, 16), seq: u64_at(bytes, 8) };
    Some((origin, u32_at(bytes, 20) as usize))
}

pub(crate) fn count_of(payload: &[u8]) -> Option<usize> {
    payload.get(..COUNT_BYTES).map(|bytes| u32_at(bytes, 0) as usize)
}

/// Whole numbers from bytes that lie anywhere in memory.
pub(crate) fn copy_numbers<T: Pod>(bytes: &[u8]) -> Vec<T> {
    let mut numbers = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    let whole = numbers.len() * size_of::<T>();
    cast_slice_mut::<T, u8>(&mut numbers).copy_from_slice(&bytes[..whole]);
    numbers
}
