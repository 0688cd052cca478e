//! Running measures of training: smoothed loss, AUC of the recent past, speed. Constant memory, constant time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Exponential mean that is unbiased from the first value on (as Adam's moments are).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Smoothed {
    keep: f64,
    sum: f64,
    weight: f64,
}

impl Smoothed {
    /// Forgets over about so many values.
    pub(crate) fn over(values: f64) -> Self {
        Self { keep: 1.0 - 1.0 / values.max(1.0), sum: 0.0, weight: 0.0 }
    }

    /// Adds a value.
    pub(crate) fn add(&mut self, value: f64) {
        self.sum = self.keep * self.sum + (1.0 - self.keep) * value;
        self.weight = self.keep * self.weight + (1.0 - self.keep);
    }

    /// The mean, 0 before the first value.
    pub(crate) fn mean(&self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }
}

/// Predictions are counted in so many bins of probability; two in one bin count as a tie, which moves
/// the AUC by less than the noise of a window.
const BINS: usize = 1 << 12;

/// AUC over the last predictions, kept as two histograms and a ring.
#[derive(Clone, Debug)]
pub(crate) struct RecentAuc {
    window: usize,
    recent: VecDeque<(u16, bool)>,
    positives: Vec<u32>,
    negatives: Vec<u32>,
}

impl RecentAuc {
    /// Over so many samples.
    pub(crate) fn over(window: usize) -> Self {
        Self { window, recent: VecDeque::new(), positives: vec![0; BINS], negatives: vec![0; BINS] }
    }

    /// Adds a sample, forgetting the oldest beyond the window.
    pub(crate) fn add(&mut self, label: f32, logit: f32) {
        let probability = 1.0 / (1.0 + (-logit).exp());
        // A NaN casts to bin 0; the step that made one ends the run anyway.
        let bin = ((probability * BINS as f32) as usize).min(BINS - 1);
        let positive = label > 0.5;
        self.class(positive)[bin] += 1;
        self.recent.push_back((bin as u16, positive));
        if self.recent.len() > self.window
            && let Some((bin, positive)) = self.recent.pop_front()
        {
            self.class(positive)[usize::from(bin)] -= 1;
        }
    }

    /// The AUC; `None` until both classes were seen.
    pub(crate) fn auc(&self) -> Option<f64> {
        let (mut below, mut won, mut positives) = (0_u64, 0_u64, 0_u64);
        for bin in 0..BINS {
            let (here, others) = (u64::from(self.positives[bin]), u64::from(self.negatives[bin]));
            // A pair in order counts two, a tie one.
            won += here * (2 * below + others);
            below += others;
            positives += here;
        }
        let pairs = positives * below;
        (pairs > 0).then(|| won as f64 / (2 * pairs) as f64)
    }

    fn class(&mut self, positive: bool) -> &mut [u32] {
        if positive { &mut self.positives } else { &mut self.negatives }
    }
}

/// Samples per second over the last seconds, pauses left out.
#[derive(Clone, Debug)]
pub(crate) struct Speed {
    window: Duration,
    marks: VecDeque<(Instant, u64)>,
}

impl Speed {
    /// Over this long.
    pub(crate) fn over(window: Duration) -> Self {
        Self { window, marks: VecDeque::new() }
    }

    /// `samples` is the count so far.
    pub(crate) fn add(&mut self, now: Instant, samples: u64) {
        self.marks.push_back((now, samples));
        while self.marks.len() > 2 && now.duration_since(self.marks[0].0) > self.window {
            self.marks.pop_front();
        }
    }

    /// What follows was no training: measure afresh.
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
        let mut smoothed = Smoothed::over(100.0);
        assert_eq!(smoothed.mean(), 0.0);
        for _ in 0..300 {
            smoothed.add(0.7);
            assert!((smoothed.mean() - 0.7).abs() < 1e-12);
        }
        smoothed.add(1.7);
        assert!((smoothed.mean() - 0.71).abs() < 1e-3, "{}", smoothed.mean());
    }

    proptest! {
        /// Logits in steps that are wider than a bin, so that the two agree.
        #[test]
        fn recent_auc_is_the_exact_one_of_the_window(
            samples in prop::collection::vec((any::<bool>(), -16_i8..16), 1..300), window in 1_usize..400,
        ) {
            let mut recent = RecentAuc::over(window);
            let mut exact = zagros_eval::Scores::new();
            let samples: Vec<(f32, f32)> =
                samples.iter().map(|(label, step)| (f32::from(u8::from(*label)), f32::from(*step) / 4.0)).collect();
            samples.iter().for_each(|(label, logit)| recent.add(*label, *logit));
            samples.iter().rev().take(window).for_each(|(label, logit)| exact.push(*label, *logit));
            match (recent.auc(), exact.auc()) {
                (Some(recent), Some(exact)) => prop_assert!((recent - exact).abs() < 1e-12, "{recent} {exact}"),
                (recent, exact) => prop_assert_eq!(recent, exact),
            }
        }
    }

    #[test]
    fn extreme_logits_have_a_bin() {
        let mut recent = RecentAuc::over(10);
        recent.add(1.0, f32::INFINITY);
        recent.add(0.0, f32::NEG_INFINITY);
        recent.add(0.0, f32::NAN);
        assert_eq!(recent.auc(), Some(1.0));
    }

    #[test]
    fn speed_forgets_what_was_long_ago_and_pauses() {
        let start = Instant::now();
        let mut speed = Speed::over(Duration::from_secs(5));
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
