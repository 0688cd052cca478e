//! A logistic regression that learns each batch after the network, to compare the network with.
//!
//! A run has one that one worker makes from the beginning: one of several sees a share of the rows, and one that goes on from a
//! checkpoint has not seen the rows before it. It learns in the first epoch, and draws no random number.

use zagros_eval::{ClickScores, LinearInput, LogisticRegression};
use zagros_ingest::Batch;
use zagros_job::Job;

use super::HeldOutParts;

/// A logistic regression over the features of a job, of its first label.
#[derive(Debug, Default)]
pub(crate) struct LogisticBaseline {
    model: LogisticRegression,
    /// Of one sample, used again for each.
    inputs: Vec<LinearInput>,
}

impl LogisticBaseline {
    /// `None` where nothing is scored, the label is no click, or the run is made by several workers.
    pub(crate) fn from_job(job: &Job, held_out: &HeldOutParts) -> Option<Self> {
        let is_scored = held_out.during.is_some() || held_out.at_end.is_some();
        let may_learn = is_scored && job.features.main_target().is_click() && !job.cluster.has_groups();
        may_learn.then(Self::default)
    }

    pub(crate) fn learn_batch(&mut self, batch: &Batch) {
        for (sample, label) in first_labels(batch) {
            gather_inputs(batch, sample, &mut self.inputs);
            let share = batch.weights.get(sample).copied().unwrap_or(1.0);
            self.model.learn_row(&self.inputs, label > 0.5, share);
        }
    }

    pub(crate) fn score_batch(&self, batch: &Batch, scores: &mut ClickScores) {
        let mut inputs = Vec::new();
        for (sample, label) in first_labels(batch) {
            gather_inputs(batch, sample, &mut inputs);
            scores.push(label, self.model.score_row(&inputs));
        }
    }
}

/// Samples that have a label of the first target, each with it.
fn first_labels(batch: &Batch) -> impl Iterator<Item = (usize, f32)> {
    let targets = batch.labels.len().checked_div(batch.size).unwrap_or(1).max(1);
    batch.labels.iter().copied().step_by(targets).enumerate().filter(|(_, label)| !label.is_nan())
}

fn gather_inputs(batch: &Batch, sample: usize, inputs: &mut Vec<LinearInput>) {
    inputs.clear();
    inputs.push(LinearInput::BIAS);
    let width = batch.numeric.len().checked_div(batch.size).unwrap_or(0);
    let numbers = batch.numeric.iter().skip(sample * width).take(width).enumerate();
    inputs.extend(numbers.map(|(feature, number)| LinearInput::from_number(feature, *number)));
    for (feature, column) in batch.categorical.iter().enumerate() {
        let ids = column.sample_ids(sample);
        inputs.extend(ids.iter().map(|id| LinearInput::from_category(feature, *id, ids.len())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::batch;

    #[test]
    fn the_first_label_is_learned_and_a_row_without_it_is_skipped() {
        let (mut baseline, mut scores) = (LogisticBaseline::default(), ClickScores::new());
        let mut rows = batch(4, &[&[1, 2, 1, 2], &[7, 7, 7, 7]]);
        // Two labels a row; the third row has none of the first.
        rows.labels = vec![1.0, 0.0, 0.0, 1.0, f32::NAN, 0.0, 0.0, 1.0];
        (0..50).for_each(|_| baseline.learn_batch(&rows));
        baseline.score_batch(&rows, &mut scores);
        let found = scores.compute_measures();
        assert_eq!((found.samples, found.auc), (3, Some(1.0)));
        assert!(found.logloss.unwrap() < 0.3, "{found:?}");
    }
}
