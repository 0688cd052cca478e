//! Measures that are means. They are kept as sums, so that parts can be added and subtracted.

use serde::{Deserialize, Serialize};

use crate::measure;

/// Sums over samples, from which logloss, normalised entropy and calibration are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClickSums {
    pub samples: u64,
    pub positives: u64,
    /// Sum of the samples' binary cross-entropies, nats.
    pub loss: f64,
    /// Sum of the predicted probabilities.
    pub predicted: f64,
}

impl ClickSums {
    pub fn add(&mut self, part: Self) {
        self.samples += part.samples;
        self.positives += part.positives;
        self.loss += part.loss;
        self.predicted += part.predicted;
    }

    /// Subtracts the sums of a part that was added before.
    pub fn subtract(&mut self, part: Self) {
        self.samples -= part.samples;
        self.positives -= part.positives;
        self.loss -= part.loss;
        self.predicted -= part.predicted;
    }

    /// Share of positive samples, 0..1; `None` without samples.
    #[must_use]
    pub fn positive_rate(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.positives as f64 / self.samples as f64)
    }

    /// Mean binary cross-entropy, nats; `None` without samples.
    #[must_use]
    pub fn logloss(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.loss / self.samples as f64)
    }

    /// Logloss divided by the entropy of the positive rate; `None` when a class has no sample.
    #[must_use]
    pub fn normalised_entropy(&self) -> Option<f64> {
        let negatives = (self.samples - self.positives) as usize;
        Some(self.logloss()? / measure::base_entropy(self.positives as usize, negatives)?)
    }

    /// Mean predicted probability divided by the share of positives; `None` without positives.
    #[must_use]
    pub fn calibration_ratio(&self) -> Option<f64> {
        (self.positives > 0).then(|| self.predicted / self.positives as f64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ClickScores;

    fn sums(samples: &[(bool, f32)]) -> ClickSums {
        let mut sums = ClickSums::default();
        for (label, logit) in samples {
            let logit = f64::from(*logit);
            let loss = measure::softplus(if *label { -logit } else { logit });
            sums.add(ClickSums { samples: 1, positives: u64::from(*label), loss, predicted: measure::sigmoid(logit) });
        }
        sums
    }

    fn near(a: Option<f64>, b: Option<f64>) -> bool {
        a.is_some() == b.is_some() && a.zip(b).is_none_or(|(a, b)| (a - b).abs() < 1e-9)
    }

    #[test]
    fn no_samples_have_no_measures() {
        let none = ClickSums::default();
        assert_eq!((none.positive_rate(), none.logloss(), none.calibration_ratio()), (None, None, None));
        assert_eq!(sums(&[(true, 0.0)]).normalised_entropy(), None);
    }

    proptest! {
        #[test]
        fn sums_measure_what_scores_measure(
            samples in prop::collection::vec((any::<bool>(), -9.0_f32..9.0), 0..80), before in 0_usize..80,
        ) {
            // Sums that were added and subtracted again leave no trace.
            let earlier = &samples[..before.min(samples.len())];
            let mut found = sums(earlier);
            found.add(sums(&samples));
            found.subtract(sums(earlier));
            let mut scores = ClickScores::new();
            samples.iter().for_each(|(label, logit)| scores.push(f32::from(u8::from(*label)), *logit));
            let expected = scores.compute_measures();
            prop_assert_eq!(found.samples, expected.samples);
            prop_assert_eq!(found.positive_rate(), expected.positive_rate);
            prop_assert!(near(found.logloss(), expected.logloss));
            prop_assert!(near(found.normalised_entropy(), expected.normalised_entropy));
            prop_assert!(near(found.calibration_ratio(), expected.calibration));
        }
    }
}
