//! Whether labels come in runs, as they do in a file that is sorted by label or written in turns.
//!
//! A model that sees one label for thousands of rows forgets the other. The measure is the runs test of Wald & Wolfowitz
//! (1940): n rows of which p have the label 1 and q the label 0 are expected to make 1 + 2·p·q / n runs of equal labels
//! when their order is random. Rows are counted in the order in which training meets them, behind the shuffle window.

use std::fmt;

/// Runs that a random order must be expected to have before anything is said.
const ENOUGH: u64 = 200;
/// So many times fewer runs than expected are too few. A file sorted by user has perhaps half as many.
const TOO_FEW: u64 = 4;

#[derive(Clone, Debug, Default)]
pub(crate) struct LabelRuns {
    rows: u64,
    positives: u64,
    runs: u64,
    last: Option<bool>,
    is_reported: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LongRuns {
    rows: u64,
    runs: u64,
    expected: u64,
}

impl LabelRuns {
    /// Counts the labels of a batch: whether each is positive. Answers once, with the first batch after which there are far too few runs.
    pub(crate) fn add(&mut self, labels: impl Iterator<Item = bool>) -> Option<LongRuns> {
        for is_positive in labels {
            self.rows += 1;
            self.positives += u64::from(is_positive);
            self.runs += u64::from(self.last != Some(is_positive));
            self.last = Some(is_positive);
        }
        let expected = self.expected();
        let is_long = !self.is_reported && expected >= ENOUGH && self.runs * TOO_FEW < expected;
        self.is_reported |= is_long;
        is_long.then_some(LongRuns { rows: self.rows, runs: self.runs, expected })
    }

    fn expected(&self) -> u64 {
        let negatives = u128::from(self.rows - self.positives);
        let pairs = 2 * u128::from(self.positives) * negatives;
        1 + u64::try_from(pairs / u128::from(self.rows.max(1))).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for LongRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, runs, expected } = self;
        write!(
            f,
            "the labels of {rows} training rows come in {runs} runs of equal labels where about {expected} are expected of \
             shuffled rows: the model may forget one label while it learns the other; raise data.shuffle_rows, or shuffle \
             the training files"
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reports(labels: impl Iterator<Item = bool>) -> Vec<LongRuns> {
        let labels: Vec<bool> = labels.collect();
        let mut runs = LabelRuns::default();
        labels.chunks(256).filter_map(|batch| runs.add(batch.iter().copied())).collect()
    }

    #[test]
    fn sorted_labels_are_reported_once_soon_after_the_first_change() {
        let found = reports((0..40_000).map(|row| row >= 20_000));
        assert_eq!(found, [LongRuns { rows: 20_224, runs: 2, expected: 444 }]);
        let text = found[0].to_string();
        assert!(text.starts_with("the labels of 20224 training rows come in 2 runs"), "{text}");
    }

    #[test]
    fn labels_in_turns_of_a_thousand_are_reported() {
        assert_eq!(reports((0..40_000).map(|row| row / 1_000 % 2 == 0)).len(), 1);
    }

    #[test]
    fn rare_positives_and_groups_of_ten_are_nothing_to_report() {
        assert!(reports((0..200_000).map(|row| row % 1_000 == 7)).is_empty());
        assert!(
            reports((0..200_000_u64).map(|row| (row / 5).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0)).is_empty()
        );
        assert!(reports((0..200_000).map(|_| true)).is_empty());
    }

    proptest! {
        #[test]
        fn random_labels_are_not_reported(seed: u64, share in 0.001..0.999_f64) {
            let random = |row: u64| {
                let mixed = (row ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) as f64 / u64::MAX as f64
            };
            prop_assert!(reports((0..20_000).map(|row| random(row) < share)).is_empty());
        }
    }
}
