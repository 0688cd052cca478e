//! `[eval]`, `[train.early_stop]`, `[checkpoint]` and `[output]`: what is measured and what is written.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::numbers::{seconds_or_none, word};

section! {
    /// How held-out rows are measured.
    #[derive(Eq)]
    #[schemars(rename = "Eval")]
    pub struct EvalSettings {
        /// Column whose equal values make a group of samples, such as `user_id`; it need not be a feature. Held-out parts are then also
        /// measured by GAUC, the mean of the groups' AUCs weighted by their samples (Zhou et al. 2018). Default: none.
        #[schemars(length(min = 1))]
        pub group_by: Option<String> = None,
        /// Columns that divide held-out rows into slices by their value, such as `country`; they need not be features. At the end of
        /// training, and in `zagros eval`, each slice is also measured on its own. Default: none.
        #[schemars(length(max = 32), inner(length(min = 1)))]
        pub slices: Vec<String> = Vec::new(),
        /// Values of each of these columns that are measured on their own: the most frequent ones. All others are one slice.
        #[schemars(range(min = 1, max = 1000))]
        pub slice_values: usize = 10,
        /// After training, a function of the score is fitted to the validation part, after which predicted probabilities are
        /// frequencies, for each label of clicks or classes. It is saved with the model, and `zagros predict` applies it. `isotonic` is any
        /// increasing function of a click's score (Zadrozny and Elkan 2002); `temperature` divides all logits by one number (Guo et al. 2017):
        /// better for fewer than some thousand rows. Classes have a temperature in either case, a regression has none. Needs a validation part.
        /// Default: none.
        pub calibration: Option<CalibrationKind> = None,
        /// What `zagros predict` reads of a row besides its features. No job file has it.
        #[serde(skip)]
        pub predict: Option<PredictRows> = None,
    }
}

/// The function that is fitted to the scores of the validation part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CalibrationKind {
    /// Any increasing function, for clicks. Classes have a temperature.
    Isotonic,
    /// One factor for all logits.
    Temperature,
}

/// What `zagros predict` reads of a row besides its features. It reads no label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PredictRows {
    /// Columns that go with the score.
    pub keys: Vec<String>,
    /// Whether a malformed row keeps its place among the others.
    pub keep_bad: bool,
}

impl EvalSettings {
    /// The columns whose texts are read beside each row that is scored: those of predictions, else those of slices.
    pub fn noted_columns(&self) -> &[String] {
        self.predict.as_ref().map_or(&self.slices, |predict| &predict.keys)
    }
}

section! {
    /// When training ends before its last epoch.
    #[derive(Copy)]
    pub struct EarlyStop {
        /// Measure of the first label in the validation part that must improve. Default: `auc` of a click, `mse` of a regression
        /// (`deviance` with loss `poisson`), `logloss` of classes.
        pub metric: EvalMetric = EvalMetric::Auc,
        /// Evaluations in a row without improvement after which training ends.
        #[schemars(range(min = 1, max = 1_000_000))]
        pub patience: u32 = 2,
        /// Difference by which a measure must be better to count as an improvement.
        #[schemars(range(min = 0.0, max = 1.0))]
        pub min_delta: f64 = 0.0,
    }
}

/// Measure of a held-out part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Metric")]
pub enum EvalMetric {
    /// Area under the ROC curve, of classes the mean over one class against the others; more is better.
    Auc,
    /// Mean cross-entropy of clicks or classes; less is better.
    Logloss,
    /// Mean AUC within the groups of `eval.group_by`; more is better.
    Gauc,
    /// Mean squared error of a regression; less is better.
    Mse,
    /// Mean absolute error of a regression; less is better.
    Mae,
    /// Mean Poisson deviance of a regression with loss `poisson`; less is better.
    Deviance,
    /// Share of samples whose class is the one of the highest probability; more is better.
    Accuracy,
}

impl EvalMetric {
    /// Whether more of it is better.
    pub fn is_gain(self) -> bool {
        matches!(self, Self::Auc | Self::Gauc | Self::Accuracy)
    }
}

/// As in the job file.
impl std::fmt::Display for EvalMetric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&word(self))
    }
}

section! {
    /// What a run saves while it trains. `zagros train` and `zagros up` resume from it after an interruption.
    #[derive(Eq)]
    #[schemars(rename = "Checkpoint")]
    pub struct CheckpointSettings {
        /// Seconds between checkpoints; 0 for none by time.
        #[serde(rename = "every_seconds", with = "seconds_or_none")]
        #[schemars(with = "f64", range(min = 0.0, max = 31_536_000.0))]
        pub every: Option<Duration> = Some(Duration::from_secs(600)),
        /// Steps between checkpoints. With it, a run of mode `sync` makes its checkpoints at the same steps every time. In mode `async`
        /// the steps of worker 0 count, and every worker takes part. Default: none by steps.
        #[schemars(range(min = 1, max = 9_223_372_036_854_775_807_u64))]
        pub every_steps: Option<u64> = None,
        /// Folder that checkpoints and kept states are written to, in a folder of the run's name: a path that every role reaches, or
        /// `s3://bucket/prefix` in an S3-compatible store. Credentials and endpoint are taken from the environment of every role:
        /// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, AWS_ALLOW_HTTP. A relative path starts at the
        /// current directory. Default: `checkpoints` in the run folder.
        #[schemars(length(min = 1))]
        pub folder: Option<String> = None,
        /// Newest checkpoints that are kept, each with all rows and the state of every optimiser. 0 makes no checkpoint at all, not
        /// even when the run is interrupted.
        #[schemars(range(max = 1000))]
        pub keep: usize = 2,
        /// Deltas that may follow a checkpoint of all rows. A delta is a checkpoint that writes the rows that have changed since the
        /// checkpoint before, and links the other files, or names them in an object store. All rows are written again after this many
        /// deltas, and earlier once the deltas have half as many bytes as the rows. 0 writes all rows each time: then no damaged file is
        /// part of two checkpoints. With rows that can leave a server's memory (`cluster.memory`), expire or wait for admission, all rows
        /// are written each time.
        #[schemars(range(max = 100))]
        pub deltas: usize = 0,
    }
}

section! {
    /// What is written.
    #[schemars(rename = "Output")]
    pub struct OutputSettings {
        /// Folder that run folders are made in. A relative path starts at the current directory.
        #[schemars(length(min = 1))]
        pub folder: PathBuf = PathBuf::from("runs"),
        /// Whether the trained model is saved.
        pub save_model: bool = true,
        /// Folder that the trained model is saved in, as `model` in a folder of the run's name: a path that every role reaches, or
        /// `s3://bucket/prefix` in an S3-compatible store, with credentials and endpoint as for `checkpoint.folder`. A relative path
        /// starts at the current directory. Default: `model` in the run folder, which every embedding server must then reach under
        /// the same path.
        #[schemars(length(min = 1))]
        pub model_folder: Option<String> = None,
        /// Best states by `train.early_stop.metric` that are kept beside the checkpoints while training, besides the last state. The
        /// best of them becomes the saved model. 0 keeps none, and the last state is saved. Default: 1 with `train.early_stop`, else
        /// 0.
        #[schemars(range(max = 1000))]
        pub keep_best: u32 = 0,
    }
}
