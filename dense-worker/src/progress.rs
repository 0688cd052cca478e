//! Running measures of training: smoothed loss, measures of recent samples and of an epoch, speed. Constant memory and
//! constant time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use zagros_eval::{ClickSums, Evaluation};
use zagros_zip::ZipEq;

/// Exponential mean. It is unbiased from the first value on, like Adam's moments.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SmoothedMean {
    keep: f64,
    sum: f64,
    weight: f64,
}

impl SmoothedMean {
    /// A mean over about so many values.
    pub(crate) fn new(values: f64) -> Self {
        Self { keep: 1.0 - 1.0 / values.max(1.0), sum: 0.0, weight: 0.0 }
    }

    pub(crate) fn add(&mut self, value: f64) {
        self.sum = self.keep * self.sum + (1.0 - self.keep) * value;
        self.weight = self.keep * self.weight + (1.0 - self.keep);
    }

    /// The mean, 0 before the first value.
    pub(crate) fn mean(&self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }
}

/// Predictions are counted in so many bins of probability. Two predictions in one bin count as a tie, which changes the AUC
/// by less than the noise of a window.
const BINS: usize = 1 << 12;

/// A prediction: twice its bin, and one more if its sample is positive. A checkpoint has all those of a window.
type BinnedPrediction = u16;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClassHistogram {
    positives: Vec<u64>,
    negatives: Vec<u64>,
}

impl ClassHistogram {
    pub(crate) fn new() -> Self {
        Self { positives: vec![0; BINS], negatives: vec![0; BINS] }
    }

    fn count(&mut self, place: BinnedPrediction) -> &mut u64 {
        let class = if place % 2 == 1 { &mut self.positives } else { &mut self.negatives };
        &mut class[usize::from(place / 2)]
    }

    fn is_empty(&self) -> bool {
        self.positives.iter().chain(&self.negatives).all(|count| *count == 0)
    }

    fn merge(&mut self, other: &Self) {
        let classes = [(&mut self.positives, &other.positives), (&mut self.negatives, &other.negatives)];
        for (mine, its) in classes {
            mine.iter_mut().zip_eq(its).for_each(|(mine, its)| *mine += its);
        }
    }

    /// The AUC; `None` until both classes occurred.
    pub(crate) fn auc(&self) -> Option<f64> {
        let (mut below, mut won, mut positives) = (0_u64, 0_u128, 0_u64);
        for bin in 0..BINS {
            let (here, others) = (self.positives[bin], self.negatives[bin]);
            // A pair in order counts two, and a tie counts one.
            won += u128::from(here) * u128::from(2 * below + others);
            below += others;
            positives += here;
        }
        let pairs = u128::from(positives) * u128::from(below);
        (pairs > 0).then(|| won as f64 / (2 * pairs) as f64)
    }
}

/// The predictions of a batch, by bin.
#[derive(Clone, Debug)]
pub(crate) struct BatchPredictions {
    bins: Vec<BinnedPrediction>,
    sums: ClickSums,
}

impl BatchPredictions {
    /// `labels` and `logits` are equally many. `loss` is their mean, nats.
    pub(crate) fn new(labels: &[f32], logits: &[f32], loss: f32) -> Self {
        let samples = labels.len() as u64;
        let mut sums = ClickSums { samples, loss: f64::from(loss) * samples as f64, ..ClickSums::default() };
        let count = |(label, logit): (&f32, &f32)| {
            let (is_positive, probability) = (*label > 0.5, 1.0 / (1.0 + (-logit).exp()));
            sums.positives += u64::from(is_positive);
            sums.predicted += f64::from(probability);
            // A NaN becomes bin 0. The step that made it ends the run anyway.
            2 * ((probability * BINS as f32) as usize).min(BINS - 1) as u16 + u16::from(is_positive)
        };
        let bins = labels.iter().zip_eq(logits).map(count).collect();
        Self { bins, sums }
    }

    /// So many samples that have no measure, because the target is no click.
    pub(crate) fn unmeasured(samples: usize) -> Self {
        Self { bins: Vec::new(), sums: ClickSums { samples: samples as u64, ..ClickSums::default() } }
    }
}

/// Measures over all predictions so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OverallMeasures {
    histogram: ClassHistogram,
    sums: ClickSums,
}

impl OverallMeasures {
    pub(crate) fn new() -> Self {
        Self { histogram: ClassHistogram::new(), sums: ClickSums::default() }
    }

    pub(crate) fn add(&mut self, predicted: &BatchPredictions) {
        self.sums.add(predicted.sums);
        predicted.bins.iter().for_each(|place| *self.histogram.count(*place) += 1);
    }

    pub(crate) fn sum(parts: &[Self]) -> Self {
        let mut whole = Self::new();
        for part in parts {
            whole.histogram.merge(&part.histogram);
            whole.sums.add(part.sums);
        }
        whole
    }

    pub(crate) fn report(&self) -> Evaluation {
        let Self { histogram, sums } = self;
        if histogram.is_empty() {
            return Evaluation { samples: sums.samples, ..Evaluation::default() };
        }
        Evaluation {
            samples: sums.samples,
            positive_rate: sums.positive_rate(),
            auc: histogram.auc(),
            logloss: sums.logloss(),
            normalised_entropy: sums.normalised_entropy(),
            calibration: sums.calibration_ratio(),
            ..Evaluation::default()
        }
    }
}

/// Measures over the last predictions. The AUC is over exactly the window. The sums are over the window or up to one batch
/// less, because whole batches are dropped.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RecentMeasures {
    window: usize,
    #[serde(flatten)]
    measures: OverallMeasures,
    predictions: VecDeque<BinnedPrediction>,
    batches: VecDeque<ClickSums>,
}

impl RecentMeasures {
    pub(crate) fn new(window: usize) -> Self {
        Self { window, measures: OverallMeasures::new(), predictions: VecDeque::new(), batches: VecDeque::new() }
    }

    /// Drops the oldest ones beyond the window.
    pub(crate) fn add(&mut self, predicted: &BatchPredictions) {
        self.measures.add(predicted);
        for place in &predicted.bins {
            self.predictions.push_back(*place);
            if self.predictions.len() > self.window
                && let Some(oldest) = self.predictions.pop_front()
            {
                *self.measures.histogram.count(oldest) -= 1;
            }
        }
        self.batches.push_back(predicted.sums);
        while self.measures.sums.samples > self.window as u64 && self.batches.len() > 1 {
            let oldest = self.batches.pop_front().unwrap_or_default();
            self.measures.sums.subtract(oldest);
        }
    }

    pub(crate) fn report(&self) -> Evaluation {
        self.measures.report()
    }
}

/// Samples per second over the last seconds, without pauses.
#[derive(Clone, Debug)]
pub(crate) struct SampleSpeed {
    window: Duration,
    marks: VecDeque<(Instant, u64)>,
}

impl SampleSpeed {
    pub(crate) fn new(window: Duration) -> Self {
        Self { window, marks: VecDeque::new() }
    }

    pub(crate) fn add(&mut self, now: Instant, samples: u64) {
        self.marks.push_back((now, samples));
        while self.marks.len() > 2 && now.duration_since(self.marks[0].0) > self.window {
            self.marks.pop_front();
        }
    }

    /// Starts a new measurement, because the time until now was not training.
    pub(crate) fn pause(&mut self) {
        self.marks.clear();
    }

    /// 0 until two counts are known.
    pub(crate) fn per_second(&self) -> f64 {
        let (Some(first), Some(last)) = (self.marks.front(), self.marks.back()) else { return 0.0 };
        let seconds = last.0.duration_since(first.0).as_secs_f64();
        if seconds > 0.0 { (last.1 - first.1) as f64 / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_smoothed_constant_is_the_constant_from_the_start() {
        let mut smoothed = SmoothedMean::new(100.0);
        assert_eq!(smoothed.mean(), 0.0);
        for _ in 0..300 {
            smoothed.add(0.7);
            assert!((smoothed.mean() - 0.7).abs() < 1e-12);
        }
        smoothed.add(1.7);
        assert!((smoothed.mean() - 0.71).abs() < 1e-3, "{}", smoothed.mean());
    }

    fn near(a: Option<f64>, b: Option<f64>) -> bool {
        a.is_some() == b.is_some() && a.zip(b).is_none_or(|(a, b)| (a - b).abs() < 1e-5)
    }

    proptest! {
        /// The steps of the logits are wider than a bin, so the two agree.
        #[test]
        fn recent_measures_are_the_exact_ones_of_the_window(
            samples in prop::collection::vec((any::<bool>(), -16_i8..16), 1..300), window in 1_usize..400,
        ) {
            let (mut recent, mut overall) = (RecentMeasures::new(window), OverallMeasures::new());
            let (mut exact, mut all) = (zagros_eval::ClickScores::new(), zagros_eval::ClickScores::new());
            let samples: Vec<(f32, f32)> =
                samples.iter().map(|(label, step)| (f32::from(u8::from(*label)), f32::from(*step) / 4.0)).collect();
            for (label, logit) in &samples {
                let loss = zagros_eval::measure::softplus(f64::from(if *label > 0.5 { -logit } else { *logit })) as f32;
                let predicted = BatchPredictions::new(&[*label], &[*logit], loss);
                recent.add(&predicted);
                overall.add(&predicted);
                all.push(*label, *logit);
            }
            samples.iter().rev().take(window).for_each(|(label, logit)| exact.push(*label, *logit));
            for (found, expected) in [(recent.report(), exact.compute_measures()), (overall.report(), all.compute_measures())] {
                prop_assert_eq!((found.samples, found.positive_rate), (expected.samples, expected.positive_rate));
                prop_assert!(near(found.auc, expected.auc) && near(found.logloss, expected.logloss), "{found:?} {expected:?}");
                prop_assert!(near(found.normalised_entropy, expected.normalised_entropy), "{found:?} {expected:?}");
                prop_assert!(near(found.calibration, expected.calibration), "{found:?} {expected:?}");
            }
        }

        /// Equal to the last bit, wherever the window is interrupted.
        #[test]
        fn a_window_continues_from_disk_as_from_memory(
            batches in prop::collection::vec(prop::collection::vec((any::<bool>(), -9.0_f32..9.0), 1..20), 1..20),
            (window, broken_off) in (1_usize..100, 0_usize..20),
        ) {
            let predicted = |batch: &Vec<(bool, f32)>| {
                let (labels, logits): (Vec<f32>, Vec<f32>) =
                    batch.iter().map(|(label, logit)| (f32::from(u8::from(*label)), *logit)).unzip();
                BatchPredictions::new(&labels, &logits, 0.1 + logits[0].abs())
            };
            let (mut stayed, mut gone_on) = (RecentMeasures::new(window), RecentMeasures::new(window));
            for (place, batch) in batches.iter().enumerate() {
                stayed.add(&predicted(batch));
                gone_on.add(&predicted(batch));
                if place == broken_off {
                    gone_on = serde_json::from_str(&serde_json::to_string(&gone_on).unwrap()).unwrap();
                }
                prop_assert_eq!(stayed.report(), gone_on.report());
            }
        }
    }

    #[test]
    fn a_batch_larger_than_the_window_is_kept_whole() {
        let mut recent = RecentMeasures::new(2);
        recent.add(&BatchPredictions::new(&[0.0; 5], &[0.0; 5], 0.5));
        assert_eq!((recent.report().samples, recent.report().logloss), (5, Some(0.5)));
        recent.add(&BatchPredictions::new(&[1.0], &[0.0], 1.5));
        assert_eq!((recent.report().samples, recent.report().logloss), (1, Some(1.5)));
    }

    #[test]
    fn extreme_logits_have_a_bin() {
        let mut recent = RecentMeasures::new(10);
        let logits = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        recent.add(&BatchPredictions::new(&[1.0, 0.0, 0.0], &logits, 0.0));
        assert_eq!(recent.report().auc, Some(1.0));
    }

    #[test]
    fn speed_ignores_old_samples_and_pauses() {
        let start = Instant::now();
        let mut speed = SampleSpeed::new(Duration::from_secs(5));
        assert_eq!(speed.per_second(), 0.0);
        for second in 0..10_u64 {
            let samples = if second < 5 { 10 * second } else { 40 + 100 * (second - 4) };
            speed.add(start + Duration::from_secs(second), samples);
        }
        assert!((speed.per_second() - 100.0).abs() < 1e-9, "{}", speed.per_second());
        speed.pause();
        speed.add(start + Duration::from_secs(60), 2000);
        assert_eq!(speed.per_second(), 0.0);
    }
}
