//! The page of a run, `report.html`: one file that opens offline. It is made from the files in the run folder.

mod record;
mod sections;

use std::path::PathBuf;

use zagros_dense_worker::RunFolder;
use zagros_plumbing::{disk, durable};

pub(crate) use record::RunRecord;
use zagros_shell::{Exit, Failure};

/// Writes the page into the run folder. Returns its path.
pub(crate) fn write(folder: &RunFolder) -> Result<PathBuf, Failure> {
    let record = RunRecord::read(folder)?;
    let path = folder.report_file();
    let written = durable::write(&path, sections::page(&record).as_bytes());
    written.map_err(|error| {
        let what = format!("cannot write {}: {error}", path.display());
        Failure::with_help(Exit::Storage, what, disk::next_step(&error))
    })?;
    Ok(path)
}
