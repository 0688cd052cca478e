//! What the model learns to predict: one target or several.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Target {
    pub name: String,
    pub column: String,
    pub kind: TargetKind,
    /// Factor of its loss in the loss of a sample, which is the sum over the targets.
    pub weight: f64,
    /// What becomes of a row without a value.
    pub missing: MissingLabel,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum TargetKind {
    /// Yes or no, one logit. The loss is binary cross-entropy.
    Click {
        positive: Vec<String>,
        negative: Vec<String>,
        /// Index of an earlier click target without which this one never happens.
        given: Option<usize>,
    },
    /// A number, one output.
    Regression {
        /// Of a sample.
        loss: RegressionLoss,
    },
    /// One of several classes, a logit each. The loss is the cross-entropy of their softmax.
    Classes {
        /// Their texts, in order.
        classes: Vec<String>,
    },
}

/// The loss of a sample of a regression. `o` is the network's output, `y` the label.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum RegressionLoss {
    /// (o − y)².
    Mse,
    /// (o − y)² / 2 up to a difference of `delta`, and `delta` · (|o − y| − `delta` / 2) beyond (Huber 1964).
    Huber {
        /// Where the loss becomes linear; positive.
        delta: f64,
    },
    /// exp(o) − y·o: the output is the logarithm of the expected count.
    Poisson,
}

/// What a target is, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LabelKind {
    /// Yes or no; binary cross-entropy.
    #[default]
    Click,
    /// A number.
    Regression,
    /// One of several classes; cross-entropy of their softmax.
    Classes,
}

/// A loss of regression, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LossName {
    /// Squared error.
    Mse,
    /// Squared error of small differences, absolute error of large ones.
    Huber,
    /// Negative log-likelihood of counts; the prediction is exp(output).
    Poisson,
}

/// What becomes of a row whose label is missing: empty, or one of `data.missing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MissingLabel {
    /// It is malformed.
    #[default]
    Refuse,
    /// It counts for the other targets only: this one has no loss and no measure there.
    Skip,
}

impl Target {
    pub fn output_count(&self) -> usize {
        if let TargetKind::Classes { classes } = &self.kind { classes.len() } else { 1 }
    }

    pub fn is_click(&self) -> bool {
        matches!(self.kind, TargetKind::Click { .. })
    }
}

/// A column of `1` and `0`.
impl From<&str> for Target {
    fn from(column: &str) -> Self {
        let (positive, negative) = (vec!["1".to_owned()], vec!["0".to_owned()]);
        Self {
            name: column.to_owned(),
            column: column.to_owned(),
            kind: TargetKind::Click { positive, negative, given: None },
            weight: 1.0,
            missing: MissingLabel::Refuse,
        }
    }
}
