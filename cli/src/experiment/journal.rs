//! The journal of an experiment, `journal.jsonl`: first what the experiment is, then what happened, a line each.

use std::collections::VecDeque;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use zagros_job::{Job, Overrides};
use zagros_plumbing::durable;
use zagros_shell::{Exit, Failure, OrFailure};

use super::ExperimentSetup;

const JOURNAL: &str = "journal.jsonl";
const JOB: &str = "job.toml";

pub(crate) struct ExperimentJournal {
    file: File,
    path: PathBuf,
}

impl ExperimentJournal {
    /// Opens the journal in the folder of the experiment, with its records. A last line that was not written whole is removed. The
    /// journal of an experiment with another `identity`, an object, or of another job is refused.
    pub(crate) fn open<R: DeserializeOwned>(
        setup: &ExperimentSetup,
        identity: &Value,
    ) -> Result<(Self, Vec<R>), Failure> {
        let path = setup.folder.join(JOURNAL);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.map_err(|error| storage(&path, &error))?,
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut lines: VecDeque<&str> = whole.lines().collect();
        let earlier = lines.pop_front();
        match earlier.filter(|_| !lines.is_empty()) {
            Some(earlier) => check_same(setup, earlier, identity)?,
            // Nothing was decided yet. The job is there before the journal, so a journal has its job.
            None => {
                let job = setup.folder.join(JOB);
                durable::write(&job, setup.job.to_toml().as_bytes()).map_err(|error| storage(&job, &error))?;
                durable::write(&path, format!("{identity}\n").as_bytes()).map_err(|error| storage(&path, &error))?;
            }
        }
        let file = OpenOptions::new().append(true).open(&path).map_err(|error| storage(&path, &error))?;
        if !lines.is_empty() {
            file.set_len(whole.len() as u64).map_err(|error| storage(&path, &error))?;
        }
        let journal = Self { file, path };
        let mut records = Vec::new();
        for (number, line) in lines.into_iter().enumerate() {
            records.push(serde_json::from_str(line).map_err(|error| journal.damaged(number, error))?);
        }
        Ok((journal, records))
    }

    /// The record is durable when this returns.
    pub(crate) fn append(&mut self, record: &impl Serialize) -> Result<(), Failure> {
        let mut line = serde_json::to_string(record).or_internal()?;
        line.push('\n');
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|error| storage(&self.path, &error))
    }

    /// The error of a record, by its number from 0.
    pub(crate) fn damaged(&self, number: usize, why: impl Display) -> Failure {
        let what = format!("line {} of {} cannot be used: {why}", number + 2, self.path.display());
        Failure::with_help(Exit::Data, what, "start over in another folder: --folder FOLDER")
    }
}

/// Refuses another experiment than that of the folder, with what differs.
fn check_same(setup: &ExperimentSetup, earlier: &str, identity: &Value) -> Result<(), Failure> {
    let (folder, name) = (setup.folder.display(), setup.name);
    let help = "give the same command as before to go on, or name another folder: --folder FOLDER";
    let earlier: Value = serde_json::from_str(earlier).unwrap_or_default();
    let differing = identity.as_object().into_iter().flatten().filter(|(key, value)| earlier.get(key) != Some(*value));
    let difference = |(key, value): (&String, &Value)| {
        format!("\n  {key}: {} there, {value} here", earlier.get(key).unwrap_or(&Value::Null))
    };
    let differences: String = differing.map(difference).collect();
    if !differences.is_empty() {
        return Err(Failure::usage(format!("{folder} holds another {name}:{differences}"), help));
    }
    let job = Job::load(&setup.folder.join(JOB), &Overrides::none());
    let changes = setup.job.changes_since(&job.map_err(|errors| Failure::new(Exit::Usage, errors))?);
    let learning = changes.iter().filter(|change| change.is_learning());
    let learning: String = learning.map(|change| format!("\n  {change}")).collect();
    if !learning.is_empty() {
        let what = format!("the job learns differently than that of the {name} in {folder}:{learning}");
        return Err(Failure::usage(what, help));
    }
    Ok(())
}

fn storage(path: &Path, error: &io::Error) -> Failure {
    let what = format!("{} cannot be read or written: {error}", path.display());
    Failure::with_help(Exit::Storage, what, "make room or change output.folder; the same command goes on")
}
