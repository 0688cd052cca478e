//! A piece of a file that is read, and the error of a disk that does not answer.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use zagros_table::ColdError;

use super::segment::RowSegment;

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
    use crate::log_store::record::RecordFormat;
    use crate::log_store::segment::HEAD;

    /// A segment of `count` numbers of four bytes after its head.
    pub(crate) fn numbers(folder: &std::path::Path, count: u32) -> Arc<RowSegment> {
        let segment = RowSegment::create(folder, RecordFormat { table: 0, width: 1 }, 0).unwrap();
        let bytes: Vec<u8> = (0..count).flat_map(u32::to_le_bytes).collect();
        segment.write(HEAD as u64, &bytes).unwrap();
        Arc::new(segment)
    }

    pub(crate) fn pieces(segment: &Arc<RowSegment>, numbers: impl Iterator<Item = u32>) -> Vec<FilePiece> {
        let piece = |(at, number): (usize, u32)| FilePiece {
            segment: Arc::clone(segment),
            offset: HEAD as u64 + 4 * u64::from(number),
            bytes: 4,
            part: 0,
            records: at..at + 1,
        };
        numbers.enumerate().map(piece).collect()
    }
}
