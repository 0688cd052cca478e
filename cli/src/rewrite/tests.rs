//! Each command that rewrites saved models is killed after each of its steps: what it leaves is whole, and the same command finishes.

use std::cell::Cell;
use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use zagros_rows::snapshot::{
    BlockContent, ForgottenIds, RowBatch, RowConversionError, SavedFile, SnapshotError, SnapshotHeader, SnapshotWriter,
    TableHeader,
};
use zagros_table::WeightType;

use super::*;
use crate::args::QuantizeArgs;
use crate::forget::{self, AUDIT, ForgetPlace, ForgetPlan};
use crate::quantize::{self, QuantizePlan};

/// Of a vocabulary with the ids 1 and 2.
const JOB_TEXT: &str = "name = 'ads'\n[data]\nformat = 'delimited'\ntrain = '/a'\ncolumns = ['y', 'u']\n[features]\n\
     label = 'y'\ncategorical = [{ column = 'u', vocabulary = { ids = '00000000000000010000000000000002' } }]\n\
     [model]\nkind = 'ffnn'\n";
const DENSE: &str = "dense.safetensors";
const BASE: &str = "rows-0-of-1.zrows";
const DELTA: &str = "rows-0-of-1.delta-1.zrows";
const SAVES: [&str; 3] = ["run/model", "run/checkpoints/resume-1", "run/checkpoints/resume-2"];
const COPY: &str = "served";
const GONE: u64 = 2;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Answers what a file that follows this one says of it.
fn write_rows(path: &Path, follows: Option<FollowedFile>, ids: &[u64]) -> FollowedFile {
    let [name, element, state] = ["u", "f32", "adagrad"].map(str::to_owned);
    let table = TableHeader { name, element, state, dim: 2, width: 4, ..TableHeader::default() };
    let tables = vec![table];
    let header = SnapshotHeader { servers: 1, buckets: 8, tables, follows, ..SnapshotHeader::default() };
    let mut writer = SnapshotWriter::start(File::create(path).unwrap(), header).unwrap();
    let slots = vec![0.5_f32.to_bits(); 4 * ids.len()];
    writer.write_rows(0, &RowBatch { ids: ids.to_vec(), slots, access: Vec::new() }).unwrap();
    let sha256 = hex_digits(&writer.finish().unwrap().sha256);
    FollowedFile { name: path.file_name().unwrap().to_string_lossy().into_owned(), sha256 }
}

/// Adds what a model has beside its rows.
fn save(folder: &Path, row_files: &[&str], rows: u64) {
    fs::write(folder.join(DENSE), "weights").unwrap();
    fs::write(folder.join(JOB), JOB_TEXT).unwrap();
    let names = row_files.iter().chain(&[DENSE, JOB]);
    let manifest = Manifest {
        row_files: row_files.iter().map(|&name| name.to_owned()).collect(),
        files: names.map(|name| content_record(name, &fs::read(folder.join(name)).unwrap())).collect(),
        ..serde_json::from_str(&zagros_fakes::jobs::empty_manifest(DENSE)).unwrap()
    };
    fs::write(folder.join(MANIFEST), manifest.with_row_files(&BTreeMap::new(), rows).1).unwrap();
}

/// A run with a model and two checkpoints, which share a file of rows. The second one has a delta.
fn prepare(root: &Path) {
    if root.exists() {
        fs::remove_dir_all(root).unwrap();
    }
    let [model, first, second] = SAVES.map(|save| root.join(save));
    [&model, &first, &second].into_iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
    fs::write(root.join("run").join(JOB), JOB_TEXT).unwrap();
    write_rows(&model.join(BASE), None, &[1, GONE, 3]);
    let base = write_rows(&first.join(BASE), None, &[1, GONE, 3, 4]);
    fs::hard_link(first.join(BASE), second.join(BASE)).unwrap();
    write_rows(&second.join(DELTA), Some(base), &[GONE, 5]);
    save(&model, &[BASE], 3);
    save(&first, &[BASE], 4);
    save(&second, &[BASE, DELTA], 5);
}

/// Every manifest names whole files of as many rows as it says. Answers whether each save has the row that is to go.
fn check_saves(root: &Path) -> Vec<bool> {
    let has_row = |name: &str| {
        let folder = Folder::on_disk(root.join(name));
        let manifest = Manifest::read(&folder).unwrap();
        manifest.check_files(&folder).unwrap();
        let chain = row_chains(&folder, &manifest).unwrap().swap_remove(0);
        let chain = FileChain::new(chain.into_iter().map(|file| file.saved).collect());
        let has = |id: &u64| chain.find_row("u", *id).unwrap().is_some();
        assert_eq!((0..10).filter(has).count() as u64, manifest.rows, "{name}");
        assert!(has(&3), "{name}");
        has(&GONE)
    };
    let copy = [COPY].into_iter().filter(|copy| root.join(copy).join(MANIFEST).is_file());
    SAVES.into_iter().chain(copy).map(has_row).collect()
}

/// All files but the audit file, which has times.
fn read_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.is_dir() {
            true => found.extend(read_below(&entry)),
            false if entry.ends_with(AUDIT) => {}
            false => _ = found.insert(entry.clone(), fs::read(&entry).unwrap()),
        }
    }
    found
}

/// Ends a command after so many steps as a kill does: nothing that follows is done, and nothing is removed.
fn is_killed(steps: usize, command: impl Fn(&dyn Fn(u64))) -> bool {
    const KILLED: &str = "killed";
    let left = Cell::new(steps);
    let progress = |_: u64| match left.get() {
        0 => resume_unwind(Box::new(KILLED)),
        steps => left.set(steps - 1),
    };
    match catch_unwind(AssertUnwindSafe(|| command(&progress))) {
        Ok(()) => false,
        Err(cause) if cause.downcast_ref::<&str>() == Some(&KILLED) => true,
        Err(cause) => resume_unwind(cause),
    }
}

/// Invariants CK-1 and CK-4.
fn survives_kills(fewest_steps: usize, command: impl Fn(&Path, &dyn Fn(u64))) {
    let folder = tempfile::tempdir().unwrap();
    let root = &folder.path().join("all");
    prepare(root);
    assert_eq!(check_saves(root), [true; 3]);
    command(root, &|_| ());
    check_saves(root);
    let finished = read_below(root);
    for steps in 0.. {
        prepare(root);
        let is_killed = is_killed(steps, |progress| command(root, progress));
        check_saves(root);
        if !is_killed {
            assert!(steps >= fewest_steps, "only {steps} steps");
            return;
        }
        command(root, &|_| ());
        assert_eq!(read_below(root), finished, "killed after {steps} steps");
    }
}

fn forgotten() -> ForgottenIds {
    ForgottenIds { table: "u".to_owned(), ids: BTreeSet::from([GONE, 99]) }
}

fn forget_row(root: &Path, progress: &dyn Fn(u64)) {
    let place = ForgetPlace::find(&root.join("run"), TIMEOUT).unwrap();
    let plan = ForgetPlan::prepare(&place, &forgotten()).unwrap();
    forget::apply(&place, &plan, &forgotten(), progress).unwrap();
    let audit = fs::read_to_string(root.join("run").join(AUDIT)).unwrap();
    assert_eq!((audit.lines().count(), check_saves(root)), (3, vec![false; 3]), "a line for each save, none twice");
}

#[test]
fn a_removal_of_rows_that_is_killed_after_any_step_leaves_whole_saves_and_is_finished_by_the_same_command() {
    // Copies, jobs, manifests, and files that are deleted.
    survives_kills(20, forget_row);
}

#[test]
fn a_conversion_that_is_killed_after_any_step_leaves_no_half_model_and_is_finished_by_the_same_command() {
    survives_kills(4, |root, progress| {
        let args = QuantizeArgs {
            model: root.join(SAVES[2]),
            output: root.join(COPY),
            element: WeightType::Int8,
            table: Vec::new(),
            without_state: false,
            json: false,
            timeout: TIMEOUT.as_secs(),
        };
        let copy = quantize::apply(&QuantizePlan::prepare(&args).unwrap(), progress).unwrap();
        assert_eq!(copy.row_files, [BASE]);
        assert_eq!(check_saves(root), [true; 4], "the model stays, and the copy has all of its rows");
        assert!(QuantizePlan::prepare(&args).is_err(), "a model is not replaced");
    });
}

#[test]
fn a_folder_with_other_files_than_a_stopped_conversion_leaves_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let root = &folder.path().join("all");
    prepare(root);
    let output = root.join(COPY);
    let (model, element, table, timeout) = (root.join(SAVES[0]), WeightType::Int8, Vec::new(), TIMEOUT.as_secs());
    let args =
        QuantizeArgs { model, output: output.clone(), element, table, without_state: false, json: false, timeout };
    let is_refused = || QuantizePlan::prepare(&args).is_err();
    assert!(!is_refused());
    fs::create_dir(&output).unwrap();
    assert!(!is_refused(), "it is empty");
    fs::write(output.join("job.toml.00ff.tmp"), "half").unwrap();
    assert!(!is_refused(), "the first step of a stopped command");
    fs::write(output.join(JOB), JOB_TEXT).unwrap();
    assert!(is_refused(), "a job of the user's own, or of another copy");
    fs::remove_file(output.join(JOB)).unwrap();
    fs::write(output.join("notes.txt"), "mine").unwrap();
    assert!(is_refused());
}

#[test]
fn checkpoints_that_share_a_file_share_its_copy() {
    let folder = tempfile::tempdir().unwrap();
    let root = &folder.path().join("all");
    prepare(root);
    forget_row(root, &|_| ());
    let shared = |save: &str| {
        let files = fs::read_dir(root.join(save)).unwrap().map(|file| file.unwrap().path());
        files
            .filter(|file| file.to_string_lossy().contains(".without-"))
            .map(|file| file.metadata().unwrap().nlink())
            .max()
    };
    assert_eq!(SAVES.map(shared), [Some(1), Some(2), Some(2)]);
}

/// A change that does not do what it says.
struct IdleChange;

impl RowChange for IdleChange {
    fn change_table(&self, saved: &TableHeader) -> TableHeader {
        saved.clone()
    }

    fn change_content(&self, _: &TableHeader, content: BlockContent) -> Result<BlockContent, RowConversionError> {
        Ok(content)
    }

    fn is_applied(&self, copy: &SavedFile) -> Result<bool, SnapshotError> {
        forgotten().is_applied(copy)
    }
}

#[test]
fn no_manifest_names_a_copy_that_still_has_what_was_to_go() {
    let folder = tempfile::tempdir().unwrap();
    let root = &folder.path().join("all");
    prepare(root);
    let place = ForgetPlace::find(&root.join("run"), TIMEOUT).unwrap();
    let plan = ForgetPlan::prepare(&place, &forgotten()).unwrap();
    let saves = plan.saves.iter().map(|save| &save.planned).collect();
    let rewrite = Rewrite { copies: &plan.copies, saves, change: &IdleChange, progress: &|_| () };
    // Its line breaks depend on the lengths of paths.
    let refused = format!("{:?}", rewrite.write_files().unwrap_err()).replace("\n  │ ", " ");
    assert!(refused.contains("are not changed as asked"), "{refused}");
    assert_eq!(check_saves(root), [true; 3]);
}
