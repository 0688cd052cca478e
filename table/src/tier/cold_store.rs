//! The cold tier as a trait: a store of whole rows by cold key. The table itself knows no files.
//!
//! A row has `width` words of 32 bits, `[weights | optimiser state | access metadata]`, in the table's layout. Its cold
//! key is a one-to-one function of its id. The cold keys of a stripe are one contiguous range.
//!
//! The copy of a row in memory is the row. A copy in the store is then void: it is never read and never saved, and the
//! next eviction overwrites it.

use std::fmt;
use std::ops::RangeInclusive;

/// A store of rows that is slower and larger than memory. Calls block, and several threads call at once.
pub trait ColdStore: Send + Sync + fmt::Debug {
    /// Reads rows of several tables in one call. Overwrites `into` of each.
    /// A cold key without a row is no error. On an error some tables may be read.
    fn read_all(&self, reads: &mut [ColdRead<'_>]) -> Result<(), ColdError>;

    /// As [`Self::read_all`], of one table.
    fn read(&self, table: u32, cold_keys: &[u64], into: &mut ColdRows) -> Result<(), ColdError> {
        self.read_all(&mut [ColdRead { table, cold_keys, into }])
    }

    /// Writes rows, `[cold_keys.len() * width]` words, and replaces earlier copies. It writes all rows or none.
    fn write(&self, table: u32, cold_keys: &[u64], rows: &[u32]) -> Result<(), ColdError>;

    /// Removes the rows at `cold_keys`. Cold keys without a row are ignored.
    fn remove(&self, table: u32, cold_keys: &[u64]) -> Result<(), ColdError>;

    /// Removes all rows of a table, in a time that does not depend on their number.
    fn remove_all(&self, table: u32) -> Result<(), ColdError>;

    /// Waits until all that was written is on the disk: it survives the end of the process from then on.
    fn flush(&self) -> Result<(), ColdError>;

    fn freeze(&self) -> Result<Box<dyn ColdView>, ColdError>;

    /// The approximate size of the store, with void copies.
    fn size(&self) -> ColdSize;

    /// Bytes of the store in memory that grow with its rows, such as an index. The tables' budget counts them.
    fn memory(&self) -> usize {
        0
    }
}

pub trait ColdView: Send {
    /// Appends the rows of a table whose cold keys lie in `range`, in ascending order, at most `limit` of them. Returns
    /// the cold key to continue from, or `None` at the end.
    fn scan(
        &mut self,
        table: u32,
        range: RangeInclusive<u64>,
        limit: usize,
        into: &mut ColdScan,
    ) -> Result<Option<u64>, ColdError>;
}

#[derive(Debug)]
pub struct ColdRead<'a> {
    pub table: u32,
    pub cold_keys: &'a [u64],
    pub into: &'a mut ColdRows,
}

/// The rows of a read, in the order of the requested keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColdRows {
    pub found: Vec<bool>,
    /// `[cold_keys * width]`. Zeros where there is no row.
    pub rows: Vec<u32>,
}

/// The rows of a scan, in ascending order of cold keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColdScan {
    pub cold_keys: Vec<u64>,
    /// `[cold_keys * width]`.
    pub rows: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColdSize {
    pub rows: u64,
    /// Bytes on the medium.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cold tier cannot {doing}: {reason}")]
pub struct ColdError {
    /// The operation that failed: `read`, `write`, …
    pub doing: &'static str,
    /// The error message of the medium, with its location.
    pub reason: String,
}
