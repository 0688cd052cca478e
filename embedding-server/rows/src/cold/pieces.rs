//! Pieces of files that are read together, and the error of a disk that does not answer.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use zagros_table::ColdError;

use super::segment::{RowSegment, SegmentLayout};

/// Bytes between two records that are read rather than skipped: reading them costs less than one more read.
const GAP: u64 = 4 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordRead {
    pub(crate) address: u32,
    pub(crate) position: u32,
}

/// Pieces of at most `longest` bytes with all these records, which are in the order of their addresses.
pub(crate) fn group_reads(
    reads: &[RecordRead],
    layout: SegmentLayout,
    files: &[Option<Arc<RowSegment>>],
    longest: usize,
) -> Result<Vec<FilePiece>, ColdError> {
    let bytes = layout.format.record_bytes() as u64;
    let mut pieces: Vec<FilePiece> = Vec::with_capacity(reads.len());
    let mut slot_before = usize::MAX;
    for (at, read) in reads.iter().enumerate() {
        let (slot, row) = layout.split_address(read.address);
        let (start, end) = (layout.record_offset(row), layout.record_offset(row) + bytes);
        if let Some(last) = pieces.last_mut().filter(|_| slot == slot_before) {
            let is_near = start <= last.offset + last.bytes as u64 + GAP;
            if is_near && end - last.offset <= longest as u64 {
                last.bytes = last.bytes.max((end - last.offset) as usize);
                last.records.end = at + 1;
                continue;
            }
        }
        let segment = files.get(slot).cloned().flatten().ok_or_else(|| ColdError {
            doing: "read",
            reason: format!("the index of table {} names a segment that is gone", layout.format.table),
        })?;
        pieces.push(FilePiece { segment, offset: start, bytes: bytes as usize, part: 0, records: at..at + 1 });
        slot_before = slot;
    }
    Ok(pieces)
}

#[derive(Clone, Debug)]
pub(crate) struct FilePiece {
    pub(crate) segment: Arc<RowSegment>,
    pub(crate) offset: u64,
    /// At most the longest piece of the queue.
    pub(crate) bytes: usize,
    /// Which of the tables of the read it is of.
    pub(crate) part: usize,
    /// Which of the requested records of this table are in it.
    pub(crate) records: Range<usize>,
}

/// Takes the pieces in the order of their arrival, with their bytes.
pub(crate) type OnPiece<'a> = dyn FnMut(&FilePiece, &[u8]) -> Result<(), ColdError> + 'a;

pub(super) fn hang_error(patience: Duration, piece: Option<&FilePiece>) -> ColdError {
    let file = piece.map(|piece| format!(" ({})", piece.segment.path.display())).unwrap_or_default();
    let seconds = patience.as_secs_f64();
    let reason = format!("the disk has answered nothing for {seconds:.1} s{file}; the next request tries again");
    ColdError { doing: "read", reason }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::cold::segment::HEAD;
    use crate::cold::segment::RecordFormat;

    /// A segment of `count` numbers of four bytes after its head.
    pub(crate) fn numbers(folder: &std::path::Path, count: u32) -> Arc<RowSegment> {
        let segment = RowSegment::create(folder, RecordFormat { table: 0, width: 1 }, 0).unwrap();
        let bytes: Vec<u8> = (0..count).flat_map(u32::to_le_bytes).collect();
        segment.write(HEAD as u64, &bytes).unwrap();
        Arc::new(segment)
    }

    pub(crate) fn pieces(segment: &Arc<RowSegment>, numbers: impl Iterator<Item = u32>) -> Vec<FilePiece> {
        let piece = |(at, number): (usize, u32)| {
            let (segment, offset) = (Arc::clone(segment), HEAD as u64 + 4 * u64::from(number));
            FilePiece { segment, offset, bytes: 4, part: 0, records: at..at + 1 }
        };
        numbers.enumerate().map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cold::segment::RecordFormat;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_record_is_in_one_piece(mut rows in prop::collection::vec((0_usize..3, 0_u32..400), 0..200), longest in 200_usize..9000) {
            let folder = tempfile::tempdir().unwrap();
            let layout = SegmentLayout::new(RecordFormat { table: 0, width: 33 });
            let files: Vec<_> =
                (0..3).map(|n| Some(Arc::new(RowSegment::create(folder.path(), layout.format, n).unwrap()))).collect();
            rows.sort_unstable();
            let read = |(position, (slot, row)): (usize, &(usize, u32))| {
                RecordRead { address: layout.address(*slot, *row), position: position as u32 }
            };
            let reads: Vec<RecordRead> = rows.iter().enumerate().map(read).collect();
            let pieces = group_reads(&reads, layout, &files, longest).unwrap();
            let mut next = 0;
            for piece in &pieces {
                prop_assert!(piece.bytes <= longest && piece.records.start == next && !piece.records.is_empty());
                next = piece.records.end;
                for (slot, row) in &rows[piece.records.clone()] {
                    prop_assert_eq!(piece.segment.number, *slot as u64);
                    let start = layout.record_offset(*row);
                    prop_assert!(start >= piece.offset && start + 144 <= piece.offset + piece.bytes as u64);
                }
            }
            prop_assert_eq!(next, reads.len());
        }
    }

    #[test]
    fn neighbours_are_one_piece_and_distant_records_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let layout = SegmentLayout::new(RecordFormat { table: 0, width: 33 });
        let files = [Some(Arc::new(RowSegment::create(folder.path(), layout.format, 0).unwrap())), None];
        let reads = |rows: &[u32]| rows.iter().map(|row| RecordRead { address: *row, position: 0 }).collect::<Vec<_>>();
        let counts = |rows: &[u32]| group_reads(&reads(rows), layout, &files, 8192).map(|pieces| pieces.len());
        assert_eq!(counts(&[0, 1, 2, 3]), Ok(1));
        assert_eq!(counts(&[0, 20, 40, 1000]), Ok(2));
        assert_eq!(counts(&[5, 5]), Ok(1));
        assert!(counts(&[layout.address(1, 0)]).unwrap_err().reason.contains("names a segment that is gone"));
    }
}
