//! `zagros quantize`: a copy of a saved model whose tables have weights in another number format.
//!
//! ```text
//! plan ────────────────────────────────► apply
//! the model's files and their chains,    1 every file is compared with the manifest
//! the job as the copy has it,            2 rows, block by block, a chain to a file
//! how each table is converted            3 the other files, the job
//!                                        4 the manifest
//! ```
//!
//! A folder without its manifest is no model. So a command that ends before step 4 leaves none (invariant CK-1), and the model that it
//! reads is never changed.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use zagros_job::{Job, TableOptimizer, is_dense_table};
use zagros_rows::snapshot::{
    CopyError, FileChain, RowConversion, SavedFile, StateConversion, TableHeader, copy_converted,
};
use zagros_scoring::{CopiedFiles, FileRecord, JOB, MANIFEST, Manifest};
use zagros_shell::{Exit, Failure};
use zagros_store::{Folder, hex_digits};
use zagros_table::WeightType;

use crate::args::QuantizeArgs;
use crate::resume::failed;
use crate::saved::{self, SavedModel, not_written, refused, snapshot_failure, table_help};

/// Nothing is left to decide.
pub(crate) struct QuantizePlan {
    pub(crate) from: Folder,
    pub(crate) to: Folder,
    pub(crate) manifest: Manifest,
    /// As the copy has it.
    pub(crate) job: Job,
    pub(crate) chains: Vec<PlannedChain>,
    /// The tables whose rows change, in the order of the files.
    pub(crate) tables: Vec<PlannedTable>,
    pub(crate) state: StateConversion,
}

/// A file of rows with its deltas, which become one file.
pub(crate) struct PlannedChain {
    pub(crate) name: String,
    pub(crate) chain: FileChain,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
pub(crate) struct PlannedTable {
    pub(crate) saved: TableHeader,
    pub(crate) conversion: RowConversion,
}

impl QuantizePlan {
    pub(crate) fn prepare(args: &QuantizeArgs) -> Result<Self, Failure> {
        let timeout = Duration::from_secs(args.timeout);
        let model = SavedModel::find(&args.model, timeout)?;
        let (from, manifest) = (model.folder.clone(), Manifest::read(&model.folder).map_err(failed)?);
        let target = saved::open(&args.output, timeout)?;
        check_is_new(&target)?;
        let chains = chains(&from, &manifest)?;
        let state = if args.without_state { StateConversion::LeaveOut } else { StateConversion::Keep };
        let saved = tables(&chains)?;
        let chosen = chosen(&from, &saved, &args.table)?;
        let is_chosen = |table: &&TableHeader| chosen.contains(&table.name);
        let planned = |saved: &TableHeader| PlannedTable {
            saved: saved.clone(),
            conversion: RowConversion::new(saved, args.element, state),
        };
        let tables: Vec<PlannedTable> = saved.iter().filter(is_chosen).map(planned).collect();
        let tables: Vec<_> = tables.into_iter().filter(|table| table.conversion.changes_rows()).collect();
        if tables.is_empty() {
            let what = format!("the tables of {from} have {} rows already", args.element.name());
            return Err(Failure::usage(what, "there is nothing to convert: use the model as it is"));
        }
        let mut job = model.load_job(&[])?;
        change_job(&mut job, &chosen, args.element, state);
        Ok(Self { from, to: target, manifest, job, chains, tables, state })
    }

    /// How the rows of a saved table are converted; those of others stay as they are.
    pub(crate) fn row_conversion(&self, saved: &TableHeader) -> RowConversion {
        let planned = self.tables.iter().find(|table| table.saved.name == saved.name);
        planned.map_or_else(|| RowConversion::unchanged(saved), |table| table.conversion.clone())
    }

    pub(crate) fn other_files(&self) -> Vec<&FileRecord> {
        self.manifest.files_beside_rows(self.state == StateConversion::Keep)
    }

    pub(crate) fn row_bytes(&self) -> u64 {
        self.chains.iter().map(|chain| chain.bytes).sum()
    }
}

fn check_is_new(to: &Folder) -> Result<(), Failure> {
    let exists = match to.path() {
        Some(path) => path.symlink_metadata().is_ok(),
        None => !to.file_names().map_err(refused)?.is_empty() || !to.folder_names().map_err(refused)?.is_empty(),
    };
    if !exists {
        return Ok(());
    }
    let help =
        "name a new folder; if a command that was stopped left this one (without manifest.json), delete it first";
    Err(Failure::usage(format!("{to} exists"), help))
}

/// The files of rows, in chains. What a chain becomes has the name of its first file.
fn chains(from: &Folder, manifest: &Manifest) -> Result<Vec<PlannedChain>, Failure> {
    let planned = |chain: FileChain| {
        let path_name = |file: &SavedFile| file.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let names: Vec<String> = chain.files().iter().map(path_name).collect();
        let bytes = names.iter().filter_map(|name| manifest.row_record(name)).map(|file| file.bytes).sum();
        PlannedChain { name: names.into_iter().next().unwrap_or_default(), chain, bytes }
    };
    let chains = manifest.row_chains(from).map_err(snapshot_failure)?;
    Ok(chains.into_iter().map(planned).collect())
}

/// The tables of the files, which are the same in each.
fn tables(chains: &[PlannedChain]) -> Result<Vec<TableHeader>, Failure> {
    let mut tables: Option<Vec<TableHeader>> = None;
    for file in chains.iter().flat_map(|chain| chain.chain.files()) {
        let own = file.open().map_err(snapshot_failure)?.header().tables.clone();
        if tables.as_ref().is_some_and(|tables| *tables != own) {
            let what = format!("{} has other tables than the files before it", file.path().display());
            return Err(Failure::with_help(Exit::Data, what, "use another save"));
        }
        tables = Some(own);
    }
    Ok(tables.unwrap_or_default())
}

/// The names of the tables to convert: those that are asked for, or every table of features.
fn chosen(from: &Folder, saved: &[TableHeader], asked: &[String]) -> Result<BTreeSet<String>, Failure> {
    // Other rows are weights of the dense network.
    let known: Vec<&str> = saved.iter().map(|table| &*table.name).filter(|name| !is_dense_table(name)).collect();
    if let Some(unknown) = asked.iter().find(|name| !known.contains(&&***name)) {
        let what = format!("{from} has no table `{unknown}` of features");
        return Err(Failure::usage(what, table_help(unknown, &known, "its")));
    }
    let is_asked = |name: &&str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    Ok(known.into_iter().filter(is_asked).map(str::to_owned).collect())
}

/// Tables without the state of their optimiser have one that keeps none.
fn change_job(job: &mut Job, chosen: &BTreeSet<String>, element: WeightType, state: StateConversion) {
    for table in job.tables.iter_mut().filter(|table| chosen.contains(&table.name)) {
        table.element = element;
        if state == StateConversion::LeaveOut {
            table.optimizer = TableOptimizer::without_state();
        }
    }
}

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
    others.push(FileRecord::new(JOB, &job));
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

fn not_copied(error: CopyError) -> Failure {
    match error {
        CopyError::Read(error) => snapshot_failure(error),
        error => Failure::from_error(Exit::Data, error),
    }
}
