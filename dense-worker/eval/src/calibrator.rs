//! Calibration: a function of the logit after which predicted probabilities are frequencies.
//!
//! A calibrator is fitted on rows that were not trained on, and never changes which of two samples has the higher score.
//!
//! - **Temperature** (Guo et al. 2017, "On Calibration of Modern Neural Networks"): all logits are divided by one number, which
//!   minimises the logloss. The loss is convex in the number's inverse, so Newton's steps between two bounds find it.
//! - **Isotonic** (Zadrozny and Elkan 2002, "Transforming Classifier Scores into Accurate Multiclass Probability Estimates"):
//!   the increasing step function of the logit with the least logloss. Samples are put into bins by their logit. Neighbouring
//!   bins are pooled until their frequencies increase (pool adjacent violators, Ayer et al. 1955):
//!
//! ```text
//! frequencies of bins  0.1  0.3  0.2  0.6      0.3 > 0.2: pooled
//!                      0.1  0.25 0.25 0.6
//! ```

use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

use crate::ClickScores;
use crate::class_logits::best_scale;
use crate::measure::{sigmoid, take_equal};

/// Most bins of samples that isotonic calibration starts from, and so most knots divided by two.
const BINS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalibrationMethod {
    /// One factor for all logits.
    Temperature,
    Isotonic,
}

/// Maps logits to logits of calibrated probabilities. Increasing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "lowercase", deny_unknown_fields)]
pub enum Calibrator {
    /// Divides by a temperature: above 1 the model was too certain.
    Temperature { temperature: f64 },
    /// Linear between knots, constant before the first and after the last.
    Isotonic {
        /// By ascending logit.
        knots: Vec<IsotonicKnot>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct IsotonicKnot {
    pub logit: f32,
    pub calibrated: f32,
}

/// Samples whose logits lie in one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LogitBlock {
    low: f32,
    high: f32,
    samples: u64,
    positives: u64,
}

impl LogitBlock {
    /// Whether its frequency of positives is at least that of a later block. In integers: exact.
    fn violates(&self, later: &Self) -> bool {
        u128::from(self.positives) * u128::from(later.samples) >= u128::from(later.positives) * u128::from(self.samples)
    }

    fn pool(&mut self, later: Self) {
        self.high = later.high;
        self.samples += later.samples;
        self.positives += later.positives;
    }
}

impl Calibrator {
    /// Fits one to samples that were not trained on; `None` when a class has no sample or a score is not finite.
    pub fn fit(method: CalibrationMethod, scores: &mut ClickScores) -> Option<Self> {
        let (positives, negatives) = scores.sorted_logits();
        let is_finite = |logits: &[f32]| logits.iter().all(|logit| logit.is_finite());
        if positives.is_empty() || negatives.is_empty() || !is_finite(positives) || !is_finite(negatives) {
            return None;
        }
        Some(match method {
            CalibrationMethod::Temperature => {
                Self::Temperature { temperature: 1.0 / best_scale(|scale| loss_slope(positives, negatives, scale)) }
            }
            CalibrationMethod::Isotonic => {
                Self::Isotonic { knots: block_knots(&pool_violators(bin_samples(positives, negatives, BINS))) }
            }
        })
    }

    pub fn apply(&self, logit: f32) -> f32 {
        match self {
            Self::Temperature { temperature } => (f64::from(logit) / temperature) as f32,
            Self::Isotonic { knots } => interpolate(knots, logit),
        }
    }

    /// Whether it is one that [`Self::fit`] makes: a positive temperature; increasing, finite knots.
    pub fn is_valid(&self) -> bool {
        match self {
            Self::Temperature { temperature } => temperature.is_finite() && *temperature > 0.0,
            Self::Isotonic { knots } => {
                let is_finite = |knot: &IsotonicKnot| knot.logit.is_finite() && knot.calibrated.is_finite();
                let increases =
                    |pair: &[IsotonicKnot]| pair[0].logit <= pair[1].logit && pair[0].calibrated <= pair[1].calibrated;
                !knots.is_empty() && knots.iter().all(is_finite) && knots.windows(2).all(increases)
            }
        }
    }
}

/// First and second derivative of the summed loss by the scale.
fn loss_slope(positives: &[f32], negatives: &[f32], scale: f64) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for (logits, label) in [(positives, 1.0), (negatives, 0.0)] {
        for logit in logits {
            let logit = f64::from(*logit);
            let predicted = sigmoid(scale * logit);
            sums.0 += logit * (predicted - label);
            sums.1 += logit * logit * predicted * (1.0 - predicted);
        }
    }
    sums
}

/// Samples in ascending bins of about equal size, at most `most` and one. Equal logits are in the same bin.
fn bin_samples(positives: &[f32], negatives: &[f32], most: usize) -> Vec<LogitBlock> {
    let full = (positives.len() + negatives.len()).div_ceil(most) as u64;
    let (mut positives, mut negatives) = (positives, negatives);
    let mut bins: Vec<LogitBlock> = Vec::new();
    while let Some(low) = [positives.first(), negatives.first()].into_iter().flatten().copied().reduce(f32::min) {
        let (of_positives, of_negatives) = (take_equal(&mut positives, low), take_equal(&mut negatives, low));
        let samples = (of_positives + of_negatives) as u64;
        let next = LogitBlock { low, high: low, samples, positives: of_positives as u64 };
        match bins.last_mut().filter(|bin| bin.samples < full) {
            Some(bin) => bin.pool(next),
            None => bins.push(next),
        }
    }
    bins
}

/// Blocks of strictly increasing frequency: pool adjacent violators.
fn pool_violators(bins: Vec<LogitBlock>) -> Vec<LogitBlock> {
    let mut blocks: Vec<LogitBlock> = Vec::new();
    for mut block in bins {
        while let Some(before) = blocks.pop_if(|before| before.violates(&block)) {
            let later = std::mem::replace(&mut block, before);
            block.pool(later);
        }
        blocks.push(block);
    }
    blocks
}

/// The frequency of each block, without 0 and 1: they would make the loss of the first mistake infinite. A block of n samples without a
/// positive has half a positive of n + 1, as one of positives alone has half a negative. If the next block inwards has fewer, it has that
/// one's frequency, so that frequencies never fall.
fn block_frequencies(blocks: &[LogitBlock]) -> Vec<f64> {
    let frequency = |block: &LogitBlock| {
        let least = 0.5 / (block.samples as f64 + 1.0);
        (block.positives as f64 / block.samples as f64).clamp(least, 1.0 - least)
    };
    let mut found: Vec<f64> = blocks.iter().map(frequency).collect();
    // Frequencies increase, so only the first block can be without a positive, and only the last without a negative.
    if let [first, second, ..] = &mut found[..] {
        *first = first.min(*second);
    }
    if let [.., before, last] = &mut found[..] {
        *last = last.max(*before);
    }
    found
}

fn block_knots(blocks: &[LogitBlock]) -> Vec<IsotonicKnot> {
    let mut knots = Vec::with_capacity(2 * blocks.len());
    for (block, frequency) in blocks.iter().zip_eq(block_frequencies(blocks)) {
        let calibrated = (frequency / (1.0 - frequency)).ln() as f32;
        knots.push(IsotonicKnot { logit: block.low, calibrated });
        if block.high > block.low {
            knots.push(IsotonicKnot { logit: block.high, calibrated });
        }
    }
    knots
}

fn interpolate(knots: &[IsotonicKnot], logit: f32) -> f32 {
    let upper = knots.partition_point(|knot| knot.logit <= logit);
    match (upper.checked_sub(1).map(|before| knots[before]), knots.get(upper)) {
        _ if logit.is_nan() => logit,
        (Some(before), Some(next)) => {
            let share =
                (f64::from(logit) - f64::from(before.logit)) / (f64::from(next.logit) - f64::from(before.logit));
            let (from, to) = (f64::from(before.calibrated), f64::from(next.calibrated));
            (from + share * (to - from)) as f32
        }
        (Some(last), None) => last.calibrated,
        (None, Some(first)) => first.calibrated,
        (None, None) => logit,
    }
}

impl ClickScores {
    /// The same samples with calibrated logits. Groups and slices are dropped.
    pub fn apply_calibrator(&self, calibrator: &Calibrator) -> Self {
        let mut scores = Self::new();
        for (logits, label) in [(&self.positives, 1.0), (&self.negatives, 0.0)] {
            let labels = vec![label; logits.len()];
            labels.iter().zip_eq(logits).for_each(|(label, logit)| scores.push(*label, calibrator.apply(*logit)));
        }
        scores
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture::scores;

    const METHODS: [CalibrationMethod; 2] = [CalibrationMethod::Temperature, CalibrationMethod::Isotonic];

    fn samples() -> impl Strategy<Value = Vec<(bool, f32)>> {
        let logit = (-12_i8..12).prop_map(|step| f32::from(step) / 4.0);
        prop::collection::vec((any::<bool>(), logit), 2..60)
    }

    /// Ten samples at each of nine probabilities, as many of them positive as the probability says; logits multiplied.
    fn nine_probabilities(factor: f32) -> Vec<(bool, f32)> {
        let sample = |tenths: u8, sample: u8| {
            let odds = f32::from(tenths) / f32::from(10 - tenths);
            (sample < tenths, odds.ln() * factor)
        };
        (1..10).flat_map(|tenths| (0..10).map(move |index| sample(tenths, index))).collect()
    }

    #[test]
    fn a_model_that_is_three_times_too_certain_is_found_out_and_a_calibrated_one_stays() {
        for (method, factor) in METHODS.into_iter().flat_map(|method| [(method, 1.0), (method, 3.0)]) {
            let samples = nine_probabilities(factor);
            let fitted = Calibrator::fit(method, &mut scores(&samples)).unwrap();
            for (_, logit) in samples {
                let found = fitted.apply(logit);
                assert!((found - logit / factor).abs() < 1e-5, "{method:?}, {factor}: {logit} becomes {found}");
            }
        }
    }

    #[test]
    fn scores_of_one_class_or_without_a_number_are_not_fitted() {
        for method in METHODS {
            assert_eq!(Calibrator::fit(method, &mut scores(&[(true, 0.5), (true, 1.0)])), None);
            assert_eq!(Calibrator::fit(method, &mut scores(&[(true, f32::NAN), (false, 1.0)])), None);
            assert_eq!(Calibrator::fit(method, &mut scores(&[(true, f32::INFINITY), (false, 1.0)])), None);
        }
    }

    #[test]
    fn perfectly_ordered_scores_have_finite_losses() {
        for method in METHODS {
            let ordered = [(false, -1.0), (false, -0.5), (true, 0.5), (true, 1.0)];
            let calibrator = Calibrator::fit(method, &mut scores(&ordered)).unwrap();
            assert!(calibrator.is_valid(), "{calibrator:?}");
            let mistaken = scores(&[(true, -9.0), (false, 9.0)]).apply_calibrator(&calibrator).compute_measures();
            assert!(mistaken.logloss.unwrap().is_finite(), "{calibrator:?}");
        }
    }

    /// Thirty clicks beyond all others are no proof of certainty, however many samples there are.
    #[test]
    fn a_small_block_at_the_end_is_as_uncertain_as_its_samples_are_few() {
        let middle = (0..100_000).map(|n| (n % 100 == 0, 0.0));
        let samples: Vec<_> = middle.chain([(true, 5.0); 30]).chain([(false, -5.0); 30]).collect();
        let calibrator = Calibrator::fit(CalibrationMethod::Isotonic, &mut scores(&samples)).unwrap();
        let chance = |logit: f32| sigmoid(f64::from(calibrator.apply(logit)));
        let (end, middle) = (1.0 - 0.5 / 31.0, 0.01);
        assert!((chance(5.0) - end).abs() < 1e-6 && (chance(0.0) - middle).abs() < 1e-6, "{calibrator:?}");
        // A half of 31 is more than the frequency of the block above it.
        assert_eq!(chance(-5.0).to_bits(), chance(0.0).to_bits());
    }

    #[test]
    fn many_samples_are_put_into_bins() {
        let many: Vec<_> = (0..100_000).map(|n| ((n * 7919) % 100_000 < n, n as f32 / 1e4 - 5.0)).collect();
        let mut many = scores(&many);
        let (positives, negatives) = many.sorted_logits();
        let found = bin_samples(positives, negatives, BINS);
        assert!(found.len() <= BINS && found.len() > BINS / 2, "{}", found.len());
        assert_eq!(found.iter().map(|bin| bin.samples).sum::<u64>(), 100_000);
        assert!(found.windows(2).all(|pair| pair[0].high < pair[1].low));
    }

    #[test]
    fn knots_out_of_order_are_not_valid() {
        let knots = |logits: &[f32]| Calibrator::Isotonic {
            knots: logits.iter().map(|logit| IsotonicKnot { logit: *logit, calibrated: 0.0 }).collect(),
        };
        assert!(knots(&[0.0, 1.0]).is_valid());
        for wrong in [knots(&[]), knots(&[1.0, 0.0]), knots(&[f32::NAN]), Calibrator::Temperature { temperature: 0.0 }]
        {
            assert!(!wrong.is_valid(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn calibrators_are_increasing(samples in samples(), a in -9_f32..9.0, b in -9_f32..9.0) {
            for method in METHODS {
                let Some(calibrator) = Calibrator::fit(method, &mut scores(&samples)) else { continue };
                prop_assert!(calibrator.is_valid());
                prop_assert!(calibrator.apply(a.min(b)) <= calibrator.apply(a.max(b)), "{:?}", calibrator);
            }
        }

        /// Isotonic regression by its definition: max over the first, min over the last, of the mean between them
        /// (Robertson et al. 1988).
        #[test]
        fn pooled_blocks_are_the_isotonic_regression(samples in samples()) {
            let mut scores = scores(&samples);
            let (positives, negatives) = scores.sorted_logits();
            let bins = bin_samples(positives, negatives, BINS);
            let mean = |from: usize, to: usize| {
                let (samples, positives) = bins[from..=to].iter().fold((0, 0), |sum, bin| (sum.0 + bin.samples, sum.1 + bin.positives));
                positives as f64 / samples as f64
            };
            let blocks = pool_violators(bins.clone());
            for (index, bin) in bins.iter().enumerate() {
                let least = |from: usize| (index..bins.len()).map(|to| mean(from, to)).fold(f64::INFINITY, f64::min);
                let expected = (0..=index).map(least).fold(f64::NEG_INFINITY, f64::max);
                let block = blocks.iter().find(|block| block.low <= bin.low && bin.high <= block.high).unwrap();
                prop_assert!((block.positives as f64 / block.samples as f64 - expected).abs() < 1e-12);
            }
        }

        /// Whatever blocks there are: neither 0 nor 1, never falling, and in the middle what was counted.
        #[test]
        fn frequencies_are_bounded_by_their_own_block_and_never_fall(
            counts in prop::collection::vec((1_u64..1_000_000, 0.0_f64..=1.0), 1..40)
        ) {
            let block = |(samples, share): &(u64, f64)| {
                let positives = (*samples as f64 * share).round() as u64;
                LogitBlock { low: 0.0, high: 0.0, samples: *samples, positives }
            };
            let blocks = pool_violators(counts.iter().map(block).collect());
            let found = block_frequencies(&blocks);
            prop_assert!(found.windows(2).all(|pair| pair[0] <= pair[1]), "{:?}", found);
            for (index, (block, frequency)) in blocks.iter().zip_eq(&found).enumerate() {
                let counted = block.positives as f64 / block.samples as f64;
                let is_end = index == 0 || index + 1 == blocks.len();
                prop_assert!(*frequency > 0.0 && *frequency < 1.0, "{frequency}");
                prop_assert!(is_end || *frequency == counted, "{frequency} {counted}");
                prop_assert!((frequency - counted).abs() <= 0.5 / (block.samples as f64 + 1.0) + 1e-12);
            }
        }

        #[test]
        fn no_temperature_is_better(samples in samples(), other in 0.01_f64..100.0) {
            let mut scores = scores(&samples);
            let Some(best) = Calibrator::fit(CalibrationMethod::Temperature, &mut scores) else { return Ok(()) };
            let other = Calibrator::Temperature { temperature: other };
            let loss = |calibrator| scores.apply_calibrator(calibrator).compute_measures().logloss.unwrap();
            prop_assert!(loss(&best) <= loss(&other) + 1e-6, "{:?} {:?}", best, other);
        }
    }
}
