//! Keys and rows in RocksDB. A key is `table u32 BE ‖ cold_key u64 BE`, so the rows of a table are contiguous and in
//! ascending order of cold keys. A row is its words, little-endian.

use zagros_table::ColdError;

pub(crate) const KEY: usize = 12;
const TABLE: usize = 4;

#[inline]
pub(crate) fn key(table: u32, cold_key: u64) -> [u8; KEY] {
    let mut key = [0; KEY];
    key[..TABLE].copy_from_slice(&table.to_be_bytes());
    key[TABLE..].copy_from_slice(&cold_key.to_be_bytes());
    key
}

/// The cold key in a key of `table`. `None` if the key belongs to another table.
#[inline]
pub(crate) fn cold_key(table: u32, key: &[u8]) -> Option<u64> {
    let key: &[u8; KEY] = key.try_into().ok()?;
    let (of, cold_key) = key.split_first_chunk::<TABLE>()?;
    (u32::from_be_bytes(*of) == table).then(|| cold_key.try_into().map(u64::from_be_bytes).ok())?
}

pub(crate) fn words(row: &[u8], width: usize) -> Result<impl ExactSizeIterator<Item = u32>, ColdError> {
    let (words, rest) = row.as_chunks::<4>();
    if words.len() != width || !rest.is_empty() {
        let reason = format!("a row has {} bytes, but {} were written", row.len(), width * 4);
        return Err(ColdError { doing: "read", reason });
    }
    Ok(words.iter().map(|word| u32::from_le_bytes(*word)))
}

/// The bytes of a row. On a big-endian machine they are in `buffer`.
#[inline]
pub(crate) fn bytes_of<'a>(row: &'a [u32], buffer: &'a mut Vec<u8>) -> &'a [u8] {
    if cfg!(target_endian = "little") {
        return bytemuck::cast_slice(row);
    }
    buffer.clear();
    buffer.extend(row.iter().flat_map(|word| word.to_le_bytes()));
    buffer
}
