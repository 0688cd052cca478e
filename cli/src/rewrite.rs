//! The rewriter of saved models: `zagros forget` and `zagros quantize` plan what becomes of each file and row, and it does so.
//!
//! ```text
//! 1 sources are compared with their manifests       nothing has changed
//! 2 rows are copied through a change, and audited   no manifest names the copies
//! 3 other files are written                         in a new folder, or as NAME.next beside the old one
//! 4 manifests are replaced, each whole              a save is the old one before, and the new one afterwards
//! ```
//!
//! A kill between two steps leaves whole saves (invariants CK-1, CK-4), and the same command plans anew and finishes.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;

use zagros_job::Job;
use zagros_rows::snapshot::{FileChain, FollowedFile, RewriteError, RowChange, SavedFile, rewrite_rows};
use zagros_scoring::{CopiedFiles, FileRecord, JOB, MANIFEST, Manifest, row_file};
use zagros_shell::{Exit, Failure};
use zagros_store::{ContentDigest, FileName, Folder, hex_digits};
use zagros_zip::ZipEq;

use crate::resume::failed;
use crate::saved::{not_written, refused, snapshot_failure};

#[derive(Clone, Debug)]
pub(crate) struct RowFile {
    /// What the manifest says of it. A name `../FOLDER/NAME` is of a folder beside that of the manifest.
    pub(crate) record: FileRecord,
    pub(crate) folder: Folder,
    /// In its own folder.
    pub(crate) name: String,
    pub(crate) saved: SavedFile,
}

impl RowFile {
    fn find(folder: &Folder, manifest: &Manifest, saved: &SavedFile) -> Option<Self> {
        let record = manifest.row_record(&saved.path().file_name()?.to_string_lossy())?.clone();
        let (folder, name) = folder.locate_file(&record.name).map(|(folder, name)| (folder, name.to_owned()))?;
        Some(Self { record, folder, name, saved: saved.clone() })
    }
}

/// The files of each chain, that of all rows first.
pub(crate) fn row_chains(folder: &Folder, manifest: &Manifest) -> Result<Vec<Vec<RowFile>>, Failure> {
    let chains = manifest.row_chains(folder).map_err(snapshot_failure)?;
    // The manifest was checked: each name has a record, and leads to this folder or to one beside it.
    let find = |saved| RowFile::find(folder, manifest, saved);
    Ok(chains.iter().map(|chain| chain.files().iter().filter_map(find).collect()).collect())
}

#[derive(Debug)]
pub(crate) struct PlannedCopy {
    /// A file with its deltas, which become one file, or one file alone.
    pub(crate) sources: Vec<RowFile>,
    pub(crate) folder: Folder,
    pub(crate) name: String,
    /// Position of the copy that this one follows.
    pub(crate) follows: Option<usize>,
}

/// What becomes of a file that a manifest names.
#[derive(Debug)]
pub(crate) enum FileChange {
    /// The copy at this position takes its place.
    Rows(usize),
    /// Takes its place under its name. It is in the folder of a copy already.
    Content(Vec<u8>),
    Copied,
}

#[derive(Debug)]
pub(crate) struct PlannedSave {
    pub(crate) from: Folder,
    pub(crate) saved: Manifest,
    /// As many as the save has then.
    pub(crate) rows: u64,
    /// By their names in the manifest. Others stay, and a copy has none of them.
    pub(crate) changes: BTreeMap<String, FileChange>,
    /// `None` if the save itself changes.
    pub(crate) copy: Option<ModelCopy>,
}

#[derive(Debug)]
pub(crate) struct ModelCopy {
    pub(crate) folder: Folder,
    pub(crate) job: Job,
}

/// A manifest with its text.
pub(crate) type SealedManifest = (Manifest, Vec<u8>);

/// Nothing is left to decide.
pub(crate) struct Rewrite<'a> {
    pub(crate) copies: &'a [PlannedCopy],
    pub(crate) saves: Vec<&'a PlannedSave>,
    pub(crate) change: &'a dyn RowChange,
    /// Called between two steps, with the bytes of rows that the last one copied.
    pub(crate) progress: &'a dyn Fn(u64),
}

struct CopiedRows {
    record: FileRecord,
    rows: u64,
}

impl PlannedCopy {
    pub(crate) fn source_bytes(&self) -> u64 {
        self.sources.iter().map(|file| file.record.bytes).sum()
    }
}

impl PlannedSave {
    /// A save without changes.
    pub(crate) fn new(from: Folder, saved: Manifest) -> Self {
        Self { from, rows: saved.rows, saved, changes: BTreeMap::new(), copy: None }
    }
}

impl Rewrite<'_> {
    /// Writes all files but the manifests. Returns that of each save, and `None` where a save stays as it is.
    pub(crate) fn write_files(&self) -> Result<Vec<Option<SealedManifest>>, Failure> {
        self.check_sources()?;
        let copied = self.copy_rows()?;
        self.saves.iter().map(|save| self.write_save(save, &copied)).collect()
    }

    pub(crate) fn replace_manifests(&self, sealed: &[Option<SealedManifest>]) -> Result<(), Failure> {
        for (save, sealed) in self.saves.iter().zip_eq(sealed) {
            let Some((manifest, text)) = sealed else { continue };
            (self.progress)(0);
            let folder = save.copy.as_ref().map_or(&save.from, |copy| &copy.folder);
            folder.write(MANIFEST, text).map_err(refused)?;
            if save.copy.is_none() {
                (self.progress)(0);
                manifest.finish_replacement(&save.from, JOB).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Compares each file that is read with its manifest, before anything is written (invariant CK-4).
    fn check_sources(&self) -> Result<(), Failure> {
        // Checkpoints share files.
        let mut checked = BTreeSet::new();
        for save in &self.saves {
            let is_source = |record: &&FileRecord| {
                let place = save.from.locate_file(&record.name).map(|(folder, name)| format!("{folder}/{name}"));
                (save.copy.is_some() || save.changes.contains_key(&record.name)) && checked.insert(place)
            };
            let files = save.saved.files.iter().filter(is_source).cloned().collect();
            Manifest { files, ..save.saved.clone() }.check_files(&save.from).map_err(failed)?;
        }
        Ok(())
    }

    fn copy_rows(&self) -> Result<Vec<CopiedRows>, Failure> {
        let mut copied: Vec<CopiedRows> = Vec::new();
        // Checkpoints on a disk share files by hard links, and their copies do.
        let mut by_source: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        for (number, planned) in self.copies.iter().enumerate() {
            let source = planned.sources.first().and_then(disk_identity);
            let first = source.map_or(number, |source| *by_source.entry(source).or_insert(number));
            let copy = match copied.get(first).filter(|_| link(&self.copies[first], planned)) {
                Some(CopiedRows { record, rows }) => {
                    CopiedRows { record: FileRecord { name: planned.name.clone(), ..record.clone() }, rows: *rows }
                }
                None => self.copy(planned, &copied)?,
            };
            (self.progress)(planned.source_bytes());
            copied.push(copy);
        }
        Ok(copied)
    }

    fn copy(&self, planned: &PlannedCopy, copied: &[CopiedRows]) -> Result<CopiedRows, Failure> {
        let PlannedCopy { sources, folder, name, .. } = planned;
        let follows = planned.follows.map(|copy| {
            let FileRecord { name, sha256, .. } = copied[copy].record.clone();
            FollowedFile { name, sha256 }
        });
        let chain = FileChain::new(sources.iter().map(|file| file.saved.clone()).collect());
        let filled = folder.write_unless(name, planned.source_bytes(), |to| {
            match rewrite_rows(&chain, self.change, follows, to) {
                Err(RewriteError::Write(error)) => Err(error),
                written => Ok(written),
            }
        });
        let written = filled.map_err(|error| not_written(folder, name, error))?.map_err(not_rewritten)?;
        if !self.change.is_applied(&row_file(folder, name)).map_err(snapshot_failure)? {
            let what = format!("the rows of the copy {folder}/{name} are not changed as asked; no manifest names it");
            return Err(Failure::with_help(Exit::Internal, what, "keep both files, and report this as a bug"));
        }
        let record = FileRecord { name: name.clone(), bytes: written.bytes, sha256: hex_digits(&written.sha256) };
        Ok(CopiedRows { record, rows: written.rows })
    }

    fn write_save(&self, save: &PlannedSave, copied: &[CopiedRows]) -> Result<Option<SealedManifest>, Failure> {
        match save.copy {
            Some(_) => check_count(save, copied)?,
            // A change that an earlier process did not finish would be read for this one.
            None => save.saved.finish_replacement(&save.from, JOB).map_err(failed)?,
        }
        let mut replaced = BTreeMap::new();
        for record in &save.saved.files {
            let name = &record.name;
            let new = match (save.changes.get(name), &save.copy) {
                (Some(FileChange::Rows(copy)), _) => copied[*copy].named_as(record, save),
                (Some(FileChange::Content(content)), None) => {
                    FileRecord::write_next(&save.from, name, content).map_err(refused)?
                }
                (Some(FileChange::Content(content)), Some(_)) => content_record(name, content),
                (Some(FileChange::Copied), Some(copy)) => copy_file(&save.from, &copy.folder, record)?,
                (Some(FileChange::Copied), None) | (None, _) => continue,
            };
            (self.progress)(0);
            replaced.insert(name.clone(), new);
        }
        Ok(match &save.copy {
            Some(copy) => Some(seal_copy(&save.saved, &copy.job, replaced)),
            None if replaced.is_empty() => None,
            None => Some(save.saved.with_row_files(&replaced, save.rows)),
        })
    }
}

impl CopiedRows {
    /// What a manifest says of the copy in the place of a file.
    fn named_as(&self, file: &FileRecord, save: &PlannedSave) -> FileRecord {
        let folder = FileName::parse(&file.name).and_then(|file| file.beside).filter(|_| save.copy.is_none());
        FileRecord { name: FileName { beside: folder, name: &self.record.name }.to_string(), ..self.record.clone() }
    }
}

fn copy_file(from: &Folder, to: &Folder, file: &FileRecord) -> Result<FileRecord, Failure> {
    let copied = to.write_unless(&file.name, file.bytes, |to| {
        let (mut input, _) = from.open_file(&file.name)?;
        io::copy(&mut input, to).map(|_| Ok(file.clone()))
    });
    copied.map_err(|error| not_written(to, &file.name, error))?
}

fn content_record(name: &str, content: &[u8]) -> FileRecord {
    let ContentDigest { bytes, sha256 } = ContentDigest::compute(content);
    FileRecord { name: name.to_owned(), bytes, sha256: hex_digits(&sha256) }
}

/// The manifest of a copy with these files, each by the name of the one that it is of.
fn seal_copy(saved: &Manifest, job: &Job, files: BTreeMap<String, FileRecord>) -> SealedManifest {
    let (mut rows, mut others) = (Vec::new(), Vec::new());
    for (name, file) in files {
        if saved.row_files.contains(&name) { rows.push(file) } else { others.push(file) }
    }
    saved.of_copy(job, CopiedFiles { rows, others })
}

/// A copy of a whole model has as many rows as its manifest says.
fn check_count(save: &PlannedSave, copied: &[CopiedRows]) -> Result<(), Failure> {
    let copy = |change: &FileChange| if let FileChange::Rows(copy) = change { copied.get(*copy) } else { None };
    let rows: u64 = save.changes.values().filter_map(copy).map(|copy| copy.rows).sum();
    if rows == save.rows {
        return Ok(());
    }
    let what = format!("{} says that {} rows were saved, but its files have {rows}", save.from, save.rows);
    Err(Failure::with_help(Exit::Data, what, "use another save"))
}

/// Which file of a disk this is, whatever its name.
fn disk_identity(file: &RowFile) -> Option<(u64, u64)> {
    let found = file.folder.path()?.join(&file.name).metadata().ok()?;
    Some((found.dev(), found.ino()))
}

/// Gives the copy of the same file a second name, which is durable with the manifest beside it. `false` where that is not possible.
fn link(same: &PlannedCopy, planned: &PlannedCopy) -> bool {
    let path = |copy: &PlannedCopy| copy.folder.path().map(|folder| folder.join(&copy.name));
    let Some((from, to)) = path(same).zip(path(planned)) else { return false };
    // Of a command that was stopped.
    let _ = std::fs::remove_file(&to);
    std::fs::hard_link(from, to).is_ok()
}

fn not_rewritten(error: RewriteError) -> Failure {
    match error {
        RewriteError::Read(error) => snapshot_failure(error),
        error => Failure::from_error(Exit::Data, error),
    }
}
