//! What is to be written, decided before anything is.

use std::collections::BTreeSet;
use std::time::Duration;

use zagros_dense_worker::{FileRecord, Manifest};
use zagros_job::{Job, TableOptimizer, is_dense_table};
use zagros_rows::snapshot::{FileChain, RowConversion, SavedFile, StateConversion, TableHeader};
use zagros_shell::{Exit, Failure};
use zagros_store::{FileName, Folder};
use zagros_table::WeightType;

use crate::args::QuantizeArgs;
use crate::resume::failed;
use crate::saved::{self, SavedModel, refused, saved_file, snapshot_failure};

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
            return Err(Failure::with_help(Exit::Usage, what, "there is nothing to convert: use the model as it is"));
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
    Err(Failure::with_help(Exit::Usage, format!("{to} exists"), help))
}

/// The files of rows, in chains. What a chain becomes has the name of its first file.
fn chains(from: &Folder, manifest: &Manifest) -> Result<Vec<PlannedChain>, Failure> {
    // One save names no two files alike.
    let record = |name: &str| manifest.files.iter().find(|file| own_name(&file.name) == name);
    // In the folder or in one beside it. The manifest was checked: each name leads to a file.
    let places = manifest.row_files.iter().filter_map(|name| from.locate_file(name));
    let files: Vec<SavedFile> = places.map(|(folder, name)| saved_file(&folder, name)).collect();
    let sha256_of = |name: &str| record(name).map(|file| file.sha256.clone());
    let planned = |chain: FileChain| {
        let path_name = |file: &SavedFile| file.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let names: Vec<String> = chain.files().iter().map(path_name).collect();
        let bytes = names.iter().filter_map(|name| record(name)).map(|file| file.bytes).sum();
        PlannedChain { name: names.into_iter().next().unwrap_or_default(), chain, bytes }
    };
    let chains = FileChain::group_files(&files, sha256_of).map_err(snapshot_failure)?;
    Ok(chains.into_iter().map(planned).collect())
}

fn own_name(name: &str) -> &str {
    FileName::parse(name).map_or(name, |file| file.name)
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
        let help = match zagros_job::nearest_name(unknown, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("its tables are {}", known.join(", ")),
        };
        return Err(Failure::with_help(Exit::Usage, what, help));
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
