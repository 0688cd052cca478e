//! A table to measure, and what was measured.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use zagros_shell::{Exit, Failure};

use crate::args::IdLaw;

pub(super) const DIM: usize = 16;
#[derive(Clone, Copy, Debug)]
pub(super) struct TableCase<'a> {
    pub(super) rows: usize,
    /// Bytes of rows in memory. `None` for all rows.
    pub(super) budget: Option<usize>,
    pub(super) draws: IdLaw,
    /// Batches before the measured ones, and the measured ones.
    pub(super) batches: (usize, usize),
    pub(super) ahead: usize,
    /// Time of the network for a sample.
    pub(super) compute: Duration,
    pub(super) folder: &'a Path,
}

/// Counts are of all measured batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct TableFigures {
    pub(super) rows: usize,
    /// Rows that are in memory at the end, and bytes of the table's memory.
    pub(super) rows_in_memory: usize,
    pub(super) memory_bytes: usize,
    pub(super) disk_bytes: u64,
    /// µs a sample: wall time of lookups, pushes and the network, and CPU time of the process without network and
    /// drawing of ids.
    pub(super) wall_us: f64,
    pub(super) cpu_us: f64,
    pub(super) batches: usize,
    /// Distinct ids, and those whose rows were in memory.
    pub(super) ids: u64,
    pub(super) found: u64,
    /// Rows that a lookup had to read from disk itself.
    pub(super) late: u64,
    /// Reads of files, and rows that they brought into memory.
    pub(super) reads: u64,
    pub(super) brought_in: u64,
    /// Rows that left memory.
    pub(super) evicted: u64,
    /// Bytes written to files for each byte of rows that left, since the table was empty. 0 if none left.
    pub(super) write_amplification: f64,
}

pub(super) fn thread_failure(thread: &str) -> Failure {
    Failure::with_help(Exit::Internal, format!("the thread that {thread} failed"), "its message is above")
}
