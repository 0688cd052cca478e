//! What happened in a sweep, in order: its records are the journal, and their replay is the sweep.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What trials are compared by, on the validation part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Area under the ROC curve: more is better.
    Auc,
    /// Mean binary cross-entropy, nats: less is better.
    Logloss,
    /// Mean AUC of groups: more is better.
    Gauc,
}

/// Measures of a trial on the validation part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialMeasures {
    pub auc: Option<f64>,
    /// Mean binary cross-entropy, nats.
    pub logloss: Option<f64>,
    /// Mean AUC of the groups of `eval.group_by`.
    pub gauc: Option<f64>,
}

impl Metric {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auc => "auc",
            Self::Logloss => "logloss",
            Self::Gauc => "gauc",
        }
    }

    #[must_use]
    pub fn value(self, measures: &TrialMeasures) -> Option<f64> {
        match self {
            Self::Auc => measures.auc,
            Self::Logloss => measures.logloss,
            Self::Gauc => measures.gauc,
        }
    }

    /// The same, so that more is better. `None` if it is not defined or no number.
    #[must_use]
    pub fn merit(self, measures: &TrialMeasures) -> Option<f64> {
        let value = self.value(measures).filter(|value| value.is_finite())?;
        Some(if self == Self::Logloss { -value } else { value })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SweepRecord {
    /// A trial was chosen. Trials are numbered from 0 in this order.
    Chosen { trial: usize, values: BTreeMap<String, String> },
    /// A trial was trained to a rung, and scored.
    Scored {
        trial: usize,
        rung: usize,
        /// On the validation part.
        measures: TrialMeasures,
        steps: u64,
        /// Seconds of training up to here.
        seconds: f64,
    },
    /// A trial ended before it was scored.
    Failed { trial: usize, reason: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_merit_is_better_and_what_is_no_number_has_none() {
        let measures = |logloss| TrialMeasures { auc: Some(0.7), logloss, gauc: None };
        assert!(Metric::Logloss.merit(&measures(Some(0.3))) > Metric::Logloss.merit(&measures(Some(0.4))));
        assert_eq!(Metric::Auc.merit(&measures(None)), Some(0.7));
        assert_eq!(Metric::Gauc.merit(&measures(None)), None);
        assert_eq!(Metric::Logloss.merit(&measures(Some(f64::NAN))), None);
    }
}
