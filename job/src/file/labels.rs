//! `features.label` as it is written: a name, a table, or a list of both.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Column;
use crate::settings::{LabelKind, LossName, MissingLabel, RegressionLoss, Target, TargetKind};

/// What the model learns.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Labels")]
pub(crate) enum LabelForms {
    /// Name of the column, whose values are `1` and `0`.
    Name(String),
    /// The column in full.
    One(Box<LabelFile>),
    /// Several columns, the first of which chooses the state that is kept.
    Many(#[schemars(length(min = 1, max = 64))] Vec<Column<LabelFile>>),
}

/// A label column in full.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Label")]
pub(crate) struct LabelFile {
    /// Name of the column.
    pub(crate) column: String,
    /// Its name in measures and predictions. Default: the column's.
    pub(crate) name: Option<String>,
    /// What its values are.
    #[serde(default)]
    pub(crate) kind: LabelKind,
    /// Texts that mean a positive sample, of kind `click`. Default: `["1"]`.
    #[schemars(length(min = 1))]
    pub(crate) positive: Option<Vec<String>>,
    /// Texts that mean a negative sample, of kind `click`. A text in neither list is a malformed row. Default: `["0"]`.
    #[schemars(length(min = 1))]
    pub(crate) negative: Option<Vec<String>>,
    /// Texts of the classes, of kind `classes`, which needs two or more. Another text is a malformed row. Default: none.
    #[schemars(length(min = 2, max = 4096))]
    pub(crate) classes: Option<Vec<String>>,
    /// Loss of a sample, of kind `regression`. Default: `mse`.
    pub(crate) loss: Option<LossName>,
    /// Difference from which the loss `huber` is linear. Default: 1.
    #[schemars(range(max = 1e30), extend("exclusiveMinimum" = 0.0))]
    pub(crate) delta: Option<f64>,
    /// Factor of its loss in the loss of a sample, which is the sum over the labels.
    #[serde(default = "one")]
    #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0.0))]
    pub(crate) weight: f64,
    /// What becomes of a row whose label is missing: empty, or one of `data.missing` that is no text of this label.
    #[serde(default)]
    pub(crate) missing: MissingLabel,
    /// Name of an earlier label of kind `click` without which this one never happens, as a purchase never without a click: the
    /// network then predicts P(given) · P(this | given), learned from all rows (ESMM, Ma et al. 2018). Default: none.
    pub(crate) given: Option<String>,
}

/// A column of `1` and `0`.
impl From<String> for LabelFile {
    fn from(column: String) -> Self {
        Self { column, weight: one(), ..Self::default() }
    }
}

impl LabelForms {
    pub(crate) fn from_targets(targets: &[Target]) -> Self {
        let mut labels: Vec<LabelFile> = targets.iter().map(|target| label(target, targets)).collect();
        match labels.len() {
            1 => Self::One(Box::new(labels.remove(0))),
            _ => Self::Many(labels.into_iter().map(Column::Full).collect()),
        }
    }
}

fn label(target: &Target, targets: &[Target]) -> LabelFile {
    let Target { name, column, kind, weight, missing } = target.clone();
    let name = (name != column).then_some(name);
    let plain = LabelFile { name, weight, missing, ..LabelFile::from(column) };
    match kind {
        TargetKind::Click { positive, negative, given } => {
            let given = given.map(|index| targets[index].name.clone());
            LabelFile { positive: Some(positive), negative: Some(negative), given, ..plain }
        }
        TargetKind::Regression { loss } => {
            let (loss, delta) = match loss {
                RegressionLoss::Mse => (LossName::Mse, None),
                RegressionLoss::Huber { delta } => (LossName::Huber, Some(delta)),
                RegressionLoss::Poisson => (LossName::Poisson, None),
            };
            LabelFile { kind: LabelKind::Regression, loss: Some(loss), delta, ..plain }
        }
        TargetKind::Classes { classes } => LabelFile { kind: LabelKind::Classes, classes: Some(classes), ..plain },
    }
}

fn one() -> f64 {
    1.0
}
