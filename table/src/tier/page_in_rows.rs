//! The rows that a request still has to page in: their keys, and their cold copies.

use crate::ColdRows;
use crate::key::cold_key_of;
use crate::request::RequestDeadline;

/// The row was in memory and needs no cold copy.
const NOT_NEEDED: u32 = u32::MAX;
/// The cold copy of a row is not read yet.
const NOT_READ: u32 = u32::MAX - 1;

/// The rows of one table that a request pages in, with buffers. Requests reuse them.
#[derive(Debug, Default)]
pub(crate) struct PageIn {
    /// The remaining rows, ordered by stripe.
    pub(crate) entries: Vec<PageInEntry>,
    /// Rows whose cold copy was stale in the present round.
    pub(crate) stale: Vec<PageInEntry>,
    pub(crate) cold_keys: Vec<u64>,
    pub(crate) cold: ColdRows,
    pub(crate) created: u64,
    /// Rows read from the cold tier.
    pub(crate) late: u64,
    /// Whether the request counts towards the admission of ids that have no row.
    pub(crate) counts_access: bool,
    pub(crate) deadline: RequestDeadline,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PageInEntry {
    pub(crate) key: u64,
    pub(crate) position: u32,
    /// Cold version of the stripe when the row was last found missing in memory.
    pub(crate) cold_version: u32,
    /// Position of the row's copy in [`PageIn::cold`], or one of the constants above.
    cold: u32,
}

impl PageInEntry {
    pub(crate) fn is_missing(&self) -> bool {
        self.cold == NOT_READ
    }

    /// The same row, with a cold copy that must be read again.
    pub(crate) fn with_stale_copy(self, cold_version: u32) -> Self {
        Self { cold_version, cold: NOT_READ, ..self }
    }
}

impl PageIn {
    pub(crate) fn memory_bytes(&self) -> usize {
        let cold = self.cold.rows.capacity() * size_of::<u32>() + self.cold.found.capacity();
        let rows = (self.entries.capacity() + self.stale.capacity()) * size_of::<PageInEntry>();
        cold + rows + self.cold_keys.capacity() * size_of::<u64>()
    }

    pub(crate) fn begin(&mut self, deadline: RequestDeadline) {
        self.clear();
        self.deadline = deadline;
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.stale.clear();
        self.created = 0;
        self.late = 0;
        self.counts_access = false;
    }

    /// Adds a row. `missing` means that the row is not in memory.
    pub(crate) fn add(&mut self, key: u64, position: u32, cold_version: u32, missing: bool) {
        let cold = if missing { NOT_READ } else { NOT_NEEDED };
        self.entries.push(PageInEntry { key, position, cold_version, cold });
    }

    pub(crate) fn bytes_of_copies(&self, stride: usize) -> usize {
        let rows = self.entries.iter().filter(|entry| entry.is_missing()).count();
        rows * (stride + 1) * size_of::<u32>()
    }

    pub(crate) fn first_missing(&self) -> Option<PageInEntry> {
        self.entries.iter().copied().find(PageInEntry::is_missing)
    }

    /// Lists the cold keys of the `entries` whose copy is to be read, and points each entry to its copy.
    pub(crate) fn list_cold_keys(entries: &mut [PageInEntry], cold_keys: &mut Vec<u64>) {
        cold_keys.clear();
        for entry in entries.iter_mut().filter(|entry| entry.is_missing()) {
            entry.cold = cold_keys.len() as u32;
            cold_keys.push(cold_key_of(entry.key));
        }
    }

    /// The cold copy of a row: `stride` words, and the row's access metadata.
    pub(crate) fn cold_copy(&self, entry: &PageInEntry, stride: usize) -> Option<&[u32]> {
        let found = self.cold.found.get(entry.cold as usize).copied().unwrap_or(false);
        found.then(|| &self.cold.rows[entry.cold as usize * (stride + 1)..][..stride + 1])
    }
}
