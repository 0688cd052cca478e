//! `manifest.json`: which files a model or checkpoint consists of, and by which bytes each of them is known.
//!
//! ```text
//! save    servers and worker write their files ─► each one's size and SHA-256 ─► manifest.json, last
//! read    manifest.json: bounded, itself hashed ─► names of this folder alone ─► each file compared before it is used
//! ```
//!
//! A folder without it holds nothing: it is written last and deleted first (invariant CK-1). A file that was damaged, or
//! is whole and of another save, has another SHA-256 (invariant CK-4).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use zagros_eval::Evaluation;
use zagros_job::WrittenForm;
use zagros_rows::snapshot::{FileChain, SavedFile, SnapshotError, VerifiedFile, verify_file};
use zagros_store::{ContentDigest, FileName, Folder, StoreError, hex_digits};

use crate::error::ScoringError;

/// Layout of the folder; counts up when an older release could not read it.
pub const FORMAT: u32 = 1;
/// Written last: a folder without it holds no model.
pub const MANIFEST: &str = "manifest.json";
/// One of [`MOST_ROW_FILES`] has 400 kB.
const MOST_BYTES: u64 = 4 << 20;
/// As many as a job may have embedding servers.
const MOST_ROW_FILES: usize = 1024;
/// Stands for the manifest's own hash while that is computed.
const NO_SEAL: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Files that are read at a time to compare them.
const AT_A_TIME: usize = 8;
/// Folders of checkpoints begin so; the best states of a run lie beside them under other names.
const CHECKPOINT: &str = "resume-";

pub fn checkpoint_name(step: u64) -> String {
    format!("{CHECKPOINT}{step:012}")
}

/// `None` for other folders.
pub fn checkpoint_step(name: &str) -> Option<u64> {
    name.strip_prefix(CHECKPOINT)?.parse().ok()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainingOutcome {
    /// All epochs, or as many steps as the job asked for.
    Finished,
    /// Asked to stop, as one of several workers. The run goes on without it.
    Left,
    /// Asked to stop. The step in progress was finished, and everything is acknowledged.
    Interrupted,
    /// Loss or gradients made no sense any more. No model is saved.
    Diverged,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// SHA-256 of this very file, with zeros in this place. The first key, where no text of a user's comes before it.
    pub manifest_sha256: String,
    pub format: u32,
    pub job: String,
    /// Fingerprint of the resolved job, hexadecimal.
    pub fingerprint: String,
    pub release: String,
    /// Which library made the products of the dense network in training; empty in models of before this was kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub products: String,
    pub outcome: TrainingOutcome,
    pub steps: u64,
    pub samples: u64,
    pub dense: String,
    /// Files of rows, relative to the folder. Those of a checkpoint may lie in folders of earlier ones beside it.
    pub row_files: Vec<String>,
    pub rows: u64,
    pub files: Vec<FileRecord>,
    /// The last evaluation of the held-out part; of the test part, where there is a validation part too.
    pub evaluation: Option<Evaluation>,
    #[serde(default)]
    pub validation: Option<Evaluation>,
    /// How the training rows write the columns of categories; not known of models of earlier releases.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub written: BTreeMap<String, BTreeSet<WrittenForm>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Its name in the folder, or `../FOLDER/NAME` in a folder beside.
    pub name: String,
    pub bytes: u64,
    /// SHA-256 of them, hexadecimal.
    pub sha256: String,
}

impl FileRecord {
    /// Of a content that is written under this name.
    pub fn new(name: &str, content: &[u8]) -> Self {
        Self::known_by(name, ContentDigest::compute(content))
    }

    fn known_by(name: &str, ContentDigest { bytes, sha256 }: ContentDigest) -> Self {
        Self { name: name.to_owned(), bytes, sha256: hex_digits(&sha256) }
    }
}

impl Manifest {
    /// # Errors
    /// When there is none, or it is damaged, of another format, or names files elsewhere.
    pub fn read(folder: &Folder) -> Result<Self, ScoringError> {
        let hint = "give the model folder of a finished run, such as runs/<name>/model";
        let text = folder.read_at_most(MANIFEST, MOST_BYTES).map_err(|error| match error.is_missing() {
            true => damaged(folder, format!("no model here ({error}); {hint}")),
            false => refused(folder, MANIFEST, error),
        })?;
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|error| damaged(folder, format!("{MANIFEST} is damaged ({error}); use another save")))?;
        manifest.check_text(&text).map_err(|reason| damaged(folder, reason))?;
        Ok(manifest)
    }

    fn check_text(&self, text: &[u8]) -> Result<(), String> {
        let Self { format, release, .. } = self;
        if *format != FORMAT {
            return Err(format!("format {format}, written by release {release}; this release reads format {FORMAT}"));
        }
        if seal(text, &self.manifest_sha256) != self.manifest_sha256 {
            return Err(format!("{MANIFEST} is damaged (it is not the one that was written); use another save"));
        }
        self.check_names()
    }

    /// Few enough names, all of files of this folder, none twice, each with what it is known by.
    fn check_names(&self) -> Result<(), String> {
        let named = self.row_files.iter().chain([&self.dense]);
        if self.row_files.len() > MOST_ROW_FILES || self.files.len() > 2 * MOST_ROW_FILES {
            let found = self.row_files.len().max(self.files.len());
            return Err(format!("{MANIFEST} names {found} files; a model has {MOST_ROW_FILES} of rows at most"));
        }
        let mut seen = BTreeSet::new();
        for name in named.clone() {
            if !seen.insert(name) {
                return Err(format!("{MANIFEST} names {name:?} twice"));
            }
            if self.record(name).is_none() {
                return Err(format!("{MANIFEST} does not say what {name:?} is known by"));
            }
        }
        let is_elsewhere = |name: &&String| match FileName::parse(name) {
            Some(FileName { beside: None, .. }) => false,
            Some(FileName { beside: Some(folder), .. }) => {
                checkpoint_step(folder).is_none() || !self.row_files.contains(*name)
            }
            None => true,
        };
        match named.chain(self.files.iter().map(|file| &file.name)).find(is_elsewhere) {
            Some(name) => Err(format!(
                "{MANIFEST} names {name:?}, which is no file of the folder itself, and none of rows of another checkpoint"
            )),
            None => Ok(()),
        }
    }

    /// Folder and name of each file of rows in another folder.
    pub fn files_elsewhere(&self) -> impl Iterator<Item = (&str, &str)> {
        let names = self.row_files.iter().filter_map(|name| FileName::parse(name));
        names.filter_map(|file| Some((file.beside?, file.name)))
    }

    /// With its own hash, and its text.
    pub fn into_sealed(mut self) -> (Self, Vec<u8>) {
        NO_SEAL.clone_into(&mut self.manifest_sha256);
        self.manifest_sha256 = seal(&to_json(&self), NO_SEAL);
        let text = to_json(&self);
        (self, text)
    }

    pub fn has_file(&self, name: &str) -> bool {
        self.record(name).is_some()
    }

    fn record(&self, name: &str) -> Option<&FileRecord> {
        self.files.iter().find(|file| file.name == name)
    }

    fn known<'a>(folder: &Folder, name: &str, record: Option<&'a FileRecord>) -> Result<&'a FileRecord, ScoringError> {
        record.ok_or_else(|| damaged(folder, format!("{MANIFEST} does not name {name}; it is of another save")))
    }

    /// What it says of a file of rows, by its name without a path. One save names no two files alike.
    pub fn row_record(&self, name: &str) -> Option<&FileRecord> {
        self.files.iter().find(|file| FileName::parse(&file.name).is_some_and(|file| file.name == name))
    }

    /// The files of rows, each with the deltas that follow it.
    pub fn row_chains(&self, folder: &Folder) -> Result<Vec<FileChain>, SnapshotError> {
        let files: Vec<SavedFile> = self.row_files.iter().map(|name| row_file(folder, name)).collect();
        FileChain::group_files(&files, |name| self.row_record(name).map(|file| file.sha256.clone()))
    }

    /// Checks a whole file of rows, and compares it with what was saved. `passed` gets the number of bytes of each block.
    pub fn check_rows(
        &self,
        folder: &Folder,
        file: &SavedFile,
        passed: impl FnMut(u64),
    ) -> Result<VerifiedFile, ScoringError> {
        let name = file.path().file_name().unwrap_or_default().to_string_lossy();
        let record = Self::known(folder, &name, self.row_record(&name))?;
        let checked = verify_file(file, passed)?;
        compare(folder, record, ContentDigest { bytes: checked.bytes, sha256: checked.sha256 })?;
        Ok(checked)
    }

    pub fn read_file(&self, folder: &Folder, name: &str) -> Result<Vec<u8>, ScoringError> {
        let record = Self::known(folder, name, self.record(name))?;
        read_known(folder, record).or_else(|error| record.next_content(folder).ok_or(error))
    }

    /// Compares one of its files with what was saved; reads all of it.
    pub fn check_file(&self, folder: &Folder, name: &str, passed: &dyn Fn(u64)) -> Result<(), ScoringError> {
        let record = Self::known(folder, name, self.record(name))?;
        let (place, own) =
            folder.locate_file(name).ok_or_else(|| damaged(folder, format!("{name:?} is no name of a file")))?;
        let digest = place.file_digest(own, passed).map_err(|error| refused(&place, own, error))?;
        compare(folder, record, digest).or_else(|error| record.next_content(&place).map(drop).ok_or(error))
    }

    /// Compares all its files with what was saved, several at a time; reads all of them.
    pub fn check_files(&self, folder: &Folder) -> Result<(), ScoringError> {
        let next = AtomicUsize::new(0);
        let check = || {
            let mut found = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::AcqRel);
                let Some(file) = self.files.get(number) else { return found };
                if let Err(error) = self.check_file(folder, &file.name, &|_| ()) {
                    found.push((number, error));
                }
            }
        };
        let mut found = std::thread::scope(|threads| {
            let checks: Vec<_> = (0..AT_A_TIME.min(self.files.len())).map(|_| threads.spawn(check)).collect();
            let joined = checks.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined.flat_map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect::<Vec<_>>()
        });
        found.sort_by_key(|(number, _)| *number);
        found.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }
}

const HELP: &str = "it is damaged or of another save, use another one";

fn read_known(folder: &Folder, record: &FileRecord) -> Result<Vec<u8>, ScoringError> {
    let name = &record.name;
    let content = match folder.read_at_most(name, record.bytes) {
        Err(StoreError::Disk { source, .. }) if source.kind() == std::io::ErrorKind::FileTooLarge => {
            return Err(damaged(folder, format!("{name} is not the file that was saved ({source}); {HELP}")));
        }
        content => content.map_err(|error| refused(folder, name, error))?,
    };
    compare(folder, record, ContentDigest::compute(&content))?;
    Ok(content)
}

fn compare(folder: &Folder, record: &FileRecord, found: ContentDigest) -> Result<(), ScoringError> {
    let FileRecord { name, bytes, sha256 } = record;
    let found = FileRecord::known_by(name, found);
    if found == *record {
        return Ok(());
    }
    let differs = match found.bytes == *bytes {
        true => format!("its SHA-256 is {}, the manifest says {sha256}", found.sha256),
        false => format!("it has {} bytes, the manifest says {bytes}", found.bytes),
    };
    Err(damaged(folder, format!("{name} is not the file that was saved: {differs}; {HELP}")))
}

/// A folder that does not hold what it should; `reason` says what is wrong, and what to do.
pub fn damaged(folder: &Folder, reason: String) -> ScoringError {
    ScoringError::SavedModel { folder: folder.to_string(), reason }
}

/// A file of rows, read in place: parts that are skipped are not downloaded. Its name is one of a manifest, which leads to this folder
/// or to one beside it.
pub fn row_file(folder: &Folder, name: &str) -> SavedFile {
    let (folder, name) = folder.locate_file(name).unwrap_or_else(|| (folder.clone(), name));
    let (path, name) = (format!("{folder}/{name}"), name.to_owned());
    SavedFile::new(path, move || folder.open_file(&name))
}

/// Readable JSON with a line end.
pub fn to_json<T: Serialize>(value: &T) -> Vec<u8> {
    // Only maps whose keys are not strings fail, and these are structs.
    let mut bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// A file that is missing, or is none, is damage; a disk or store that cannot be asked is not.
fn refused(folder: &Folder, name: &str, error: StoreError) -> ScoringError {
    use std::io::ErrorKind::{FileTooLarge, InvalidInput, NotADirectory};
    match &error {
        error if error.is_missing() => damaged(folder, format!("{name} is missing ({error}); use another save")),
        StoreError::Disk { source, .. } if matches!(source.kind(), InvalidInput | FileTooLarge | NotADirectory) => {
            damaged(folder, format!("{name}: {source}; use another save"))
        }
        _ => ScoringError::from(error),
    }
}

/// SHA-256 of the text with zeros in place of `now`, where that stands first.
fn seal(text: &[u8], now: &str) -> String {
    let zeroed = String::from_utf8_lossy(text).replacen(now, NO_SEAL, 1);
    hex_digits(&ContentDigest::compute(zeroed.as_bytes()).sha256)
}

#[cfg(test)]
impl Manifest {
    /// Of a finished run without rows, not sealed.
    pub(crate) fn of_test(dense: &str, files: Vec<FileRecord>) -> Self {
        let empty = serde_json::from_str::<Self>(&zagros_fakes::jobs::empty_manifest(dense)).unwrap();
        Self { files, ..empty }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use zagros_fakes::jobs::assert_refused;

    use super::*;

    #[test]
    fn a_folder_of_a_checkpoint_is_known_by_its_name() {
        assert_eq!((checkpoint_step(&checkpoint_name(7)), checkpoint_step("resume-9")), (Some(7), Some(9)));
        assert_eq!(["model", "step-7", "resume-", "resume-x"].map(checkpoint_step), [None; 4]);
    }

    fn saved(folder: &Path) -> (Folder, Manifest) {
        let disk = Folder::on_disk(folder);
        let contents = [("dense.safetensors", "weights"), ("rows-0-of-1.zrows", "rows"), ("job.toml", "name = 'ads'")];
        for (name, content) in contents {
            disk.write(name, content.as_bytes()).unwrap();
        }
        let files = contents.map(|(name, content)| FileRecord::new(name, content.as_bytes())).to_vec();
        let manifest = Manifest {
            job: format!("ads {NO_SEAL}"),
            row_files: vec!["rows-0-of-1.zrows".to_owned()],
            evaluation: Some(Evaluation { logloss: Some(0.1 + 0.2), ..Evaluation::default() }),
            fingerprint: "0123456789abcdef".to_owned(),
            release: "0.1.0".to_owned(),
            steps: 5,
            samples: 40,
            rows: 1,
            ..Manifest::of_test("dense.safetensors", files)
        };
        let (manifest, text) = manifest.into_sealed();
        disk.write(MANIFEST, &text).unwrap();
        (disk, manifest)
    }

    fn reported<T: std::fmt::Debug>(result: Result<T, ScoringError>) -> String {
        result.unwrap_err().to_string()
    }

    /// Invariant CK-4, for every byte of every file.
    #[test]
    fn no_flipped_byte_of_any_file_goes_unnoticed() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, manifest) = saved(folder.path());
        assert_eq!(Manifest::read(&disk).unwrap(), manifest);
        manifest.check_files(&disk).unwrap();
        let names = manifest.files.iter().map(|file| file.name.clone()).chain([MANIFEST.to_owned()]);
        for name in names {
            let path = folder.path().join(&name);
            let good = fs::read(&path).unwrap();
            for place in 0..good.len() {
                let mut bytes = good.clone();
                bytes[place] ^= 1;
                fs::write(&path, &bytes).unwrap();
                let found = Manifest::read(&disk).and_then(|manifest| manifest.check_files(&disk));
                assert!(found.is_err(), "byte {place} of {name}");
                if name != MANIFEST {
                    let read = reported(manifest.read_file(&disk, &name));
                    assert!(read.contains(&format!("{name} is not the file that was saved: its SHA-256 is")), "{read}");
                }
            }
            fs::write(&path, &good).unwrap();
        }
        assert_eq!(manifest.read_file(&disk, "job.toml").unwrap(), b"name = 'ads'");
    }

    #[test]
    fn what_is_missing_longer_or_shorter_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, manifest) = saved(folder.path());
        for content in ["row", "rows and more"] {
            disk.write("rows-0-of-1.zrows", content.as_bytes()).unwrap();
            assert_refused(manifest.check_files(&disk), &["is not the file that was saved", "bytes"]);
            let read = manifest.read_file(&disk, "rows-0-of-1.zrows");
            assert_refused(read, &["is not the file that was saved", "bytes"]);
        }
        disk.delete_file("rows-0-of-1.zrows").unwrap();
        assert_refused(manifest.check_files(&disk), &["rows-0-of-1.zrows is missing"]);
        assert_refused(manifest.read_file(&disk, "training.json"), &["does not name training.json"]);
    }

    /// Nothing is read, and nothing waited for, because a manifest says so.
    #[test]
    fn a_manifest_names_few_files_of_its_own_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, good) = saved(folder.path());
        let refused = |manifest: Manifest| {
            disk.write(MANIFEST, &manifest.into_sealed().1).unwrap();
            reported(Manifest::read(&disk))
        };
        let many: Vec<String> = (0..1025).map(|number| format!("rows-{number}.zrows")).collect();
        assert!(refused(Manifest { row_files: many, ..good.clone() }).contains("names 1025 files"));
        let with_file = |name: &str| {
            let record = FileRecord { name: name.to_owned(), ..good.files[1].clone() };
            Manifest { files: good.files.iter().cloned().chain([record]).collect(), ..good.clone() }
        };
        for name in ["../rows.zrows", "/dev/zero", "", "..", "../model/rows.zrows", "../resume-/a", "../resume-1/../a"]
        {
            let refusal = refused(Manifest { row_files: vec![name.to_owned()], ..with_file(name) });
            assert!(refusal.contains("which is no file of the folder itself"), "{refusal}");
        }
        let dense = "../resume-1/dense.safetensors".to_owned();
        let refusal = refused(Manifest { dense: dense.clone(), ..with_file(&dense) });
        assert!(refusal.contains("which is no file of the folder itself"), "{refusal}");
        let twice = vec!["a.zrows".to_owned(); 2];
        assert!(refused(Manifest { row_files: twice, ..with_file("a.zrows") }).contains("\"a.zrows\" twice"));
        let unknown = refused(Manifest { files: good.files[..1].to_vec(), ..good.clone() });
        assert!(unknown.contains("does not say what \"rows-0-of-1.zrows\" is known by"), "{unknown}");
        disk.write(MANIFEST, &vec![b' '; 5 << 20]).unwrap();
        assert!(reported(Manifest::read(&disk)).contains("but may have 4194304 at most"));
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("pipe"), rustix::fs::Mode::RUSR).unwrap();
        let record = FileRecord { name: "pipe".to_owned(), ..good.files[0].clone() };
        let piped = Manifest { files: vec![record], ..good };
        assert!(reported(piped.check_file(&disk, "pipe", &|_| ())).contains("pipe or a device"));
        assert!(reported(piped.read_file(&disk, "pipe")).contains("pipe or a device"));
    }

    /// Invariant CK-6.
    #[test]
    fn files_of_rows_of_earlier_checkpoints_are_compared_where_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("resume-20");
        fs::create_dir_all(&place).unwrap();
        let (disk, good) = saved(&place);
        let name = "../resume-10/rows-0-of-1.zrows".to_owned();
        let mut files = good.files.clone();
        let rows = files.iter_mut().find(|file| file.name == good.row_files[0]).unwrap();
        rows.name.clone_from(&name);
        let other = Manifest { row_files: vec![name], files, ..good };
        disk.write(MANIFEST, &other.into_sealed().1).unwrap();
        let read = Manifest::read(&disk).unwrap();
        assert_eq!(read.files_elsewhere().collect::<Vec<_>>(), [("resume-10", "rows-0-of-1.zrows")]);
        assert!(reported(read.check_files(&disk)).contains("rows-0-of-1.zrows is missing"));
        fs::create_dir(folder.path().join("resume-10")).unwrap();
        fs::rename(place.join("rows-0-of-1.zrows"), folder.path().join("resume-10/rows-0-of-1.zrows")).unwrap();
        read.check_files(&disk).unwrap();
        fs::write(folder.path().join("resume-10/rows-0-of-1.zrows"), "Rows").unwrap();
        assert!(reported(read.check_files(&disk)).contains("is not the file that was saved"));
    }
}
