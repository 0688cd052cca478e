//! A record of the log: one row, or the removal of one. All records of a table are equally long.
//!
//! ```text
//! │ crc32c u32 │ cold key u64 │ words, 4 bytes each │      little-endian
//! ```
//!
//! The checksum covers table, kind, key and words. So a record of another table or kind has a wrong one.

use zagros_zip::ZipEq;

/// Bytes of the checksum and of the key.
const HEAD: usize = CHECKSUM + 8;
const CHECKSUM: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordFormat {
    pub(crate) table: u32,
    pub(crate) width: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogRecordKind {
    /// The key's row from here on.
    Row,
    /// The key has no row from here on. The words are zeros.
    Removal,
}

impl RecordFormat {
    pub(crate) fn record_bytes(self) -> usize {
        HEAD + self.width * size_of::<u32>()
    }

    pub(crate) fn append_row(self, cold_key: u64, words: &[u32], into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(&[0; CHECKSUM]);
        into.extend_from_slice(&cold_key.to_le_bytes());
        if cfg!(target_endian = "little") {
            into.extend_from_slice(bytemuck::cast_slice(words));
        } else {
            into.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        self.seal(LogRecordKind::Row, &mut into[start..]);
    }

    pub(crate) fn append_removal(self, cold_key: u64, into: &mut Vec<u8>) {
        let start = into.len();
        into.resize(start + self.record_bytes(), 0);
        into[start + CHECKSUM..][..8].copy_from_slice(&cold_key.to_le_bytes());
        self.seal(LogRecordKind::Removal, &mut into[start..]);
    }

    /// The kind of a whole record and its key. `None` if it is damaged.
    pub(crate) fn read(self, record: &[u8]) -> Option<(LogRecordKind, u64)> {
        let (checksum, rest) = record.split_first_chunk::<CHECKSUM>()?;
        let checksum = u32::from_le_bytes(*checksum);
        let has_checksum = |kind: &LogRecordKind| self.checksum(*kind, rest) == checksum;
        let kind = [LogRecordKind::Row, LogRecordKind::Removal].into_iter().find(has_checksum)?;
        Some((kind, u64::from_le_bytes(*rest.first_chunk()?)))
    }

    /// The key of a whole record that may be damaged.
    pub(crate) fn read_key(self, record: &[u8]) -> u64 {
        let mut key = [0; 8];
        key.copy_from_slice(&record[CHECKSUM..HEAD]);
        u64::from_le_bytes(key)
    }

    /// Copies the words of the row of `cold_key`. Answers whether the record is undamaged and of this row.
    pub(crate) fn read_row(self, record: &[u8], cold_key: u64, into: &mut [u32]) -> bool {
        if self.read(record) != Some((LogRecordKind::Row, cold_key)) {
            return false;
        }
        for (word, bytes) in into.iter_mut().zip_eq(record[HEAD..].as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        true
    }

    fn seal(self, kind: LogRecordKind, record: &mut [u8]) {
        let checksum = self.checksum(kind, &record[CHECKSUM..]);
        record[..CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    }

    fn checksum(self, kind: LogRecordKind, rest: &[u8]) -> u32 {
        let kind: u8 = match kind {
            LogRecordKind::Row => 1,
            LogRecordKind::Removal => 2,
        };
        let [a, b, c, d] = self.table.to_le_bytes();
        crc32c::crc32c_append(crc32c::crc32c(&[a, b, c, d, kind]), rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: RecordFormat = RecordFormat { table: 3, width: 2 };

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        FORMAT.append_row(7, &[1, u32::MAX], &mut bytes);
        FORMAT.append_removal(u64::MAX, &mut bytes);
        assert_eq!(bytes.len(), 2 * FORMAT.record_bytes());
        let (row, removal) = bytes.split_at(FORMAT.record_bytes());
        assert_eq!(FORMAT.read(row), Some((LogRecordKind::Row, 7)));
        assert_eq!(FORMAT.read(removal), Some((LogRecordKind::Removal, u64::MAX)));
        let mut words = [0; 2];
        assert!(FORMAT.read_row(row, 7, &mut words) && words == [1, u32::MAX]);
        assert!(!FORMAT.read_row(row, 8, &mut words) && !FORMAT.read_row(removal, u64::MAX, &mut words));
    }

    #[test]
    fn any_flipped_bit_another_table_and_zeros_are_damage() {
        let mut record = Vec::new();
        FORMAT.append_row(7, &[1, 2], &mut record);
        for bit in 0..record.len() * 8 {
            record[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FORMAT.read(&record), None, "bit {bit}");
            record[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(FORMAT.read(&record).is_some());
        assert_eq!(RecordFormat { table: 4, width: 2 }.read(&record), None);
        assert_eq!(FORMAT.read(&vec![0; record.len()]), None);
    }
}
