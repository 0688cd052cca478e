//! What is to be done, decided before anything is changed: which files are copied, and what each manifest says then.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use zagros_job::{IdRange, Job, Overrides};
use zagros_rows::snapshot::{ForgottenIds, MentionedIds};
use zagros_scoring::{JOB, Manifest};
use zagros_shell::{Exit, Failure, write_file};
use zagros_store::Folder;

use super::ForgetPlace;
use crate::resume::failed;
use crate::rewrite::{FileChange, PlannedCopy, PlannedSave, RowFile, row_chains};
use crate::saved::snapshot_failure;

/// Between the name of a file and the part that tells its copies apart.
const COPY: &str = ".without-";
const ROWS: &str = ".zrows";
/// Digits of a hash in a copy's name.
const DIGITS: usize = 12;

#[derive(Debug)]
pub(crate) struct ForgetPlan {
    /// Files to copy, each after the file that it follows.
    pub(crate) copies: Vec<PlannedCopy>,
    pub(crate) saves: Vec<SavePlan>,
}

#[derive(Debug)]
pub(crate) struct SavePlan {
    pub(crate) planned: PlannedSave,
    /// Ids whose rows go.
    pub(crate) rows: BTreeSet<u64>,
    /// Ids whose frequency counts go.
    pub(crate) counts: BTreeSet<u64>,
    /// Ids that are in a vocabulary of the job.
    pub(crate) vocabulary: BTreeSet<u64>,
    /// Ids that a file names although their row is gone or older than another one.
    pub(crate) traces: BTreeSet<u64>,
}

impl ForgetPlan {
    /// Reads what the files say of the ids. Of large files, only the blocks of the ids' buckets are read.
    pub(crate) fn prepare(place: &ForgetPlace, wanted: &ForgottenIds) -> Result<Self, Failure> {
        let mut planner =
            ForgetPlanner { wanted, copies: Vec::new(), positions: BTreeMap::new(), read: BTreeMap::new() };
        let saves = place.saves.iter().map(|folder| planner.plan_save(folder)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { copies: planner.copies, saves })
    }

    pub(crate) fn missing_ids<'a>(&self, wanted: &'a ForgottenIds) -> Vec<&'a u64> {
        wanted.ids.iter().filter(|id| !self.saves.iter().any(|save| save.mentions(id))).collect()
    }

    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copies.iter().map(PlannedCopy::source_bytes).sum()
    }
}

impl SavePlan {
    pub(crate) fn is_changed(&self) -> bool {
        !self.planned.changes.is_empty()
    }

    pub(crate) fn changed_files(&self) -> Vec<&str> {
        self.planned.changes.keys().map(String::as_str).collect()
    }

    pub(crate) fn mentions(&self, id: &u64) -> bool {
        self.traces.contains(id) || self.vocabulary.contains(id)
    }
}

struct ForgetPlanner<'a> {
    wanted: &'a ForgottenIds,
    copies: Vec<PlannedCopy>,
    /// Positions of copies by folder and name of the file.
    positions: BTreeMap<(String, String), usize>,
    /// What files say, by SHA-256: checkpoints share files.
    read: BTreeMap<String, MentionedIds>,
}

impl ForgetPlanner<'_> {
    fn plan_save(&mut self, folder: &Folder) -> Result<SavePlan, Failure> {
        let manifest = Manifest::read(folder).map_err(failed)?;
        let chains = row_chains(folder, &manifest)?;
        let job = changed_job(folder, &manifest, self.wanted)?;
        let mut plan = SavePlan {
            planned: PlannedSave::new(folder.clone(), manifest),
            rows: BTreeSet::new(),
            counts: BTreeSet::new(),
            vocabulary: BTreeSet::new(),
            traces: BTreeSet::new(),
        };
        if let Some(ChangedJob { text, ids }) = job {
            plan.planned.changes.insert(JOB.to_owned(), FileChange::Content(text));
            plan.vocabulary = ids;
        }
        chains.iter().try_for_each(|chain| self.plan_chain(&mut plan, chain))?;
        plan.planned.rows = plan.planned.rows.saturating_sub(plan.rows.len() as u64);
        Ok(plan)
    }

    /// From the first file on that names an id, all files are copied: each names the SHA-256 of the one before.
    fn plan_chain(&mut self, plan: &mut SavePlan, chain: &[RowFile]) -> Result<(), Failure> {
        let mentioned = chain.iter().map(|file| self.read(file)).collect::<Result<Vec<_>, _>>()?;
        // The newest file that names an id decides whether it has a row now.
        let mut seen = BTreeSet::new();
        for (number, said) in mentioned.iter().enumerate().rev() {
            plan.rows.extend(said.rows.difference(&seen));
            if number + 1 == mentioned.len() {
                plan.counts.extend(&said.counts);
            }
            seen.extend(said.rows.iter().chain(&said.removed));
            plan.traces.extend(said.rows.iter().chain(&said.counts).chain(&said.removed));
        }
        let first = mentioned.iter().position(|said| !said.is_empty()).unwrap_or(chain.len());
        let mut follows = None;
        for file in &chain[first..] {
            let copy = self.plan_copy(file, follows);
            plan.planned.changes.insert(file.record.name.clone(), FileChange::Rows(copy));
            follows = Some(copy);
        }
        Ok(())
    }

    fn read(&mut self, file: &RowFile) -> Result<MentionedIds, Failure> {
        if let Some(said) = self.read.get(&file.record.sha256) {
            return Ok(said.clone());
        }
        let known = file.saved.open().and_then(|reader| reader.find_table(&self.wanted.table).map(drop));
        let said = known.and_then(|()| self.wanted.find_mentions(&file.saved)).map_err(snapshot_failure)?;
        self.read.insert(file.record.sha256.clone(), said.clone());
        Ok(said)
    }

    fn plan_copy(&mut self, file: &RowFile, follows: Option<usize>) -> usize {
        let (next, place) = (self.copies.len(), (file.folder.to_string(), file.name.clone()));
        let position = *self.positions.entry(place).or_insert(next);
        if position == next {
            let (folder, name) = (file.folder.clone(), copy_name(&file.name, &file.record.sha256, self.wanted));
            self.copies.push(PlannedCopy { sources: vec![file.clone()], folder, name, follows });
        }
        position
    }
}

/// Whether a file holds rows: one that is saved, or that a process was writing when it ended.
pub(super) fn is_row_file(name: &str) -> bool {
    name.ends_with(ROWS) || (name.contains(&format!("{ROWS}.")) && name.ends_with(".tmp"))
}

/// A name that no other file in the folder has: it says of which file, and without which ids, this is a copy.
fn copy_name(name: &str, sha256: &str, ForgottenIds { table, ids }: &ForgottenIds) -> String {
    let stem = name.strip_suffix(ROWS).unwrap_or(name);
    let stem = stem.split_once(COPY).map_or(stem, |(stem, _)| stem);
    let mut text = format!("{sha256} {table}");
    ids.iter().for_each(|id| text.push_str(&format!(" {id}")));
    let hash = zagros_store::hex_digits(&zagros_store::ContentDigest::compute(text.as_bytes()).sha256);
    format!("{stem}{COPY}{}{ROWS}", &hash[..DIGITS])
}

#[derive(Debug)]
struct ChangedJob {
    text: Vec<u8>,
    ids: BTreeSet<u64>,
}

/// The job of a save without the ids in the vocabularies of the table's features; `None` if none of them is there.
fn changed_job(save: &Folder, manifest: &Manifest, wanted: &ForgottenIds) -> Result<Option<ChangedJob>, Failure> {
    if manifest.files.iter().all(|file| file.name != JOB) {
        return Ok(None);
    }
    let text = manifest.read_file(save, JOB).map_err(failed)?;
    remove_ids(&String::from_utf8_lossy(&text), Path::new(&format!("{save}/{JOB}")), wanted)
}

/// Removes the ids from the job of a run folder, which no manifest knows.
pub(super) fn clean_run(run: &Path, wanted: &ForgottenIds) -> Result<(), Failure> {
    let path = run.join(JOB);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(()) };
    match remove_ids(&text, &path, wanted)? {
        Some(ChangedJob { text, .. }) => write_file(&path, text)
            .map_err(|failure| failure.with_advice("the saves have lost the ids; give the same command again")),
        None => Ok(()),
    }
}

fn remove_ids(text: &str, path: &Path, wanted: &ForgottenIds) -> Result<Option<ChangedJob>, Failure> {
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
        let wanted = |id| ForgottenIds { table: "user".to_owned(), ids: BTreeSet::from([id]) };
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
        let wanted = |ids: &[u64]| ForgottenIds { table: "u".to_owned(), ids: ids.iter().copied().collect() };
        let changed = remove_ids(&text, Path::new("/jobs/job.toml"), &wanted(&[2, 7])).unwrap().expect("it changes");
        assert_eq!(changed.ids, BTreeSet::from([2]));
        let changed_text = String::from_utf8(changed.text).unwrap();
        let job = Job::parse(&changed_text, Path::new("/jobs/job.toml"), &Overrides::none()).unwrap();
        let ids = |feature: usize| job.features.categorical[feature].vocabulary().and_then(|of| of.ids.clone());
        assert_eq!([0, 1, 2].map(ids), [Some(vec![1]), Some(vec![1]), Some(vec![1, 2])]);
        assert!(remove_ids(&changed_text, Path::new("/jobs/job.toml"), &wanted(&[2, 7])).unwrap().is_none());
    }
}
