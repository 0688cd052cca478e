//! The journal of a sweep, `journal.jsonl`: first what is searched, then what happened, a line each. Its replay is the sweep.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zagros_experiments::sweep::{Metric, Rungs, Sampler, Sweep, SweepRecord};
use zagros_plumbing::durable;
use zagros_shell::{Exit, Failure, OrFailure};

use super::setup::SweepSetup;
use crate::train_process::learning_changes;

const JOURNAL: &str = "journal.jsonl";
/// The resolved job that trials change.
const JOB: &str = "job.toml";
/// Layout of the file; counts up when an older release could not read it.
const FORMAT: u32 = 1;

/// What a sweep is known by. A command with another one is another sweep.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct JournalHeader {
    format: u32,
    sampler: Sampler,
    space: Vec<String>,
    seed: u64,
    metric: Metric,
    rungs: Option<Rungs>,
    /// With rungs alone: more trials would change who goes on.
    trials: Option<usize>,
}

pub(super) struct SweepJournal {
    file: File,
    path: PathBuf,
}

impl JournalHeader {
    fn new(setup: &SweepSetup) -> Self {
        let plan = &setup.plan;
        Self {
            format: FORMAT,
            sampler: plan.sampler,
            space: setup.texts.clone(),
            seed: plan.seed,
            metric: plan.metric,
            rungs: plan.rungs.clone(),
            trials: plan.rungs.as_ref().map(|_| plan.trials),
        }
    }
}

impl SweepJournal {
    /// Opens the journal in the folder of the sweep, and replays it. A last line that was not written whole is removed. The
    /// journal of another sweep or of another job is refused.
    pub(super) fn open(setup: &SweepSetup) -> Result<(Self, Sweep), Failure> {
        let path = setup.folder.join(JOURNAL);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.map_err(|error| storage(&path, &error))?,
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut sweep = Sweep::new(setup.plan.clone());
        let mut lines = whole.lines();
        match lines.next() {
            None => Self::start(setup, &path)?,
            Some(header) => check_header(setup, header)?,
        }
        for (number, line) in lines.enumerate() {
            let damaged = |why: &dyn std::fmt::Display| {
                let what = format!("line {} of {} cannot be used: {why}", number + 2, path.display());
                Failure::with_help(Exit::Data, what, "start over in another folder: --folder FOLDER")
            };
            let record: SweepRecord = serde_json::from_str(line).map_err(|error| damaged(&error))?;
            sweep.apply_record(&record).map_err(|why| damaged(&why))?;
        }
        let file = OpenOptions::new().append(true).open(&path).map_err(|error| storage(&path, &error))?;
        if !whole.is_empty() {
            file.set_len(whole.len() as u64).map_err(|error| storage(&path, &error))?;
        }
        Ok((Self { file, path }, sweep))
    }

    /// The job is there before the journal, so a journal has its job.
    fn start(setup: &SweepSetup, path: &Path) -> Result<(), Failure> {
        let job = setup.folder.join(JOB);
        durable::write(&job, setup.job.to_toml().as_bytes()).map_err(|error| storage(&job, &error))?;
        let mut line = serde_json::to_string(&JournalHeader::new(setup)).or_internal()?;
        line.push('\n');
        durable::write(path, line.as_bytes()).map_err(|error| storage(path, &error))
    }

    /// The record is durable when this returns.
    pub(super) fn append(&mut self, record: &SweepRecord) -> Result<(), Failure> {
        let mut line = serde_json::to_string(record).or_internal()?;
        line.push('\n');
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|error| storage(&self.path, &error))
    }
}

fn check_header(setup: &SweepSetup, line: &str) -> Result<(), Failure> {
    let folder = setup.folder.display();
    let other = |what: String| {
        let help =
            "give the same command as before to go on, or start another sweep in another folder: --folder FOLDER";
        Err(Failure::usage(what, help))
    };
    let found: Option<JournalHeader> = serde_json::from_str(line).ok();
    if found.as_ref() != Some(&JournalHeader::new(setup)) {
        let searched = found.map_or_else(|| line.to_owned(), |found| found.space.join(" "));
        return other(format!("{folder} holds another sweep: {searched}"));
    }
    let learning = learning_changes(&setup.job, &setup.folder.join(JOB))?;
    if !learning.is_empty() {
        return other(format!("the job learns differently than that of the sweep in {folder}:{learning}"));
    }
    Ok(())
}

fn storage(path: &Path, error: &std::io::Error) -> Failure {
    let what = format!("{} cannot be read or written: {error}", path.display());
    Failure::with_help(Exit::Storage, what, "make room or change output.folder; the same command goes on")
}
