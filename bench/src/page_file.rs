//! Writes the pages of benchmarks.

use std::path::Path;

use zagros_plumbing::{disk, durable};
use zagros_shell::{Exit, Failure};

pub(crate) fn write_page(path: &Path, page: &str) -> Result<(), Failure> {
    durable::write(path, page.as_bytes()).map_err(|error| {
        let what = format!("cannot write {}: {error}", path.display());
        Failure::with_help(Exit::Storage, what, disk::next_step(&error))
    })
}
