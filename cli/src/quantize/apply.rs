//! Does what a plan says. The manifest comes last: before it, the target is no model.

use std::io;

use zagros_dense_worker::{CopiedFiles, FileRecord, JOB, MANIFEST, Manifest};
use zagros_rows::snapshot::{CopyError, copy_converted};
use zagros_shell::{Exit, Failure};
use zagros_store::{ContentDigest, hex_digits};

use super::QuantizePlan;
use super::plan::PlannedChain;
use crate::resume::failed;
use crate::saved::{not_written, refused, snapshot_failure};

const NOTHING_LEFT: &str = "nothing is left of the copy";

/// Writes the copy. `passed` gets the number of bytes of each file of rows that is done. Returns the manifest of the copy. After an error
/// the target does not exist.
pub(crate) fn apply(plan: &QuantizePlan, passed: &dyn Fn(u64)) -> Result<Manifest, Failure> {
    // Before anything is written (invariant CK-4).
    plan.manifest.check_files(&plan.from).map_err(failed)?;
    plan.to.make().map_err(refused)?;
    write(plan, passed).inspect_err(|_| {
        // The error says more than a failure of this would.
        let _ = plan.to.delete();
    })
}

fn write(plan: &QuantizePlan, passed: &dyn Fn(u64)) -> Result<Manifest, Failure> {
    let (mut files, mut rows) = (Vec::new(), 0);
    for chain in &plan.chains {
        let (file, written) = copy_rows(plan, chain)?;
        passed(chain.bytes);
        files.push(file);
        rows += written;
    }
    if rows != plan.manifest.rows {
        let saved = plan.manifest.rows;
        let what = format!("{} says that {saved} rows were saved, but its files have {rows}", plan.from);
        return Err(Failure::with_help(Exit::Data, what, "use another save"));
    }
    let copied = plan.other_files().into_iter().map(|file| copy_file(plan, file));
    let mut others = copied.collect::<Result<Vec<_>, _>>()?;
    let job = plan.job.to_toml().into_bytes();
    plan.to.write(JOB, &job).map_err(refused)?;
    others.push(record(JOB, ContentDigest::compute(&job)));
    let (manifest, text) = plan.manifest.of_copy(&plan.job, CopiedFiles { rows: files, others });
    plan.to.write(MANIFEST, &text).map_err(refused)?;
    Ok(manifest)
}

/// Writes a file of rows. Returns it and how many rows it has.
fn copy_rows(plan: &QuantizePlan, chain: &PlannedChain) -> Result<(FileRecord, u64), Failure> {
    let copied = plan.to.write_unless(&chain.name, chain.bytes, |to| {
        match copy_converted(&chain.chain, |saved| plan.row_conversion(saved), to) {
            Err(CopyError::Write(error)) => Err(error),
            copied => Ok(copied),
        }
    });
    let written =
        copied.map_err(|error| not_written((&plan.to, &chain.name), error, NOTHING_LEFT))?.map_err(not_copied)?;
    let sha256 = hex_digits(&written.sha256);
    Ok((FileRecord { name: chain.name.clone(), bytes: written.bytes, sha256 }, written.rows))
}

fn copy_file(plan: &QuantizePlan, file: &FileRecord) -> Result<FileRecord, Failure> {
    let name = &file.name;
    let copy = |to: &mut dyn io::Write| {
        let (mut input, _) = plan.from.open_file(name)?;
        io::copy(&mut input, to).map(Ok::<u64, Failure>)
    };
    let copied = plan.to.write_unless(name, file.bytes, copy);
    copied.map_err(|error| not_written((&plan.to, name), error, NOTHING_LEFT))??;
    Ok(file.clone())
}

fn record(name: &str, ContentDigest { bytes, sha256 }: ContentDigest) -> FileRecord {
    FileRecord { name: name.to_owned(), bytes, sha256: hex_digits(&sha256) }
}

fn not_copied(error: CopyError) -> Failure {
    match error {
        CopyError::Read(error) => snapshot_failure(error),
        error => Failure::from_error(Exit::Data, error),
    }
}
