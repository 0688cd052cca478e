//! How much of unfinished predictions is durable, and what they are of.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use zagros_plumbing::durable;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictionCounts {
    /// Rows with a score.
    pub samples: u64,
    /// Malformed rows, which have none.
    pub malformed: u64,
    /// Rows with a score that is no finite number.
    #[serde(default)]
    pub not_finite: u64,
}

impl PredictionCounts {
    pub(crate) fn add(&mut self, more: Self) {
        self.samples += more.samples;
        self.malformed += more.malformed;
        self.not_finite += more.not_finite;
    }

    #[must_use]
    pub fn row_count(&self) -> u64 {
        self.samples + self.malformed
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PredictionJournal {
    version: u32,
    /// Other rows, or another model, have another one.
    identity: String,
    pub(crate) counts: PredictionCounts,
    pub(crate) bytes: u64,
}

impl PredictionJournal {
    const VERSION: u32 = 1;

    pub(crate) fn new(identity: &str, counts: PredictionCounts, bytes: u64) -> Self {
        Self { version: Self::VERSION, identity: identity.to_owned(), counts, bytes }
    }

    /// The journal of an unfinished file of the same rows, columns and model.
    pub(crate) fn find(path: &Path, identity: &str) -> Option<Self> {
        let found: Self = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        (found.version == Self::VERSION && found.identity == identity).then_some(found)
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        durable::write(path, &serde_json::to_vec(self)?)
    }
}
