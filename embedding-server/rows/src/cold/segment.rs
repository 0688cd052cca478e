//! A segment: one file of records of one table. Records are only appended, and never changed.
//!
//! ```text
//! t00003-0000000000000012.rows    │ head, 64 bytes │ record 0 │ record 1 │ …
//! head                            │ magic u64 │ number u64 │ table u32 │ width u32 │ crc32c u32 │ zeros
//! ```
//!
//! A record of the log: one row, or the removal of one. All records of a table are equally long.
//!
//! ```text
//! │ crc32c u32 │ cold key u64 │ words, 4 bytes each │      little-endian
//! ```
//!
//! The checksum covers table, kind, key and words. So a record of another table or kind has a wrong one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};
use zagros_table::ColdError;
use zagros_zip::ZipEq;

const MAGIC: u64 = u64::from_le_bytes(*b"zagrows1");
pub(crate) const HEAD: usize = 64;
pub(crate) const GONE: &str = "gone";
/// Bytes of the head that the checksum covers.
const COVERED: usize = 24;
const LARGEST: usize = 256 << 20;

#[derive(Debug)]
pub(crate) struct RowSegment {
    /// Segments of a table are numbered in the order in which they were begun.
    pub(crate) number: u64,
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentLayout {
    pub(crate) format: RecordFormat,
    /// An address has so many bits for the record in its segment. The other bits are the segment's slot.
    row_bits: u32,
}

impl SegmentLayout {
    pub(crate) fn new(format: RecordFormat) -> Self {
        Self { format, row_bits: (LARGEST / format.record_bytes()).max(1).ilog2() }
    }

    pub(crate) fn most_rows(self) -> u32 {
        1 << self.row_bits
    }

    pub(crate) fn most_segments(self) -> usize {
        1 << (u32::BITS - self.row_bits)
    }

    pub(crate) fn address(self, slot: usize, row: u32) -> u32 {
        (slot as u32) << self.row_bits | row
    }

    pub(crate) fn split_address(self, address: u32) -> (usize, u32) {
        ((address >> self.row_bits) as usize, address & (self.most_rows() - 1))
    }

    pub(crate) fn record_offset(self, row: u32) -> u64 {
        HEAD as u64 + u64::from(row) * self.format.record_bytes() as u64
    }
}

impl RowSegment {
    pub(crate) fn create(folder: &Path, format: RecordFormat, number: u64) -> Result<Self, ColdError> {
        let path = segment_path(folder, format, number);
        let failed = |error: &io::Error| file_error("write", error, &path);
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(|error| failed(&error))?;
        advise(&file);
        file.write_all_at(&head(format, number), 0).map_err(|error| failed(&error))?;
        Ok(Self { number, file, path })
    }

    /// Opens a segment that an earlier process began. `None` if it was not even begun: it has no whole head.
    pub(crate) fn open(path: &Path, format: RecordFormat, number: u64) -> Result<Option<Self>, ColdError> {
        let failed = |error: &io::Error| file_error("open", error, path);
        let file = File::options().read(true).write(true).open(path).map_err(|error| failed(&error))?;
        if file.metadata().map_err(|error| failed(&error))?.len() < HEAD as u64 {
            return Ok(None);
        }
        advise(&file);
        let mut found = [0; HEAD];
        file.read_exact_at(&mut found, 0).map_err(|error| failed(&error))?;
        if found != head(format, number) {
            let reason = format!("the head of {} is damaged, or of a table with rows of another size", path.display());
            return Err(ColdError { doing: "open", reason });
        }
        Ok(Some(Self { number, file, path: path.to_owned() }))
    }

    pub(crate) fn records_len(&self) -> Result<u64, ColdError> {
        let length = self.file.metadata().map_err(|error| file_error("open", &error, &self.path))?.len();
        Ok(length.saturating_sub(HEAD as u64))
    }

    /// Cuts off what follows a byte of the file, on the disk.
    pub(crate) fn truncate_and_sync(&self, length: u64) -> Result<(), ColdError> {
        let cut = self.file.set_len(length).and_then(|()| self.file.sync_all());
        cut.map_err(|error| file_error("open", &error, &self.path))
    }

    /// Cuts off what follows a byte of the file. The next [`Self::sync`] makes that durable.
    pub(crate) fn truncate(&self, length: u64) -> Result<(), ColdError> {
        #[cfg(test)]
        failing::check_cut(&self.path)?;
        self.file.set_len(length).map_err(|error| file_error("write", &error, &self.path))
    }

    /// Fills `into` from a byte of the file on.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), ColdError> {
        self.file.read_exact_at(into, offset).map_err(|error| file_error("read", &error, &self.path))
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ColdError> {
        #[cfg(test)]
        failing::check_write(self, offset, bytes)?;
        self.file.write_all_at(bytes, offset).map_err(|error| file_error("write", &error, &self.path))
    }

    pub(crate) fn sync(&self) -> Result<(), ColdError> {
        self.file.sync_data().map_err(|error| file_error("flush", &error, &self.path))
    }

    /// Deletes the file, of which the mark of a store with kept rows may still say that it is there. Who has it open can still read it.
    pub(crate) fn retire(&self) -> Result<(), ColdError> {
        let gone = gone_path(&self.path);
        File::create(&gone).map_err(|error| file_error("remove", &error, &gone))?;
        self.delete()
    }

    /// Deletes the file. Who has it open can still read it.
    pub(crate) fn delete(&self) -> Result<(), ColdError> {
        fs::remove_file(&self.path).map_err(|error| file_error("remove", &error, &self.path))
    }

    pub(crate) fn damage_error(&self, doing: &'static str, layout: SegmentLayout, row: u32) -> ColdError {
        let (path, offset) = (self.path.display(), layout.record_offset(row));
        let what = "restore the file or resume from a checkpoint, and check the disk";
        let reason = format!("{path} is damaged: the record at byte {offset} is not what was written; {what}");
        ColdError { doing, reason }
    }
}

/// Records are read in no order, so pages beside them are read for nothing.
fn advise(file: &File) {
    let _ = fadvise(file, 0, None, Advice::Random);
}

pub(crate) fn file_error(doing: &'static str, error: &io::Error, path: &Path) -> ColdError {
    ColdError { doing, reason: format!("{error} ({})", path.display()) }
}

pub(crate) fn segment_path(folder: &Path, format: RecordFormat, number: u64) -> PathBuf {
    folder.join(format!("t{:05}-{number:016x}.rows", format.table))
}

/// The file that says that a segment was deleted on purpose. The next mark does without it.
pub(crate) fn gone_path(segment: &Path) -> PathBuf {
    segment.with_extension(GONE)
}

pub(crate) fn parse_name(path: &Path) -> Option<(u32, u64)> {
    let (table, number) = path.file_name()?.to_str()?.strip_suffix(".rows")?.strip_prefix('t')?.split_once('-')?;
    let is_ours = table.len() >= 5 && number.len() == 16;
    is_ours.then(|| Some((table.parse().ok()?, u64::from_str_radix(number, 16).ok()?)))?
}

fn head(format: RecordFormat, number: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MAGIC.to_le_bytes());
    head[8..16].copy_from_slice(&number.to_le_bytes());
    head[16..20].copy_from_slice(&format.table.to_le_bytes());
    head[20..24].copy_from_slice(&(format.width as u32).to_le_bytes());
    let checksum = crc32c::crc32c(&head[..COVERED]);
    head[COVERED..][..4].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// A disk that fails in the middle of a write, for the thread of a test.
#[cfg(test)]
pub(crate) mod failing {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Bytes that can be written before the disk is full.
        pub(crate) static ROOM: Cell<usize> = const { Cell::new(usize::MAX) };
        pub(crate) static FAILS_TRUNCATION: Cell<bool> = const { Cell::new(false) };
    }

    fn error(path: &Path) -> ColdError {
        file_error("write", &io::Error::from(io::ErrorKind::StorageFull), path)
    }

    pub(super) fn check_write(segment: &RowSegment, offset: u64, bytes: &[u8]) -> Result<(), ColdError> {
        let room = ROOM.get();
        ROOM.set(room.saturating_sub(bytes.len()));
        if bytes.len() <= room {
            return Ok(());
        }
        segment.file.write_all_at(&bytes[..room], offset).unwrap();
        Err(error(&segment.path))
    }

    pub(super) fn check_cut(path: &Path) -> Result<(), ColdError> {
        if FAILS_TRUNCATION.get() { Err(error(path)) } else { Ok(()) }
    }
}

/// Bytes of the checksum and of the key.
const RECORD_HEAD: usize = CHECKSUM + 8;
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
        RECORD_HEAD + self.width * size_of::<u32>()
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
        key.copy_from_slice(&record[CHECKSUM..RECORD_HEAD]);
        u64::from_le_bytes(key)
    }

    /// Copies the words of the row of `cold_key`. Answers whether the record is undamaged and of this row.
    pub(crate) fn read_row(self, record: &[u8], cold_key: u64, into: &mut [u32]) -> bool {
        if self.read(record) != Some((LogRecordKind::Row, cold_key)) {
            return false;
        }
        for (word, bytes) in into.iter_mut().zip_eq(record[RECORD_HEAD..].as_chunks::<4>().0) {
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

    const FORMAT: RecordFormat = RecordFormat { table: 7, width: 33 };

    #[test]
    fn an_address_is_a_slot_and_a_record() {
        let layout = SegmentLayout::new(FORMAT);
        assert_eq!((layout.most_rows(), layout.most_segments()), (1 << 20, 1 << 12));
        for (slot, row) in [(0, 0), (3, 5), (layout.most_segments() - 1, layout.most_rows() - 1)] {
            assert_eq!(layout.split_address(layout.address(slot, row)), (slot, row));
        }
        let wide = SegmentLayout::new(RecordFormat { table: 0, width: 1 << 27 });
        assert_eq!((wide.most_rows(), wide.split_address(wide.address(9, 0))), (1, (9, 0)));
    }

    #[test]
    fn a_file_is_known_by_its_name_and_its_head() {
        let folder = tempfile::tempdir().unwrap();
        let segment = RowSegment::create(folder.path(), FORMAT, 0x12).unwrap();
        assert_eq!(parse_name(&segment.path), Some((7, 0x12)));
        assert_eq!([Path::new("a/notes.txt"), Path::new("t7-1.rows"), Path::new("LOCK")].map(parse_name), [None; 3]);
        assert!(RowSegment::open(&segment.path, FORMAT, 0x12).unwrap().is_some());
        let other = RowSegment::open(&segment.path, RecordFormat { width: 34, ..FORMAT }, 0x12).unwrap_err();
        let problem = "t00007-0000000000000012.rows is damaged, or of a table with rows of another size";
        assert!(other.reason.contains(problem));
        segment.file.set_len(HEAD as u64 - 1).unwrap();
        assert!(RowSegment::open(&segment.path, FORMAT, 0x12).unwrap().is_none());
    }

    const RECORD_FORMAT: RecordFormat = RecordFormat { table: 3, width: 2 };

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        RECORD_FORMAT.append_row(7, &[1, u32::MAX], &mut bytes);
        RECORD_FORMAT.append_removal(u64::MAX, &mut bytes);
        assert_eq!(bytes.len(), 2 * RECORD_FORMAT.record_bytes());
        let (row, removal) = bytes.split_at(RECORD_FORMAT.record_bytes());
        assert_eq!(RECORD_FORMAT.read(row), Some((LogRecordKind::Row, 7)));
        assert_eq!(RECORD_FORMAT.read(removal), Some((LogRecordKind::Removal, u64::MAX)));
        let mut words = [0; 2];
        assert!(RECORD_FORMAT.read_row(row, 7, &mut words) && words == [1, u32::MAX]);
        assert!(!RECORD_FORMAT.read_row(row, 8, &mut words) && !RECORD_FORMAT.read_row(removal, u64::MAX, &mut words));
    }

    #[test]
    fn any_flipped_bit_another_table_and_zeros_are_damage() {
        let mut record = Vec::new();
        RECORD_FORMAT.append_row(7, &[1, 2], &mut record);
        for bit in 0..record.len() * 8 {
            record[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RECORD_FORMAT.read(&record), None, "bit {bit}");
            record[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(RECORD_FORMAT.read(&record).is_some());
        assert_eq!(RecordFormat { table: 4, width: 2 }.read(&record), None);
        assert_eq!(RECORD_FORMAT.read(&vec![0; record.len()]), None);
    }
}
