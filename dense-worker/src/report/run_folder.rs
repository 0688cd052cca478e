//! The folder of one run: `job.toml`, `metrics.jsonl`, `tensorboard/`, `checkpoints/`, `summary.json`, `model/`,
//! `report.html`.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use zagros_job::{Job, KeyChange, Overrides};
use zagros_scoring::to_json;
use zagros_store::Folder;

use super::{file_error, seconds_since_epoch, write};
use crate::error::WorkerError;
use crate::summary::RunSummary;

/// How many runs of one name may start in the same second.
const AT_ONCE: u32 = 1000;

/// The lock of a run folder. It is held until it is dropped or the process ends.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Makes `<output.folder>/<name>-<UTC time>/`, which must not exist, and writes the resolved job into it. It is named after all
    /// runs of this job here and `elsewhere`, as in [`Self::of_job`]. The order of names is the order of starts. If the clock was set
    /// back, the name has the time of the newest run and the next number.
    ///
    /// # Errors
    /// When the folder or the file cannot be written.
    pub fn create(job: &Job, elsewhere: &[String]) -> Result<Self, WorkerError> {
        Self::create_at(job, elsewhere, seconds_since_epoch())
    }

    fn create_at(job: &Job, elsewhere: &[String], seconds: f64) -> Result<Self, WorkerError> {
        let parent = &job.output.folder;
        fs::create_dir_all(parent).map_err(|source| file_error("create", parent, source))?;
        let now = (utc_stamp(seconds), 1);
        let newest = Self::of_job(job, elsewhere)?.pop().and_then(|run| run.stamp(job));
        let (time, mut number) = match newest {
            Some((time, number)) if (&time, number) >= (&now.0, now.1) => (time, number.saturating_add(1)),
            _ => now,
        };
        let base = format!("{}-{time}", file_name(&job.name));
        let last = number.saturating_add(AT_ONCE);
        loop {
            let path = parent.join(if number == 1 { base.clone() } else { format!("{base}-{number}") });
            match fs::create_dir(&path) {
                Ok(()) => {
                    let folder = Self { path };
                    folder.write_job(job)?;
                    return Ok(folder);
                }
                // Another process has made this folder in between.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && number < last => number += 1,
                Err(source) => return Err(file_error("create", &path, source)),
            }
        }
    }

    /// The part of the name that orders the runs of a job.
    fn stamp(&self, job: &Job) -> Option<(String, u32)> {
        stamp(self.name().strip_prefix(&format!("{}-", file_name(&job.name)))?)
    }

    /// The folders of all runs of this job, in the order of their starts. `elsewhere` are names of further run folders,
    /// which may not exist here.
    pub fn of_job(job: &Job, elsewhere: &[String]) -> Result<Vec<Self>, WorkerError> {
        let parent = &job.output.folder;
        let mut names: BTreeSet<String> = Folder::on_disk(parent).folder_names()?.into_iter().collect();
        names.extend(elsewhere.iter().cloned());
        let base = format!("{}-", file_name(&job.name));
        let run = |name: String| Some((stamp(name.strip_prefix(&base)?)?, Self { path: parent.join(&name) }));
        let mut runs: Vec<_> = names.into_iter().filter_map(run).collect();
        runs.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(runs.into_iter().map(|(_, run)| run).collect())
    }

    /// Of a run that started on another machine.
    pub fn ensure_exists(&self) -> Result<(), WorkerError> {
        fs::create_dir_all(&self.path).map_err(|source| file_error("create", &self.path, source))
    }

    /// The folder's name. It identifies the run among all runs of this parent.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Opens a folder that [`Self::create`] made, perhaps in another process.
    ///
    /// # Errors
    /// When it is not a folder.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, WorkerError> {
        let path = path.into();
        let metadata = fs::metadata(&path).map_err(|source| file_error("open", &path, source))?;
        if !metadata.is_dir() {
            return Err(file_error("open", &path, io::Error::from(ErrorKind::NotADirectory)));
        }
        Ok(Self { path })
    }

    /// `None` while another process holds the lock.
    pub fn try_lock(&self) -> Result<Option<RunLock>, WorkerError> {
        let path = self.path.join("lock");
        let open = File::options().create(true).truncate(false).write(true).open(&path);
        let file = open.map_err(|source| file_error("open", &path, source))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(RunLock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(file_error("lock", &path, source)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The resolved job. It loads to the job of the run.
    pub fn job_file(&self) -> PathBuf {
        self.path.join("job.toml")
    }

    /// Measures over time, one JSON object per line ([`super::MeasureRecorder`]).
    pub fn metrics_file(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    pub fn summary_file(&self) -> PathBuf {
        self.path.join("summary.json")
    }

    /// Whether its summary says that the run is over and that everything is written.
    pub fn is_complete(&self) -> bool {
        #[derive(Deserialize)]
        struct SummaryEnd {
            complete: bool,
        }
        let text = fs::read(self.summary_file()).ok();
        let end: Option<SummaryEnd> = text.and_then(|text| serde_json::from_slice(&text).ok());
        end.is_some_and(|end| end.complete)
    }

    /// Whether its job differs from this one in what is learned. A job that cannot be read counts as different.
    pub fn learned_otherwise(&self, job: &Job) -> bool {
        let earlier = Job::load(&self.job_file(), &Overrides::none());
        earlier.map_or(true, |earlier| job.changes_since(&earlier).iter().any(KeyChange::is_learning))
    }

    /// The trained model, unless the job names another folder for it. It is complete once `manifest.json` is in it.
    pub fn model_folder(&self) -> PathBuf {
        self.path.join("model")
    }

    /// The states that are kept during training, the best and the last. Each is a model as in [`Self::model_folder`].
    pub fn checkpoints_folder(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Replaces an earlier one.
    pub fn write_job(&self, job: &Job) -> Result<(), WorkerError> {
        write(&self.job_file(), job.to_toml().as_bytes())
    }

    pub fn write_summary(&self, summary: &RunSummary) -> Result<(), WorkerError> {
        write(&self.summary_file(), &to_json(summary))
    }
}

/// Date, time and number in a folder's name after the job's name; `None` for other text, such as that of a longer name.
fn stamp(text: &str) -> Option<(String, u32)> {
    let (date_and_time, number) = match text.match_indices('-').nth(1) {
        Some((place, _)) => (&text[..place], text[place + 1..].parse().ok()?),
        None => (text, 1),
    };
    let is_stamp = |(at, c): (usize, char)| if at == 8 { c == '-' } else { c.is_ascii_digit() };
    let is_stamp = date_and_time.len() == 15 && date_and_time.char_indices().all(is_stamp);
    is_stamp.then(|| (date_and_time.to_owned(), number))
}

/// The run's name as a file name, without separators and special characters.
fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = name.chars().map(plain).collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() { "run".to_owned() } else { name.to_owned() }
}

/// `20260131-235959`.
fn utc_stamp(seconds: f64) -> String {
    jiff::Timestamp::from_second(seconds as i64).unwrap_or_default().strftime("%Y%m%d-%H%M%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_refused, small_job};

    fn job_below(parent: &Path) -> Job {
        let mut job = small_job();
        (job.name, job.output.folder) = ("ads".to_owned(), parent.join("runs"));
        job
    }

    #[test]
    fn names_become_safe_file_names() {
        assert_eq!(file_name("criteo small/τ=4"), "criteo-small---4");
        assert_eq!(file_name("../../etc"), "etc");
        assert_eq!(file_name(""), "run");
    }

    #[test]
    fn two_runs_never_share_a_folder() {
        let parent = tempfile::tempdir().unwrap();
        let mut job = small_job();
        job.output.folder = parent.path().join("runs");
        let (first, second) = (RunFolder::create(&job, &[]).unwrap(), RunFolder::create(&job, &[]).unwrap());
        assert_ne!(first, second);
        assert!(first.job_file().is_file() && second.job_file().is_file());
        assert_eq!(RunFolder::open(first.path()).unwrap(), first);
        let lock = first.try_lock().unwrap();
        assert!(lock.is_some() && first.try_lock().unwrap().is_none() && second.try_lock().unwrap().is_some());
        drop(lock);
        assert!(first.try_lock().unwrap().is_some());
    }

    #[test]
    fn the_runs_of_a_job_come_in_the_order_of_their_start() {
        let parent = tempfile::tempdir().unwrap();
        let job = job_below(parent.path());
        assert_eq!(RunFolder::of_job(&job, &[]).unwrap(), []);
        let runs = ["ads-20260131-235959-10", "ads-20260131-235959", "ads-20260131-235959-2", "ads-20251231-000000"];
        for name in runs.into_iter().chain(["ads-b-20260131-235959", "ads-notes", "ads-20260131-2359xx"]) {
            fs::create_dir_all(job.output.folder.join(name)).unwrap();
        }
        let found: Vec<PathBuf> = RunFolder::of_job(&job, &[]).unwrap().into_iter().map(|run| run.path).collect();
        assert_eq!(found, [runs[3], runs[1], runs[2], runs[0]].map(|name| job.output.folder.join(name)));
        let elsewhere = ["ads-20260101-000000", runs[1], "other-20260101-000000"].map(str::to_owned);
        let found: Vec<String> = RunFolder::of_job(&job, &elsewhere).unwrap().iter().map(RunFolder::name).collect();
        assert_eq!(found, [runs[3], "ads-20260101-000000", runs[1], runs[2], runs[0]]);
    }

    /// A resumed run is the newest one by this order.
    #[test]
    fn a_run_comes_after_all_others_even_if_the_clock_was_set_back() {
        let parent = tempfile::tempdir().unwrap();
        let job = job_below(parent.path());
        let start = |elsewhere: &[String], seconds| RunFolder::create_at(&job, elsewhere, seconds).unwrap().name();
        let hour = 3600.0;
        let times = [10.0 * hour, 10.0 * hour, 9.0 * hour, 8.0 * hour, 10.0 * hour + 1.0];
        let names = times.map(|seconds| start(&[], seconds));
        let expected = ["-100000", "-100000-2", "-100000-3", "-100000-4", "-100001"];
        assert_eq!(names, expected.map(|time| format!("ads-19700101{time}")));
        let found = RunFolder::of_job(&job, &[]).unwrap();
        assert_eq!(found.iter().map(RunFolder::name).collect::<Vec<_>>(), names);
        // Another machine's clock is ahead.
        assert_eq!(start(&["ads-19700102-000000-7".to_owned()], 11.0 * hour), "ads-19700102-000000-8");
    }

    #[test]
    fn a_path_that_is_not_a_folder_is_named() {
        assert_refused(RunFolder::open("/nowhere/run"), &["cannot open /nowhere/run"]);
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(RunFolder::open(file.path()).is_err());
    }
}
