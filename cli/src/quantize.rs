//! `zagros quantize`: a copy of a saved model whose tables have weights in another number format.
//!
//! ```text
//! plan ────────────────────────────────► apply ([`crate::rewrite`])
//! the model's files and their chains,    1 the job, by which a stopped command is known
//! the job as the copy has it,            2 every file is compared with the manifest
//! how each table is converted            3 rows, block by block, a chain to a file
//!                                        4 the other files
//!                                        5 the manifest
//! ```
//!
//! A folder without its manifest is no model. So a command that ends before step 5 leaves none (invariant CK-1), and the model that it
//! reads is never changed. The same command starts over in the folder that it left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, ProgressBar};
use serde_json::json;
use zagros_job::{Job, Optimizer, is_dense_table};
use zagros_rows::snapshot::{RowConversion, StateConversion, TableHeader};
use zagros_scoring::{JOB, MANIFEST, Manifest};
use zagros_shell::{Exit, Failure, out, print_answer};
use zagros_store::Folder;
use zagros_table::WeightType;

use crate::args::QuantizeArgs;
use crate::resume::failed;
use crate::rewrite::{FileChange, ModelCopy, PlannedCopy, PlannedSave, Rewrite, RowFile, row_chains};
use crate::saved::{self, SavedModel, refused, snapshot_failure, table_help};

pub(crate) fn run(args: &QuantizeArgs) -> Result<Exit, Failure> {
    let plan = QuantizePlan::prepare(args)?;
    let bar = ProgressBar::new(plan.row_bytes());
    let written = apply(&plan, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    print(&plan, &written?, args)?;
    Ok(Exit::Success)
}

pub(crate) struct QuantizePlan {
    pub(crate) target: Folder,
    pub(crate) planned: PlannedSave,
    /// The tables whose rows change, in the order of the files.
    pub(crate) tables: Vec<RowConversion>,
    /// A file with its deltas becomes one file of its name.
    copies: Vec<PlannedCopy>,
    /// The job as the copy has it.
    job_text: Vec<u8>,
}

impl QuantizePlan {
    pub(crate) fn prepare(args: &QuantizeArgs) -> Result<Self, Failure> {
        let timeout = Duration::from_secs(args.timeout);
        let model = SavedModel::find(&args.model, timeout)?;
        let (from, saved) = (model.folder.clone(), Manifest::read(&model.folder).map_err(failed)?);
        let target = saved::open(&args.output, timeout)?;
        let chains = row_chains(&from, &saved)?;
        let state = if args.without_state { StateConversion::LeaveOut } else { StateConversion::Keep };
        let first = chains.first().and_then(|chain| chain.first()).map(|file| file.saved.open()).transpose();
        // The files of a save have the same tables.
        let all = first.map_err(snapshot_failure)?.map(|file| file.header().tables.clone()).unwrap_or_default();
        let chosen = chosen(&from, &all, &args.table)?;
        let conversions = all.iter().filter(|table| chosen.contains(&table.name));
        let conversions = conversions.map(|table| RowConversion::new(table, args.element, state));
        let tables: Vec<RowConversion> = conversions.filter(RowConversion::changes_rows).collect();
        if tables.is_empty() {
            let what = format!("the tables of {from} have {} rows already", args.element.name());
            return Err(Failure::usage(what, "there is nothing to convert: use the model as it is"));
        }
        let mut job = model.load_job(&[])?;
        change_job(&mut job, &chosen, args.element, state);
        let copy = |sources: Vec<RowFile>| {
            let name = sources.first().map(|file| file.name.clone()).unwrap_or_default();
            PlannedCopy { sources, folder: target.clone(), name, follows: None }
        };
        let copies: Vec<PlannedCopy> = chains.into_iter().map(copy).collect();
        let job_text = job.to_toml().into_bytes();
        check_target(&target, &job_text)?;
        let changes = file_changes(&saved, &copies, job_text.clone(), state);
        let copy = Some(ModelCopy { folder: target.clone(), job });
        let planned = PlannedSave { changes, copy, ..PlannedSave::new(from, saved) };
        Ok(Self { target, planned, tables, copies, job_text })
    }

    pub(crate) fn row_bytes(&self) -> u64 {
        self.copies.iter().map(PlannedCopy::source_bytes).sum()
    }
}

/// Refuses a folder with anything but what a stopped command for the same copy left: the job comes first, and the manifest last.
fn check_target(target: &Folder, job_text: &[u8]) -> Result<(), Failure> {
    let files = target.file_names().map_err(refused)?;
    let is_left = match files.iter().any(|file| file == JOB) {
        true => files.iter().all(|file| file != MANIFEST) && target.read(JOB).map_err(refused)? == job_text,
        false => {
            files.iter().all(|file| file.starts_with(JOB) && file.ends_with(".tmp"))
                && target.folder_names().map_err(refused)?.is_empty()
        }
    };
    // A link would be replaced by a folder.
    let found = target.path().and_then(|path| path.symlink_metadata().ok());
    if is_left && found.is_none_or(|found| found.is_dir()) {
        return Ok(());
    }
    let help = "name a new folder; if another command that was stopped left this one (without manifest.json), delete it \
                first";
    Err(Failure::usage(format!("{target} exists"), help))
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
            table.optimizer = Optimizer::without_state();
        }
    }
}

/// What becomes of the files of the model. The copy has none that only a run that resumes needs, and no deltas.
fn file_changes(
    saved: &Manifest,
    copies: &[PlannedCopy],
    job_text: Vec<u8>,
    state: StateConversion,
) -> BTreeMap<String, FileChange> {
    let copied = saved.files_beside_rows(state == StateConversion::Keep).into_iter();
    let copied = copied.map(|file| (file.name.clone(), FileChange::Copied));
    let rows = copies.iter().enumerate().filter_map(|(number, copy)| Some((copy.sources.first()?, number)));
    let rows = rows.map(|(first, number)| (first.record.name.clone(), FileChange::Rows(number)));
    copied.chain(rows).chain([(JOB.to_owned(), FileChange::Content(job_text))]).collect()
}

/// Writes the copy, and returns its manifest. `progress` is called between two steps, with the bytes of rows that the last one copied. After
/// an error the target does not exist.
pub(crate) fn apply(plan: &QuantizePlan, progress: &dyn Fn(u64)) -> Result<Manifest, Failure> {
    let QuantizePlan { target, planned, tables, copies, job_text } = plan;
    let rewrite = Rewrite { copies, saves: vec![planned], change: tables, progress };
    // A stopped command may have left it.
    let started = target.delete().and_then(|()| target.make()).and_then(|_| target.write(JOB, job_text));
    let written = started.map_err(refused).and_then(|()| {
        progress(0);
        rewrite.write_files()
    });
    written.and_then(|sealed| rewrite.replace_manifests(&sealed)).inspect_err(|_| {
        // The error says more than a failure of this would.
        let _ = target.delete();
    })?;
    Manifest::read(target).map_err(failed)
}

fn print(plan: &QuantizePlan, copy: &Manifest, args: &QuantizeArgs) -> Result<(), Failure> {
    let (from, saved) = (&plan.planned.from, &plan.planned.saved);
    let of_rows = copy.files.iter().filter(|file| copy.row_files.contains(&file.name));
    let rows = [plan.row_bytes(), of_rows.map(|file| file.bytes).sum()];
    let model = [saved, copy].map(|saved| saved.files.iter().map(|file| file.bytes).sum::<u64>());
    if args.json {
        let report = json!({
            "model": from.to_string(),
            "output": plan.target.to_string(),
            "rows": saved.rows,
            "tables": plan.tables.iter().map(in_json).collect::<Vec<_>>(),
            "row_bytes": {"before": rows[0], "after": rows[1]},
            "bytes": {"before": model[0], "after": model[1]},
        });
        return print_answer(&report.to_string());
    }
    out!("{from} → {}", plan.target);
    for table in &plan.tables {
        let (before, after) = (table.saved_header(), table.converted_header());
        let [old, new] = [before, after].map(|table| 4 * table.width);
        out!("  table {}: {} → {}, {old} → {new} bytes a row", before.name, before.element, after.element);
    }
    let [before, after] = rows.map(HumanBytes);
    out!("  {} rows: {before} → {after} in files", HumanCount(saved.rows));
    let [before, after] = model.map(HumanBytes);
    out!("  the model: {before} → {after}");
    Ok(())
}

fn in_json(table: &RowConversion) -> serde_json::Value {
    let describe = |table: &TableHeader| json!({"element": table.element, "bytes_a_row": 4 * table.width});
    let (before, after) = (table.saved_header(), table.converted_header());
    json!({"table": before.name, "before": describe(before), "after": describe(after)})
}
