//! What scoring a part answers: measures before and after calibration, of slices, and the importance of features.

use serde::Serialize;
use zagros_eval::ColumnSlices;
use zagros_eval::importance::FeatureImportance;
use zagros_job::Job;

use crate::datapath::kernels::InputColumns;
use crate::event::Evaluation;
use crate::measures::TargetMeasures;

/// Most rows of a block.
const MOST_ROWS: usize = 65_536;
/// Most values of the network's input in a block: 64 MiB.
const MOST_VALUES: usize = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportanceOptions {
    /// How often each feature is permuted.
    pub repeats: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImportanceReport {
    pub repeats: u32,
    /// Rows of a block; values are exchanged between them.
    pub block_rows: usize,
    /// For the first target, the most important feature first.
    pub features: Vec<FeatureImportance>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetImportance>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetImportance {
    pub target: String,
    /// The most important feature first.
    pub features: Vec<FeatureImportance>,
}

impl ImportanceOptions {
    pub(super) fn with_blocks(job: &Job) -> Job {
        let mut job = job.clone();
        job.train.batch_size = block_rows(&job);
        job
    }
}

fn block_rows(job: &Job) -> usize {
    let values = InputColumns::new(job).width + job.features.numeric_inputs();
    (MOST_VALUES / values.max(1)).clamp(1024, MOST_ROWS)
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartMeasures {
    /// Of all its rows, by what the network says; with several targets, of the first.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Of each target, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetMeasures>,
    /// After calibration, where the model has it: the measures of what `zagros predict` writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<Evaluation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub importance: Option<ImportanceReport>,
    /// By the columns of `eval.slices`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<ColumnSlices>,
}

#[cfg(test)]
mod tests {
    use zagros_job::Model;

    use super::*;
    use crate::testing::job;

    #[test]
    fn blocks_are_bounded_by_rows_and_by_memory() {
        let rows = |dims: &[usize]| block_rows(&job(1, dims, Model::Ffnn { hidden: vec![], dropout: 0.0 }));
        assert_eq!(rows(&[2]), 65_536);
        assert_eq!(rows(&[1023]), 16_384);
        assert_eq!(rows(&[1 << 20]), 1024);
    }
}
