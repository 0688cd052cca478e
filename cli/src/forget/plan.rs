//! What is to be done, decided before anything is changed: which files are copied, and what each manifest says then.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use zagros_job::{IdRange, Job, Overrides};
use zagros_plumbing::durable;
use zagros_rows::snapshot::{MentionedIds, SavedFile, mentioned_ids};
use zagros_scoring::{FileRecord, JOB, Manifest};
use zagros_shell::{Exit, Failure};
use zagros_store::Folder;

use super::{ForgetPlace, WantedIds};
use crate::resume::failed;
use crate::saved::snapshot_failure;

/// Between the name of a file and the part that tells its copies apart.
const COPY: &str = ".without-";
const ROWS: &str = ".zrows";
/// Digits of a hash in a copy's name.
const DIGITS: usize = 12;

/// Nothing is left to decide.
#[derive(Debug)]
pub(crate) struct ForgetPlan {
    /// Files to copy, each after the file that it follows.
    pub(crate) copies: Vec<PlannedCopy>,
    pub(crate) saves: Vec<SavePlan>,
}

#[derive(Debug)]
pub(crate) struct PlannedCopy {
    /// Where both are.
    pub(crate) folder: Folder,
    pub(crate) name: String,
    pub(crate) copy: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
    /// Position of the copy that this one follows.
    pub(crate) follows: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct SavePlan {
    pub(crate) folder: Folder,
    pub(crate) manifest: Manifest,
    /// Names in the manifest of files that are replaced, and positions of their copies.
    pub(crate) replaced: BTreeMap<String, usize>,
    /// Ids whose rows go.
    pub(crate) rows: BTreeSet<u64>,
    /// Ids whose frequency counts go.
    pub(crate) counts: BTreeSet<u64>,
    /// The job, if one of its vocabularies has some of the ids.
    pub(crate) job: Option<ChangedJob>,
    /// Ids that a file names although their row is gone or older than another one.
    pub(crate) traces: BTreeSet<u64>,
}

impl ForgetPlan {
    /// Reads what the files say of the ids. Of large files, only the blocks of the ids' buckets are read.
    pub(crate) fn prepare(place: &ForgetPlace, wanted: &WantedIds) -> Result<Self, Failure> {
        let mut planner =
            ForgetPlanner { wanted, copies: Vec::new(), positions: BTreeMap::new(), read: BTreeMap::new() };
        let saves = place.saves.iter().map(|folder| planner.save(folder)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { copies: planner.copies, saves })
    }

    pub(crate) fn missing_ids<'a>(&self, wanted: &'a WantedIds) -> Vec<&'a u64> {
        let is_found = |id: &u64| {
            let is_in = |save: &SavePlan| [&save.rows, &save.counts, &save.traces].iter().any(|ids| ids.contains(id));
            self.saves.iter().any(|save| is_in(save) || save.has_in_vocabulary(id))
        };
        wanted.ids.iter().filter(|id| !is_found(id)).collect()
    }

    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copies.iter().map(|copy| copy.bytes).sum()
    }
}

impl SavePlan {
    pub(crate) fn is_changed(&self) -> bool {
        !self.replaced.is_empty() || self.job.is_some()
    }

    pub(crate) fn changed_files(&self) -> Vec<&str> {
        self.replaced.keys().map(String::as_str).chain(self.job.as_ref().map(|_| JOB)).collect()
    }

    pub(crate) fn has_in_vocabulary(&self, id: &u64) -> bool {
        self.job.as_ref().is_some_and(|job| job.ids.contains(id))
    }

    /// The manifest once the copies take the place of their files, and its text.
    pub(crate) fn changed_manifest(
        &self,
        copies: &[FileRecord],
        job: Option<&FileRecord>,
    ) -> Option<(Manifest, Vec<u8>)> {
        if !self.is_changed() {
            return None;
        }
        let record = |(name, copy): (&String, &usize)| {
            let mut record = copies[*copy].clone();
            if let Some((folder, _)) = name.rsplit_once('/') {
                record.name = format!("{folder}/{}", record.name);
            }
            (name.clone(), record)
        };
        let job = job.map(|record| (record.name.clone(), record.clone()));
        let replaced = self.replaced.iter().map(record).chain(job).collect();
        Some(self.manifest.with_row_files(&replaced, self.manifest.rows.saturating_sub(self.rows.len() as u64)))
    }
}

struct ForgetPlanner<'a> {
    wanted: &'a WantedIds,
    copies: Vec<PlannedCopy>,
    /// Positions of copies by folder and name of the file.
    positions: BTreeMap<(String, String), usize>,
    /// What files say, by SHA-256: checkpoints share files.
    read: BTreeMap<String, MentionedIds>,
}

impl ForgetPlanner<'_> {
    fn save(&mut self, folder: &Folder) -> Result<SavePlan, Failure> {
        let manifest = Manifest::read(folder).map_err(failed)?;
        let mut save = SavePlan {
            folder: folder.clone(),
            manifest,
            replaced: BTreeMap::new(),
            rows: BTreeSet::new(),
            counts: BTreeSet::new(),
            traces: BTreeSet::new(),
            job: None,
        };
        save.job = changed_job(folder, &save.manifest, self.wanted)?;
        for chain in save.manifest.row_chains(folder).map_err(snapshot_failure)? {
            let files: Vec<RowFile> = chain.files().iter().filter_map(|file| RowFile::find(&save, file)).collect();
            self.chain(&mut save, &files)?;
        }
        Ok(save)
    }

    /// From the first file on that names an id, all files are copied: each names the SHA-256 of the one before.
    fn chain(&mut self, save: &mut SavePlan, files: &[RowFile]) -> Result<(), Failure> {
        let mentioned = files.iter().map(|file| self.read(file)).collect::<Result<Vec<_>, _>>()?;
        // The newest file that names an id decides whether it has a row now.
        let mut seen = BTreeSet::new();
        for (number, said) in mentioned.iter().enumerate().rev() {
            save.rows.extend(said.rows.difference(&seen));
            if number + 1 == mentioned.len() {
                save.counts.extend(&said.counts);
            }
            seen.extend(said.rows.iter().chain(&said.removed));
            save.traces.extend(said.rows.iter().chain(&said.counts).chain(&said.removed));
        }
        let first = mentioned.iter().position(|said| !said.is_empty()).unwrap_or(files.len());
        let mut follows = None;
        for file in &files[first..] {
            let copy = self.copy(file, follows);
            save.replaced.insert(file.record.name.clone(), copy);
            follows = Some(copy);
        }
        Ok(())
    }

    fn read(&mut self, file: &RowFile) -> Result<MentionedIds, Failure> {
        let RowFile { record, saved, .. } = file;
        if let Some(said) = self.read.get(&record.sha256) {
            return Ok(said.clone());
        }
        let WantedIds { table, ids } = self.wanted;
        saved.open().and_then(|reader| reader.find_table(table).map(drop)).map_err(snapshot_failure)?;
        let said = mentioned_ids(saved, table, ids).map_err(snapshot_failure)?;
        self.read.insert(record.sha256.clone(), said.clone());
        Ok(said)
    }

    fn copy(&mut self, file: &RowFile, follows: Option<usize>) -> usize {
        let RowFile { folder, name, record: FileRecord { bytes, sha256, .. }, .. } = file;
        let key = (folder.to_string(), name.clone());
        if let Some(position) = self.positions.get(&key) {
            return *position;
        }
        let copy = copy_name(name, sha256, self.wanted);
        let (folder, name, sha256) = (folder.clone(), name.clone(), sha256.clone());
        self.copies.push(PlannedCopy { folder, name, copy, bytes: *bytes, sha256, follows });
        self.positions.insert(key, self.copies.len() - 1);
        self.copies.len() - 1
    }
}

struct RowFile {
    folder: Folder,
    /// Its name there.
    name: String,
    /// By its name in the manifest.
    record: FileRecord,
    saved: SavedFile,
}

impl RowFile {
    /// A file of a save. The manifest was checked: each has a record.
    fn find(save: &SavePlan, saved: &SavedFile) -> Option<Self> {
        let record = save.manifest.row_record(saved.path().file_name()?.to_str()?)?.clone();
        let (folder, name) = save.folder.locate_file(&record.name)?;
        let name = name.to_owned();
        Some(Self { folder, name, record, saved: saved.clone() })
    }
}

/// Whether a file holds rows: one that is saved, or that a process was writing when it ended.
pub(super) fn is_row_file(name: &str) -> bool {
    name.ends_with(ROWS) || (name.contains(&format!("{ROWS}.")) && name.ends_with(".tmp"))
}

/// A name that no other file in the folder has: it says of which file, and without which ids, this is a copy.
fn copy_name(name: &str, sha256: &str, WantedIds { table, ids }: &WantedIds) -> String {
    let stem = name.strip_suffix(ROWS).unwrap_or(name);
    let stem = stem.split_once(COPY).map_or(stem, |(stem, _)| stem);
    let mut text = format!("{sha256} {table}");
    ids.iter().for_each(|id| text.push_str(&format!(" {id}")));
    let hash = zagros_store::hex_digits(&zagros_store::ContentDigest::compute(text.as_bytes()).sha256);
    format!("{stem}{COPY}{}{ROWS}", &hash[..DIGITS])
}

#[derive(Debug)]
pub(crate) struct ChangedJob {
    pub(crate) text: Vec<u8>,
    /// Those that were in a vocabulary.
    pub(crate) ids: BTreeSet<u64>,
}

/// The job of a save without the ids in the vocabularies of the table's features; `None` if none of them is there.
fn changed_job(save: &Folder, manifest: &Manifest, wanted: &WantedIds) -> Result<Option<ChangedJob>, Failure> {
    if !manifest.has_file(JOB) {
        return Ok(None);
    }
    let text = manifest.read_file(save, JOB).map_err(failed)?;
    remove_ids(&String::from_utf8_lossy(&text), Path::new(&format!("{save}/{JOB}")), wanted)
}

/// Removes the ids from the job of a run folder, which no manifest knows.
pub(super) fn clean_run(run: &Path, wanted: &WantedIds) -> Result<(), Failure> {
    let path = run.join(JOB);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(()) };
    match remove_ids(&text, &path, wanted)? {
        Some(ChangedJob { text, .. }) => durable::write(&path, &text).map_err(|error| {
            let what = format!("{} cannot be written: {error}", path.display());
            Failure::with_help(
                Exit::Storage,
                what,
                "the saves have lost the ids; make room, and give the same command again",
            )
        }),
        None => Ok(()),
    }
}

fn remove_ids(text: &str, path: &Path, wanted: &WantedIds) -> Result<Option<ChangedJob>, Failure> {
    let parsed = Job::parse(text, path, &Overrides::none());
    let mut job = parsed.map_err(|errors| Failure::new(Exit::Data, errors))?;
    let mut found = BTreeSet::new();
    for feature in &mut job.features.categorical {
        let IdRange::Vocabulary(vocabulary) = &mut feature.ids else { continue };
        if job.tables[feature.table].name == wanted.table
            && let Some(ids) = &mut vocabulary.ids
        {
            found.extend(ids.iter().filter(|id| wanted.ids.contains(id)));
            ids.retain(|id| !wanted.ids.contains(id));
        }
    }
    Ok((!found.is_empty()).then(|| ChangedJob { text: job.to_toml().into_bytes(), ids: found }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_a_copy_has_a_name_of_the_same_length() {
        let wanted = |id| WantedIds { table: "user".to_owned(), ids: BTreeSet::from([id]) };
        let first = copy_name("rows-0-of-1.zrows", "aa", &wanted(1));
        let second = copy_name(&first, "bb", &wanted(1));
        assert!(first.starts_with("rows-0-of-1.without-") && first.ends_with(".zrows"), "{first}");
        assert_eq!(first.len(), second.len());
        assert_ne!(first, second);
        assert_ne!(first, copy_name("rows-0-of-1.zrows", "aa", &wanted(2)));
        assert!(is_row_file(&first) && is_row_file("rows-0-of-1.zrows.00ff.tmp"));
        assert!(!is_row_file("manifest.json") && !is_row_file("job.toml.00ff.tmp"));
    }

    #[test]
    fn only_the_vocabularies_of_the_table_lose_ids() {
        let vocabulary = "vocabulary = { ids = '00000000000000010000000000000002' }";
        let text = format!(
            "name = 'ads'\n[data]\nformat = 'delimited'\ntrain = '/a'\ncolumns = ['y', 'u', 'v', 'i']\n[features]\nlabel = 'y'\n\
             categorical = [{{ column = 'u', {vocabulary} }}, {{ column = 'v', table = 'u', {vocabulary} }}, {{ column = 'i', {vocabulary} }}]\n"
        );
        let wanted = |ids: &[u64]| WantedIds { table: "u".to_owned(), ids: ids.iter().copied().collect() };
        let changed = remove_ids(&text, Path::new("/jobs/job.toml"), &wanted(&[2, 7])).unwrap().expect("it changes");
        assert_eq!(changed.ids, BTreeSet::from([2]));
        let changed_text = String::from_utf8(changed.text).unwrap();
        let job = Job::parse(&changed_text, Path::new("/jobs/job.toml"), &Overrides::none()).unwrap();
        let ids = |feature: usize| job.features.categorical[feature].vocabulary().and_then(|of| of.ids.clone());
        assert_eq!([0, 1, 2].map(ids), [Some(vec![1]), Some(vec![1]), Some(vec![1, 2])]);
        assert!(remove_ids(&changed_text, Path::new("/jobs/job.toml"), &wanted(&[2, 7])).unwrap().is_none());
    }
}
