//! Whether the data of a day is what was learned.

use std::fmt;

use serde::{Deserialize, Serialize};
use zagros_ingest::find_files;
use zagros_job::Job;

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
