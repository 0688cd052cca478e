//! Whether training still makes sense, by its loss and by the order of its labels.
//!
//! # The loss
//!
//! A network that knows nothing but the share of clicks has the entropy of that share as its logloss, and one that
//! says one half to everything has ln 2 = 0.69: never less. So a loss far above ln 2 is worse than knowing nothing, whatever
//! the data. How healthy runs start has to be allowed for: first weights, warm-up and a few bad batches may cost more.
//! So not one loss counts, but most of the last [`WINDOW`] steps, and the first [`WINDOW`] steps of a process not at all:
//!
//! | most of the last steps are above | then |
//! |---|---|
//! | 2 ln 2 = 1.4 | a warning, once |
//! | 10 ln 2 = 6.9 | training has diverged: it ends |
//!
//! At its end, a run is judged by the model that it leaves. A loss that rose out of all bounds and fell again may have taken what the
//! network knew: then the model does no better than the share of clicks alone, which a finite loss does not show. That is said.
//!
//! With several targets or several classes the loss of knowing nothing is another than ln 2; a regression has none, so only a
//! loss that is not finite counts.
//!
//! A loss of 6.9 says that the network gives what happened a chance of one in a thousand, on average.
//!
//! # The labels
//!
//! They may come in runs, as they do in a file that is sorted by label or written in turns. A model that sees one label for
//! thousands of rows forgets the other. The measure is the runs test of Wald & Wolfowitz (1940): n rows of which p have the
//! label 1 and q the label 0 are expected to make 1 + 2·p·q / n runs of equal labels when their order is random. Rows are
//! counted in the order in which training meets them, behind the shuffle window.

use std::collections::VecDeque;

use zagros_eval::Evaluation;
use zagros_job::Job;

use super::{MainTarget, loss_of_ignorance};

const WINDOW: usize = 100;
/// Fewest steps that say something about a run that ends early.
const FEWEST: usize = 10;
/// From so many times the loss of knowing nothing on, training gets worse than that.
const HIGH: f64 = 2.0;
/// From so many times it on, nothing is left to train.
const SENSELESS: f64 = 10.0;
/// The logloss of a model that knows nothing but the share of clicks is that of the share alone, or less by rounding.
const NOTHING_KNOWN: f64 = 0.9999;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LossSense {
    /// It trains, or it is too early to tell.
    Fine,
    /// Its loss is above that of a network that knows nothing.
    Doubtful,
    /// It has diverged.
    None,
}

impl LossSense {
    pub(super) fn from_loss(loss: f64, ignorance: f64) -> Self {
        match loss / ignorance {
            // The step that makes such a loss ends the run itself.
            _ if !loss.is_finite() => Self::None,
            times if times > SENSELESS => Self::None,
            times if times > HIGH => Self::Doubtful,
            _ => Self::Fine,
        }
    }
}

/// Whether a model knows no more than the share of positives, which alone has this logloss on the same rows.
pub(super) fn knows_nothing(measured: &Evaluation, prevalence_logloss: Option<f64>) -> bool {
    let share =
        measured.logloss.and_then(|logloss| Some(logloss / prevalence_logloss?)).or(measured.normalised_entropy);
    share.is_some_and(|share| share >= NOTHING_KNOWN) || measured.auc.is_some_and(|auc| auc <= 0.5)
}

#[derive(Clone, Debug)]
pub(crate) struct DivergenceWatch {
    /// The loss of a network that knows nothing.
    pub(super) ignorance: f64,
    steps: usize,
    pub(super) highest: f64,
    recent: VecDeque<LossSense>,
    pub(super) warned: bool,
}

impl DivergenceWatch {
    pub(crate) fn new(ignorance: f64) -> Self {
        Self { ignorance, steps: 0, highest: 0.0, recent: VecDeque::new(), warned: false }
    }

    /// Takes the loss of a step into account; answers what most of the last steps say.
    pub(crate) fn note_loss(&mut self, loss: f64) -> LossSense {
        self.steps += 1;
        self.highest = self.highest.max(loss);
        self.recent.push_back(LossSense::from_loss(loss, self.ignorance));
        if self.recent.len() > WINDOW {
            self.recent.pop_front();
        }
        if self.steps < 2 * WINDOW { LossSense::Fine } else { self.of_most() }
    }

    /// What most of the last steps of a run that is over say, however few they are.
    pub(crate) fn at_end(&self) -> LossSense {
        if self.recent.len() < FEWEST { LossSense::Fine } else { self.of_most() }
    }

    /// Whether the measures of its training rows say what a run that is over has learned. A short one may just not have learned yet when it
    /// scored most of them, unless the loss of a step was senseless.
    pub(super) fn is_long(&self) -> bool {
        self.steps >= 2 * WINDOW || LossSense::from_loss(self.highest, self.ignorance) == LossSense::None
    }

    fn of_most(&self) -> LossSense {
        let are_most = |least| 2 * self.recent.iter().filter(|sense| **sense >= least).count() > self.recent.len();
        [LossSense::None, LossSense::Doubtful].into_iter().find(|sense| are_most(*sense)).unwrap_or(LossSense::Fine)
    }
}

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

impl LabelRuns {
    /// Counts the labels of a batch: whether each is positive. Answers once, in words, with the first batch after which there are far
    /// too few runs.
    pub(crate) fn add(&mut self, labels: impl Iterator<Item = bool>) -> Option<String> {
        for is_positive in labels {
            self.rows += 1;
            self.positives += u64::from(is_positive);
            self.runs += u64::from(self.last != Some(is_positive));
            self.last = Some(is_positive);
        }
        let expected = self.expected();
        let is_long = !self.is_reported && expected >= ENOUGH && self.runs * TOO_FEW < expected;
        self.is_reported |= is_long;
        let Self { rows, runs, .. } = self;
        is_long.then(|| {
            format!(
                "the labels of {rows} training rows come in {runs} runs of equal labels where about {expected} are expected of \
                 shuffled rows: the model may forget one label while it learns the other; raise data.shuffle_rows, or shuffle \
                 the training files"
            )
        })
    }

    fn expected(&self) -> u64 {
        let negatives = u128::from(self.rows - self.positives);
        let pairs = 2 * u128::from(self.positives) * negatives;
        1 + u64::try_from(pairs / u128::from(self.rows.max(1))).unwrap_or(u64::MAX)
    }
}

/// Whether the loss and the labels still make sense.
#[derive(Debug)]
pub(crate) struct LossWatch {
    pub(crate) main: MainTarget,
    /// The loss of the last step; in a group, of all ranks.
    pub(crate) last: f64,
    pub(crate) divergence: DivergenceWatch,
    /// Runs of equal labels in the rows that this worker trains on.
    pub(crate) label_runs: LabelRuns,
}

impl LossWatch {
    pub(crate) fn new(job: &Job) -> Self {
        let divergence = DivergenceWatch::new(loss_of_ignorance(&job.features.targets));
        Self { main: MainTarget::new(job), last: 0.0, divergence, label_runs: LabelRuns::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::LN_2;

    use proptest::prelude::*;
    use zagros_zip::number_from;

    use super::*;

    /// What it says last, and the first step at which it says anything but fine.
    fn follow(losses: impl IntoIterator<Item = f64>) -> (LossSense, Option<usize>) {
        let mut divergence = DivergenceWatch::new(LN_2);
        let mut first = None;
        let mut last = LossSense::Fine;
        for (step, loss) in number_from(1, losses) {
            last = divergence.note_loss(loss);
            first = first.or((last != LossSense::Fine).then_some(step));
        }
        (last, first)
    }

    #[test]
    fn a_loss_that_stays_far_above_ignorance_is_reported_and_then_ends_training() {
        assert_eq!(follow([251.0; 300]), (LossSense::None, Some(200)));
        assert_eq!(follow([3.0; 300]), (LossSense::Doubtful, Some(200)));
        assert_eq!(follow([f64::INFINITY; 300]).0, LossSense::None);
        // It trained well for a while.
        let late = (0..1000).map(|step| if step < 700 { 0.4 } else { 50.0 });
        assert_eq!(follow(late), (LossSense::None, Some(751)));
    }

    #[test]
    fn a_regression_may_have_any_finite_loss() {
        let mut divergence = DivergenceWatch::new(f64::INFINITY);
        assert!((0..300).all(|_| divergence.note_loss(1e9) == LossSense::Fine));
        assert_eq!(LossSense::from_loss(f64::NAN, f64::INFINITY), LossSense::None);
        let expected = [LossSense::Fine, LossSense::Doubtful, LossSense::None];
        assert_eq!([2.0, 2.1, 10.1].map(|times| LossSense::from_loss(times, 1.0)), expected);
    }

    #[test]
    fn healthy_runs_give_no_alarm() {
        // Few clicks: the base rate alone has a logloss of 0.008, and the first weights 0.69.
        let rare = (0..5000).map(|step| 0.008 + 0.69 * (-f64::from(step) / 2000.0).exp());
        assert_eq!(follow(rare), (LossSense::Fine, None));
        // An overshoot in the first steps.
        let overshoot = (0..500).map(|step| if step < 90 { 40.0 } else { 0.5 });
        assert_eq!(follow(overshoot), (LossSense::Fine, None));
        // Single bad batches, however bad.
        let spikes = (0..2000).map(|step| if step % 10 == 0 { 1e6 } else { 0.5 });
        assert_eq!(follow(spikes), (LossSense::Fine, None));
        assert_eq!(follow([LN_2 * 1.5; 1000]), (LossSense::Fine, None));
    }

    /// A loss of 10^17 in the first steps left a network that gives the same answer to everything.
    #[test]
    fn a_model_that_knows_nothing_is_noticed_at_the_end() {
        let is_long = |steps: usize, highest: f64| {
            let mut divergence = DivergenceWatch::new(LN_2);
            for step in 0..steps {
                assert_eq!(divergence.note_loss(if step < 20 { highest } else { 0.55 }), LossSense::Fine);
            }
            assert_eq!(divergence.at_end(), LossSense::Fine);
            divergence.is_long()
        };
        assert!(is_long(708, 2.5e17) && is_long(60, 2.5e17) && is_long(300, 0.7) && !is_long(60, 0.7));
        let known = |auc, logloss, entropy, prevalence| {
            let (logloss, normalised_entropy) = (Some(logloss), Some(entropy));
            !knows_nothing(
                &Evaluation { auc: Some(auc), logloss, normalised_entropy, ..Evaluation::default() },
                prevalence,
            )
        };
        assert!(known(0.6, 0.5, 0.9, Some(0.55)) && known(0.6, 0.5, 0.9, None));
        // The share of the training rows may be another one than that of these rows.
        assert!(known(0.6, 0.5, 1.01, Some(0.55)) && !known(0.6, 0.55, 0.9, Some(0.55)));
        assert!(!known(0.6, 0.5, 0.99999, None) && !known(0.5, 0.5, 0.9, Some(0.55)));
        assert!(!knows_nothing(&Evaluation::default(), Some(0.55)), "nothing was measured");
    }

    #[test]
    fn a_short_run_is_judged_at_its_end() {
        for (steps, loss, expected) in
            [(30, 251.0, LossSense::None), (9, 251.0, LossSense::Fine), (30, 0.5, LossSense::Fine)]
        {
            let mut divergence = DivergenceWatch::new(LN_2);
            assert!((0..steps).all(|_| divergence.note_loss(loss) == LossSense::Fine));
            assert_eq!(divergence.at_end(), expected);
        }
    }

    fn reports(labels: impl Iterator<Item = bool>) -> Vec<String> {
        let labels: Vec<bool> = labels.collect();
        let mut runs = LabelRuns::default();
        labels.chunks(256).filter_map(|batch| runs.add(batch.iter().copied())).collect()
    }

    #[test]
    fn sorted_labels_are_reported_once_soon_after_the_first_change() {
        let found = reports((0..40_000).map(|row| row >= 20_000));
        let start = "the labels of 20224 training rows come in 2 runs of equal labels where about 444 are expected";
        assert!(found.len() == 1 && found[0].starts_with(start), "{found:?}");
        // Labels in turns of a thousand.
        assert_eq!(reports((0..40_000).map(|row| row / 1_000 % 2 == 0)).len(), 1);
    }

    #[test]
    fn rare_positives_and_groups_of_ten_are_nothing_to_report() {
        assert!(reports((0..200_000).map(|row| row % 1_000 == 7)).is_empty());
        let of_group = |row: u64| (row / 5).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0;
        assert!(reports((0..200_000).map(of_group)).is_empty());
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
