//! Held-out parts are scored and measured, and the measures choose the state that becomes the model.

mod advice;
mod baselines;
mod conclude;
mod model_choice;
mod part_scores;
mod saved_scoring;
mod while_training;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use zagros_ingest::{
    BatchStream, DataPart, FileInfo, IngestError, StreamOptions, StreamStart, WholeFiles, check_first_rows,
    check_same_types, check_writings, find_files,
};
use zagros_job::{HeldOutRows, Job};
use zagros_model::batch_of_blocks;
use zagros_scoring::Manifest;

use crate::control::group::GroupRank;
use crate::event::HeldOutPart;

pub(super) use baselines::LogisticBaseline;
pub(super) use model_choice::{ChoiceState, ModelChoice, ScoringState, early_stop_rule};
pub use part_scores::{ImportanceReport, PartMeasures, TargetImportance, target_form};
pub use saved_scoring::{ScoredRows, ScoringCommand};

/// Rows that are scored: a held-out part of a job, or files for a saved model. All are looked at before anything is scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldOut {
    files: Vec<FileInfo>,
    part: DataPart,
    pub(crate) name: HeldOutPart,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldOutParts {
    /// After each epoch, and every so many steps.
    pub(crate) during: Option<HeldOut>,
    /// Once, with the state that is saved.
    pub(crate) at_end: Option<HeldOut>,
}

impl HeldOutParts {
    /// Those of a job. With a validation part the test part is left for the end.
    pub(crate) fn find(job: &Job) -> Result<Self, IngestError> {
        let test = HeldOut::find(job, HeldOutPart::Test)?;
        let validation = HeldOut::find(job, HeldOutPart::Validation)?;
        let (during, at_end) = if validation.is_some() { (validation, test) } else { (test, None) };
        Ok(Self { during, at_end })
    }

    /// The columns of their files hold what those of the training files hold.
    pub(crate) fn compare_types(&self, job: &Job, train: &[FileInfo]) -> Result<(), IngestError> {
        let mut parts = self.during.iter().chain(&self.at_end);
        parts.try_for_each(|part| check_same_types(job, train, &part.files))
    }
}

impl HeldOut {
    /// A held-out part of a job, if it has that one.
    pub(crate) fn find(job: &Job, name: HeldOutPart) -> Result<Option<Self>, IngestError> {
        let (rows, part) = match name {
            HeldOutPart::Validation => (&job.data.validation, DataPart::Validation),
            HeldOutPart::Test => (&job.data.test, DataPart::Test),
        };
        let (paths, part) = match rows {
            HeldOutRows::Files(paths) => (paths, DataPart::All),
            HeldOutRows::Share(_) | HeldOutRows::Newest(_) => (&job.data.train, part),
            HeldOutRows::None => return Ok(None),
        };
        Ok(Some(Self { files: look_at_files(job, paths, part)?, part, name }))
    }

    /// All rows of these files, which write the columns of categories as those did that the model was trained on.
    pub(crate) fn find_rows(job: &Job, paths: &[PathBuf], model: &Manifest) -> Result<Self, IngestError> {
        let files = look_at_files(job, paths, DataPart::All)?;
        check_writings(job, &files, &model.written)?;
        Ok(Self { files, part: DataPart::All, name: HeldOutPart::Test })
    }

    pub(crate) fn byte_count(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Starts to read the rows, or a rank's share of them.
    pub(crate) fn open(
        &self,
        job: &Job,
        group: Option<GroupRank>,
        start: StreamStart,
        cancel: Arc<AtomicBool>,
    ) -> Result<BatchStream, IngestError> {
        let mut job = job.clone();
        // Wherever batches of training end, and wherever reading starts, a row is at the same place in its block.
        job.train.batch_size = batch_of_blocks(job.train.batch_size);
        let source = match group {
            Some(group) => WholeFiles::rank_share(&self.files, group.rank, group.world),
            None => WholeFiles::new(&self.files),
        };
        let options = StreamOptions { part: self.part, epoch: 0, start, bad_rows: 0, cancel };
        BatchStream::open(&job, options, Box::new(source))
    }
}

/// Every file is there, and its first rows are well-formed.
pub(crate) fn look_at_files(job: &Job, paths: &[PathBuf], part: DataPart) -> Result<Vec<FileInfo>, IngestError> {
    let files = find_files(job, paths)?;
    check_first_rows(job, &files, part)?;
    Ok(files)
}
