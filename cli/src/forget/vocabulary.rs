//! Ids in fitted vocabularies, which the job of a save lists: who is in one was in the training rows.

use std::collections::BTreeSet;
use std::path::Path;

use zagros_dense_worker::{JOB, Manifest};
use zagros_job::{IdRange, Job, Overrides};
use zagros_plumbing::durable;
use zagros_shell::{Exit, Failure};
use zagros_store::Folder;

use super::WantedIds;
use crate::resume::failed;

#[derive(Debug)]
pub(crate) struct ChangedJob {
    pub(crate) text: Vec<u8>,
    /// Those that were in a vocabulary.
    pub(crate) ids: BTreeSet<u64>,
}

/// The job of a save without the ids in the vocabularies of the table's features; `None` if none of them is there.
pub(super) fn changed_job(
    save: &Folder,
    manifest: &Manifest,
    wanted: &WantedIds,
) -> Result<Option<ChangedJob>, Failure> {
    if manifest.files.iter().all(|file| file.name != JOB) {
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
