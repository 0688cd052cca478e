//! A trained model in its folder: `dense.safetensors`, one file of rows per embedding server, `job.toml`,
//! `manifest.json`. This reads it; the dense worker writes it.
//!
//! What the manifest says, and why it comes last: [`crate::manifest`].

use std::path::PathBuf;

use zagros_job::{Job, Overrides, Target, WeightStore};
use zagros_store::{Folder, StoreError};

use crate::calibrators::{self, ModelCalibrators};
use crate::error::ScoringError;
use crate::manifest::{MANIFEST, Manifest, damaged};

pub const DENSE: &str = "dense.safetensors";
pub const OPTIMIZER: &str = "optimizer.safetensors";
/// The resolved job, by which the model can be used where its run folder is not.
pub const JOB: &str = "job.toml";

/// Bytes that a network may need beyond twice those that are saved of it, before it is built. Taking its weights then tells which tensor
/// does not fit.
const TOLERATED: u64 = 64 << 20;

#[derive(Clone, Debug)]
pub struct SavedModel {
    pub folder: Folder,
    pub manifest: Manifest,
}

impl SavedModel {
    pub fn open(folder: &Folder) -> Result<Self, ScoringError> {
        let manifest = Manifest::read(folder)?;
        // Servers have their own working directories.
        Ok(Self { folder: folder.make()?, manifest })
    }

    pub fn is_in(folder: &Folder) -> Result<bool, StoreError> {
        folder.has_file(MANIFEST)
    }

    /// One of its files, compared with what was saved.
    pub fn read_file(&self, name: &str) -> Result<Vec<u8>, ScoringError> {
        self.manifest.read_file(&self.folder, name)
    }

    /// The job that it was trained with.
    pub fn read_job(&self) -> Result<Job, ScoringError> {
        parse_job(&self.folder, self.read_file(JOB)?)
    }

    /// Those of a model with these targets; `None` if it has none.
    pub fn read_calibrators(&self, targets: &[Target]) -> Result<Option<ModelCalibrators>, ScoringError> {
        if !self.manifest.has_file(calibrators::FILE) {
            return Ok(None);
        }
        let read = ModelCalibrators::parse(targets, &self.read_file(calibrators::FILE)?);
        read.map(Some).map_err(|reason| damaged(&self.folder, reason))
    }

    /// Compares the network of a job with the bytes that are saved of it, before it takes memory: the job in the folder of a model may
    /// be another user's.
    pub fn check_network(&self, job: &Job) -> Result<(), ScoringError> {
        let Some(weights) = job.dense_parameters() else { return Ok(()) };
        let tiles = Some(&self.manifest.row_files).filter(|_| job.train.weights == WeightStore::Streamed);
        let mut saved = 0_u64;
        for name in tiles.into_iter().flatten().chain([&self.manifest.dense]) {
            saved += match file_bytes(&self.folder, name) {
                Ok(bytes) => bytes,
                // Reading it says what is wrong with it.
                Err(_) => self.read_file(name)?.len() as u64,
            };
        }
        let needed = weights.saturating_mul(size_of::<f32>() as u64);
        if needed <= saved.saturating_mul(2).saturating_add(TOLERATED) {
            return Ok(());
        }
        let reason = format!(
            "the network of the job has {needed} bytes of weights, and {saved} are saved; use the job that the model was trained with"
        );
        Err(damaged(&self.folder, reason))
    }
}

fn file_bytes(folder: &Folder, name: &str) -> std::io::Result<u64> {
    let (folder, file) = folder.locate_file(name).unwrap_or_else(|| (folder.clone(), name));
    folder.open_file(file).map(|(_, bytes)| bytes)
}

/// The job in the folder of a model or a checkpoint.
pub fn parse_job(folder: &Folder, text: Vec<u8>) -> Result<Job, ScoringError> {
    let wrong = |reason| damaged(folder, reason);
    let text = String::from_utf8(text).map_err(|error| wrong(format!("{JOB} is damaged ({error})")))?;
    let path = PathBuf::from(format!("{folder}/{JOB}"));
    Job::parse(&text, &path, &Overrides::none()).map_err(|errors| wrong(errors.to_string()))
}

/// What a manifest knows a job by.
pub fn fingerprint(job: &Job) -> String {
    format!("{:016x}", job.fingerprint())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use zagros_fakes::jobs::{assert_refused, ffnn, job};
    use zagros_job::Model;

    use super::*;
    use crate::testing::{SavedFixture, save_model};

    /// The job of a model may be another user's: here it has 4 TB of weights, beside a file of some bytes.
    #[test]
    fn a_network_that_is_far_larger_than_its_file_is_refused_before_it_is_built() {
        let SavedFixture { folder: _folder, saved, mut job } = save_model(job(1, &[2], ffnn(&[3])), &[(0, 7)]);
        saved.check_network(&job).unwrap();
        let widths = || vec![1_000_000, 1_000_000];
        let networks = [
            Model::Ffnn { hidden: widths(), dropout: 0.0 },
            Model::Dlrm { bottom: vec![2], top: widths(), dropout: 0.0 },
            Model::DeepFm { hidden: widths(), dropout: 0.0 },
            Model::WideDeep { hidden: widths(), dropout: 0.0 },
        ];
        for weights in [WeightStore::Resident, WeightStore::Streamed] {
            job.train.weights = weights;
            for model in networks.clone() {
                job.model = model;
                assert_refused(saved.check_network(&job), &["bytes of weights", "use the job"]);
            }
        }
    }

    #[test]
    fn another_format_is_refused() {
        let SavedFixture { folder, saved, .. } = save_model(job(1, &[2], ffnn(&[3])), &[]);
        let mut manifest = saved.manifest.clone();
        manifest.format = 2;
        fs::write(folder.path().join(MANIFEST), manifest.into_sealed().1).unwrap();
        assert_refused(SavedModel::open(&saved.folder), &["this release reads format 1"]);
        fs::write(folder.path().join(MANIFEST), b"{").unwrap();
        assert_refused(SavedModel::open(&saved.folder), &["is damaged"]);
    }
}
