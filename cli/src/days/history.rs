//! What has been made of each day: `<output.folder>/<name>.days.json`; and which days are done. Each starts from the model of the day
//! before, so a day is done only if all before it are.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zagros_dense_worker::Evaluation;
use zagros_ingest::find_files;
use zagros_job::Job;
use zagros_plumbing::durable;
use zagros_shell::{Exit, Failure, OrFailure};

use super::health::DayHealth;

/// Layout of the file; counts up when an older release could not read it.
const FORMAT: u32 = 1;

/// Days that a day's data are compared with: a slow drift shows beside the earliest of them only.
const REFERENCE_DAYS: usize = 7;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DayHistory {
    format: u32,
    days: BTreeMap<String, DayRecord>,
    #[serde(skip)]
    path: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DayRecord {
    pub(crate) from: Option<String>,
    /// That model, scored on this day's rows before any of them was learned from. `None` on a first day.
    pub(crate) before: Option<Evaluation>,
    pub(crate) samples: u64,
    /// Steps of all days so far, if steps count on.
    pub(crate) steps: u64,
    /// Rows in all tables afterwards.
    pub(crate) rows: u64,
    /// The state of its data.
    pub(crate) health: Option<DayHealth>,
    /// What was learned; `None` if it could not be measured.
    pub(crate) data: Option<DayData>,
    pub(crate) run: PathBuf,
    /// The model's folder; `None` once it is deleted.
    pub(crate) model: Option<String>,
}

impl DayHistory {
    /// Reads that of a job's name; an empty one if there is none.
    pub(crate) fn load(job: &Job) -> Result<Self, Failure> {
        let path = job.output.folder.join(format!("{}.days.json", job.name));
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self { format: FORMAT, days: BTreeMap::new(), path });
            }
            Err(error) => return Err(unreadable(&path, &error)),
        };
        let read: Self = serde_json::from_slice(&text).map_err(|error| unreadable(&path, &error))?;
        if read.format != FORMAT {
            return Err(unreadable(
                &path,
                &format!("it has format {}, this release reads format {FORMAT}", read.format),
            ));
        }
        Ok(Self { path, ..read })
    }

    pub(crate) fn get(&self, day: &str) -> Option<&DayRecord> {
        self.days.get(day)
    }

    pub(crate) fn days(&self) -> impl Iterator<Item = (&String, &DayRecord)> {
        self.days.iter()
    }

    /// The last day before this one that has a model, and the model.
    pub(crate) fn model_before(&self, day: &str) -> Option<(&String, &String)> {
        self.days.range(..day.to_owned()).rev().find_map(|(day, record)| Some((day, record.model.as_ref()?)))
    }

    /// The last day before this one whose data were looked at.
    pub(crate) fn health_before(&self, day: &str) -> Option<(&String, &DayHealth)> {
        self.days.range(..day.to_owned()).rev().find_map(|(day, record)| Some((day, record.health.as_ref()?)))
    }

    /// The earliest of the last seven days before this one whose data were looked at; `None` if that is the last day before.
    pub(crate) fn reference_day(&self, day: &str) -> Option<(&String, &DayHealth)> {
        let looked_at = self.days.range(..day.to_owned()).rev();
        let looked_at = looked_at.filter_map(|(day, record)| Some((day, record.health.as_ref()?)));
        looked_at.take(REFERENCE_DAYS).skip(1).last()
    }

    pub(crate) fn page_file(&self) -> PathBuf {
        self.path.with_extension("html")
    }

    pub(crate) fn record_day(&mut self, day: &str, record: DayRecord) -> Result<(), Failure> {
        self.days.insert(day.to_owned(), record);
        self.write()
    }

    /// The models of all but the newest `keep` days until `day`, by day.
    pub(crate) fn models_beyond(&self, day: &str, keep: usize) -> Vec<(String, String)> {
        let until = self.days.range(..=day.to_owned()).rev();
        let models = until.filter_map(|(day, record)| Some((day.clone(), record.model.clone()?)));
        models.skip(keep.max(1)).collect()
    }

    pub(crate) fn forget_model(&mut self, day: &str) -> Result<(), Failure> {
        if let Some(record) = self.days.get_mut(day) {
            record.model = None;
        }
        self.write()
    }

    fn write(&self) -> Result<(), Failure> {
        let text = serde_json::to_vec_pretty(self).or_internal()?;
        let write = || {
            self.path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            durable::write(&self.path, &text)
        };
        write().map_err(|error| Failure::unwritable(&self.path, &error).with_advice("the same command goes on"))
    }
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    let what = format!("{} cannot be read: {error}", path.display());
    Failure::with_help(Exit::Storage, what, "it says which days are done; move it away to train all of them again")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DayData {
    files: usize,
    /// Of all files, as they are stored.
    bytes: u64,
}

impl DayData {
    /// That of a day's job; `None` if it cannot be read, such as that of a day long ago.
    pub(crate) async fn measure(job: &Job) -> Option<Self> {
        let job = job.clone();
        let found = tokio::task::spawn_blocking(move || find_files(&job, &job.data.train)).await;
        let found = found.ok()?.ok()?;
        Some(Self { files: found.len(), bytes: found.iter().map(|file| file.bytes).sum() })
    }
}

impl fmt::Display for DayData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} file(s)", self.bytes, self.files)
    }
}

/// How many of the days are done: from the first on, each from the model of the one before, up to one whose model is there. `was_so`
/// says whether a day's model was trained as the job says, from that start.
pub(super) fn done_count(
    days: &[String],
    history: &DayHistory,
    was_so: impl Fn(&str, &DayRecord, &str) -> bool,
) -> usize {
    // Any start will do for the first of them, and behind a day whose model is deleted.
    let (mut start, mut last): (Option<&String>, usize) = (None, 0);
    for (number, day) in days.iter().enumerate() {
        let follows = |record: &&DayRecord| start.is_none() || record.from.as_ref() == start;
        // A day without samples may only have been early.
        let Some(record) = history.get(day).filter(follows).filter(|record| record.samples > 0) else { break };
        match &record.model {
            Some(model) if was_so(day, record, model) => last = number + 1,
            Some(_) => break,
            None => {}
        }
        start = record.model.as_ref();
    }
    last
}

#[cfg(test)]
pub(super) mod tests {
    use zagros_ingest::profile::DataProfile;
    use zagros_job::Overrides;
    use zagros_zip::ZipEq;

    use super::*;

    pub(in crate::days) fn job(folder: &Path) -> Job {
        let text = format!("name = 'ads'\n[data]\nformat = 'criteo'\ntrain = 'a'\n[output]\nfolder = {folder:?}\n");
        Job::parse(&text, "job.toml".as_ref(), &Overrides::none()).unwrap()
    }

    fn record(model: &str) -> DayRecord {
        linked(None, Some(model), 1)
    }

    #[test]
    fn the_reference_is_the_earliest_of_the_last_seven_days() {
        let folder = tempfile::tempdir().unwrap();
        let mut history = DayHistory::load(&job(&folder.path().join("runs"))).unwrap();
        let profile = DataProfile { rows: 1, whole: true, positive_rate: 0.5, bad_rows: 0, features: vec![] };
        let health = DayHealth { profile, tables: vec![], reference: None, warnings: vec![] };
        for day in 1..=9 {
            let record = DayRecord { health: Some(health.clone()), ..record("a") };
            history.record_day(&format!("2026-11-{day:02}"), record).unwrap();
        }
        let reference = |day: &str| history.reference_day(day).map(|(day, _)| day.clone());
        assert_eq!((reference("2026-11-01"), reference("2026-11-02")), (None, None));
        assert_eq!(reference("2026-11-03").as_deref(), Some("2026-11-01"));
        assert_eq!(reference("2026-11-10").as_deref(), Some("2026-11-03"));
    }

    #[test]
    fn what_is_noted_is_read_again_and_all_but_the_newest_models_go() {
        let folder = tempfile::tempdir().unwrap();
        let job = job(&folder.path().join("runs"));
        let mut history = DayHistory::load(&job).unwrap();
        for (day, model) in [("2026-11-01", "a"), ("2026-11-02", "b"), ("2026-11-03", "c")] {
            history.record_day(day, record(model)).unwrap();
        }
        let again = DayHistory::load(&job).unwrap();
        assert_eq!(again.get("2026-11-02"), Some(&record("b")));
        assert_eq!(again.models_beyond("2026-11-03", 2), [("2026-11-01".to_owned(), "a".to_owned())]);
        assert_eq!(again.models_beyond("2026-11-02", 1), [("2026-11-01".to_owned(), "a".to_owned())]);
        assert!(again.models_beyond("2026-11-01", 0).is_empty(), "the newest is never deleted");
        history.forget_model("2026-11-01").unwrap();
        let again = DayHistory::load(&job).unwrap();
        assert_eq!(again.get("2026-11-01").unwrap().model, None);
        assert!(again.models_beyond("2026-11-03", 2).is_empty());
        assert_eq!(again.model_before("2026-11-09").map(|(day, _)| day.as_str()), Some("2026-11-03"));
        assert_eq!(again.model_before("2026-11-02"), None);
    }

    #[test]
    fn a_damaged_file_is_refused_and_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let job = job(folder.path());
        for text in ["{", r#"{"format": 2, "days": {}}"#] {
            std::fs::write(folder.path().join("ads.days.json"), text).unwrap();
            let failure = DayHistory::load(&job).unwrap_err();
            assert_eq!(failure.exit_status(), Exit::Storage);
        }
    }

    fn linked(from: Option<&str>, model: Option<&str>, samples: u64) -> DayRecord {
        let (from, model) = (from.map(str::to_owned), model.map(str::to_owned));
        DayRecord { from, before: None, samples, steps: 1, rows: 1, health: None, data: None, run: "r".into(), model }
    }

    fn days_done(records: &[DayRecord], was_so: impl Fn(&str) -> bool) -> usize {
        let folder = tempfile::tempdir().unwrap();
        let mut history = DayHistory::load(&job(folder.path())).unwrap();
        let days: Vec<String> = (1..=5).map(|day| format!("2026-11-{day:02}")).collect();
        for (record, day) in records.iter().zip_eq(&days[..records.len()]) {
            history.record_day(day, record.clone()).unwrap();
        }
        done_count(&days, &history, |_, _, model| was_so(model))
    }

    #[test]
    fn days_are_done_up_to_the_first_that_is_not() {
        let [none, a, b, c] = [None, Some("a"), Some("b"), Some("c")];
        for (days, gone, done, why) in [
            (&[(none, a, 9), (a, b, 9), (b, c, 9)][..], none, 3, "a chain"),
            (&[(none, a, 9), (a, b, 9), (b, c, 9)], b, 1, "a later day was trained from the old one"),
            (&[(none, a, 9), (a, b, 9), (b, c, 9)], a, 0, "the first one is gone"),
            (&[(none, a, 9), (a, b, 9), (none, c, 9)], none, 2, "from another model"),
            (&[(none, a, 9), (a, b, 0)], none, 1, "without samples"),
            (&[(none, none, 9), (a, none, 9), (b, c, 9)], none, 3, "deleted models are done if a later one is there"),
            (&[(none, none, 9), (a, none, 9)], none, 0, "and are not if none is"),
        ] {
            let records: Vec<_> = days.iter().map(|(from, model, samples)| linked(*from, *model, *samples)).collect();
            assert_eq!(days_done(&records, |model| Some(model) != gone), done, "{why}");
        }
    }
}
