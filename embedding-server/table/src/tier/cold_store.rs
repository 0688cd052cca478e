//! The cold tier as a trait: a store of whole rows by cold key. The table stays free of files.
//!
//! A row is `width` words of 32 bits, `[weights | optimiser state | access metadata]` as the table lays them out. Its cold
//! key is a one-to-one function of its id that puts the rows of a stripe side by side.
//!
//! The copy of a row in memory is the row. While there is one, a copy in the store is void: it is never read, never
//! saved, and overwritten when the row is evicted.

use std::fmt;
use std::ops::RangeInclusive;

/// Rows in a store that is slower and larger than memory. Calls block; they come from several threads at once.
pub trait ColdStore: Send + Sync + fmt::Debug {
    /// Reads the rows at `cold_keys`, all in one go. `into` is overwritten.
    ///
    /// # Errors
    /// When the medium fails; a cold key without a row is no error.
    fn read(&self, table: u32, cold_keys: &[u64], into: &mut ColdRows) -> Result<(), ColdError>;

    /// Writes rows, `[cold_keys.len() * width]` words, all or none of them, replacing what was there.
    ///
    /// # Errors
    /// When the medium fails or is full.
    fn write(&self, table: u32, cold_keys: &[u64], rows: &[u32]) -> Result<(), ColdError>;

    /// Forgets rows, those that are there.
    ///
    /// # Errors
    /// When the medium fails.
    fn remove(&self, table: u32, cold_keys: &[u64]) -> Result<(), ColdError>;

    /// Forgets all rows of a table, in a time that does not grow with them.
    ///
    /// # Errors
    /// When the medium fails.
    fn remove_all(&self, table: u32) -> Result<(), ColdError>;

    /// Waits until all that was written is on the disk: it survives the end of the process from then on.
    ///
    /// # Errors
    /// When the medium fails.
    fn flush(&self) -> Result<(), ColdError>;

    /// What is in the store now, for a reader that comes later.
    ///
    /// # Errors
    /// When the medium fails.
    fn freeze(&self) -> Result<Box<dyn ColdView>, ColdError>;

    /// About how much there is, void copies included.
    fn size(&self) -> ColdSize;
}

/// The content of a store at one moment.
pub trait ColdView: Send {
    /// Appends the rows of a table whose cold keys lie in `range`, in ascending order, at most `limit` of them, and
    /// answers the cold key to go on from; `None` at the end.
    ///
    /// # Errors
    /// When the medium fails.
    fn scan(
        &mut self,
        table: u32,
        range: RangeInclusive<u64>,
        limit: usize,
        into: &mut ColdScan,
    ) -> Result<Option<u64>, ColdError>;
}

/// Rows in the order in which they were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColdRows {
    /// Whether there is a row, for each cold key.
    pub found: Vec<bool>,
    /// `[cold_keys * width]`; zeros where there is none.
    pub rows: Vec<u32>,
}

/// Rows in ascending order of cold keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColdScan {
    /// Their cold keys.
    pub cold_keys: Vec<u64>,
    /// `[cold_keys * width]`.
    pub rows: Vec<u32>,
}

/// How much a store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColdSize {
    /// Rows.
    pub rows: u64,
    /// Bytes on the medium.
    pub bytes: u64,
}

/// What went wrong in a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cold tier cannot {doing}: {reason}")]
pub struct ColdError {
    /// `read`, `write`, …
    pub doing: &'static str,
    /// What the medium said, and where.
    pub reason: String,
}
