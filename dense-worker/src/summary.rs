//! The summary of a worker's run, in numbers.

use serde::{Deserialize, Serialize};
use zagros_embedding_client::LookaheadCounts;
use zagros_eval::ColumnSlices;
use zagros_plumbing::process::MachineInfo;
use zagros_scoring::TrainingOutcome;

use crate::event::{Evaluation, TargetMeasures};

/// Written to `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    pub outcome: TrainingOutcome,
    /// Whether the run finished and everything that the job wants is written, so that there is nothing to resume. False if
    /// the model could not be saved.
    #[serde(default)]
    pub complete: bool,
    /// Steps made, including skipped ones; in mode `async` those of all workers.
    pub steps: u64,
    /// Steps skipped because loss or gradients were not finite (`train.non_finite = "skip"`).
    pub skipped_steps: u64,
    /// Samples trained on by all workers.
    pub samples: u64,
    /// Wall time of training, without evaluation and saving.
    pub seconds: f64,
    pub samples_per_second: f64,
    /// Exponential mean of the training loss over about the last 100 steps, nats.
    pub loss: f64,
    /// AUC over about the last 100,000 training samples of this worker, each scored before it was learned from.
    pub train_auc: Option<f64>,
    /// The last evaluation of the held-out part; with a validation part, the one evaluation of the test part.
    pub evaluation: Option<Evaluation>,
    /// The same as `evaluation`, by the name that it has in `metrics.jsonl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<Evaluation>,
    /// Evaluation of the validation part with the state that is the model.
    pub validation: Option<Evaluation>,
    /// Of the same rows as `evaluation`, or else `validation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baselines: Option<BaselineMeasures>,
    /// With `eval.calibration`: measures of the test part after calibration. Without a test part, of the validation part, to which
    /// calibration was fitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<Evaluation>,
    /// Measures by the columns of `eval.slices`, of the test part, or else of the validation part, with the state that is the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<ColumnSlices>,
    /// Measures of each target if there are several, of the same part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetMeasures>,
    /// Steps before the state that is the model.
    #[serde(default)]
    pub model_step: u64,
    /// Where the model was saved: a path, relative to the run folder or absolute, or `s3://bucket/prefix`; `None` if no
    /// model was saved.
    pub model: Option<String>,
    /// Why training ended and which state is the model, if the validation part decided it.
    pub choice: Option<String>,
    /// What else the measures say, a sentence each, with the key that helps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<String>,
    /// Measures over about the last 100,000 training samples, each scored before it was learned from.
    #[serde(default)]
    pub recent: Evaluation,
    /// The same measures of each epoch.
    #[serde(default)]
    pub epochs: Vec<Evaluation>,
    /// Rows of all tables. With rows on disk those of the saved model; if no model was saved, those in memory.
    pub rows: u64,
    /// Memory of these rows on all servers: weights, optimiser state, index.
    pub table_bytes: u64,
    pub staleness: StepStaleness,
    /// With rows on disk: rows of this worker's batches by what lookahead did for them, since the process started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookahead: Option<LookaheadCounts>,
    pub stages: StageSeconds,
    pub bad_rows: u64,
    /// Most resident memory of this process so far, if the kernel reports it.
    pub peak_rss_bytes: Option<u64>,
    #[serde(default)]
    pub machine: MachineInfo,
    /// What training cost, since the process started.
    #[serde(default)]
    pub cost: TrainingCost,
}

/// What simple models make of held-out rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BaselineMeasures {
    /// Logloss of one probability for all rows, the share of positives of the training rows, nats.
    pub prevalence_logloss: Option<f64>,
    /// AUC of a logistic regression that has learned from the rows of the first epoch, in one pass. `None` with several workers, and in a run
    /// that was interrupted or began with a model.
    pub logistic_auc: Option<f64>,
    pub logistic_logloss: Option<f64>,
}

/// A figure that is not known is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingCost {
    /// Samples that all workers trained on since this process started.
    pub samples: u64,
    /// User and system time of this process while it trained, without evaluation and saving, in µs for each sample of this
    /// worker. With `zagros train` all roles are in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_sample: Option<f64>,
    /// User and system time of all processes that `zagros up` started, from their start to their end, with evaluation and saving,
    /// in µs for each sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_sample_of_all: Option<f64>,
    /// Energy of the processor packages of the first worker's machine while it trained, in J for each sample. Every program on the
    /// machine counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules_per_sample: Option<f64>,
}

impl TrainingCost {
    /// In words; `None` if nothing is known.
    pub fn in_words(&self) -> Option<String> {
        let of_all = self.cpu_us_per_sample_of_all.map(|cpu| format!("{cpu:.1} µs of CPU a sample in all processes"));
        let own = self.cpu_us_per_sample.map(|cpu| format!("{cpu:.1} µs of CPU a sample in this process"));
        let joules = self.joules_per_sample.map(|joules| format!("{:.3} mJ a sample (this machine)", joules * 1e3));
        let parts: Vec<String> = [of_all.or(own), joules].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Earlier batches whose gradients were not acknowledged at lookup, over all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepStaleness {
    /// At most τ.
    pub max: u32,
    pub mean: f64,
}

/// Stages overlap, so the sum is more than the wall time. Each field is a [`crate::metrics::PipelineStage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageSeconds {
    pub parse: f64,
    pub dedup: f64,
    pub lookup: f64,
    pub gather: f64,
    pub dense: f64,
    pub scatter: f64,
    pub push: f64,
    pub waiting: f64,
    pub reduce: f64,
    /// Waiting for the weights of streamed layers, which `dense` contains.
    #[serde(default)]
    pub layers: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_described_as_far_as_it_is_known() {
        assert_eq!(TrainingCost::default().in_words(), None);
        let own = TrainingCost { samples: 10, cpu_us_per_sample: Some(12.34), ..TrainingCost::default() };
        assert_eq!(own.in_words().unwrap(), "12.3 µs of CPU a sample in this process");
        assert_eq!(serde_json::to_string(&own).unwrap(), r#"{"samples":10,"cpu_us_per_sample":12.34}"#);
        let all = TrainingCost { cpu_us_per_sample_of_all: Some(20.0), joules_per_sample: Some(0.0015), ..own };
        let words = "20.0 µs of CPU a sample in all processes, 1.500 mJ a sample (this machine)";
        assert_eq!(all.in_words().unwrap(), words);
    }
}
